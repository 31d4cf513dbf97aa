"""What a run costs the server: commands that its scripts call, and memory, by its own count.

Redis runs one script at a time, and the number of commands is what a script takes. So these
figures may only fall.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest
import redis
from ulid import ULID

from redis_world import RedisWorld
from support import events as e
from support.backends import Backend
from support.commandstats import Counts
from support.private_servers import private_server
from support.queue_tools import TOPIC, health_check, send, step, wake

STEPS: Final = 10
TEN: Final = 10
PAYLOAD: Final = b"x" * 256
MOST: Final = {
    "run_created": 13,
    "run_started": 10,
    "step_created": 4,
    "step_started": 5,
    "step_completed": 5,
    "run_completed": 17,
}
"""Commands of each event in a run of ten steps, which brings no messages along."""
MOST_IN_ALL: Final = 180


def events_of_a_run(payload: bytes) -> Iterator[e.Wire]:
    """Ids and names are as long as those of the SDK."""
    yield e.run_created(input=payload)
    yield e.event("run_started")
    for _ in range(STEPS):
        name = f"step_{ULID()}"
        yield e.step_created(name, input=payload, stepName="step//./app//charge_card")
        yield e.step_started(name)
        yield e.step_completed(name, result=payload)
    yield e.event("run_completed", output=payload)


@pytest.fixture
def server(real_backend: Backend) -> Iterator[redis.Redis]:
    with contextlib.closing(real_backend.client()) as client:
        yield client


async def commands_of_each(world: RedisWorld, server: redis.Redis) -> dict[str, list[int]]:
    """What each event of a run of ten steps calls, by its type."""
    run_id = e.new_run_id()
    found: dict[str, list[int]] = {}
    for event in events_of_a_run(PAYLOAD):
        counts = Counts(server)
        await world.events.create(run_id, event, skip_preload=True)
        calls: Counter[str] = counts.commands()
        assert counts.scripts() == 1
        found.setdefault(event["eventType"], []).append(calls.total() - 1)
    return found


async def test_a_run_of_ten_steps(real_backend: Backend, server: redis.Redis) -> None:
    async with real_backend.world() as world:
        # What is asked for once is no matter of a run.
        await commands_of_each(world, server)
        found = await commands_of_each(world, server)
        assert {kind: max(each) for kind, each in found.items()} == MOST
        assert sum(map(sum, found.values())) == MOST_IN_ALL


async def send_wakes(world: RedisWorld) -> None:
    for _ in range(TEN):
        await send(world, wake(await e.new_run(world)))


async def send_steps(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    for number in range(TEN):
        await e.write(world, run_id, e.step_created(f"s{number}"))
        await send(world, step(f"s{number}", run_id))


async def send_others(world: RedisWorld) -> None:
    for number in range(TEN):
        await send(world, health_check(number))


@pytest.mark.parametrize(
    ("send_them", "most", "most_of_an_ack"),
    [(send_wakes, 47, 7), (send_steps, 9, 8.1), (send_others, 27, 4)],
)
async def test_a_claim_of_ten_messages(
    real_backend: Backend,
    server: redis.Redis,
    send_them: Callable[[RedisWorld], Awaitable[None]],
    most: int,
    most_of_an_ack: float,
) -> None:
    """Those of one run are read and written at once; an event ends its delivery for less."""
    async with real_backend.world(partitions=1) as world:
        await send_them(world)
        for message in await world.queue.claim(TOPIC, limit=TEN):
            await world.queue.ack(message)
        await send_them(world)
        counts = Counts(server)
        messages = await world.queue.claim(TOPIC, limit=TEN)
        assert len(messages) == TEN
        assert counts.commands().total() - counts.scripts() == most
        counts = Counts(server)
        for message in messages:
            assert await world.queue.ack(message)
        assert counts.commands().total() - counts.scripts() == TEN * most_of_an_ack


async def write_runs(world: RedisWorld, payload: bytes, count: int) -> None:
    async def write() -> None:
        run_id = e.new_run_id()
        for event in events_of_a_run(payload):
            await world.events.create(run_id, event, skip_preload=True)

    await asyncio.gather(*(write() for _ in range(count)))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "most"), [(256, 15.5), (4096, 116.5)])
async def test_the_memory_of_a_run_of_ten_steps(size: int, most: float) -> None:
    """In KiB; other servers and allocators have figures of their own."""
    with (
        private_server("redis7", "--save", "") as own,
        contextlib.closing(redis.Redis.from_url(own.url)) as client,
    ):

        def memory() -> int:
            about: Any = client.info("memory")
            assert about["mem_allocator"].startswith("jemalloc")
            return int(about["used_memory_dataset"])

        async with RedisWorld(own.url) as world:
            await write_runs(world, bytes(size), 10)
            before = memory()
            await write_runs(world, bytes(size), 100)
            assert (memory() - before) / 100 / 1024 <= most
