"""A request whose reply is lost is sent again, and has the effect and the answer of one.

The network loses it in this process, so that the embedded store is tested, too; `tests/chaos` has
the same on real connections, and much more of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import pytest
import redis.exceptions

from redis_world import RedisWorld
from redis_world.connection import sender
from redis_world.errors import EntityConflictError, MessageNotFoundError, WorldUnavailableError
from redis_world.lua import default_library
from redis_world.queue import Enqueue, FollowUp
from redis_world.testing import check_invariants
from support import events as e
from support.backends import Backend
from support.queue_tools import NAME, TOPIC, claim_one, content, send, step, wake

pytestmark = pytest.mark.large

LOST: Final = {"once": 1, "twice": 2}


@contextlib.contextmanager
def replies_lost(times: int = 1, *, of: str | None = None) -> Iterator[None]:
    """Lose the replies to the next round trips with scripts, or with one; the server ran them."""
    original = sender.round_trip
    left = times
    sha = None if of is None else default_library()[of].sha.encode()

    def is_meant(command: sender.Command) -> bool:
        return command[0] in (b"EVALSHA", "EVAL") and sha in (None, command[1])

    async def round_trip(
        client: Any, commands: Sequence[sender.Command], *packed: Any
    ) -> list[sender.Reply]:
        nonlocal left
        replies = await original(client, commands, *packed)
        if left and any(map(is_meant, commands)):
            left -= 1
            raise redis.exceptions.ConnectionError("lost on purpose")
        return replies

    with (
        patch.object(sender, "round_trip", round_trip),
        patch.object(sender, "_FIRST_PAUSE", 0.0),
    ):
        yield
        assert not left, "nothing was asked again"


@dataclass(frozen=True)
class Case:
    """An event, and those in front of it; the run is running unless it is to be made."""

    event: e.Wire
    before: tuple[e.Wire, ...] = ()
    run: str = "running"
    options: tuple[tuple[str, Any], ...] = ()


EVENTS: Final = {
    "run_created": Case(e.run_created(), run=""),
    "run_started": Case(e.event("run_started"), run="pending"),
    "run_started, resilient": Case(e.resilient_start(), run=""),
    "run_completed": Case(e.event("run_completed", output=b"o")),
    "run_failed": Case(e.event("run_failed", error=b"e", errorCode="c")),
    "run_cancelled": Case(e.event("run_cancelled")),
    "run_cancelled again": Case(e.event("run_cancelled"), (e.event("run_cancelled"),)),
    "attr_set of the workflow": Case(e.attr_set({"a": "1"}, "attr_1")),
    "attr_set of a step": Case(e.attr_set({"a": "1"}, "attr_1", step="step_1")),
    "step_created": Case(e.step_created()),
    "step_started": Case(e.step_started(), (e.step_created(),)),
    "step_started, lazy": Case(e.lazy_start()),
    "step_completed": Case(e.step_completed(), (e.lazy_start(),)),
    "step_failed": Case(e.step_failed(), (e.lazy_start(),)),
    "step_retrying": Case(e.step_retrying(), (e.lazy_start(),)),
    "hook_created": Case(e.hook_created(metadata=b"m")),
    "hook_conflict": Case(e.hook_created("hook_2"), (e.hook_created(),)),
    "hook_received": Case(e.hook_received(), (e.hook_created(),)),
    "hook_received, with its resume": Case(
        e.hook_received(), (e.hook_created(),), options=(("resume_id", "r"),)
    ),
    "hook_disposed": Case(e.hook_disposed(), (e.hook_created(),)),
    "wait_created": Case(e.wait_created()),
    "wait_completed": Case(e.wait_completed(), (e.wait_created(),)),
}


async def prepared(world: RedisWorld, case: Case) -> str:
    run_id = await e.new_run(world, case.run) if case.run else e.new_run_id()
    for event in case.before:
        await world.events.create(run_id, event)
    return run_id


# Contract: 1.rivals
@pytest.mark.parametrize("name", EVENTS)
async def test_an_event_without_a_message(world: RedisWorld, name: str) -> None:
    case = EVENTS[name]
    run_id = await prepared(world, case)
    before = await e.log_types(world, run_id)
    with replies_lost():
        result = await world.events.create(run_id, case.event, **dict(case.options))
    assert result.message_id is None
    added = 2 if name in {"run_started, resilient", "step_started, lazy"} else 1
    assert len(await e.log_types(world, run_id)) == len(before) + added
    await check_invariants(world)


# Contract: 1.rivals
@pytest.mark.large
@pytest.mark.parametrize("times", LOST.values(), ids=LOST)
@pytest.mark.parametrize("name", EVENTS)
async def test_an_event(world: RedisWorld, name: str, times: int) -> None:
    case = EVENTS[name]
    options = dict(case.options)
    twin = await prepared(world, case)
    expected = await world.events.create(twin, case.event, **options)
    expected_log = await e.log_types(world, twin)
    if name.startswith("hook"):
        # The tokens are wanted once more.
        await e.write(world, twin, e.event("run_cancelled"))
    run_id = await prepared(world, case)
    message = content(1, run_id)
    with replies_lost(times):
        result = await world.events.create(
            run_id, case.event, enqueue=Enqueue(NAME, message), **options
        )
    assert result.event is not None
    assert result.event.event_id is not None
    assert await e.log_types(world, run_id) == expected_log
    assert await world.events.get(run_id, result.event.event_id) == result.event
    for entity in ("run", "step", "hook", "wait"):
        got, wanted = getattr(result, entity), getattr(expected, entity)
        assert (got is None) == (wanted is None)
        if got is not None:
            assert set(got.to_wire()) == set(wanted.to_wire())
    assert result.step_created == expected.step_created
    assert result.message_id == (await claim_one(world)).message_id, "one message"
    await check_invariants(world)


async def test_another_request_under_the_same_request_id(world: RedisWorld) -> None:
    """It is the caller's, who may write many events under one."""
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.hook_created())
    await world.events.create(run_id, e.step_created(), request_id="r")
    with pytest.raises(EntityConflictError):
        await world.events.create(run_id, e.step_created(), request_id="r")
    for event in (e.step_started(), e.step_started(), e.hook_received(), e.hook_received()):
        await world.events.create(run_id, event, request_id="r")
    assert (await world.steps.get(run_id, "step_1")).attempt == 2
    assert (await e.log_types(world, run_id)).count("hook_received") == 2


async def test_a_message_of_an_event_that_is_done_already(world: RedisWorld) -> None:
    """The answer names it, though it is gone."""
    run_id = await e.new_run(world)
    original = sender.round_trip

    async def handle(client: Any, *commands: Any) -> list[sender.Reply]:
        """Meanwhile somebody takes the message and is done with it."""
        sender.round_trip = original
        await original(client, *commands)
        await world.queue.ack(await claim_one(world))
        raise redis.exceptions.ConnectionError("lost on purpose")

    with patch.object(sender, "round_trip", handle):
        enqueue = Enqueue(NAME, content(1, run_id))
        result = await world.events.create(run_id, e.step_created(), enqueue=enqueue)
    assert result.message_id is not None
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.leased) == (0, 0)


# Contract: 7.delivery
async def test_a_send_and_a_claim(world: RedisWorld) -> None:
    with replies_lost():
        first = await send(world, content(1))
    second = await send(world, content(2))
    third = await send(world, content(3), delay=3600)
    with replies_lost(2):
        messages = await world.queue.claim(TOPIC, limit=5)
    assert [message.message_id for message in messages] == [first]
    assert messages[0].attempt == 1
    assert await world.queue.ack(messages[0])
    assert (await claim_one(world)).message_id == second
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.delayed, stats.held) == (0, 1, 0)
    assert third


# Contract: 7.lease
async def test_a_claim_of_many_keeps_their_order(world: RedisWorld) -> None:
    """And takes nobody else's."""
    await send(world, {"of": "another worker"})
    other = await claim_one(world)
    sent = [await send(world, {"n": n}) for n in range(20)]
    with replies_lost():
        messages = await world.queue.claim(TOPIC, limit=1000)
    assert [message.message_id for message in messages] == sent
    assert await world.queue.ack(other)


ENDS: Final[dict[str, Callable[[RedisWorld, Any], Awaitable[bool]]]] = {
    "ack": lambda world, message: world.queue.ack(message),
    "ack and go on": lambda world, message: world.queue.ack(message, follow_up=FollowUp()),
    "retry": lambda world, message: world.queue.retry(message, error="e", delay=0),
    "postpone": lambda world, message: world.queue.postpone(message, 0),
    "release": lambda world, message: world.queue.release(message),
    "extend": lambda world, message: world.queue.extend(message),
}


# Contract: 7.receipts
@pytest.mark.parametrize("name", ENDS)
async def test_the_end_of_a_lease(world: RedisWorld, name: str) -> None:
    await send(world, content(1))
    message = await claim_one(world)
    with replies_lost(2):
        assert await ENDS[name](world, message) is True
    if name != "extend":
        # Another call with the same receipt is another matter.
        assert await ENDS[name](world, message) is False
    stats = await world.queue.stats(TOPIC)
    expected = {"ack": (0, 0), "extend": (0, 1)}.get(name, (1, 0))
    assert (stats.ready, stats.leased) == expected
    await check_invariants(world)


# Contract: 7.dead letters
async def test_a_death_and_what_comes_after(backend: Backend) -> None:
    async with backend.world(max_failures=2) as world:
        for _ in range(2):
            await send(world, content(1))
            await send(world, content(2))
        for _ in range(2):
            for message in await world.queue.claim(TOPIC):
                with replies_lost():
                    assert await world.queue.retry(message, error="e", delay=0)
            while messages := await world.queue.claim(TOPIC):
                for message in messages:
                    with replies_lost():
                        assert await world.queue.retry(message, error="e", delay=0)
        letters = (await world.queue.dead_letters(TOPIC)).data
        assert len(letters) == 4
        assert {letter.failures for letter in letters} == {2}
        with replies_lost(2):
            assert await world.queue.redrive(letters[0].message_id) == letters[0].message_id
        with pytest.raises(MessageNotFoundError):
            await world.queue.redrive(letters[0].message_id)
        with replies_lost(2):
            assert await world.queue.purge_dead_letters(TOPIC) == 3
        await check_invariants(world)


# Contract: 7.dead letters
async def test_a_redrive_that_is_over_when_it_is_asked_again(backend: Backend) -> None:
    """Its step has ended: nothing was left to deliver, the first time too."""
    async with backend.world(max_failures=2) as world:
        run_id = await e.new_run(world)
        step = {"runId": run_id, "stepId": "s"}
        await world.events.create(run_id, e.step_created("s"), enqueue=Enqueue(NAME, step))
        for _ in range(2):
            await world.queue.retry(await claim_one(world), error="e", delay=0)
        await e.write(world, run_id, e.step_started("s"), e.step_completed("s"))
        (letter,) = (await world.queue.dead_letters(TOPIC)).data
        topics = await world.queue.topics()
        with replies_lost(1):
            reply = await world.queue._redrive(world.connection.keys, topics[0], letter.message_id)
        assert reply[0] == b"DONE"


# Contract: 8.one request once
async def test_streams(world: RedisWorld) -> None:
    run_id = e.new_run_id()
    with replies_lost(2):
        await world.streams.write_many(run_id, "s", [b"1", b"2"])
    with replies_lost():
        await world.streams.close(run_id, "s")
    assert [chunk async for chunk in world.streams.read(run_id, "s")] == [b"1", b"2"]


# Contract: 4.unavailable
async def test_patience_has_an_end(backend: Backend) -> None:
    """Then nobody knows, and the error says so; asked again it is found."""
    async with backend.world(retry_timeout=0) as world:
        run_id = e.new_run_id()
        with replies_lost(), pytest.raises(WorldUnavailableError):
            await world.events.create(run_id, e.run_created())
        with pytest.raises(EntityConflictError):
            await world.events.create(run_id, e.run_created())


async def test_the_message_of_a_step_that_is_over(world: RedisWorld) -> None:
    """It is not stored, and a repetition must not name it either."""
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.lazy_start("step_1"))
    with replies_lost(of="events/step_completed"):
        result = await world.events.create(
            run_id, e.step_completed("step_1"), enqueue=Enqueue(NAME, step("step_1", run_id))
        )
    assert result.message_id is None
    assert await world.queue.claim(TOPIC) == []


async def test_a_wake_that_another_one_stands_for(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    standing = await send(world, wake(run_id))
    with replies_lost():
        result = await world.events.create(
            run_id, e.step_created(), enqueue=Enqueue(NAME, wake(run_id))
        )
    assert result.message_id == standing


# Contract: 8.one request once
async def test_a_batch_of_which_some_are_refused(world: RedisWorld) -> None:
    """What was refused is refused again, although by now it could be accepted."""
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.lazy_start("a"))
    batch = [e.step_started("missing"), e.step_completed("a")]
    with replies_lost(2):
        result = await world.events.create_batch(
            run_id, batch, enqueue=Enqueue(NAME, wake(run_id))
        )
    assert [each.status for each in result.results] == [404, 200]
    assert result.results[1].event == (await world.events.list(run_id)).data[-1]
    (message,) = await world.queue.claim(TOPIC, limit=2)
    assert message.message_id == result.message_id
    await check_invariants(world)


# Contract: 8.one request once
async def test_a_token_of_another_partition(backend: Backend) -> None:
    async with backend.world(partitions=16) as world:
        run_id = await e.new_run(world)
        for number in range(8):
            with replies_lost(2, of="tokens/reserve"):
                await e.write(world, run_id, e.hook_created(f"h{number}", f"t{number}"))
            assert (await world.hooks.get_by_token(f"t{number}")).hook_id == f"h{number}"
        await check_invariants(world)


# Contract: 8.one request once
async def test_a_removal(world: RedisWorld) -> None:
    """A run of many steps is still being removed when it is asked for again."""
    run_id = e.new_run_id()
    await world.events.create(run_id, e.run_created())
    await asyncio.gather(
        *(e.write(world, run_id, e.step_created(f"s{number}")) for number in range(230))
    )
    await e.write(world, run_id, e.run_ended("completed"))
    with replies_lost(2, of="runs/remove"):
        assert await world.prune(0) == 1
    await check_invariants(world)
