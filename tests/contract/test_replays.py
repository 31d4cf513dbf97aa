"""The begin of a replay: run_started, with the log or with what came since."""

from __future__ import annotations

import pytest

from redis_world import RedisWorld
from redis_world.errors import RunExpiredError, RunNotFoundError
from redis_world.events.log import LogMark
from redis_world.testing import ManualClock
from support.events import (
    new_run,
    new_run_id,
    run_created,
    run_ended,
    step_completed,
    step_created,
    step_started,
    write,
)

Clocked = tuple[RedisWorld, ManualClock]
STARTED = {"eventType": "run_started", "specVersion": 4}


async def whole(world: RedisWorld, run_id: str) -> LogMark:
    """The mark of a log that was read from its beginning."""
    replay = await world.events.begin_replay(run_id, STARTED)
    assert not replay.is_continued
    assert replay.events == (await world.events.list(run_id)).data
    assert replay.mark is not None
    return replay.mark


# Contract: 5.run_started
async def test_it_reads_what_came_since(world: RedisWorld) -> None:
    run_id = await new_run(world)
    await write(world, run_id, step_created("a"))
    mark = await whole(world, run_id)
    nothing = await world.events.begin_replay(run_id, STARTED, after=mark)
    assert (nothing.is_continued, nothing.events, nothing.mark) == (True, [], mark)
    before = len((await world.events.list(run_id)).data)
    await write(world, run_id, step_started("a"), step_completed("a", result=b"x" * 1000))
    replay = await world.events.begin_replay(run_id, STARTED, after=mark)
    assert replay.is_continued
    assert replay.events == (await world.events.list(run_id)).data[before:]
    assert replay.result.run == await world.runs.get(run_id)
    assert replay.mark == await whole(world, run_id)


@pytest.mark.large
async def test_it_reads_more_than_a_page(world: RedisWorld) -> None:
    run_id = await new_run(world)
    mark = await whole(world, run_id)
    for first in range(0, 1200, 100):
        steps = [step_created(f"s{number}") for number in range(first, first + 100)]
        await world.events.create_batch(run_id, steps)
    replay = await world.events.begin_replay(run_id, STARTED, after=mark)
    assert [event.correlation_id for event in replay.events] == [f"s{n}" for n in range(1200)]


# Contract: 5.nothing left behind
async def test_another_run_of_the_same_id_is_read_anew(clocked: Clocked) -> None:
    """The clock stands still: nothing but the requests tells the one from the other."""
    world, _ = clocked
    run_id = new_run_id()
    marks: list[LogMark] = []
    for result in (b"one", b"two"):
        await world.events.create(run_id, run_created())
        await world.events.begin_replay(run_id, STARTED)
        await write(world, run_id, step_created("a"), step_started("a"))
        await write(world, run_id, step_completed("a", result=result), step_created("b"))
        for mark in marks:
            replay = await world.events.begin_replay(run_id, STARTED, after=mark)
            assert not replay.is_continued
            assert replay.events == (await world.events.list(run_id)).data
        marks.append(await whole(world, run_id))
        if result == b"one":
            await world.events.create(run_id, run_ended("completed"))
            assert await world.prune(0) == 1


async def test_a_log_that_is_shorter_by_now_is_read_anew(clocked: Clocked) -> None:
    world, _ = clocked
    run_id = new_run_id()
    await world.events.create(run_id, run_created())
    await world.events.begin_replay(run_id, STARTED)
    await write(world, run_id, *(step_created(name) for name in "abcde"))
    mark = await whole(world, run_id)
    await world.events.create(run_id, run_ended("completed"))
    await world.prune(0)
    await world.events.create(run_id, run_created())
    replay = await world.events.begin_replay(run_id, STARTED, after=mark)
    assert not replay.is_continued
    assert [event.event_type for event in replay.events] == ["run_created", "run_started"]


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_run_that_is_over_is_refused(world: RedisWorld, end: str) -> None:
    run_id = await new_run(world)
    mark = await whole(world, run_id)
    await world.events.create(run_id, run_ended(end))
    with pytest.raises(RunExpiredError):
        await world.events.begin_replay(run_id, STARTED, after=mark)
    await world.prune(0)
    with pytest.raises((RunExpiredError, RunNotFoundError)):
        await world.events.begin_replay(run_id, STARTED, after=mark)
