"""What workers with nothing to do cost a real server, by its own count."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest
import redis

from redis_world.worker.lookout import look_seconds
from support.at_work import at_work
from support.backends import Backend
from support.commandstats import Counts
from support.queue_tools import TOPIC, send, step
from support.until import until

IDLE: Final = 60
MOST: Final = {1: 150, 16: 400}
"""Commands a minute of an idle worker, by partitions."""


@pytest.fixture
def server(real_backend: Backend) -> Iterator[redis.Redis]:
    with contextlib.closing(real_backend.client()) as client:
        yield client


async def handle(payload: Any, **_: object) -> None:
    """Nothing to do."""


async def test_a_look_at_nothing(real_backend: Backend, server: redis.Redis) -> None:
    async with real_backend.world() as world:
        await world.queue.claim_batch(TOPIC, worker="w", look=3)
        counts = Counts(server)
        await world.queue.claim_batch(TOPIC, worker="w", look=3)
        assert counts.commands() == {"evalsha": 1, "time": 1, "zrange": 2, "zadd": 1}


@pytest.mark.parametrize("partitions", MOST)
def test_looks_a_minute(partitions: int) -> None:
    """By chance a look comes up to 15 % sooner; a connection asks every 10 s if it stands."""
    each = 0.925 * look_seconds(partitions)
    assert 5 * partitions * 60 / each + 6 <= MOST[partitions]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("partitions", MOST)
async def test_half_a_minute(real_backend: Backend, server: redis.Redis, partitions: int) -> None:
    """Without the sweeps, which one of all workers makes."""
    async with (
        real_backend.world(partitions=partitions) as world,
        at_work(world, handle, sweep_interval=3600),
    ):
        await all_asleep(server, 1)
        counts = Counts(server)
        await asyncio.sleep(30)
        assert counts.commands().total() <= MOST[partitions] / 2


@pytest.mark.slow
async def test_a_message_with_many_idle_workers(
    real_backend: Backend, server: redis.Redis
) -> None:
    async with real_backend.world() as world, contextlib.AsyncExitStack() as stack:
        for _ in range(IDLE):
            await stack.enter_async_context(at_work(world, handle))
        await all_asleep(server, IDLE)
        counts = Counts(server)
        for number in range(100):
            await send(world, step(f"s{number}"))
            await asyncio.sleep(0.02)
        due, leased = (world.connection.keys.topic(TOPIC, part) for part in ("due", "leased"))
        while server.exists(due, leased):  # noqa: ASYNC110 - of the server
            await asyncio.sleep(0.01)
        # Send, claim and ack; and some of the looks that each of them makes by itself.
        looks = IDLE * 3 / (0.85 * look_seconds(1))
        assert counts.scripts() <= 3 * 100 + looks
        assert counts.commands()["publish"] <= 100


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [3, 24, 200])
async def test_messages_with_many_busy_workers(
    real_backend: Backend, server: redis.Redis, at_once: int
) -> None:
    """Each has room for one, and there is something in many partitions."""
    handled = 0

    async def work(payload: Any, **_: object) -> None:
        nonlocal handled
        handled += 1
        await asyncio.sleep(0.01)
        if handled < 600:
            await send(world, step(f"s{handled}", payload["runId"]))

    async with real_backend.world(partitions=16) as world, contextlib.AsyncExitStack() as stack:
        for _ in range(30):
            await stack.enter_async_context(at_work(world, work, concurrency=1))
        await all_asleep(server, 30)
        counts = Counts(server)
        for number in range(at_once):
            await send(world, step(f"s{number}", f"wrun_{number}"))
        await until(lambda: handled >= 600)
        # Each with its send, claim and ack.
        assert counts.scripts() <= 7 * 600


async def all_asleep(server: redis.Redis, count: int) -> None:
    """Wait until so many workers sleep in each partition."""
    sets: list[bytes] = []
    while not sets or any(server.zcard(key) != count for key in sets):
        await asyncio.sleep(0.05)
        sets = list(server.scan_iter("*:sleepers"))
