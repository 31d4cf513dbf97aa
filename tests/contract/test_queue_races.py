"""Rivals at the queue (contract, section 7)."""

# Contract: 7.delivery, 1.rivals

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest

from redis_world import RedisWorld
from redis_world.queue import FollowUp, Message
from redis_world.testing import ManualClock, check_invariants
from support.backends import Backend
from support.queue_tools import (
    TOPIC,
    claim_one,
    content,
    send,
    step,
    wake,
)

T = TypeVar("T")

RIVALS = 20


@contextlib.asynccontextmanager
async def several_worlds(backend: Backend, count: int = 4) -> AsyncIterator[list[RedisWorld]]:
    """Worlds of one namespace, each with connections of its own."""
    namespace = backend.namespace()
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(backend.world(namespace=namespace))
            for _ in range(count)
        ]


async def race(worlds: list[RedisWorld], call: Callable[[RedisWorld], Awaitable[T]]) -> list[T]:
    return await asyncio.gather(*(call(worlds[i % len(worlds)]) for i in range(RIVALS)))


# -- races ----------------------------------------------------------------------------------


async def test_a_message_goes_to_one_of_twenty_claimers(backend: Backend) -> None:
    async with several_worlds(backend) as worlds:
        sent = await send(worlds[0], content(1))
        answers = await race(worlds, lambda world: world.queue.claim(TOPIC))
        claimed = [message.message_id for messages in answers for message in messages]
        assert claimed == [sent]
        await check_invariants(worlds[0])


async def test_twenty_claimers_share_all_messages(backend: Backend) -> None:
    async with several_worlds(backend) as worlds:
        sent = {await send(worlds[0], content(i, f"run_{i}")) for i in range(60)}
        answers = await race(worlds, lambda world: world.queue.claim(TOPIC, limit=3))
        # Of several partitions a claim may find what it has seen taken: it comes again.
        while backend.is_cluster and (rest := await worlds[0].queue.claim(TOPIC, limit=60)):
            answers.append(rest)
        claimed = [message.message_id for messages in answers for message in messages]
        assert Counter(claimed) == Counter(sent)


async def test_a_run_of_many_replays_gives_one_to_twenty_claimers(backend: Backend) -> None:
    async with several_worlds(backend) as worlds:
        for i in range(RIVALS):
            await send(worlds[0], content(i))
        for _ in range(RIVALS):
            answers = await race(worlds, lambda world: world.queue.claim(TOPIC, limit=3))
            (message,) = [message for messages in answers for message in messages]
            assert await worlds[0].queue.ack(message)
        await check_invariants(worlds[0])


# Contract: 7.receipts, 7.continuation
async def test_one_of_twenty_acks_is_true_and_one_continuation_is_sent(backend: Backend) -> None:
    async with several_worlds(backend) as worlds:
        await send(worlds[0], content(1))
        message = await claim_one(worlds[0])
        answers = await race(
            worlds, lambda world: world.queue.ack(message, follow_up=FollowUp(delay=9))
        )
        assert sorted(answers) == [False] * (RIVALS - 1) + [True]
        stats = await worlds[0].queue.stats(TOPIC)
        assert (stats.ready, stats.delayed, stats.leased) == (0, 1, 0)
        await check_invariants(worlds[0])


# Contract: 7.receipts
async def test_one_end_of_a_lease_wins(backend: Backend) -> None:
    """Acks, retries and releases of one lease: one is True, whichever it is."""
    async with several_worlds(backend) as worlds:
        ends: list[Callable[[RedisWorld, Message], Awaitable[bool]]] = [
            lambda world, message: world.queue.retry(message, delay=9),
            lambda world, message: world.queue.ack(message),
            lambda world, message: world.queue.release(message),
        ]
        for first in range(3):
            await send(worlds[0], content(first, f"run_{first}"))
            message = await claim_one(worlds[0])
            calls = [
                ends[(first + i) % 3](worlds[i % len(worlds)], message) for i in range(RIVALS)
            ]
            assert sorted(await asyncio.gather(*calls)) == [False] * (RIVALS - 1) + [True]
            await check_invariants(worlds[0])
            for again in await worlds[0].queue.claim(TOPIC):
                await worlds[0].queue.ack(again)


# Contract: 7.idempotency keys
@pytest.mark.parametrize(
    ("payload", "options"),
    [(content(1), {"idempotency_key": "k"}), (step(), {}), (wake(), {})],
    ids=["key", "step", "wake"],
)
async def test_twenty_sends_are_one_message(
    backend: Backend, payload: dict[str, Any], options: dict[str, Any]
) -> None:
    async with several_worlds(backend) as worlds:
        ids = await race(worlds, lambda world: send(world, payload, **options))
        assert len({*ids}) == 1
        assert (await worlds[0].queue.stats(TOPIC)).ready == 1
        await check_invariants(worlds[0])


# Contract: 7.lease
async def test_an_expired_lease_is_freed_once(backend: Backend) -> None:
    """By twenty sweepers and claimers at once: no lease is counted as lost twice."""
    library = ManualClock.library()
    async with backend.world(library=library) as world:
        clock = await ManualClock(world).set()
        await send(world, content(1))
        await claim_one(world, lease=1)
        await clock.advance(1)
        swept = await asyncio.gather(*(world.sweep() for _ in range(RIVALS)))
        assert sum(counts["expired_leases"] for counts in swept) == 1
        answers = await asyncio.gather(*(world.queue.claim(TOPIC) for _ in range(RIVALS)))
        (message,) = [message for messages in answers for message in messages]
        assert message.attempt == 2
        await check_invariants(world)


# Contract: 7.wakes
async def test_sends_and_ends_race_without_a_loss(backend: Backend) -> None:
    """A wake that is sent while the one before it is claimed is never lost."""
    async with several_worlds(backend) as worlds:
        number = 0
        for _ in range(RIVALS):
            sends = [send(world, wake()) for world in worlds]
            claims = [world.queue.claim(TOPIC) for world in worlds]
            ids, answers = await asyncio.gather(asyncio.gather(*sends), asyncio.gather(*claims))
            delivered = {message.message_id for messages in answers for message in messages}
            for messages in answers:
                for message in messages:
                    assert await worlds[number % 4].queue.ack(message)
                    number += 1
            while rest := await worlds[0].queue.claim(TOPIC):
                delivered |= {message.message_id for message in rest}
                for message in rest:
                    assert await worlds[0].queue.ack(message)
            assert delivered == {*ids}
        await check_invariants(worlds[0])
