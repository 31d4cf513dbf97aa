"""Which messages wake idle workers, and when those that wake nobody are delivered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.queue import FollowUp, Queue
from redis_world.testing import ManualClock
from support.at_work import at_work
from support.queue_tools import NAME, TOPIC, claim_one, content, send
from support.until import until

Clocked = tuple[RedisWorld, ManualClock]
Act = Callable[[RedisWorld, float], Awaitable[object]]
HOUR: Final = 3600.0


async def send_it(world: RedisWorld, delay: float) -> None:
    await world.queue.send(NAME, content(1), delay=delay)


async def retry_it(world: RedisWorld, delay: float) -> None:
    await world.queue.retry(await claim_one(world), error="no", delay=delay)


async def continue_it(world: RedisWorld, delay: float) -> None:
    await world.queue.ack(await claim_one(world), follow_up=FollowUp(delay=delay))


ACTS: Final[dict[str, Act]] = {
    "a send": send_it,
    "a retry": retry_it,
    "a message that goes on": continue_it,
}


@pytest.mark.parametrize("delay", [0.0, 1.0, 1.001, HOUR])
@pytest.mark.parametrize("name", ACTS)
async def test_it_is_announced_when_it_is_due_before_the_next_look(
    clocked: Clocked, name: str, delay: float
) -> None:
    world, _ = clocked
    connection = world.connection
    channels = [keys.queue_channel(TOPIC) for keys in connection.partitions]
    if name != "a send":
        await send(world, content(1))
    async with connection.hub.subscribe(*channels) as hints:
        while await hints.wait(0.05):
            """Of the subscription itself, and of what was sent before."""
        await ACTS[name](world, delay)
        if delay <= 1:
            assert await hints.wait(20)
        else:
            # What is announced behind it comes, and comes alone.
            assert not await hints.wait(0.3)
            await send(world, content(2))
            assert await hints.wait(20)


async def test_no_worker_claims_for_what_is_due_in_an_hour(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_world.worker.running._POLL_SECONDS", HOUR)
    claims = 0
    claim_batch = Queue.claim_batch

    async def counted(queue: Queue, *args: Any, **options: Any) -> Any:
        nonlocal claims
        claims += 1
        return await claim_batch(queue, *args, **options)

    monkeypatch.setattr(Queue, "claim_batch", counted)
    handled: list[object] = []

    async def handle(payload: Any, **_: object) -> None:
        handled.append(payload)

    async with at_work(world, handle):
        await until(lambda: claims > 0)
        await asyncio.sleep(0.3)
        before = claims
        for number in range(20):
            await send(world, content(number), delay=HOUR)
        await send(world, content(100))
        await until(lambda: bool(handled))
        # One finds the message that is due, and one that there is nothing else.
        assert claims - before <= 2


async def test_a_message_comes_on_time_without_a_word(world: RedisWorld) -> None:
    """The worker finds it at a look, and sleeps until it is due."""
    came: list[float] = []

    async def handle(_: Any, **__: object) -> None:
        came.append(time.monotonic())

    async with at_work(world, handle):
        sent = time.monotonic()
        await send(world, content(1), delay=1.5)
        await until(lambda: bool(came))
    # The delay is counted from the server's clock in whole milliseconds.
    assert came[0] - sent >= 1.49
