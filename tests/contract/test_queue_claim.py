"""Claims, leases and the one replay per run (contract, section 7)."""

# Contract: 7.claim

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidInputError
from redis_world.queue import MAX_CLAIM, Message
from redis_world.testing import ManualClock
from support.backends import Backend
from support.queue_tools import (
    LEASED_CALLS,
    OTHER_RUN,
    RUN,
    TOPIC,
    claim_one,
    claimed_ids,
    content,
    health_check,
    outcome,
    send,
    step,
    wake,
)

Clocked = tuple[RedisWorld, ManualClock]


async def test_messages_come_in_the_order_in_which_they_are_due(clocked: Clocked) -> None:
    world, clock = clocked
    delays = [5, 0.002, 0, 0.001, 60, 0]
    sent = [await send(world, content(d, f"run_{n}"), delay=d) for n, d in enumerate(delays)]
    await clock.advance(60)
    messages = await world.queue.claim(TOPIC)
    assert [message.payload["number"] for message in messages] == sorted(delays)
    assert [m.message_id for m in messages[:2]] == [sent[2], sent[5]]  # equally due: as sent


async def test_a_claim_takes_at_most_its_limit(world: RedisWorld) -> None:
    sent = [await send(world, content(i, f"run_{i}")) for i in range(12)]
    first = await claimed_ids(world, limit=5)
    assert len(first) == 5
    second = await claimed_ids(world)  # 10 by default
    assert len(second) == 7
    assert sorted(first + second) == sorted(sent)
    assert await claimed_ids(world, limit=1000) == []


async def test_the_default_limit_is_ten(world: RedisWorld) -> None:
    for i in range(11):
        await send(world, content(i, f"run_{i}"))
    assert len(await claimed_ids(world)) == 10


async def test_bad_claims_and_leases_are_refused(backend: Backend, world: RedisWorld) -> None:
    await send(world, content(1))
    message = await claim_one(world)
    before = backend.dump()
    calls = [world.queue.claim(TOPIC, limit=limit) for limit in (0, -1, 1001)]
    for lease in (0, -1, float("nan"), timedelta(0)):
        calls.append(world.queue.claim(TOPIC, lease=lease))
        calls.append(world.queue.extend(message, lease=lease))  # type: ignore[arg-type]
    topics: list[Any] = ["", "orders", "__wkf_workflow", "__wkf_workflow_orders", "__wkf_steps_"]
    calls += [world.queue.claim(topic) for topic in topics]
    calls += [world.queue.stats(topic) for topic in topics]  # type: ignore[misc]
    calls.append(world.queue.retry(message, delay=-1))  # type: ignore[arg-type]
    answers = [await outcome(call) for call in calls]
    assert [type(a) for a in answers if not isinstance(a, InvalidInputError)] == []
    assert backend.dump() == before


# Contract: 7.receipts
async def test_every_lease_has_a_receipt_of_its_own(world: RedisWorld) -> None:
    receipts = []
    await send(world, content(1))
    for _ in range(4):
        message = await claim_one(world)
        receipts.append(message.receipt)
        await world.queue.release(message)
    assert len({*receipts}) == 4
    assert all(receipts)


async def test_a_topic_gives_its_own_messages_only(world: RedisWorld) -> None:
    await send(world, content(1))
    for topic in ("__a_wkf_workflow_", "__ab_wkf_workflow_"):
        assert await claimed_ids(world, topic) == []
    assert len(await claimed_ids(world)) == 1


async def test_namespaces_share_a_server_unseen(backend: Backend) -> None:
    async with backend.world() as one, backend.world() as other:
        await send(one, content(1))
        assert await claimed_ids(other) == []
        assert await other.queue.topics() == []
        assert (await other.queue.stats(TOPIC)).ready == 0
        assert len(await claimed_ids(one)) == 1


# -- attempts and leases --------------------------------------------------------------------


# Contract: 7.delivery, 2.message ids
async def test_an_attempt_is_counted_for_every_lease(clocked: Clocked) -> None:
    """Also for lost ones; failures are counted apart, and the id stays."""
    world, clock = clocked
    sent = await send(world, content(1))
    message = await claim_one(world, lease=5)
    told = [(message.attempt, message.failures)]
    await clock.advance(5)
    message = await claim_one(world, lease=5)
    told.append((message.attempt, message.failures))
    await world.queue.retry(message, delay=1)
    await clock.advance(1)
    message = await claim_one(world, lease=5)
    told.append((message.attempt, message.failures))
    await clock.advance(5)
    message = await claim_one(world)
    told.append((message.attempt, message.failures))
    assert told == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert message.message_id == sent


# Contract: 7.delivery
async def test_a_message_that_was_given_back_is_due_at_once_as_it_was(clocked: Clocked) -> None:
    """Its worker had no time for it, so that neither a failure nor an attempt is its."""
    world, clock = clocked
    sent = await send(world, content(1))
    for _ in range(3):
        message = await claim_one(world)
        assert (message.message_id, message.attempt, message.failures) == (sent, 1, 0)
        assert await world.queue.release(message) is True
        await clock.advance(1)


# Contract: 7.lease
async def test_a_lease_ends_to_the_millisecond(clocked: Clocked) -> None:
    world, clock = clocked
    sent = await send(world, content(1))
    await claim_one(world, lease=0.5)
    await clock.advance(0.499)
    assert await claimed_ids(world) == []
    await clock.advance(0.001)
    assert await claimed_ids(world) == [sent]


# Contract: 7.lease
async def test_the_default_lease_is_a_minute(clocked: Clocked) -> None:
    world, clock = clocked
    sent = await send(world, content(1))
    await claim_one(world)
    await clock.advance(59.999)
    assert await claimed_ids(world) == []
    await clock.advance(0.001)
    assert await claimed_ids(world) == [sent]


# Contract: 7.lease
async def test_an_extended_lease_ends_so_long_from_now(clocked: Clocked) -> None:
    world, clock = clocked
    sent = await send(world, content(1))
    message = await claim_one(world, lease=10)
    await clock.advance(9)
    assert await world.queue.extend(message, lease=10) is True
    await clock.advance(9)
    assert await world.queue.extend(message, lease=timedelta(seconds=2)) is True
    await clock.advance(1.999)
    assert await claimed_ids(world) == []
    await clock.advance(0.001)
    again = await claim_one(world)
    assert (again.message_id, again.attempt) == (sent, 2)


async def _lose_by_ack(world: RedisWorld, clock: ManualClock, message: Message) -> None:
    assert await world.queue.ack(message) is True


async def _lose_by_retry(world: RedisWorld, clock: ManualClock, message: Message) -> None:
    assert await world.queue.retry(message, delay=0) is True


async def _lose_by_release(world: RedisWorld, clock: ManualClock, message: Message) -> None:
    assert await world.queue.release(message) is True


async def _lose_by_sweep(world: RedisWorld, clock: ManualClock, message: Message) -> None:
    await clock.advance(10)
    assert (await world.sweep())["expired_leases"] == 1


async def _lose_to_another(world: RedisWorld, clock: ManualClock, message: Message) -> None:
    await clock.advance(10)
    assert await claimed_ids(world) == [message.message_id]


async def _lose_by_death(world: RedisWorld, clock: ManualClock, message: Message) -> None:
    for _ in range(world.config.max_failures - 1):
        await world.queue.retry(message, delay=0)
        message = await claim_one(world)
    await world.queue.retry(message, delay=0)
    assert (await world.queue.stats(TOPIC)).dead == 1


# Contract: 7.receipts
@pytest.mark.large
@pytest.mark.parametrize(
    "lose",
    [
        _lose_by_ack,
        _lose_by_retry,
        _lose_by_release,
        _lose_by_sweep,
        _lose_to_another,
        _lose_by_death,
    ],
)
@pytest.mark.parametrize("payload", [content(1), step()], ids=["replay", "step"])
async def test_an_old_receipt_changes_nothing_and_is_told_so(
    backend: Backend, clocked: Clocked, lose: Any, payload: dict[str, Any]
) -> None:
    world, clock = clocked
    await send(world, payload, idempotency_key="k")
    message = await claim_one(world, lease=10)
    await lose(world, clock, message)
    before = backend.dump()
    answers = {name: await call(world, message) for name, call in LEASED_CALLS.items()}
    assert answers == dict.fromkeys(LEASED_CALLS, False)
    assert backend.dump() == before


# Contract: 7.receipts
async def test_a_late_ack_is_good_while_nobody_took_the_message(clocked: Clocked) -> None:
    world, clock = clocked
    await send(world, content(1))
    message = await claim_one(world, lease=1)
    await clock.advance(60)
    assert await world.queue.ack(message) is True
    assert await claimed_ids(world) == []


# -- one replay per run ---------------------------------------------------------------------


async def _end_by_retry(world: RedisWorld, clock: ManualClock, message: Message) -> None:
    assert await world.queue.retry(message, delay=1000)


async def _end_by_expiry(world: RedisWorld, clock: ManualClock, message: Message) -> None:
    # The run's next replay is older than the lost one from then on.
    await clock.advance(10)


@pytest.mark.parametrize(
    "end", [_lose_by_ack, _end_by_retry, _lose_by_release, _lose_by_sweep, _end_by_expiry]
)
async def test_a_run_has_one_leased_replay_and_the_next_follows_it(
    clocked: Clocked, end: Any
) -> None:
    """However the leased one ends, one that waited goes on, the oldest first."""
    world, clock = clocked
    first = await send(world, content(1))
    message = await claim_one(world, lease=10)
    assert message.message_id == first
    await clock.advance(0.001)
    second = await send(world, content(2))
    await clock.advance(0.001)
    await send(world, wake())
    assert await claimed_ids(world) == []
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.leased, stats.held) == (0, 1, 2)
    assert await claimed_ids(world) == []  # they wait apart, and are not looked at again

    await clock.advance(0.001)
    await end(world, clock, message)
    assert await claimed_ids(world) == [second]
    stats = await world.queue.stats(TOPIC)
    assert stats.leased == 1
    assert stats.held >= 1


async def test_a_death_lets_the_next_replay_go_on(backend: Backend) -> None:
    async with backend.world(max_failures=2) as world:
        await send(world, content(1))
        message = await claim_one(world)
        await world.queue.retry(message, delay=0)
        message = await claim_one(world)
        second = await send(world, content(2))
        assert await claimed_ids(world) == []
        await world.queue.retry(message, delay=0)
        assert (await world.queue.stats(TOPIC)).dead == 1
        assert await claimed_ids(world) == [second]


# Contract: 7.claim, 7.delivery
async def test_all_replays_of_a_run_are_delivered_one_by_one(clocked: Clocked) -> None:
    world, clock = clocked
    for i in range(8):
        await send(world, content(i))
        await clock.advance(0.001)
    numbers = []
    while messages := await world.queue.claim(TOPIC):
        (message,) = messages
        numbers.append(message.payload["number"])
        await clock.advance(1)
        assert await world.queue.ack(message)
    assert numbers == list(range(8))


async def test_one_claim_leases_one_replay_of_each_run(world: RedisWorld) -> None:
    for run in (RUN, OTHER_RUN):
        for i in range(3):
            await send(world, content(i, run))
    runs = [message.run_id for message in await world.queue.claim(TOPIC)]
    assert sorted(map(str, runs)) == [RUN, OTHER_RUN]
    assert (await world.queue.stats(TOPIC)).held == 4


@pytest.mark.large
async def test_the_largest_claim_holds_as_many_as_it_comes_by(backend: Backend) -> None:
    """More than Redis takes as the arguments of one command of a script."""
    async with backend.world(partitions=1) as world:
        await send(world, content(-1))
        leased = await claim_one(world)
        for _ in range(9):
            await asyncio.gather(*(send(world, content(n)) for n in range(500)))
        assert await world.queue.claim(TOPIC, limit=MAX_CLAIM) == []
        # A claim that is sent again holds more.
        assert (await world.queue.stats(TOPIC)).held >= 4 * MAX_CLAIM + 32
        assert await world.queue.ack(leased)
        await claim_one(world)


async def test_replays_of_two_topics_wait_for_each_other(world: RedisWorld) -> None:
    """A replay under another namespace's topic is a replay of the same run all the same."""
    other_topic = "__other_wkf_workflow_"
    await send(world, content(1))
    second = await send(world, content(2), name=other_topic + "orders")
    message = await claim_one(world)
    assert await claimed_ids(world, other_topic) == []
    assert (await world.queue.stats(other_topic)).held == 1
    await world.queue.ack(message)
    assert await claimed_ids(world, other_topic) == [second]


async def test_steps_of_a_run_run_in_parallel(world: RedisWorld) -> None:
    await send(world, content(1))
    await claim_one(world)
    sent = {await send(world, step(f"step_{i}")) for i in range(4)}
    messages = await world.queue.claim(TOPIC)
    assert {message.message_id for message in messages} == sent
    # Nor does a leased step keep a replay waiting.
    replay = await send(world, content(1, OTHER_RUN))
    await send(world, step("s", OTHER_RUN))
    assert replay in await claimed_ids(world)
    assert (await world.queue.stats(TOPIC)).held == 0


async def test_the_end_of_a_step_lets_no_replay_pass(world: RedisWorld) -> None:
    await send(world, step())
    leased_step = await claim_one(world)
    await send(world, content(1))
    await claim_one(world)
    await send(world, content(2))
    await world.queue.ack(leased_step)
    assert await claimed_ids(world) == []


async def test_replays_need_not_wait_where_a_world_does_not_serialize(backend: Backend) -> None:
    async with backend.world(serialize_runs=False) as world:
        sent = {await send(world, content(i)) for i in range(5)}
        messages = await world.queue.claim(TOPIC)
        assert {message.message_id for message in messages} == sent
        for message in messages:
            assert await world.queue.ack(message)
        stats = await world.queue.stats(TOPIC)
        assert (stats.ready, stats.leased, stats.held) == (0, 0, 0)


# -- budget and waiting ---------------------------------------------------------------------


async def test_a_run_with_many_replays_does_not_starve_the_others(backend: Backend) -> None:
    """A claim walks a bounded way in a partition, and says when that ended it."""
    async with backend.world(library=ManualClock.library(), partitions=1) as world:
        await assert_no_starvation(world, await ManualClock(world).set())


async def assert_no_starvation(world: RedisWorld, clock: ManualClock) -> None:
    await send(world, content("leased"))
    await claim_one(world)
    for i in range(100):
        await send(world, content(i))
    await clock.advance(0.001)
    other = await send(world, content("other", OTHER_RUN))
    first = await world.queue.claim_batch(TOPIC, limit=1)
    assert (first.messages, first.more, first.wait) == ([], True, 0)
    found: list[Message] = []
    rounds = 0
    while not found:
        batch = await world.queue.claim_batch(TOPIC, limit=1)
        found = batch.messages
        rounds += 1
        assert found or batch.more
    assert [message.message_id for message in found] == [other]
    assert rounds <= 3
    assert (await world.queue.stats(TOPIC)).held == 100
    last = await world.queue.claim_batch(TOPIC, limit=1)
    assert (last.messages, last.more) == ([], False)


async def test_a_claim_tells_when_to_come_again(clocked: Clocked) -> None:
    world, clock = clocked

    async def look(limit: int = 10) -> tuple[int, bool, float | None]:
        batch = await world.queue.claim_batch(TOPIC, limit=limit, lease=20)
        return len(batch.messages), batch.more, batch.wait

    assert await look() == (0, False, None)
    await send(world, health_check(1), delay=7.25)
    assert await look() == (0, False, 7.25)
    await send(world, health_check(2), delay=30)
    await clock.advance(7)
    assert await look() == (0, False, 0.25)
    await clock.advance(0.25)
    assert await look() == (1, False, 20)  # the lease that ends
    await clock.advance(5)
    await send(world, health_check(3))
    await send(world, health_check(4))
    taken, _, wait = await look(limit=1)
    assert (taken, wait) == (1, 0)  # there is more at once
    assert (await look())[0] == 1
    await clock.advance(14.5)
    assert await look() == (0, False, 0.5)


async def test_a_batch_that_found_all_has_no_more(world: RedisWorld) -> None:
    for i in range(3):
        await send(world, content(i, f"run_{i}"))
    batch = await world.queue.claim_batch(TOPIC, limit=10)
    assert (len(batch.messages), batch.more) == (3, False)
