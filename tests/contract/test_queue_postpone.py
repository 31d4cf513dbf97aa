"""Messages that a worker declines: postponed, and offered to others (contract, section 7)."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidInputError
from redis_world.queue import Message
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.queue_tools import (
    NAME,
    RUN,
    TOPIC,
    claim_one,
    claimed_ids,
    content,
    finish_run,
    health_check,
    outcome,
    send,
    start_run,
    step,
    wake,
)

Clocked = tuple[RedisWorld, ManualClock]

PAYLOADS: Final = {
    "wake": wake(),
    "replay": content(1),
    "step": step(),
    "no run's": health_check(),
}
OFFERS: Final = 32
"""How many declined messages one claim looks at."""


async def claim_as(world: RedisWorld, worker: str, limit: int = 10) -> list[Message]:
    return (await world.queue.claim_batch(TOPIC, limit=limit, worker=worker)).messages


async def decline_as(world: RedisWorld, worker: str, delay: float | None = None) -> Message | None:
    """What a worker does that knows nothing; the message that it had, if any."""
    messages = await claim_as(world, worker, 1)
    for message in messages:
        assert await world.queue.postpone(message, delay) is True
        return message
    return None


# Contract: 7.postpone
@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
async def test_it_comes_again_after_the_delay_and_nothing_is_counted(
    clocked: Clocked, payload: dict[str, Any]
) -> None:
    world, clock = clocked
    sent = await send(world, payload, idempotency_key="k")
    first = await claim_one(world)
    assert (first.postponed, first.postponed_since) == (0, None)
    since = clock.now
    assert await world.queue.postpone(first, 2.5) is True
    await check_invariants(world)
    await clock.advance(2.499)
    assert await claimed_ids(world) == []
    await clock.advance(0.001)
    again = await claim_one(world)
    assert (again.message_id, again.attempt, again.failures) == (sent, 1, 0)
    assert (again.postponed, again.postponed_since) == (1, since)
    assert await world.queue.postpone(again, 0)
    third = await claim_one(world)
    assert (third.attempt, third.postponed, third.postponed_since) == (1, 2, since)
    # It holds its key all the time.
    assert await world.queue.send(NAME, payload, idempotency_key="k") == sent
    assert await world.queue.ack(third)
    await check_invariants(world)
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.delayed, stats.leased, stats.postponed) == (0, 0, 0, 0)


# Contract: 7.postpone
async def test_without_a_delay_it_grows_from_one_second_to_thirty(clocked: Clocked) -> None:
    world, clock = clocked
    await send(world, content(1))
    waits = []
    for _ in range(8):
        await world.queue.postpone(await claim_one(world))
        wait = (await world.queue.claim_batch(TOPIC)).wait
        assert wait is not None
        waits.append(wait)
        await clock.advance(wait)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


# Contract: 7.postpone
@pytest.mark.parametrize("delay", [-1, float("nan"), "soon"])
async def test_a_bad_delay_is_refused_and_the_lease_stays(world: RedisWorld, delay: Any) -> None:
    await send(world, content(1))
    message = await claim_one(world)
    assert isinstance(await outcome(world.queue.postpone(message, delay)), InvalidInputError)
    assert await world.queue.ack(message) is True


# Contract: 7.postpone
@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
async def test_others_have_it_before_its_time(clocked: Clocked, payload: dict[str, Any]) -> None:
    """Each worker once, and at once: the one that has the workflow need not wait."""
    world, clock = clocked
    sent = await send(world, payload)
    workers = [f"worker{n}" for n in range(20)]
    for worker in workers:
        declined = await decline_as(world, worker)
        assert declined is not None
        assert (declined.message_id, declined.attempt) == (sent, 1)
        await check_invariants(world)
    for worker in workers:
        assert await claim_as(world, worker) == []
    (message,) = await claim_as(world, "knows")
    assert (message.message_id, message.attempt, message.postponed) == (sent, 1, 20)
    assert await world.queue.ack(message)
    await clock.advance(60)
    assert await claimed_ids(world) == []
    await check_invariants(world)


# Contract: 7.postpone
@pytest.mark.large
async def test_a_large_fleet_does_not_hand_it_round_for_ever(clocked: Clocked) -> None:
    """More workers than a message names: what is forgotten of them is forgotten with its time."""
    world, clock = clocked
    await send(world, content(1))
    workers = [f"worker{n}" for n in range(200)]
    declines = 0
    for _ in range(3):
        for worker in workers:
            declines += await decline_as(world, worker, 30) is not None
    assert declines < 100
    # A new one gets it, at the latest by its time, and soon after that others too.
    for _ in range(2):
        await clock.advance(30)
        assert await decline_as(world, "late", 30) is not None
    assert await decline_as(world, "knows") is not None


# Contract: 7.postpone
@pytest.mark.parametrize("old", [1, 31, 32, 33, 63, 64, 65, 100])
async def test_a_new_worker_gets_it_however_many_have_declined_it(
    clocked: Clocked, old: int
) -> None:
    """Also where an old one is first whenever it is due."""
    world, clock = clocked
    chance = random.Random(old)
    workers = [f"old{number}" for number in range(old)]
    await send(world, content(1))
    for worker in workers:
        if await decline_as(world, worker, 30) is None:
            await clock.advance(30)
            assert await decline_as(world, worker, 30) is not None
    for _ in range(10):
        order = ["new", *workers]
        chance.shuffle(order)
        for worker in order:
            message = await decline_as(world, worker, 30)
            if worker == "new" and message is not None:
                return
        await clock.advance(30)
        assert await decline_as(world, chance.choice(workers), 30) is not None
    pytest.fail("nobody offered it to the new one in five minutes")


# Contract: 7.postpone
@pytest.mark.large
async def test_hundreds_that_it_has_declined_hide_none_that_it_has_not(world: RedisWorld) -> None:
    """A worker that has the one workflow among hundreds that nobody has."""
    for number in range(300):
        await send(world, health_check(number))
    while messages := await claim_as(world, "old", 100):
        for message in messages:
            await world.queue.postpone(message, 3600)
    wanted = await send(world, content("wanted"))
    (message,) = await claim_as(world, "old")
    assert message.message_id == wanted
    await world.queue.postpone(message, 3600)
    seen: set[str] = set()
    for _ in range(2000):
        if wanted in seen:
            break
        claim = await world.queue.claim_batch(TOPIC, limit=32, worker="new")
        for each in claim.messages:
            # None of them twice.
            assert each.message_id not in seen
            seen.add(each.message_id)
            if each.message_id != wanted:
                await world.queue.postpone(each, 3600)
    assert wanted in seen
    # It need not have looked at all of them: what came last is looked at first.
    assert len(seen) <= OFFERS
    for _ in range(2000):
        if len(seen) == 301:
            break
        for each in await claim_as(world, "new", 32):
            seen.add(each.message_id)
            await world.queue.postpone(each, 3600)
    assert len(seen) == 301


# Contract: 7.postpone
async def test_what_is_due_comes_first(clocked: Clocked) -> None:
    world, clock = clocked
    postponed = await send(world, health_check(1))
    assert await decline_as(world, "old", 60)
    await clock.advance(1)
    due = [await send(world, health_check(n)) for n in range(2, 5)]
    assert [m.message_id for m in await claim_as(world, "new", 3)] == due
    assert [m.message_id for m in await claim_as(world, "new", 3)] == [postponed]


# Contract: 7.claim
async def test_a_postponed_replay_frees_its_run(world: RedisWorld) -> None:
    await send(world, content(1))
    first = await claim_one(world)
    second = await send(world, content(2))
    assert await claimed_ids(world) == []
    assert (await world.queue.stats(TOPIC)).held == 1
    assert await world.queue.postpone(first, 60)
    assert await claimed_ids(world) == [second]
    await check_invariants(world)
    # And it is not offered while that one is leased.
    assert await claim_as(world, "other") == []
    assert (await world.queue.stats(TOPIC)).held == 0
    await check_invariants(world)


async def test_one_that_is_held_is_offered_to_nobody(clocked: Clocked) -> None:
    world, clock = clocked
    first = await send(world, content(1))
    assert await decline_as(world, "old", 5)
    await send(world, content(2))
    second = await claim_one(world)
    await clock.advance(5)
    assert await claimed_ids(world) == []
    stats = await world.queue.stats(TOPIC)
    assert (stats.held, stats.postponed) == (1, 0)
    await check_invariants(world)
    assert await world.queue.ack(second)
    assert [m.message_id for m in await claim_as(world, "old")] == [first]


# Contract: 7.no run is left behind
async def test_the_sweeper_leaves_a_postponed_run_alone(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await start_run(world)
    sent = await send(world, wake(run_id))
    await world.queue.postpone(await claim_one(world), 3600)
    await clock.advance(60)
    assert (await world.sweep())["woken_runs"] == 0
    await clock.advance(3600)
    await world.sweep()
    assert await claimed_ids(world) == [sent]


# Contract: 7.postpone
@pytest.mark.parametrize("end", ["ack", "death", "removal", "redrive"])
async def test_nothing_is_left_of_it(backend: Backend, end: str) -> None:
    async with backend.world(library=ManualClock.library(), max_failures=1) as world:
        clock = await ManualClock(world).set()
        run_id = await start_run(world)
        await send(world, content(1, run_id))
        assert await decline_as(world, "old", 3600)
        await finish_run(world, run_id)
        if end == "removal":
            await world.prune(0)
        else:
            (message,) = await claim_as(world, "new")
            if end == "ack":
                assert await world.queue.ack(message)
            else:
                assert await world.queue.retry(message, error="no")
        if end == "redrive":
            assert await world.queue.redrive(message.message_id)
            (message,) = await claim_as(world, "old")
            assert (message.postponed, message.postponed_since) == (0, None)
            assert await world.queue.ack(message)
        await check_invariants(world)
        keys = [keys.topic(TOPIC, "declined").encode() for keys in world.connection.partitions]
        assert not set(keys) & set(backend.dump())
        await clock.advance(7200)
        assert await claimed_ids(world) == []


# Contract: 7.postpone
async def test_stats_tell_what_nobody_knows_and_for_how_long(clocked: Clocked) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    await send(world, content(1, RUN), name=TOPIC + "refunds")
    assert await decline_as(world, "old", 3600)
    await clock.advance(10)
    await send(world, step("s", run_id))
    assert await decline_as(world, "old", 3600)
    await send(world, content(2, run_id), name=TOPIC + "refunds")
    assert await decline_as(world, "old", 3600)
    await clock.advance(5)
    stats = await world.queue.stats(TOPIC)
    assert (stats.postponed, stats.delayed, stats.longest_postponed) == (3, 3, 15)
    assert [tuple(name) for name in stats.postponed_names] == [
        (TOPIC + "refunds", None, 15),
        (NAME, "charge", 5),
    ]


async def test_the_names_are_bounded(world: RedisWorld) -> None:
    for number in range(60):
        await send(world, health_check(number), name=f"{TOPIC}w{number:02}")
    for message in await world.queue.claim(TOPIC, limit=60):
        await world.queue.postpone(message, 3600)
    stats = await world.queue.stats(TOPIC)
    assert stats.postponed == 60
    assert len(stats.postponed_names) == 20
