"""One worker of a namespace sweeps, and another one takes over when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import WorldUnavailableError
from redis_world.sweeper import elect
from redis_world.testing import ManualClock, check_invariants
from redis_world.worker import Worker
from support.at_work import at_work
from support.backends import Backend
from support.queue_tools import TOPIC
from support.until import until

INTERVAL: Final = 0.4
TERM: Final = 10.0
Clocked = tuple[RedisWorld, ManualClock]


async def handle(message: Any) -> None:
    """There are none."""


class Sweeps:
    """When sweeps begin, in all Worlds of this process, and how they end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: list[float] = []
        self.fails = 0
        sweep = RedisWorld.sweep

        async def counted(world: RedisWorld) -> dict[str, int]:
            self.times.append(time.monotonic())
            if self.fails:
                self.fails -= 1
                raise WorldUnavailableError("the node is away")
            return await sweep(world)

        monkeypatch.setattr(RedisWorld, "sweep", counted)

    async def some(self, count: int) -> None:
        """Wait for some more of them."""
        goal = len(self.times) + count
        await until(lambda: len(self.times) >= goal)


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> Sweeps:
    return Sweeps(monkeypatch)


# Contract: 7.no run is left behind
async def test_of_twenty_workers_one_sweeps(world: RedisWorld, sweeps: Sweeps) -> None:
    """At most two sweeps within an interval, and never none."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(20):
            await stack.enter_async_context(at_work(world, handle, sweep_interval=INTERVAL))
        await sweeps.some(8)
    for first, third in zip(sweeps.times, sweeps.times[2:], strict=False):
        # Timers are late sometimes, and never early.
        assert third - first > INTERVAL
    await check_invariants(world)


# Contract: 7.no run is left behind
async def test_one_that_dies_is_replaced(world: RedisWorld, sweeps: Sweeps) -> None:
    async with contextlib.AsyncExitStack() as stack:
        dying = asyncio.create_task(
            Worker(world, {TOPIC: handle}, sweep_interval=INTERVAL, shutdown_timeout=0).run()
        )
        await sweeps.some(2)
        for _ in range(5):
            await stack.enter_async_context(at_work(world, handle, sweep_interval=INTERVAL))
        await sweeps.some(2)
        # As a process that is killed: it releases nothing that others would see.
        dying.cancel()
        await asyncio.wait({dying})
        await sweeps.some(3)


# Contract: 7.no run is left behind
@pytest.mark.slow
async def test_one_that_fails_lets_others_try(world: RedisWorld, sweeps: Sweeps) -> None:
    """A sweep that fails ends the turn of its worker, even if that still votes."""
    sweepers: list[object] = []
    async with (
        at_work(world, handle, sweep_interval=INTERVAL),
        at_work(world, handle, sweep_interval=INTERVAL),
    ):
        await sweeps.some(1)
        for _ in range(3):
            sweeps.fails = 1
            await until(lambda: not sweeps.fails)
            sweepers.append(await world.connection.execute(sweeper_of(world)))
            await sweeps.some(2)
            sweepers.append(await world.connection.execute(sweeper_of(world)))
    pairs = [*zip(sweepers[::2], sweepers[1::2], strict=True)]
    assert any(failed != next_one for failed, next_one in pairs)


def sweeper_of(world: RedisWorld) -> tuple[str, str, str]:
    return ("HGET", world.connection.keys.meta, "sweeper")


# Contract: 7.no run is left behind
async def test_everybody_sweeps_when_nobody_can_be_elected(
    world: RedisWorld, sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> float:
        raise WorldUnavailableError("the node is away")

    monkeypatch.setattr("redis_world.worker.sweeping.elect", fail)
    async with at_work(world, handle, sweep_interval=INTERVAL):
        await sweeps.some(3)


async def test_a_term_lasts(clocked: Clocked) -> None:
    world, clock = clocked
    connection = world.connection
    assert await elect(connection, "first", TERM) == 0
    assert await elect(connection, "second", TERM) == TERM
    await clock.advance(4)
    assert await elect(connection, "second", TERM) == TERM - 4
    # Whoever sweeps goes on.
    assert await elect(connection, "first", TERM) == 0
    await clock.advance(TERM - 0.001)
    assert await elect(connection, "second", TERM) == 0.001
    await clock.advance(0.001)
    assert await elect(connection, "second", TERM) == 0
    assert await elect(connection, "first", TERM) == TERM


async def test_a_clock_that_is_set_back_stops_no_sweeps(clocked: Clocked) -> None:
    world, clock = clocked
    assert await elect(world.connection, "first", TERM) == 0
    await clock.set(clock.now.replace(year=clock.now.year - 1))
    assert await elect(world.connection, "second", TERM) == 0
    assert await elect(world.connection, "first", TERM) == TERM


async def test_an_election_makes_no_namespace(backend: Backend) -> None:
    async with backend.world() as world:
        with contextlib.closing(backend.client()) as client:
            client.delete(world.connection.keys.meta)
        assert await elect(world.connection, "first", TERM) == 0
        await world.sweep()
        (left,) = await world.connection.execute(("EXISTS", world.connection.keys.meta))
        assert left == 0
        await world.connection.call(
            "worlds/open",
            {"meta": world.connection.keys.meta},
            {
                "schema": "1",
                "partitions": str(len(world.connection.partitions)),
                "writer": "redis-world",
            },
        )


async def test_a_sweep_is_recorded(clocked: Clocked) -> None:
    world, clock = clocked
    swept = ("HGET", world.connection.keys.meta, "swept_at")
    assert await world.connection.execute(swept) == [None]
    for _ in range(2):
        await clock.advance(1)
        await world.sweep()
        (at,) = await world.connection.execute(swept)
        assert int(at) == round(clock.now.timestamp() * 1000)
