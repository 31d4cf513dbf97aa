"""An event that ends the delivery it came from, in its own script (contract, section 7)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import EntityConflictError, InvalidEventError, WorldError
from redis_world.queue import Enqueue, Message
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.events_in_a_run import EVENTS as EVENTS_IN_A_RUN
from support.losing import comparable, ids_in_order, keys_of  # noqa: F401 - a fixture
from support.marks import slow
from support.queue_tools import NAME, TOPIC, claim_one, content, health_check, send, step, wake
from support.simulation_network import Network

pytestmark = pytest.mark.large

Clocked = tuple[RedisWorld, ManualClock]

LEASE: Final = 60.0

EVENTS: Final = {**EVENTS_IN_A_RUN, "run_started again": ([], e.event("run_started"))}

MESSAGES: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "a wake": wake,
    "a replay": lambda run_id: content(1, run_id),
    "a step": lambda run_id: step("step_1", run_id),
}

CARRIED: Final[dict[str, Callable[[str], Enqueue | None]]] = {
    "nothing": lambda _: None,
    "a wake": lambda run_id: Enqueue(NAME, wake(run_id)),
    "another step's message": lambda run_id: Enqueue(NAME, step("step_9", run_id)),
    "a message for later": lambda run_id: Enqueue(NAME, content(2, run_id), delay=5),
}


async def prepare(world: RedisWorld, run_id: str, name: str) -> None:
    for wire in EVENTS[name][0]:
        await world.events.create(run_id, wire)


async def leased(world: RedisWorld, name: str, kind: str) -> tuple[str, Message]:
    """A run in which an event is due, and the delivery that makes it."""
    run_id = await e.new_run(world)
    await prepare(world, run_id, name)
    await send(world, MESSAGES[kind](run_id))
    message = await claim_one(world, lease=LEASE)
    # A further replay, which waits for the end of a leased one.
    await send(world, content(0, run_id))
    await world.queue.claim(TOPIC, lease=LEASE)
    return run_id, message


@pytest.mark.parametrize("name", EVENTS)
async def test_every_event_can_end_a_delivery(world: RedisWorld, name: str) -> None:
    run_id = await e.new_run(world)
    await prepare(world, run_id, name)
    await send(world, wake(run_id))
    message = await claim_one(world)
    result = await world.events.create(run_id, EVENTS[name][1], ack=message)
    assert result.acked is True
    assert result.message_id is None
    assert not await world.queue.extend(message)
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.leased, stats.held) == (0, 0, 0)
    await check_invariants(world)


async def test_the_answer_says_nothing_of_what_was_not_asked(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    assert (await world.events.create(run_id, e.step_created())).acked is None
    result = await world.events.create(
        run_id, e.step_started(), enqueue=Enqueue(NAME, wake(run_id))
    )
    assert result.acked is None
    assert result.message_id is not None


@pytest.mark.without("cluster", "sentinel", why="both runs have to lie in one partition")
@pytest.mark.parametrize("carried", ["a wake", *map(slow, sorted(CARRIED.keys() - {"a wake"}))])
@pytest.mark.parametrize("kind", ["a step", *map(slow, sorted(MESSAGES.keys() - {"a step"}))])
@pytest.mark.parametrize("name", EVENTS)
async def test_it_leaves_what_the_event_and_an_ack_leave(
    backend: Backend, name: str, kind: str, carried: str
) -> None:
    left = []
    moment = datetime.now(UTC)
    for at_once in (True, False):
        async with backend.world(library=ManualClock.library()) as world:
            await ManualClock(world).set(moment)
            run_id, message = await leased(world, name, kind)
            enqueue = CARRIED[carried](run_id)
            ack = message if at_once else None
            result = await world.events.create(run_id, EVENTS[name][1], enqueue=enqueue, ack=ack)
            if at_once:
                assert result.acked
            else:
                assert await world.queue.ack(message)
            await check_invariants(world)
            sent = result.message_id is not None
            keys = keys_of(backend.dump(), world.config.namespace)
            left.append(comparable(sent, keys))
    assert left[0] == left[1]


async def test_what_it_sends_may_have_the_key_of_what_it_ends(world: RedisWorld) -> None:
    """The message would be taken for the one that ends, and be lost."""
    run_id = await e.new_run(world)
    await send(world, content(1, run_id), idempotency_key="key")
    message = await claim_one(world)
    result = await world.events.create(
        run_id,
        e.step_created(),
        enqueue=Enqueue(NAME, content(2, run_id), idempotency_key="key"),
        ack=message,
    )
    assert result.acked
    follower = await claim_one(world)
    assert follower.message_id == result.message_id != message.message_id
    assert follower.payload == content(2, run_id)


async def test_a_step_goes_on_with_a_message_of_its_own(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created(), e.step_started())
    await send(world, step("step_1", run_id))
    message = await claim_one(world)
    result = await world.events.create(
        run_id, e.step_retrying(), enqueue=Enqueue(NAME, step("step_1", run_id)), ack=message
    )
    assert result.acked
    follower = await claim_one(world)
    assert follower.message_id == result.message_id != message.message_id


# Contract: 7.lease
@pytest.mark.parametrize("name", EVENTS)
async def test_the_event_counts_without_its_lease(clocked: Clocked, name: str) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    await prepare(world, run_id, name)
    await send(world, content(1, run_id))
    message = await claim_one(world, lease=LEASE)
    await clock.advance(LEASE + 1)
    other = await claim_one(world, lease=LEASE)
    result = await world.events.create(
        run_id, EVENTS[name][1], enqueue=Enqueue(NAME, content(2, run_id)), ack=message
    )
    assert result.acked is False
    assert result.message_id is not None
    assert await world.queue.ack(other), "the other delivery is not touched"


@pytest.mark.parametrize("name", [n for n in EVENTS if n not in {"attr_set", "step_started"}])
async def test_a_refused_event_ends_nothing(
    world: RedisWorld, backend: Backend, name: str
) -> None:
    run_id = await e.new_run(world)
    await send(world, wake(run_id))
    message = await claim_one(world)
    await e.write(world, run_id, e.run_ended("completed" if "cancel" in name else "cancelled"))
    dump = backend.dump()
    with pytest.raises(WorldError):
        await world.events.create(run_id, EVENTS[name][1], ack=message)
    assert backend.dump() == dump
    assert not message.ending.is_over
    assert await world.queue.ack(message)


@pytest.mark.without("sentinel", why="a repeated request takes what is gone for its own doing")
async def test_it_ends_once_only(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await send(world, wake(run_id))
    message = await claim_one(world)
    results = await asyncio.gather(
        *(
            world.events.create(run_id, e.step_created(f"step_{number}"), ack=message)
            for number in range(5)
        )
    )
    assert sorted(result.acked is True for result in results) == [False] * 4 + [True]


async def test_of_rivals_the_one_that_is_refused_ends_nothing(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created())
    await send(world, wake(run_id))
    message = await claim_one(world)
    with pytest.raises(EntityConflictError):
        await world.events.create(run_id, e.step_created(), ack=message)
    assert await world.queue.extend(message)


def of_no_run(message: Message) -> object:
    return dataclasses.replace(message, payload=health_check())


def of_another_run(message: Message) -> object:
    return dataclasses.replace(message, payload=wake(e.new_run_id()))


def with_an_impossible_partition(message: Message) -> object:
    return dataclasses.replace(message, partition=99)


def with_a_queue_that_is_none(message: Message) -> object:
    return dataclasses.replace(message, queue_name="orders")


def with_a_receipt_that_is_none(message: Message) -> object:
    return dataclasses.replace(message, receipt=5)  # type: ignore[arg-type]


def its_id(message: Message) -> object:
    return message.message_id


@pytest.mark.parametrize(
    "spoil",
    [
        of_no_run,
        of_another_run,
        with_an_impossible_partition,
        with_a_queue_that_is_none,
        with_a_receipt_that_is_none,
        its_id,
    ],
)
async def test_a_message_that_can_not_be_is_refused_with_its_event(
    world: RedisWorld, backend: Backend, spoil: Callable[[Message], object]
) -> None:
    run_id = await e.new_run(world)
    await send(world, wake(run_id))
    message = await claim_one(world)
    dump = backend.dump()
    wrong: Any = spoil(message)
    with pytest.raises(InvalidEventError, match="ack"):
        await world.events.create(run_id, e.step_created(), ack=wrong)
    assert backend.dump() == dump


async def test_a_run_that_begins_ends_no_delivery_of_another(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await send(world, wake(run_id))
    message = await claim_one(world)
    with pytest.raises(InvalidEventError, match="ack is a message of run"):
        await world.events.create(None, e.run_created(), ack=message)
    assert await world.queue.ack(message)


# Contract: 1.rivals
@pytest.mark.parametrize("lost", [False, True], ids=["its own", "another's by now"])
async def test_an_event_whose_reply_was_lost_says_what_it_did(
    clocked: Clocked, lost: bool
) -> None:
    world, clock = clocked
    run_id = await e.new_run(world)
    sent = await send(world, wake(run_id))
    message = await claim_one(world, lease=LEASE)
    if lost:
        await clock.advance(2 * LEASE)
        assert (await claim_one(world)).message_id == sent
    network = Network(world.connection._library, lambda _: None)
    with network.installed():
        network.plan(["reply"])
        done = await world.events.create(run_id, e.attr_set({"k": "v"}), ack=message)
    assert network.lost == 1
    assert done.acked is not lost
    assert (await e.log_types(world, run_id)).count("attr_set") == 1
    assert (await world.queue.stats(TOPIC)).leased == lost
    await check_invariants(world)
