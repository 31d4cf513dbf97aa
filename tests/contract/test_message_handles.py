"""A leased message in another process, by its handle (contract, section 7)."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import InvalidInputError
from redis_world.queue import FollowUp, Message
from redis_world.testing import ManualClock
from support import events as e
from support.backends import Backend
from support.losing import comparable, ids_in_order, keys_of  # noqa: F401 - a fixture
from support.queue_tools import RUN, TOPIC, claim_one, content, health_check, send, step, wake

Use = Callable[[RedisWorld, Message], Awaitable[object]]

FIRST: Final = {"runId": RUN, "runInput": {"input": b"\x00in"}, "deep": [{"n": 2**53 + 1}]}
PAYLOADS: Final = {
    "a wake": wake(),
    "a replay": content(1),
    "a first message": FIRST,
    "a step": step(),
    "of no run": health_check(),
    "ü \N{SNOWMAN}": step("stép \N{SNOWMAN}"),
}


USES: Final[dict[str, Use]] = {
    "ack": lambda world, it: world.queue.ack(it),
    "ack and continue": lambda world, it: world.queue.ack(it, follow_up=FollowUp(delay=7)),
    "ack and continue under a key": lambda world, it: world.queue.ack(
        it, follow_up=FollowUp(idempotency_key="k2")
    ),
    "retry": lambda world, it: world.queue.retry(it, error="no", delay=3),
    "extend": lambda world, it: world.queue.extend(it, lease=100),
    "release": lambda world, it: world.queue.release(it),
    "postpone": lambda world, it: world.queue.postpone(it),
}


async def leased(world: RedisWorld, clock: ManualClock, payload: dict[str, Any]) -> Message:
    """A message that has failed and was postponed before, and is leased."""
    options: dict[str, Any] = {"idempotency_key": "k1", "headers": {"h": "1"}}
    await send(world, payload, deployment_id="d", **options)
    assert await world.queue.retry(await claim_one(world), error="first", delay=0)
    assert await world.queue.postpone(await claim_one(world))
    await clock.advance(2)
    return await claim_one(world)


@pytest.mark.large
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", PAYLOADS)
async def test_it_does_what_the_message_does(backend: Backend, name: str, use: str) -> None:
    left = []
    moment = datetime.now(UTC)
    for by_handle in (False, True):
        async with backend.world(library=ManualClock.library()) as world:
            clock = await ManualClock(world).set(moment)
            message = await leased(world, clock, PAYLOADS[name])
            if by_handle:
                message = Message.from_handle(message.handle)
            result = await USES[use](world, message)
            left.append(comparable(result, keys_of(backend.dump(), world.config.namespace)))
    assert left[0] == left[1]


async def test_an_event_ends_what_a_handle_stands_for(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    await send(world, wake(run_id))
    message = Message.from_handle((await claim_one(world)).handle)
    result = await world.events.create(run_id, e.attr_set({"a": "b"}), ack=message)
    assert result.acked
    assert not await world.queue.extend(message)


async def test_it_knows_its_message(clocked: tuple[RedisWorld, ManualClock]) -> None:
    world, clock = clocked
    message = await leased(world, clock, step())
    found = Message.from_handle(message.handle)
    assert found.handle == message.handle
    assert message.is_whole
    assert not found.is_whole
    same = "message_id queue_name topic run_id is_step idempotency_key attempt failures receipt"
    for field in [*same.split(), "enqueued_at", "due_at", "partition", "postponed"]:
        assert getattr(found, field) == getattr(message, field), field
    assert found.payload == step()


async def test_it_ends_with_its_lease(clocked: tuple[RedisWorld, ManualClock]) -> None:
    world, clock = clocked
    await send(world, step())
    message = Message.from_handle((await claim_one(world, lease=5)).handle)
    await clock.advance(6)
    await claim_one(world)
    for use in USES.values():
        assert not await use(world, message)


def packed(*fields: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode()


SOUND: Final = (1, 0, f"{TOPIC}w", "msg_1", "w/1", RUN, "", "", "", 1, 0, 0, 5, 5)


def spoiled(place: int, value: object) -> str:
    return packed(*SOUND[:place], value, *SOUND[place + 1 :])


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "x",
        "msg_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "a b",
        "a" * 100_000,
        5,
        None,
        b"aGk",
        packed(),
        packed(*SOUND[:-1]),
        packed(*SOUND, 1),
        base64.urlsafe_b64encode(b"[" * 5000).rstrip(b"=").decode(),
        base64.urlsafe_b64encode(b'{"a":1}').rstrip(b"=").decode(),
        base64.urlsafe_b64encode(b"\xff\xff").rstrip(b"=").decode(),
        spoiled(0, 2),
        spoiled(1, "0"),
        spoiled(1, True),
        spoiled(1, -1),
        spoiled(2, "orders"),
        spoiled(3, None),
        spoiled(9, 1.5),
        spoiled(12, 2**53),
        spoiled(12, 10**30),
    ],
)
async def test_what_is_no_handle_is_refused(handle: Any) -> None:
    with pytest.raises(InvalidInputError, match="handle must be"):
        Message.from_handle(handle)


async def test_a_handle_of_another_namespace_is_refused(world: RedisWorld) -> None:
    message = Message.from_handle(spoiled(1, 99))
    with pytest.raises(InvalidInputError, match="partition"):
        await world.queue.ack(message)


async def test_a_sound_handle_is_taken() -> None:
    assert Message.from_handle(packed(*SOUND)).message_id == "msg_1"
