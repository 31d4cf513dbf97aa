"""Several events in one script (contract, section 5, create_batch)."""

# Contract: 5.create_batch

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidEventError, InvalidInputError, WorldError
from redis_world.models import (
    BatchEvent,
    BatchItemResult,
    StepCompletedData,
    StepCompletedEvent,
)
from redis_world.queue import Enqueue
from redis_world.testing import check_invariants
from support import events as e
from support.backends import Backend
from support.folding import assert_log_folds
from support.monitor import monitor
from support.queue_tools import owed, wake

TOPIC: Final = "__wkf_workflow_"
NAME: Final = f"{TOPIC}orders"
COMPLETED: Final = e.event("run_completed", output=b"out")


def pair(step_id: str) -> list[e.Wire]:
    """A step that is born running."""
    return [e.step_created(step_id), e.step_started(step_id)]


def told(result: BatchItemResult) -> tuple[int, str | None]:
    return result.status, result.error


# -- what is accepted ----------------------------------------------------------------------


async def test_events_lie_at_consecutive_slots(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    batch = [*pair("a"), e.step_created("b"), e.wait_created("w"), *pair("c")]
    found = (await world.events.create_batch(run_id, batch)).results
    assert [told(each) for each in found] == [(200, None)] * len(batch)
    events = [each.event for each in found]
    assert [each.event_id for each in events if each] == [e.event_id(n) for n in range(3, 9)]
    assert events == (await world.events.list(run_id)).data[2:]
    assert found[1].step == await world.steps.get(run_id, "a")
    assert found[3].wait == await world.waits.get(run_id, "w")
    assert [step.status for step in (await world.steps.list(run_id)).data] == [
        "running",
        "pending",
        "running",
    ]
    await assert_log_folds(world, run_id)
    await check_invariants(world)


async def test_every_type_that_may_be_in_it(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    names = ("done", "failed", "again", "bare")
    await e.write(world, run_id, *(event for name in names[:3] for event in pair(name)))
    await e.write(world, run_id, e.step_created("bare"), e.wait_created("w"))
    batch = [
        e.step_completed("done"),
        e.step_failed("failed"),
        e.step_retrying("again", retryAfter=datetime(2040, 1, 1, tzinfo=UTC)),
        e.step_started("bare"),
        e.wait_completed("w"),
        e.wait_created("v"),
        e.event("run_failed", error=b"err", errorCode="E1"),
    ]
    found = (await world.events.create_batch(run_id, batch)).results
    assert [told(each) for each in found] == [(200, None)] * len(batch)
    run = found[-1].run
    assert run is not None
    assert (run.status, run.error, run.error_code) == ("failed", b"err", "E1")
    assert run == await world.runs.get(run_id)
    assert found[-1].max_events == world.config.max_events_per_run
    steps = {step.step_id: step for step in (await world.steps.list(run_id)).data}
    assert [steps[name].status for name in names] == ["completed", "failed", "pending", "running"]
    assert steps["again"].retry_after == datetime(2040, 1, 1, tzinfo=UTC)
    assert [found[place].step for place in range(4)] == [steps[name] for name in names]
    await assert_log_folds(world, run_id)
    await check_invariants(world)


# Contract: 5.batch outcomes
async def test_survivors_commit_and_the_rejected_leave_nothing(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, *pair("old"), e.step_completed("old"), e.wait_created("w"))
    before = len(await e.log(world, run_id))
    batch = [
        e.step_completed("old"),
        *pair("new"),
        e.step_started("unknown"),
        e.wait_created("w"),
        e.wait_completed("v"),
        e.step_created("other"),
    ]
    found = (await world.events.create_batch(run_id, batch)).results
    assert [told(each) for each in found] == [
        (409, "conflict"),
        (200, None),
        (200, None),
        (404, "WorkflowWorldError"),
        (409, "conflict"),
        (404, "WorkflowWorldError"),
        (200, None),
    ]
    assert found[3].message == 'Step "unknown" not found'
    assert not any(each.event or each.step or each.wait for each in found if each.error)
    assert (await e.log_types(world, run_id))[before:] == [
        "step_created",
        "step_started",
        "step_created",
    ]
    await check_invariants(world)


# Contract: 5.batch outcomes
async def test_items_are_judged_in_order(world: RedisWorld) -> None:
    """What stands behind the end of the run meets a finished run."""
    run_id = await e.new_run(world)
    await e.write(world, run_id, *pair("running"), e.step_created("waiting"), e.wait_created("w"))
    batch = [
        e.step_created("in time"),
        COMPLETED,
        e.step_created("late"),
        e.step_completed("running"),
        e.step_started("waiting"),
        e.wait_completed("w"),
    ]
    found = (await world.events.create_batch(run_id, batch)).results
    assert [told(each) for each in found] == [
        (200, None),
        (200, None),
        (409, "conflict"),
        (200, None),
        (410, "run-expired"),
        (404, "WorkflowWorldError"),
    ]
    assert (await world.runs.get(run_id)).status == "completed"
    await check_invariants(world)


# Contract: 5.batch outcomes
async def test_a_batch_that_is_refused_altogether_stores_nothing(
    world: RedisWorld, backend: Backend
) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created("a"))
    before = backend.dump()
    message = Enqueue(NAME, wake(run_id))
    found = await world.events.create_batch(
        run_id, [*pair("a"), e.step_completed("b")], enqueue=message
    )
    assert [told(each)[0] for each in found.results] == [409, 409, 404]
    assert found.message_id is None
    missing = await world.events.create_batch(
        e.new_run_id(), [e.step_created("a"), e.step_completed("b"), COMPLETED]
    )
    assert [told(each)[0] for each in missing.results] == [404, 404, 404]
    assert backend.dump() == before


# Contract: 5.create_batch, 5.event ceiling
async def test_the_ceiling_counts_inside_of_a_batch(backend: Backend) -> None:
    async with backend.world(max_events_per_run=5) as world:
        run_id = await e.new_run(world)
        batch = [*pair("a"), e.step_created("b"), e.step_created("c"), e.step_completed("d")]
        found = (await world.events.create_batch(run_id, [*batch, COMPLETED])).results
        assert [each.status for each in found] == [200, 200, 200, 400, 404, 200]
        await check_invariants(world)


# -- born running --------------------------------------------------------------------------


# Contract: 5.born running
@pytest.mark.parametrize("state", ["pending", "running", "completed"])
async def test_a_pair_is_one_claim(world: RedisWorld, state: str) -> None:
    """Where the step exists both are refused, and it is untouched."""
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created("a"))
    if state != "pending":
        await e.write(world, run_id, e.step_started("a"))
    if state == "completed":
        await e.write(world, run_id, e.step_completed("a"))
    before = await world.steps.get(run_id, "a")
    found = (await world.events.create_batch(run_id, pair("a"))).results
    assert [told(each) for each in found] == [(409, "conflict")] * 2
    assert await world.steps.get(run_id, "a") == before


# Contract: 5.born running, 1.rivals
@pytest.mark.parametrize(
    "creation",
    [
        e.event("step_created", "a"),
        e.step_created("a") | {"specVersion": 8},
        e.step_created("a", input=b"x" * 2000),
    ],
    ids=["no data", "a newer version", "too large"],
)
async def test_a_pair_whose_creation_is_wrong_starts_nothing(
    backend: Backend, creation: e.Wire
) -> None:
    async with backend.world(max_payload_bytes=1000) as world:
        run_id = await e.new_run(world)
        batch = [creation, e.step_started("a")]
        found = (await world.events.create_batch(run_id, batch)).results
        assert [each.status for each in found] == [400, 404]
        await e.write(world, run_id, e.step_created("a"))
        before = await world.steps.get(run_id, "a")
        found = (await world.events.create_batch(run_id, batch)).results
        assert [each.status for each in found] == [400, 409]
        assert await world.steps.get(run_id, "a") == before


async def test_a_pair_of_a_step_that_an_ended_run_has(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, *pair("a"), COMPLETED)
    found = (await world.events.create_batch(run_id, pair("a"))).results
    assert [told(each) for each in found] == [(409, "conflict")] * 2


async def test_of_rivals_for_a_pair_one_wins(backend: Backend) -> None:
    namespace = backend.namespace()
    async with (
        backend.world(namespace=namespace) as one,
        backend.world(namespace=namespace) as other,
    ):
        run_id = await e.new_run(one)
        found = await asyncio.gather(
            *(
                world.events.create_batch(run_id, [*pair("a"), *pair("b")])
                for world in (one, other) * 5
            )
        )
        statuses = [tuple(each.status for each in batch.results) for batch in found]
        assert sorted(statuses) == [(200,) * 4] + [(409,) * 4] * 9
        assert [step.attempt for step in (await one.steps.list(run_id)).data] == [1, 1]
        await check_invariants(one)


# Contract: 5.born running
async def test_a_pair_that_never_began_is_two_events(world: RedisWorld) -> None:
    """Refused for another reason than the step, each has the error of its own creation."""
    run_id = await e.new_run(world, "completed")
    found = (await world.events.create_batch(run_id, pair("a"))).results
    assert [told(each) for each in found] == [(409, "conflict"), (410, "run-expired")]


# Contract: 5.born running
async def test_other_events_may_lie_between_a_pair(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    batch = [e.step_created("a"), e.step_created("b"), e.step_started("a"), e.step_started("b")]
    found = (await world.events.create_batch(run_id, batch)).results
    assert [each.status for each in found] == [200] * 4


# -- what it is made of --------------------------------------------------------------------


# Contract: 5.create_batch, 5.occurred_at
async def test_each_event_may_have_its_own_time(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    batch: list[Any] = [
        BatchEvent(event=e.step_created("a"), occurred_at=moment),
        {"event": e.step_started("a"), "occurredAt": moment + timedelta(seconds=1)},
        e.step_created("b"),
        StepCompletedEvent(correlation_id="b", event_data=StepCompletedData(result=b"")),
    ]
    found = (await world.events.create_batch(run_id, batch[:3])).results
    assert [each.event and each.event.occurred_at for each in found] == [
        moment,
        moment + timedelta(seconds=1),
        None,
    ]
    found = (await world.events.create_batch(run_id, batch[3:])).results
    assert [each.status for each in found] == [200]


# Contract: 5.create_batch, 3.payloads
async def test_payloads_come_back_byte_by_byte(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    batch = [
        e.step_created(name, input=payload, unknown=[1, {"k": b"\x00"}])
        for name, payload in e.PAYLOADS.items()
    ]
    found = (await world.events.create_batch(run_id, batch)).results
    for result, (name, payload) in zip(found, e.PAYLOADS.items(), strict=True):
        step = await world.steps.get(run_id, name)
        assert result.step == step
        assert (type(step.input), step.input) == (type(payload), payload)
    bare = (
        await world.events.create_batch(run_id, [e.step_created("x")], resolve_data="none")
    ).results[0]
    assert bare.step is not None
    assert "input" not in bare.step.model_fields_set


# Contract: 5.batch outcomes
async def test_an_event_that_is_wrong_by_itself_is_refused_by_itself(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    batch = [
        e.event("step_created", "a"),
        e.step_created("b"),
        e.step_created("c") | {"specVersion": 8},
        e.step_created("d", input=b"x" * (world.config.max_payload_bytes + 1)),
        e.step_started("b"),
    ]
    found = (await world.events.create_batch(run_id, batch)).results
    assert [each.status for each in found] == [400, 200, 400, 400, 200]
    assert [step.step_id for step in (await world.steps.list(run_id)).data] == ["b"]


REFUSED: Final[dict[str, list[Any]]] = {
    "empty": [],
    "more than 128": [e.step_created(f"s{n}") for n in range(129)],
    "run_created": [e.run_created()],
    "run_started": [e.event("run_started")],
    "run_cancelled": [e.event("run_cancelled")],
    "hook_created": [e.hook_created()],
    "hook_received": [e.hook_received()],
    "hook_disposed": [e.hook_disposed()],
    "attr_set": [e.attr_set({"a": "b"})],
    "hook_conflict": [e.event("hook_conflict", "h")],
    "an unknown type": [e.event("run_paused")],
    "no event": [7],
    "a bad time": [{"event": e.step_created(), "occurredAt": 7}],
    "a lazy start": [e.lazy_start()],
    "two ends of a run": [COMPLETED, e.event("run_failed", error=b"")],
    "two events of a step": [e.step_started("a"), e.step_completed("a")],
    "a pair the wrong way round": [e.step_started("a"), e.step_created("a")],
    "three events of a step": [*pair("a"), e.step_completed("a")],
    "two creations": [e.step_created("a"), e.step_created("a")],
    "two events of a wait": [e.wait_created("w"), e.wait_completed("w")],
}


# Contract: 5.batch refusals
@pytest.mark.parametrize("name", REFUSED)
async def test_what_can_t_be_a_batch(world: RedisWorld, backend: Backend, name: str) -> None:
    """Whether or not the run exists; and nothing of it is stored."""
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created("a"))
    before = backend.dump()
    for place in (run_id, e.new_run_id()):
        for batch in (REFUSED[name], [e.step_created("good"), *REFUSED[name]]):
            if batch == [e.step_created("good")]:
                continue
            with pytest.raises(InvalidEventError):
                await world.events.create_batch(place, batch)
    assert backend.dump() == before


async def test_a_step_and_a_wait_may_have_one_id(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    found = (
        await world.events.create_batch(run_id, [*pair("same"), e.wait_created("same")])
    ).results
    assert [each.status for each in found] == [200] * 3


async def test_the_largest_batch(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    batch = [event for number in range(64) for event in pair(f"s{number}")]
    found = (await world.events.create_batch(run_id, batch)).results
    assert [each.status for each in found] == [200] * 128
    await check_invariants(world)


# Contract: 5.batch refusals
@pytest.mark.parametrize(
    "options", [{"resolve_data": "some"}, {"request_id": 7}, {"enqueue": Enqueue("orders", {})}]
)
async def test_bad_parameters(world: RedisWorld, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        await world.events.create_batch(await e.new_run(world), [e.step_created()], **options)
    with pytest.raises(WorldError):
        await world.events.create_batch("", [e.step_created()])


# -- messages, round trips -----------------------------------------------------------------


async def test_it_brings_a_message_along(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, *pair("a"), *pair("b"))
    while await world.queue.claim(TOPIC, limit=100):
        pass
    found = await world.events.create_batch(
        run_id,
        [e.step_completed("a"), e.step_completed("b")],
        enqueue=Enqueue(NAME, wake(run_id)),
    )
    (message,) = await world.queue.claim(TOPIC)
    assert message.message_id == found.message_id
    assert run_id not in await owed(world, run_id)
    await check_invariants(world)


async def test_without_a_message_it_owes_one(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await world.events.create_batch(run_id, [e.step_created("a"), *pair("b")])
    await check_invariants(world)
    found = await owed(world, run_id)
    assert f"{run_id}/a" in found
    # Born running, it is the matter of the replay that runs it, as after a lazy start.
    assert f"{run_id}/b" not in found


async def test_it_is_one_round_trip(real_backend: Backend) -> None:
    async with real_backend.world() as world:
        run_id = await e.new_run(world)
        with monitor(real_backend.url) as seen:
            await world.events.create_batch(
                run_id, [*pair("a"), *pair("b")], enqueue=Enqueue(NAME, wake(run_id))
            )
            assert seen.commands() == ["EVALSHA"]
