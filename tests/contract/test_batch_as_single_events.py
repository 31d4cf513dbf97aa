"""Each event of a batch has its own creation's outcome (contract, section 5, create_batch)."""

# Contract: 5.batch outcomes

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidEventError, WorldError
from redis_world.models import BatchItemResult, EventResult
from redis_world.testing import ManualClock
from support import events as e
from support.backends import Backend

pytestmark = pytest.mark.large

Clocked = tuple[RedisWorld, ManualClock]

FAR: Final = datetime(2100, 1, 1, tzinfo=UTC)

PATHS: Final[dict[str, list[e.Wire]]] = {
    "nothing": [],
    "a pending step": [e.step_created()],
    "a step that is too early": [e.lazy_start(), e.step_retrying(retryAfter=FAR)],
    "a running step": [e.lazy_start()],
    "a completed step": [e.lazy_start(), e.step_completed()],
    "a failed step": [e.lazy_start(), e.step_failed()],
    "a wait": [e.wait_created()],
    "a completed wait": [e.wait_created(), e.wait_completed()],
}
"""What has happened in the run before."""

EVENTS: Final[list[e.Wire]] = [
    e.step_created(),
    e.step_started(),
    e.step_completed(),
    e.step_failed(),
    e.step_retrying(),
    e.step_retrying(retryAfter=FAR),
    e.wait_created(),
    e.wait_completed(),
    e.run_ended("completed"),
    e.run_ended("failed"),
    e.event("step_created", "step_1"),
    {**e.step_created("step_2"), "specVersion": 8},
]


def told(outcome: EventResult | WorldError | BatchItemResult, run_id: str) -> dict[str, Any]:
    """An outcome as a batch tells it, with the id of its run left out."""
    if isinstance(outcome, WorldError):
        wire: dict[str, Any] = {
            "status": outcome.status,
            "error": outcome.code,
            "message": str(outcome),
        }
    else:
        wire = {"status": 200, **outcome.to_wire()}
        wire.pop("stepCreated", None)  # a batch has no lazy starts, and no need of it
    return {name: repr(value).replace(run_id, "the run") for name, value in wire.items()}


async def single(world: RedisWorld, run_id: str, wire: e.Wire) -> dict[str, Any]:
    outcome = await e.attempt(world, run_id, wire)
    assert isinstance(outcome, EventResult | WorldError), outcome
    return told(outcome, run_id)


async def batched(world: RedisWorld, run_id: str, wire: e.Wire) -> dict[str, Any]:
    (result,) = (await world.events.create_batch(run_id, [wire])).results
    return told(result, run_id)


async def prepared(world: RedisWorld, path: list[e.Wire], status: str) -> str:
    run_id = await e.new_run(world)
    for wire in path:
        await world.events.create(run_id, wire)
    if status != "running":
        await world.events.create(run_id, e.run_ended(status))
    return run_id


@pytest.mark.large
@pytest.mark.parametrize("status", ["running", *e.TERMINAL])
@pytest.mark.parametrize("path", PATHS)
async def test_in_every_state_the_outcomes_are_equal(
    clocked: Clocked, path: str, status: str
) -> None:
    world, clock = clocked
    for wire in EVENTS:
        twins = [await prepared(world, PATHS[path], status) for _ in range(2)]
        await clock.advance(1)
        one = await single(world, twins[0], wire)
        assert await batched(world, twins[1], wire) == one, wire
        logs = [await e.log(world, run_id) for run_id in twins]
        assert [told_log(log) for log in logs[1:]] == [told_log(logs[0])], wire


def told_log(log: list[Any]) -> list[str]:
    return [repr({**event.to_wire(), "runId": ""}) for event in log]


async def test_without_a_run_and_on_one_that_is_not_ours(world: RedisWorld) -> None:
    missing = e.new_run_id()
    newer = await e.new_run(world)
    await e.write(world, newer, e.lazy_start())
    keys = world.connection.partitions.of(newer).of_run(newer)
    await world.connection.execute(("HSET", keys.run, "spec_version", "8"))
    for run_id in (missing, newer):
        for wire in EVENTS:
            if run_id == newer and wire["eventType"] in ("step_completed", "step_retrying"):
                continue  # these do not look at the version, so that they would be stored
            one = await single(world, run_id, wire)
            assert int(one["status"]) in (400, 404), wire
            assert await batched(world, run_id, wire) == one, wire


# Contract: 5.batch refusals
@pytest.mark.parametrize(
    "batch",
    [
        [e.step_started("a", input=b"in")],
        [e.step_started("a", input=None)],
        [e.step_created("a"), e.step_started("a", input=b"")],
        [e.step_created("a"), e.step_created("b"), e.step_started("b", stepName="s", input="")],
    ],
    ids=["alone", "None", "of a pair", "of a later pair"],
)
async def test_an_input_of_a_start_refuses_the_whole_batch(
    world: RedisWorld, backend: Backend, batch: list[e.Wire]
) -> None:
    run_id = await e.new_run(world)
    before = backend.dump()
    with pytest.raises(InvalidEventError):
        await world.events.create_batch(run_id, batch)
    assert backend.dump() == before


# Contract: 5.batch outcomes, 4.too early
async def test_a_step_that_is_too_early_is_425(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    soon = clock.now + timedelta(seconds=2)
    await e.write(world, run_id, e.lazy_start(), e.step_retrying(retryAfter=soon))
    batch = [e.step_started(), e.step_created("other")]
    found = (await world.events.create_batch(run_id, batch)).results
    assert [each.status for each in found] == [425, 200]
    assert (await world.steps.get(run_id, "step_1")).attempt == 1
    await clock.set(soon)
    found = (await world.events.create_batch(run_id, batch[:1])).results
    assert [each.status for each in found] == [200]
