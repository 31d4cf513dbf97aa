"""What the callers of a bench do: runs of ten steps, one event or one batch at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from datetime import timedelta
from typing import Any, Final, TypeVar

from redis_world.errors import WorldError
from redis_world.world import RedisWorld

__all__ = [
    "EVENTS_PER_RUN",
    "PAYLOAD_BYTES",
    "STEPS",
    "Caller",
    "Load",
    "all_of",
    "clean",
    "create_run",
    "in_batches",
    "one_by_one",
    "together",
]

T = TypeVar("T")
Event = dict[str, Any]

STEPS: Final = 10
PAYLOAD_BYTES: Final = 256
EVENTS_PER_RUN: Final = 3 + 3 * STEPS

_PAYLOAD: Final = b"x" * PAYLOAD_BYTES
_CREATED: Final[Event] = {
    "eventType": "run_created",
    "eventData": {"deploymentId": "", "workflowName": "bench", "input": _PAYLOAD},
}
_STARTED: Final[Event] = {"eventType": "run_started"}
_COMPLETED: Final[Event] = {"eventType": "run_completed", "eventData": {"output": _PAYLOAD}}
_AT_ONCE: Final = 500
"""Runs of one call that cancels them."""
_FEWEST_CALLS: Final = 2
"""Of each caller in a round, on average."""


def _steps() -> list[list[Event]]:
    """The events of each step."""
    return [
        [
            {
                "eventType": "step_created",
                "correlationId": f"step_{number}",
                "eventData": {"stepName": "bench", "input": _PAYLOAD},
            },
            {"eventType": "step_started", "correlationId": f"step_{number}"},
            {
                "eventType": "step_completed",
                "correlationId": f"step_{number}",
                "eventData": {"result": _PAYLOAD},
            },
        ]
        for number in range(STEPS)
    ]


_STEPS: Final = _steps()
_SINGLE: Final = [event for events in _STEPS for event in events] + [_COMPLETED]


def _batches() -> list[list[Event]]:
    """The events behind run_started in the fewest batches that keep their order.

    A batch has one event of a step, or its creation and its start: a step ends in the batch that
    begins the next one.
    """
    ends: list[Event] = []
    batches = []
    for created, started, completed in _STEPS:
        batches.append([*ends, created, started])
        ends = [completed]
    return [*batches, [*ends, _COMPLETED]]


_BATCHES: Final = _batches()


class Load:
    """Calls that are made at the same time, and those of them that count.

    Args:
        callers: how many make them.

    Attributes:
        events: how many were written while it counted.
        latencies: of the calls that ended then, in seconds.
        live: runs that have not ended.
    """

    def __init__(self, callers: int = 1) -> None:
        self.events = 0
        self.latencies: list[float] = []
        self.live: set[str] = set()
        self._callers = callers
        self._is_counting = False
        self._is_over = False

    def stop(self) -> None:
        """Let the callers stop; they do between two calls."""
        self._is_over = True

    def is_over(self) -> bool:
        """Whether they are to."""
        return self._is_over

    async def timed(self, call: Awaitable[T], events: int = 1) -> T:
        """Wait for a call, and take note of how long it took."""
        began = time.perf_counter()
        result = await call
        if self._is_counting:
            self.latencies.append(time.perf_counter() - began)
            self.events += events
        return result

    async def count(self, working: asyncio.Future[Any], warm_up: float, seconds: float) -> float:
        """Let the callers warm up, then count.

        Args:
            working: the callers, who end by an error alone.
            warm_up: seconds before it counts.
            seconds: for which it counts at least: where calls are slow, until each caller has
                made a few.

        Returns:
            How long it counted, in seconds.
        """
        await _watch(working, warm_up)
        self._is_counting = True
        began = time.perf_counter()
        while True:
            await _watch(working, seconds)
            # Calls made together end together: one lot more or less must not be all.
            if len(self.latencies) >= _FEWEST_CALLS * self._callers:
                break
        took = time.perf_counter() - began
        self._is_counting = False
        return took


async def _watch(working: asyncio.Future[Any], seconds: float) -> None:
    await asyncio.wait({working}, timeout=seconds)
    if working.done():
        working.result()


async def all_of(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do things at the same time; none of them goes on behind an error of another one."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


Caller = Callable[[RedisWorld, Load], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def together(
    world: RedisWorld, caller: Caller, count: int
) -> AsyncIterator[tuple[Load, asyncio.Future[Any]]]:
    """So many callers at work, for the length of a block; what they wrote is removed behind it."""
    load = Load(count)
    callers = [caller(world, load) for _ in range(count)]
    working = asyncio.create_task(all_of(callers))
    try:
        yield load, working
        load.stop()
        await working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    await clean(world, load.live)


async def create_run(world: RedisWorld, load: Load | None = None) -> str:
    """Create a run; its id."""
    load = load or Load()
    created = await load.timed(world.events.create(None, _CREATED, resolve_data="none"))
    assert created.run is not None
    load.live.add(created.run.run_id)
    return created.run.run_id


async def one_by_one(world: RedisWorld, load: Load) -> None:
    """Write runs of 33 events, each of them one call."""
    while not load.is_over():
        run_id = await create_run(world, load)
        start = world.events.create(run_id, _STARTED, resolve_data="none", skip_preload=True)
        await load.timed(start)
        for event in _SINGLE:
            if load.is_over():
                return
            await load.timed(world.events.create(run_id, event, resolve_data="none"))
        load.live.discard(run_id)


async def in_batches(world: RedisWorld, load: Load) -> None:
    """Write the same runs by 13 calls: what belongs together is one batch."""
    while not load.is_over():
        run_id = await create_run(world, load)
        start = world.events.create(run_id, _STARTED, resolve_data="none", skip_preload=True)
        await load.timed(start)
        for events in _BATCHES:
            if load.is_over():
                return
            batch = world.events.create_batch(run_id, events, resolve_data="none")
            done = await load.timed(batch, len(events))
            for each in done.results:
                if each.error is not None:
                    raise WorldError(f"the server refused an event of a batch: {each.message}")
        load.live.discard(run_id)


async def clean(world: RedisWorld, live: Iterable[str]) -> None:
    """End the runs that have not, and remove all runs: a server may have little memory."""
    ids = [*live]
    for first in range(0, len(ids), _AT_ONCE):
        await world.runs.cancel_many(ids[first : first + _AT_ONCE])
    await world.prune(timedelta(0))
