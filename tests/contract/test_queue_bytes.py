"""One claim has so many bytes, or one message; a page of dead letters is read in such pieces."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.queue import Claim, DeadLetter, Message
from redis_world.testing import check_invariants
from support.backends import Backend
from support.queue_tools import TOPIC, content, health_check, send
from support.simulation_network import Network

BUDGET: Final = 1024 * 1024


def large(number: int, size: int) -> dict[str, Any]:
    return {**health_check(number), "data": b"x" * size}


def size_of(messages: list[Message]) -> int:
    return sum(len(message.payload["data"]) for message in messages)


# Contract: 7.claim
@pytest.mark.parametrize(
    ("size", "limit", "expected"),
    [
        (1000, 100, 100),
        (BUDGET // 4 - 200, 100, 4),
        (BUDGET // 2 - 200, 100, 2),
        (BUDGET // 2 + 200, 100, 1),
        (BUDGET + 1, 100, 1),
        (4 * BUDGET, 100, 1),
        (BUDGET // 4 - 200, 3, 3),
    ],
)
async def test_a_claim_gives_so_many_bytes_or_one_message(
    backend: Backend, size: int, limit: int, expected: int
) -> None:
    async with backend.world(partitions=1) as world:
        ids = [await send(world, large(n, size)) for n in range(expected + 3)]
        claim = await world.queue.claim_batch(TOPIC, limit=limit)
        wanted = ids if size == 1000 and limit >= len(ids) else ids[:expected]
        assert [m.message_id for m in claim.messages] == wanted[: len(claim.messages)]
        assert len(claim.messages) == (min(limit, len(ids)) if size == 1000 else expected)
        # Whoever is cut short is told to come again at once.
        assert claim.more == (size != 1000 and limit == 100)
        assert (await world.queue.stats(TOPIC)).leased == len(claim.messages)
        await check_invariants(world)


# Contract: 7.claim
async def test_all_of_them_come_in_order(world: RedisWorld) -> None:
    ids = [await send(world, large(n, 300_000)) for n in range(10)]
    got: list[str] = []
    while True:
        claim = await world.queue.claim_batch(TOPIC, limit=1000)
        if not claim.messages:
            break
        assert size_of(claim.messages) <= BUDGET
        got += [message.message_id for message in claim.messages]
    assert got == ids


async def test_what_others_have_declined_is_bounded_too(world: RedisWorld) -> None:
    ids = {await send(world, large(n, 600_000)) for n in range(5)}
    for _ in range(5):
        (message,) = await world.queue.claim(TOPIC)
        await world.queue.postpone(message, 3600)
    got: set[str] = set()
    for _ in range(5):
        claim = await world.queue.claim_batch(TOPIC, worker="other")
        assert len(claim.messages) == 1
        got |= {message.message_id for message in claim.messages}
    assert got == ids


# Contract: 7.claim
async def test_of_several_partitions_all_together_give_so_much(backend: Backend) -> None:
    async with backend.world(partitions=4) as world:
        count = 40
        for number in range(count):
            run_id = f"wrun_01HZX00000000000000000{number:04}"
            await send(world, {**content(number, run_id), "data": b"x" * 100_000})
        got: list[Claim] = []
        while (claim := await world.queue.claim_batch(TOPIC, limit=count)).messages:
            got.append(claim)
        assert sum(len(each.messages) for each in got) == count
        assert all(size_of(each.messages) <= BUDGET for each in got)
        assert [each.more for each in got[:-1]] == [True] * (len(got) - 1)


# Contract: 7.claim
async def test_a_claim_that_is_sent_again_gives_what_it_has_leased(
    real_backend: Backend,
) -> None:
    async with real_backend.world(partitions=1) as world:
        ids = [await send(world, large(n, 400_000)) for n in range(6)]
        network = Network(world.connection._library, lambda _: None)
        with network.installed():
            network.plan(["reply"])
            messages = await world.queue.claim(TOPIC, limit=6)
        assert network.lost == 1
        assert [message.message_id for message in messages] == ids[:2]
        assert (await world.queue.stats(TOPIC)).leased == 2


# Contract: 7.dead letters
@pytest.mark.parametrize("partitions", [1, 4])
async def test_large_dead_letters_come_page_by_page(backend: Backend, partitions: int) -> None:
    async with backend.world(partitions=partitions, max_failures=1) as world:
        ids = set()
        for number in range(12):
            run_id = f"wrun_01HZX00000000000000000{number:04}"
            ids.add(await send(world, {**content(number, run_id), "data": b"x" * 300_000}))
        while messages := await world.queue.claim(TOPIC, limit=100):
            for message in messages:
                await world.queue.retry(message, error="no")
        found: list[DeadLetter] = []
        cursor = None
        while True:
            page = await world.queue.dead_letters(TOPIC, limit=5, cursor=cursor)
            found += page.data
            cursor = page.cursor
            if not page.has_more:
                break
            assert len(page.data) == 5
        assert len(found) == len(ids)
        assert {letter.message_id for letter in found} == ids
        times = [(letter.died_at, letter.message_id) for letter in found]
        assert times == sorted(times)


# Contract: 7.claim
async def test_bodies_that_are_not_given_are_not_read(real_backend: Backend) -> None:
    """Counted on the server: a claim asks for the content of what it answers, and no more."""
    async with real_backend.world(partitions=1) as world:
        for number in range(32):
            await send(world, large(number, 2 * BUDGET))
        with contextlib.closing(real_backend.client()) as client:
            client.config_resetstat()
            (message,) = await world.queue.claim(TOPIC, limit=32)
            calls = client.info("commandstats")
            sent = client.info("stats")["total_net_output_bytes"]
        # What decides about each; the body of one, and whether the message is as it was.
        assert calls["cmdstat_hmget"]["calls"] == 32 + 2
        assert sent < 3 * BUDGET
        assert await world.queue.ack(message)
