"""No answer shows the user data of a run that asked for its deletion (contract, section 5).

The run ends in each of the ways in which it can; then every read, and every write that tells
what is stored, is asked.
"""

# Contract: 5.user data

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.models import Event, EventResult, Model
from redis_world.testing import ManualClock, check_invariants
from support import events as e

Clocked = tuple[RedisWorld, ManualClock]
ZERO: Final[dict[str, Any]] = {"attributes": {"$retention": "0"}, "allowReservedAttributes": True}
PAYLOADS: Final = {"input", "output", "result", "error", "payload", "metadata"}


async def _batched(world: RedisWorld, run_id: str) -> None:
    found = await world.events.create_batch(
        run_id, [e.step_completed("done", result=b"secret"), e.run_ended("failed")]
    )
    assert [each.status for each in found.results] == [200, 200]


async def _cancelled(world: RedisWorld, run_id: str) -> None:
    result = await world.runs.cancel_many([run_id], "no longer wanted")
    assert result.summary.cancelled == 1


async def _completed(world: RedisWorld, run_id: str) -> None:
    await e.write(world, run_id, e.event("run_completed", output=b"secret"))


ENDS: Final[dict[str, Callable[[RedisWorld, str], Awaitable[None]]]] = {
    "an event": _completed,
    "a batch": _batched,
    "cancel_many": _cancelled,
}


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest) -> Callable[[RedisWorld, str], Awaitable[None]]:
    return ENDS[request.param]


async def ended_run(clocked: Clocked, end: Callable[[RedisWorld, str], Awaitable[None]]) -> str:
    """A run with payloads in every place, a retained hook and a running step, that has ended."""
    world, clock = clocked
    run_id = await e.new_run(world, input=b"secret", **ZERO)
    until = clock.now.replace(year=clock.now.year + 1, day=1)
    await e.write(
        world,
        run_id,
        e.lazy_start("done", input=b"secret"),
        e.lazy_start("running", input=b"secret"),
        e.hook_created(metadata=b"secret", tokenRetentionUntil=until),
    )
    await world.events.create(run_id, e.hook_received(payload=b"secret"), resume_id="r")
    await end(world, run_id)
    assert (await world.runs.get(run_id)).expired_at == clock.now
    return run_id


def assert_bare(*found: Model | None) -> None:
    for each in found:
        assert each is not None
        assert b"secret" not in repr(each.to_wire()).encode()
        data = each.to_wire().get("eventData") if hasattr(each, "event_type") else each.to_wire()
        assert not PAYLOADS & set(data or {}), each


def events_of(result: EventResult) -> list[Event]:
    assert result.events
    return list(result.events)


async def test_every_read_of_the_run_and_what_is_in_it(
    clocked: Clocked, end: Callable[[RedisWorld, str], Awaitable[None]]
) -> None:
    world, _ = clocked
    run_id = await ended_run(clocked, end)
    many = await world.runs.get_many([run_id])
    status = (await world.runs.get(run_id)).status
    assert_bare(
        *many,
        *(await world.runs.list()).data,
        *(await world.runs.list(status=status, workflow_name="workflow//w")).data,
        await world.runs.wait_for_terminal(run_id, timeout=0),
        *(await world.steps.list(run_id)).data,
        await world.steps.get(run_id, "done"),
        await world.hooks.get("hook_1"),
        await world.hooks.get_by_token("token_1"),
        *(await world.hooks.list(run_id)).data,
        *(await world.hooks.list()).data,
    )
    log = (await world.events.list(run_id)).data
    assert_bare(
        *log,
        *(await world.events.list(run_id, limit=100, sort_order="desc")).data,
        *[await world.events.get(run_id, each.event_id or "") for each in log],
        *(await world.events.list_by_correlation_id(run_id, "done")).data,
        *(await world.events.list_by_correlation_id(run_id, "hook_1")).data,
    )
    await check_invariants(world)


async def test_a_repeated_resume_tells_the_first_event_without_its_payload(
    clocked: Clocked, end: Callable[[RedisWorld, str], Awaitable[None]]
) -> None:
    world, _ = clocked
    run_id = await ended_run(clocked, end)
    again = await world.events.create(
        run_id, e.hook_received(payload=b"other"), resume_id="r", preload_events=True
    )
    assert again.event is not None
    assert (again.event.event_id, again.event.resume_id) == (e.event_id(8), "r")
    assert_bare(again.event, again.run, *events_of(again))
    delta = await world.events.create(
        run_id,
        e.hook_received(payload=b"other"),
        resume_id="r",
        since_cursor=f"eid:{e.event_id(1)}",
    )
    assert_bare(delta.event, *events_of(delta))


async def test_a_late_outcome_of_a_step_tells_nothing_of_the_others(
    clocked: Clocked, end: Callable[[RedisWorld, str], Awaitable[None]]
) -> None:
    world, _ = clocked
    run_id = await ended_run(clocked, end)
    cursor = f"eid:{e.event_id(1)}"
    late = await world.events.create(
        run_id, e.step_completed("running", result=b"secret"), since_cursor=cursor
    )
    assert_bare(late.step, *events_of(late))
    assert (await world.steps.get(run_id, "running")).status == "completed"
