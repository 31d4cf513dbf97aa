"""Round trips: one event, one script, one command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import pytest_asyncio

from redis_world import RedisWorld
from redis_world.connection.sender import Sender
from support.backends import Backend
from support.events import (
    Wire,
    attempt,
    attr_set,
    event,
    event_id,
    hook_created,
    hook_disposed,
    hook_received,
    lazy_start,
    new_run,
    new_run_id,
    resilient_start,
    run_created,
    run_ended,
    step_completed,
    step_created,
    step_failed,
    step_retrying,
    step_started,
    wait_completed,
    wait_created,
    write,
)
from support.monitor import Monitor, monitor


@pytest_asyncio.fixture
async def watched(real_backend: Backend) -> AsyncIterator[tuple[RedisWorld, Monitor]]:
    """An open World on a real server, and a look at what it sends from now on."""
    async with real_backend.world() as world:
        with monitor(real_backend.url) as seen:
            yield world, seen


WRITES: dict[str, tuple[list[Wire], Wire]] = {
    "run_completed": ([], run_ended("completed")),
    "run_failed": ([], run_ended("failed")),
    "run_cancelled": ([], run_ended("cancelled")),
    "attr_set": ([], attr_set({"a": "1"}, "attr_1")),
    "step_created": ([], step_created()),
    "step_started": ([step_created()], step_started()),
    "lazy step_started": ([], lazy_start()),
    "step_completed": ([step_created(), step_started()], step_completed()),
    "step_failed": ([step_created(), step_started()], step_failed()),
    "step_retrying": ([step_created(), step_started()], step_retrying()),
    "hook_created": ([], hook_created()),
    "hook_conflict": ([hook_created("other")], hook_created()),
    "hook_received": ([hook_created()], hook_received()),
    "hook_disposed": ([hook_created()], hook_disposed()),
    "wait_created": ([], wait_created()),
    "wait_completed": ([wait_created()], wait_completed()),
}
"""What comes before an event on a running run, and the event."""


async def test_every_event_is_one_script(watched: tuple[RedisWorld, Monitor]) -> None:
    world, seen = watched
    for name, (before, wire) in WRITES.items():
        run_id = await new_run(world)
        if before:
            await write(world, run_id, *before)
        seen.commands()
        await world.events.create(run_id, wire)
        assert seen.commands() == ["EVALSHA"], name
        # The end of the run frees the token for the next one.
        await attempt(world, run_id, run_ended("completed"))


# Contract: 5.resilient start
async def test_every_start_of_a_run_is_one_script(watched: tuple[RedisWorld, Monitor]) -> None:
    world, seen = watched
    await world.events.create(None, run_created())
    assert seen.commands() == ["EVALSHA"]
    run_id = new_run_id()
    await world.events.create(run_id, run_created())
    assert seen.commands() == ["EVALSHA"]
    await world.events.create(run_id, event("run_started"), skip_preload=True)
    assert seen.commands() == ["EVALSHA"]
    await world.events.create(run_id, event("run_started"), skip_preload=True)
    assert seen.commands() == ["EVALSHA"], "of a run that runs already"
    await world.events.create(new_run_id(), resilient_start(), skip_preload=True)
    assert seen.commands() == ["EVALSHA"], "that creates its run"


# Contract: 5.nothing left behind
async def test_a_refused_event_is_one_script(watched: tuple[RedisWorld, Monitor]) -> None:
    world, seen = watched
    run_id = await new_run(world)
    await write(world, run_id, step_created())
    seen.commands()
    with pytest.raises(Exception, match="step_1"):
        await world.events.create(run_id, step_created())
    assert seen.commands() == ["EVALSHA"]


async def test_a_run_of_ten_steps_is_33_scripts(watched: tuple[RedisWorld, Monitor]) -> None:
    world, seen = watched
    result = await world.events.create(None, run_created())
    assert result.run is not None
    run_id = result.run.run_id
    await world.events.create(run_id, event("run_started"), skip_preload=True)
    for number in range(10):
        step_id = f"step_{number}"
        await write(
            world, run_id, step_created(step_id), step_started(step_id), step_completed(step_id)
        )
    await write(world, run_id, run_ended("completed"))
    assert seen.commands() == ["EVALSHA"] * 33
    assert len((await world.events.list(run_id)).data) == 33


async def test_the_preload_travels_with_the_script(watched: tuple[RedisWorld, Monitor]) -> None:
    world, seen = watched
    run_id = await new_run(world, "pending")
    seen.commands()
    result = await world.events.create(run_id, event("run_started"))
    assert [each.event_type for each in result.events or ()] == ["run_created", "run_started"]
    commands = seen.commands()
    assert commands[0] == "EVALSHA"
    assert set(commands[1:]) <= {"XRANGE", "HMGET"}, "what goes behind it only reads"


PARTS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "none": (step_created("s"), {}),
    "behind a place": (step_created("s"), {"since_cursor": f"eid:{event_id(1)}"}),
    "unseen": (step_created("s"), {"event_count": 1}),
    "the beginning": (event("run_started"), {}),
    "the run and all": (hook_received("h"), {"preload_events": True}),
}


@pytest.mark.parametrize("name", PARTS)
async def test_each_part_of_the_log_is_one_round_trip(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever comes with the answer of an event is read right behind it."""
    wire, options = PARTS[name]
    run_id = await new_run(world)
    await write(world, run_id, hook_created("h"))
    trips: list[int] = []
    submit = Sender.submit

    async def counted(self: Sender, commands: list[Any], *args: Any) -> list[Any]:
        trips.append(len(commands))
        return await submit(self, commands, *args)

    monkeypatch.setattr(Sender, "submit", counted)
    await world.events.create(run_id, wire, **options)
    assert len(trips) == 1


async def test_a_log_that_was_read_is_read_again_in_one_look(
    watched: tuple[RedisWorld, Monitor],
) -> None:
    """The replays of a run read its log over and over, each time a little longer."""
    world, seen = watched
    run_id = await new_run(world)

    async def add(first: int, count: int) -> None:
        for number in range(first, first + count):
            await write(world, run_id, step_created(f"step_{number}"))
        seen.commands()

    async def read(cursor: str | None = None) -> tuple[int, list[str]]:
        page = await world.events.list(run_id, cursor=cursor, limit=1000)
        return len(page.data), seen.commands()

    look = ["XRANGE", "HMGET"]
    await add(0, 198)
    assert await read() == (200, [*look, *look])
    assert await read() == (200, look)
    await add(198, 60)
    assert await read() == (260, look)
    again = await world.events.create(run_id, event("run_started"))
    assert (len(again.events or []), again.has_more) == (260, False)
    assert seen.commands() == ["EVALSHA", *look]
    assert await read(again.cursor) == (0, look)
