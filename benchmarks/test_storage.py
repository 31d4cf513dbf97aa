"""What a run costs: a whole one, an event behind a long history, and reading the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

import pytest
from peers.base import event

from conftest import (
    AT_ONCE,
    CALLERS,
    PAYLOAD,
    SERVERS,
    Bench,
    Wire,
    nothing,
    open_world,
    start_run,
)
from redis_world import RedisWorld
from redis_world.models import Event, EventResult, Page

BATCH: Final = 128
BATCHES_AT_ONCE: Final = 16
LARGE: Final = 100_000
HISTORIES: Final = [0, 1_000, pytest.param(LARGE, marks=pytest.mark.large)]
TAIL: Final = 10
READERS: Final = 16

Log: TypeAlias = Callable[[], Coroutine[Any, Any, str]]


def step_created(name: str, payload: bytes = PAYLOAD) -> Wire:
    return event("step_created", name, stepName="s", input=payload)


async def fill(world: RedisWorld, run_id: str, prefix: str, count: int) -> None:
    """Make a log longer by so many steps."""
    at_once = BATCH * BATCHES_AT_ONCE
    for begin in range(0, count, at_once):
        numbers = range(begin, min(begin + at_once, count))
        await asyncio.gather(
            *(
                world.events.create_batch(
                    run_id,
                    [step_created(f"{prefix}_{n}", b"in") for n in numbers[first : first + BATCH]],
                    resolve_data="none",
                )
                for first in range(0, len(numbers), BATCH)
            )
        )


async def new_log(world: RedisWorld, length: int) -> str:
    """A run that has started, and so many events behind."""
    run_id = await start_run(world)
    await fill(world, run_id, "old", length)
    return run_id


async def last_cursor(world: RedisWorld, run_id: str) -> str:
    """The cursor behind which there is nothing yet."""
    page = await world.events.list(run_id, sort_order="desc", limit=1)
    assert page.cursor is not None
    return page.cursor


async def new_steps(world: RedisWorld, run_id: str, count: int) -> list[Wire]:
    """The events that start steps which nobody has started yet."""
    prefix = await last_cursor(world, run_id)
    await fill(world, run_id, prefix, count)
    return [event("step_started", f"{prefix}_{number}") for number in range(count)]


@pytest.fixture(scope="session")
def large_log(server_url: str) -> str:
    """A run with a log of 100,000 events."""

    async def build() -> str:
        async with open_world(server_url) as world:
            return await new_log(world, LARGE)

    return asyncio.run(build())


@pytest.fixture(params=HISTORIES)
def log(request: pytest.FixtureRequest, bench: Bench) -> Log:
    """A new run with so many events; that with 100,000 is one and the same, and grows."""
    large = request.getfixturevalue("large_log") if request.param == LARGE else ""

    async def find() -> str:
        return large or await new_log(bench.world, request.param)

    return find


async def run_of_ten_steps(world: RedisWorld) -> str:
    """33 events."""
    run_id = await start_run(world)
    for number in range(10):
        name = f"step_{number}"
        for each in (
            step_created(name),
            event("step_started", name),
            event("step_completed", name, result=PAYLOAD),
        ):
            await world.events.create(run_id, each, resolve_data="none")
    await world.events.create(run_id, event("run_completed", output=PAYLOAD), resolve_data="none")
    return run_id


@pytest.mark.parametrize("callers", CALLERS)
@pytest.mark.parametrize("bench", SERVERS, indirect=True)
@pytest.mark.benchmark(group="runs of ten steps, all callers at once")
def test_run(bench: Bench, callers: int) -> None:
    async def together(_: None) -> list[str]:
        return await asyncio.gather(*(run_of_ten_steps(bench.world) for _ in range(callers)))

    run_ids = bench.measure(together, nothing, rounds=5 if bench.client else 2)
    assert len(run_ids) == callers
    assert bench.run(bench.world.runs.get(run_ids[-1])).status == "completed"


@pytest.mark.benchmark(group=f"step_started, {AT_ONCE} at a time, by events in the log")
def test_step_started(bench: Bench, log: Log) -> None:
    world = bench.world

    async def prepare() -> tuple[str, list[Wire]]:
        run_id = await log()
        return run_id, await new_steps(world, run_id, AT_ONCE)

    async def start(prepared: tuple[str, list[Wire]]) -> list[EventResult]:
        run_id, events = prepared
        return await asyncio.gather(*(world.events.create(run_id, each) for each in events))

    results = bench.measure(start, prepare)
    assert [result.step.status for result in results if result.step] == ["running"] * AT_ONCE


@pytest.mark.benchmark(group=f"{READERS} reads of the last {TAIL} events, by events in the log")
def test_tail(bench: Bench, log: Log) -> None:
    world = bench.world

    async def prepare() -> tuple[str, str]:
        run_id = await log()
        cursor = await last_cursor(world, run_id)
        await fill(world, run_id, cursor, TAIL)
        return run_id, cursor

    async def read(prepared: tuple[str, str]) -> list[Page[Event]]:
        run_id, cursor = prepared
        return await asyncio.gather(
            *(world.events.list(run_id, cursor=cursor) for _ in range(READERS))
        )

    pages = bench.measure(read, prepare, commands=("xrange", "hmget"))
    assert [len(page.data) for page in pages] == [TAIL] * READERS


@pytest.mark.benchmark(
    group=f"{READERS} step_started that read {TAIL} events or more along with it"
)
def test_since_cursor(bench: Bench, log: Log) -> None:
    world = bench.world

    async def prepare() -> tuple[str, str, list[Wire]]:
        run_id = await log()
        events = await new_steps(world, run_id, READERS)
        cursor = await last_cursor(world, run_id)
        await fill(world, run_id, cursor, TAIL)
        return run_id, cursor, events

    async def start(prepared: tuple[str, str, list[Wire]]) -> list[EventResult]:
        run_id, cursor, events = prepared
        return await asyncio.gather(
            *(world.events.create(run_id, each, since_cursor=cursor) for each in events)
        )

    results = bench.measure(start, prepare)
    assert max(len(result.events or ()) for result in results) == TAIL + READERS


@pytest.mark.parametrize("events", [33, 1_000])
@pytest.mark.benchmark(group="reading a whole log, by events in it")
def test_whole_log(bench: Bench, events: int) -> None:
    run_id = bench.run(new_log(bench.world, events - 2))

    async def read(_: None) -> Page[Event]:
        return await bench.world.events.list(run_id)

    page = bench.measure(read, nothing, commands=("xrange", "hmget"))
    assert len(page.data) == events
