"""How messages end: acks, continuations, failures, dead letters (contract, section 7)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidInputError
from redis_world.queue import FollowUp
from redis_world.testing import ManualClock
from support.backends import Backend
from support.message_fields import find_record
from support.queue_tools import (
    LEASED_CALLS,
    NAME,
    OTHER_RUN,
    RUN,
    TOPIC,
    claim_one,
    claimed_ids,
    content,
    create_step,
    end_step,
    finish_run,
    health_check,
    outcome,
    send,
    start_run,
    step,
    wake,
)

Clocked = tuple[RedisWorld, ManualClock]


def queue_keys(backend: Backend) -> list[bytes]:
    """Every key that the queue made, without what pins the namespace and the clock of a test."""
    return [
        key
        for key in backend.dump()
        if not key.endswith((b":meta", b":clock")) and b":runs" not in key
    ]


def stored_state(backend: Backend, message_id: str) -> Mapping[str, str]:
    with contextlib.closing(backend.client()) as client:
        return find_record(client, message_id).state()


def stored_error(backend: Backend, message_id: str) -> bytes:
    with contextlib.closing(backend.client()) as client:
        return find_record(client, message_id).get("error")


# -- ack ------------------------------------------------------------------------------------


# Contract: 7.delivery
async def test_an_acked_message_is_gone(world: RedisWorld) -> None:
    await send(world, content(1))
    message = await claim_one(world)
    assert await world.queue.ack(message) is True
    assert await claimed_ids(world) == []
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.delayed, stats.leased, stats.held, stats.dead) == (0, 0, 0, 0, 0)


# Contract: 7.delivery
async def test_nothing_but_the_topics_is_left_when_all_is_acked(
    backend: Backend, world: RedisWorld
) -> None:
    for run in (RUN, OTHER_RUN):
        for i in range(3):
            await send(world, content(i, run), idempotency_key=f"k{i}")
            await send(world, step(f"s{i}", run), idempotency_key=f"s{i}")
        await send(world, wake(run))
    await send(world, health_check(), idempotency_key="h")
    follow_up: FollowUp | None = FollowUp(idempotency_key="next")
    while messages := await world.queue.claim(TOPIC):
        for message in messages:
            assert await world.queue.ack(message, follow_up=follow_up)
            follow_up = None
    keys = queue_keys(backend)
    assert 1 <= len(keys) <= backend.partitions
    assert all(key.endswith(b":topics") for key in keys)


# Contract: 7.no run is left behind
async def test_the_bookkeeping_of_a_run_goes_with_the_run(
    backend: Backend, world: RedisWorld
) -> None:
    """While the run lives the queue name last used is remembered; whichever ends last clears."""

    def kept() -> list[dict[bytes, bytes]]:
        return [value[1] for key, value in backend.dump().items() if key.endswith(b":queue")]

    run_id = await start_run(world)
    await send(world, wake(run_id))
    await world.queue.ack(await claim_one(world))
    (bookkeeping,) = kept()
    assert bookkeeping[b"queue"] == NAME.encode()
    assert bookkeeping[b"n"] == b"0"
    await finish_run(world, run_id)
    assert kept() == []

    run_id = await start_run(world)
    await send(world, wake(run_id))
    message = await claim_one(world)
    await finish_run(world, run_id)
    assert len(kept()) == 1
    await world.queue.ack(message)
    assert kept() == []


# -- continuations --------------------------------------------------------------------------


# Contract: 7.continuation
async def test_a_continuation_is_a_new_message_of_the_same_envelope(clocked: Clocked) -> None:
    world, clock = clocked
    payload = {**content(2**53 + 1), "runInput": {"input": b"i"}, "bytes": b"\x00\xff"}
    sent = await send(
        world, payload, headers={"h": "1"}, deployment_id="dpl_1", idempotency_key="k"
    )
    message = await claim_one(world)
    await world.queue.retry(message, delay=0)
    message = await claim_one(world)
    assert message.attempt == 2
    assert await world.queue.ack(message, follow_up=FollowUp(delay=1.5)) is True
    await clock.advance(1.499)
    assert await claimed_ids(world) == []
    await clock.advance(0.001)
    after = await claim_one(world)
    assert after.message_id != sent
    assert after.message_id.startswith("msg_")
    assert (after.attempt, after.failures) == (1, 0)
    assert after.payload == {k: v for k, v in payload.items() if k != "runInput"}
    assert (after.queue_name, after.headers, after.deployment_id) == (NAME, {"h": "1"}, "dpl_1")
    assert after.due_at - after.enqueued_at == timedelta(seconds=1.5)


# Contract: 7.continuation
async def test_a_continuation_of_no_delay_is_due_at_once(world: RedisWorld) -> None:
    await send(world, {**wake(), "runInput": {"input": b""}})
    message = await claim_one(world)
    assert await world.queue.ack(message, follow_up=FollowUp())
    after = await claim_one(world)
    assert after.message_id != message.message_id
    assert after.payload == wake()


# Contract: 7.continuation, 7.idempotency keys
@pytest.mark.parametrize(
    ("own", "taken"), [(None, "k"), ("k", "k"), ("k2", "k2")], ids=["takes over", "same", "own"]
)
@pytest.mark.parametrize("payload", [content(1), step(), health_check()])
async def test_a_continuation_holds_its_key(
    world: RedisWorld, own: str | None, taken: str, payload: dict[str, Any]
) -> None:
    """Its predecessor's, or its own, which is never lost to the one that it follows."""
    first = await send(world, payload, idempotency_key="k")
    follow_up = FollowUp(delay=100, idempotency_key=own)
    assert await world.queue.ack(await claim_one(world), follow_up=follow_up)
    assert (await world.queue.stats(TOPIC)).delayed == 1
    stands = await send(world, payload, idempotency_key=taken)
    assert stands != first
    assert await claimed_ids(world) == []
    if payload != step():  # a step has one message whatever its key
        for key in {"k", "k2"} - {taken}:
            assert await send(world, payload, idempotency_key=key) not in {first, stands}


# Contract: 7.continuation
async def test_a_continuation_without_any_key_holds_none(world: RedisWorld) -> None:
    await send(world, content(1))
    assert await world.queue.ack(await claim_one(world), follow_up=FollowUp(delay=9))
    assert await send(world, content(1)) != await send(world, content(1))
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.delayed) == (2, 1)


# Contract: 7.continuation, 7.messages of steps
async def test_the_continuation_of_a_step_keeps_its_place(world: RedisWorld) -> None:
    """It has no key, and a second message of the step would run it twice."""
    await send(world, step())
    assert await world.queue.ack(await claim_one(world), follow_up=FollowUp(delay=5))
    again = await send(world, step(), idempotency_key="k")
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.delayed) == (0, 1)
    assert again == await send(world, step())


# Contract: 7.continuation, 7.messages of steps
async def test_the_continuation_of_a_terminal_step_is_not_stored(world: RedisWorld) -> None:
    run_id = await start_run(world)
    await create_step(world, run_id)
    await send(world, step(run_id=run_id), idempotency_key="k")
    message = await claim_one(world)
    await end_step(world, run_id)
    assert await world.queue.ack(message, follow_up=FollowUp(delay=5)) is True
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.delayed, stats.leased) == (0, 0, 0)
    assert await world.queue.send(NAME, step(run_id=run_id)) is None


# Contract: 7.continuation
async def test_a_continuation_waits_for_what_its_run_still_has(clocked: Clocked) -> None:
    """Held replays are older than it and go first."""
    world, clock = clocked
    await send(world, content(1))
    message = await claim_one(world)
    await clock.advance(0.001)
    second = await send(world, content(2))
    assert await claimed_ids(world) == []
    await clock.advance(0.001)
    assert await world.queue.ack(message, follow_up=FollowUp())
    assert await claimed_ids(world) == [second]
    assert (await world.queue.stats(TOPIC)).held == 1


# Contract: 7.continuation
async def test_a_bad_continuation_is_refused_and_the_lease_stays(
    backend: Backend, world: RedisWorld
) -> None:
    await send(world, content(1))
    message = await claim_one(world)
    before = backend.dump()
    for delay in (-1, float("nan"), float("inf")):
        answer = await outcome(world.queue.ack(message, follow_up=FollowUp(delay=delay)))
        assert isinstance(answer, InvalidInputError)
    assert backend.dump() == before
    assert await world.queue.ack(message) is True


# -- failures -------------------------------------------------------------------------------


# Contract: 7.failures
async def test_a_failed_message_comes_again_after_its_delay(clocked: Clocked) -> None:
    world, clock = clocked
    sent = await send(world, content(1))
    assert await world.queue.retry(await claim_one(world), error="no", delay=2.5) is True
    stats = await world.queue.stats(TOPIC)
    assert (stats.leased, stats.delayed) == (0, 1)
    await clock.advance(2.499)
    assert await claimed_ids(world) == []
    await clock.advance(0.001)
    message = await claim_one(world)
    assert (message.message_id, message.attempt, message.failures) == (sent, 2, 1)


# Contract: 7.failures
async def test_the_backoff_grows_and_is_capped(clocked: Clocked) -> None:
    """5 seconds for the first attempts, then exponential; a tenth of it is chance."""
    world, clock = clocked
    await send(world, content(1))
    waits = []
    for _ in range(14):
        message = await claim_one(world, lease=1)
        assert await world.queue.retry(message)
        wait = (await world.queue.claim_batch(TOPIC)).wait
        assert wait is not None
        waits.append(wait)
        await clock.advance(wait)
    assert all(5 <= wait <= 5.5 for wait in waits[:3])
    assert waits[3] > 5.5
    assert all(later > sooner for sooner, later in itertools.pairwise(waits[2:9]))
    assert all(300 <= wait <= 330 for wait in waits[-4:])


# Contract: 7.dead letters
@pytest.mark.parametrize("payload", [content(1), step(), health_check()])
async def test_at_max_failures_a_message_is_dead(
    backend: Backend, payload: dict[str, Any]
) -> None:
    async with backend.world(max_failures=3) as world:
        sent = await send(world, payload, idempotency_key="k")
        for attempt in range(1, 4):
            assert (await world.queue.stats(TOPIC)).dead == 0
            message = await claim_one(world)
            assert (message.attempt, message.failures) == (attempt, attempt - 1)
            assert await world.queue.retry(message, error=f"boom {attempt}", delay=0) is True
        stats = await world.queue.stats(TOPIC)
        assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 1)
        assert await claimed_ids(world) == []
        state = stored_state(backend, sent)
        assert state["reason"] == "max_failures"
        assert stored_error(backend, sent) == b"boom 3"
        assert (state["attempt"], state["failures"], state["lost"]) == ("3", "3", "0")
        # What it held is free, and a new message starts afresh.
        again = await send(world, payload, idempotency_key="k")
        message = await claim_one(world)
        assert again != sent
        assert (message.message_id, message.attempt, message.failures) == (again, 1, 0)


# Contract: 7.failures
async def test_lost_leases_and_released_ones_are_no_failures(backend: Backend) -> None:
    async with backend.world(library=ManualClock.library(), max_failures=2) as world:
        clock = await ManualClock(world).set()
        sent = await send(world, content(1))
        for _ in range(5):
            await claim_one(world, lease=1)
            await clock.advance(1)
        for _ in range(5):
            await world.queue.release(await claim_one(world))
        message = await claim_one(world)
        assert (message.message_id, message.attempt, message.failures) == (sent, 6, 0)
        assert await world.queue.retry(message, delay=0)
        assert (await world.queue.stats(TOPIC)).dead == 0


# Contract: 7.failures
async def test_fifty_lost_leases_do_not_retire_a_message(clocked: Clocked) -> None:
    world, clock = clocked
    sent = await send(world, content(1))
    for attempt in range(1, 51):
        assert (await claim_one(world, lease=1)).attempt == attempt
        await clock.advance(1)
    message = await claim_one(world)
    assert (message.message_id, message.attempt, message.failures) == (sent, 51, 0)
    assert (await world.queue.stats(TOPIC)).dead == 0


# Contract: 7.dead letters
@pytest.mark.parametrize("finder", ["claim", "sweep"])
async def test_at_max_lost_leases_a_message_is_dead(backend: Backend, finder: str) -> None:
    async with backend.world(library=ManualClock.library(), max_lost_leases=2) as world:
        clock = await ManualClock(world).set()
        sent = await send(world, step(), idempotency_key="k")
        for attempt in range(1, 3):
            message = await claim_one(world, lease=1)
            assert (message.message_id, message.attempt) == (sent, attempt)
            await clock.advance(1)
            if finder == "sweep":
                assert (await world.sweep())["expired_leases"] == 1
        assert await claimed_ids(world) == []
        stats = await world.queue.stats(TOPIC)
        assert (stats.ready, stats.leased, stats.dead) == (0, 0, 1)
        state = stored_state(backend, sent)
        assert state["reason"] == "max_lost_leases"
        assert (state["failures"], state["lost"]) == ("0", "2")
        assert await send(world, step(), idempotency_key="k") != sent
        before = backend.dump()
        answers = {name: await call(world, message) for name, call in LEASED_CALLS.items()}
        assert answers == dict.fromkeys(LEASED_CALLS, False)
        assert backend.dump() == before


# Contract: 7.dead letters
async def test_a_dead_message_keeps_no_other_one_of_its_run(backend: Backend) -> None:
    async with backend.world(max_failures=2) as world:
        await send(world, content("dead"))
        assert await world.queue.retry(await claim_one(world), delay=0)
        dying = await claim_one(world)
        await send(world, content("held"))
        of_step = await send(world, step())
        assert await claimed_ids(world) == [of_step]
        await send(world, wake())
        assert await world.queue.retry(dying, delay=0)
        assert (await world.queue.stats(TOPIC)).dead == 1
        await send(world, content("new"))
        numbers = []
        while messages := await world.queue.claim(TOPIC):
            for message in messages:
                numbers.append(message.payload.get("number", "wake"))
                assert await world.queue.ack(message)
        assert sorted(numbers) == ["held", "new", "wake"]


# -- stats and sweep ------------------------------------------------------------------------


async def test_stats_tell_where_the_messages_are(clocked: Clocked) -> None:
    world, clock = clocked
    await send(world, content(1))
    await claim_one(world)
    await send(world, content(2))
    await send(world, content(3))
    assert await claimed_ids(world) == []
    await clock.advance(2)
    for i in range(3):
        await send(world, health_check(i))
    for i in range(4):
        await send(world, health_check(i), delay=1 + i)
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.delayed, stats.leased, stats.held, stats.dead) == (3, 4, 1, 2, 0)
    assert stats.oldest_due_age == 2
    await clock.advance(2.5)
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.delayed) == (5, 2)
    other = await world.queue.stats("__other_wkf_workflow_")
    assert (other.ready, other.leased, other.oldest_due_age) == (0, 0, 0)


async def test_the_oldest_due_age_is_of_what_waits_only(clocked: Clocked) -> None:
    world, clock = clocked

    async def age() -> float:
        return (await world.queue.stats(TOPIC)).oldest_due_age

    assert await age() == 0
    await send(world, content(1), delay=10)
    await clock.advance(9)
    assert await age() == 0
    await clock.advance(4.25)
    assert await age() == 3.25
    message = await claim_one(world)
    assert await age() == 0
    await world.queue.retry(message, delay=5)
    await clock.advance(6)
    assert await age() == 1


# Contract: 7.lease
async def test_a_sweep_frees_all_expired_leases_of_all_topics(clocked: Clocked) -> None:
    """More than one script call frees, and it says how many."""
    world, clock = clocked
    topics = [TOPIC, "__b_wkf_workflow_"]
    assert (await world.sweep())["expired_leases"] == 0
    for topic in topics:
        for i in range(120):
            await send(world, health_check(i), name=topic + "w")
    for topic in topics:
        assert len(await world.queue.claim(topic, limit=100, lease=5)) == 100
        assert len(await world.queue.claim(topic, limit=20, lease=6)) == 20
    await clock.advance(4.999)
    assert (await world.sweep())["expired_leases"] == 0
    await clock.advance(0.001)
    assert (await world.sweep())["expired_leases"] == 200
    await clock.advance(60)
    assert (await world.sweep())["expired_leases"] == 40
    for topic in topics:
        stats = await world.queue.stats(topic)
        assert (stats.ready, stats.leased) == (120, 0)
    assert (await claim_one(world)).attempt == 2


# Contract: 7.lease
async def test_a_claim_frees_expired_leases_by_itself(clocked: Clocked) -> None:
    world, clock = clocked
    for i in range(150):
        await send(world, health_check(i))
    assert len(await world.queue.claim(TOPIC, limit=150, lease=1)) == 150
    await clock.advance(1)
    seen = set()
    for _ in range(2):
        seen |= {m.message_id for m in await world.queue.claim(TOPIC, limit=150)}
    assert len(seen) == 150
