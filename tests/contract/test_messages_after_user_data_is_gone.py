"""Messages of a run that asked for the deletion of its user data tell none (contract, section 5).

They may be due, leased, held, postponed or dead when it ends, and be redriven or sent behind it.
"""

# Contract: 5.user data

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from itertools import product
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.queue import DeadLetter, Enqueue, FollowUp, Message
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.message_fields import find_record
from support.queue_tools import NAME, TOPIC, claim_one, content, send, step, wake

Clocked = tuple[RedisWorld, ManualClock]
ZERO: Final[dict[str, Any]] = {"attributes": {"$retention": "0"}, "allowReservedAttributes": True}
SECRET: Final = "secret"


def secret(run_id: str, **more: Any) -> dict[str, Any]:
    return {"runId": run_id, "runInput": {"input": SECRET.encode()}, **more}


async def due(world: RedisWorld, run_id: str) -> None:
    """As it was sent."""


async def leased(world: RedisWorld, run_id: str) -> None:
    """By a worker that dies."""
    await claim_one(world, lease=1)


async def held(world: RedisWorld, run_id: str) -> None:
    first = await claim_one(world, lease=1)
    assert first.run_id == run_id
    await send(world, secret(run_id, number=2), headers={"h": SECRET})
    assert await world.queue.claim(TOPIC) == []
    assert await world.queue.ack(first)


async def failed(world: RedisWorld, run_id: str) -> None:
    await world.queue.retry(await claim_one(world), error=SECRET, delay=1)


async def postponed(world: RedisWorld, run_id: str) -> None:
    await world.queue.postpone(await claim_one(world), 1)


async def dead(world: RedisWorld, run_id: str) -> None:
    for _ in range(world.config.max_failures):
        await world.queue.retry(await claim_one(world), error=SECRET, delay=0)


async def followed(world: RedisWorld, run_id: str) -> None:
    message = await claim_one(world)
    await world.queue.ack(message, follow_up=FollowUp(delay=1))


PLACES: Final[dict[str, Callable[[RedisWorld, str], Awaitable[None]]]] = {
    each.__name__: each for each in (due, leased, held, failed, postponed, dead, followed)
}
PAYLOADS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "replay": secret,
    "step": lambda run_id: {**step("s", run_id), **secret(run_id)},
}


def assert_bare(found: Message | DeadLetter, run_id: str, kind: str) -> None:
    assert SECRET not in repr(asdict(found))
    named = {"stepId": "s", "stepName": "charge"} if kind == "step" else {}
    assert found.payload == {"runId": run_id, **named}
    assert found.headers is None
    assert found.queue_name == NAME
    assert found.idempotency_key == "k" or found.idempotency_key is None


@pytest.mark.large
@pytest.mark.parametrize("cleaned", [False, True], ids=["at once", "after a sweep"])
@pytest.mark.parametrize(
    ("place", "kind"),
    # Only replays are held.
    [each for each in product(PLACES, PAYLOADS) if each != ("held", "step")],
)
async def test_no_read_shows_it(backend: Backend, place: str, kind: str, cleaned: bool) -> None:
    async with backend.world(library=ManualClock.library(), max_failures=4) as world:
        clock = await ManualClock(world).set()
        run_id = await e.new_run(world, **ZERO)
        if kind == "step":
            await e.write(world, run_id, e.step_created("s", stepName="charge"))
        headers = {"h": SECRET}
        await send(world, PAYLOADS[kind](run_id), idempotency_key="k", headers=headers)
        await PLACES[place](world, run_id)
        await e.write(world, run_id, e.run_ended("completed"))
        if cleaned:
            await world.sweep()
            assert SECRET.encode() not in repr(backend.dump()).encode()
        await check_invariants(world)
        await clock.advance(5)
        if place == "dead":
            (letter,) = (await world.queue.dead_letters(TOPIC)).data
            assert_bare(letter, run_id, kind)
            assert (letter.last_error, letter.failures) == (None, 4)
            await world.queue.redrive(letter.message_id)
        message = await claim_one(world)
        assert_bare(message, run_id, kind)
        assert await world.queue.retry(message, error=SECRET, delay=0)
        message = await claim_one(world)
        assert await world.queue.ack(message, follow_up=FollowUp())
        for _ in range(world.config.max_failures):
            for message in await world.queue.claim(TOPIC):
                assert_bare(message, run_id, kind)
                assert await world.queue.retry(message, error=SECRET, delay=0)
        for letter in (await world.queue.dead_letters(TOPIC)).data:
            assert_bare(letter, run_id, kind)
            assert letter.last_error is None
        await check_invariants(world)


async def test_a_lease_of_before_ends_as_ever(clocked: Clocked) -> None:
    """Its worker has the content, and hands it on: nobody is shown it again."""
    world, _ = clocked
    run_id = await e.new_run(world, **ZERO)
    await send(world, secret(run_id))
    message = await claim_one(world)
    assert SECRET in repr(asdict(message))
    await e.write(world, run_id, e.run_ended("completed"))
    assert await world.queue.ack(message, follow_up=FollowUp())
    again = await claim_one(world)
    assert again.payload == {"runId": run_id}
    assert await world.queue.ack(again)


async def test_what_is_sent_behind_the_end_is_not_shown_either(world: RedisWorld) -> None:
    run_id = await e.new_run(world, **ZERO)
    await e.write(world, run_id, e.run_ended("cancelled"))
    await send(world, secret(run_id), headers={"h": SECRET})
    (message,) = await world.queue.claim(TOPIC)
    assert_bare(message, run_id, "replay")


@pytest.mark.parametrize("is_batch", [False, True], ids=["an event", "a batch"])
@pytest.mark.parametrize("has_others", [False, True], ids=["first", "one more"])
async def test_what_comes_along_with_the_end_is_not_shown_either(
    backend: Backend, world: RedisWorld, is_batch: bool, has_others: bool
) -> None:
    run_id = await e.new_run(world, **ZERO)
    if has_others:
        await send(world, content(1, run_id), delay=3600)
    along = Enqueue(NAME, secret(run_id), headers={"h": SECRET})
    if is_batch:
        await world.events.create_batch(run_id, [e.run_ended("completed")], enqueue=along)
    else:
        await world.events.create(run_id, e.run_ended("completed"), enqueue=along)
    await check_invariants(world)
    (message,) = await world.queue.claim(TOPIC)
    assert_bare(message, run_id, "replay")
    with contextlib.closing(backend.client()) as client:
        book = find_record(client, message.message_id).key
        assert SECRET.encode() not in repr(client.hgetall(book)).encode()


async def test_others_keep_theirs(world: RedisWorld) -> None:
    """Without the attribute a run that has ended gives its messages as they were sent."""
    run_id = await e.new_run(world)
    await send(world, secret(run_id), headers={"h": SECRET})
    await e.write(world, run_id, e.run_ended("completed"))
    await world.sweep()
    (message,) = await world.queue.claim(TOPIC)
    assert message.payload == secret(run_id)
    assert message.headers == {"h": SECRET}


# Contract: 5.run retention
@pytest.mark.large
async def test_thousands_are_touched_by_no_single_script(backend: Backend) -> None:
    """The end of the run judges none of them; the sweeper goes piece by piece."""
    async with backend.world(partitions=1) as world:
        run_id = await e.new_run(world, **ZERO)
        for number in range(1200):
            await send(world, {**content(number, run_id), "more": SECRET})
        await send(world, wake(run_id))
        await e.write(world, run_id, e.run_ended("completed"))
        assert SECRET.encode() in repr(backend.dump()).encode()
        claim = await world.queue.claim_batch(TOPIC, limit=1)
        assert claim.messages[0].payload == {"runId": run_id}
        calls = 0
        original = world.connection.call

        async def call(name: str, *args: Any, **options: Any) -> list[Any]:
            nonlocal calls
            calls += name == "runs/clean"
            return await original(name, *args, **options)

        world.connection.call = call  # type: ignore[method-assign]
        await world.sweep()
        assert calls >= 3
        assert SECRET.encode() not in repr(backend.dump()).encode()
        await check_invariants(world)
