"""Messages whose headers and bodies are too large to go through scripts: nothing else differs."""

# Contract: 7.sending, 7.claim

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import pytest
import pytest_asyncio

from redis_world import RedisWorld
from redis_world.queue import FollowUp, Message
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.message_fields import find_record
from support.queue_tools import (
    RUN,
    TOPIC,
    claim_one,
    content,
    finish_run,
    health_check,
    send,
    start_run,
    wake,
)

LARGE: Final = "x" * 6000
HEADERS: Final = {"traceparent": LARGE}
PAYLOADS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "of a run": lambda: {**content(1), "data": LARGE},
    "of no run": lambda: health_check(1, data=LARGE),
}


@pytest_asyncio.fixture
async def mortal(backend: Backend) -> Any:
    """A World whose messages die at their second failure."""
    async with backend.world(library=ManualClock.library(), max_failures=2) as world:
        await ManualClock(world).set()
        yield world
        await check_invariants(world)


def check(message: Message, payload: dict[str, Any]) -> None:
    assert message.payload == payload
    assert message.headers == HEADERS


@pytest.mark.parametrize("make", PAYLOADS.values(), ids=PAYLOADS)
async def test_it_is_whole_whatever_becomes_of_it(
    mortal: RedisWorld, make: Callable[[], dict[str, Any]]
) -> None:
    payload = make()
    sent = await send(mortal, payload, headers=HEADERS)
    for act in (mortal.queue.release, lambda m: mortal.queue.retry(m, error="no", delay=0)):
        message = await claim_one(mortal)
        check(message, payload)
        assert await act(message)
    await check_invariants(mortal)
    message = await claim_one(mortal)
    assert await mortal.queue.retry(message, error="no", delay=0)
    (letter,) = (await mortal.queue.dead_letters(TOPIC)).data
    assert (letter.message_id, letter.payload, letter.headers) == (sent, payload, HEADERS)
    await check_invariants(mortal)
    assert await mortal.queue.redrive(sent) == sent
    message = await claim_one(mortal)
    check(message, payload)
    assert await mortal.queue.ack(message, follow_up=FollowUp())
    message = await claim_one(mortal)
    check(message, payload)
    assert await mortal.queue.ack(message)
    assert (await mortal.queue.stats(TOPIC)).ready == 0


@pytest.mark.parametrize("make", PAYLOADS.values(), ids=PAYLOADS)
async def test_a_handle_goes_on_with_it(
    mortal: RedisWorld, make: Callable[[], dict[str, Any]]
) -> None:
    payload = make()
    await send(mortal, payload, headers=HEADERS)
    message = Message.from_handle((await claim_one(mortal)).handle)
    assert await mortal.queue.ack(message, follow_up=FollowUp())
    check(await claim_one(mortal), payload)


async def test_a_wake_absorbs_one_with_the_same_headers_only(world: RedisWorld) -> None:
    first = await send(world, wake(), headers=HEADERS)
    assert await send(world, wake(), headers=HEADERS) == first
    other = await send(world, wake(), headers={"traceparent": LARGE + "y"})
    assert other != first
    assert await send(world, wake(), headers={"traceparent": "y"}) not in {first, other}
    await check_invariants(world)


@pytest.mark.parametrize("payload", [content(1, RUN), health_check(1)], ids=PAYLOADS)
async def test_one_whose_content_is_gone_is_a_failed_attempt(
    mortal: RedisWorld, backend: Backend, payload: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """And nobody else's: the others of its claim are given."""
    clock = await ManualClock(mortal).set()
    gone = await send(mortal, {**payload, "data": LARGE}, idempotency_key="a")
    fine = await send(mortal, health_check(2))
    with contextlib.closing(backend.client()) as client:
        find_record(client, gone).drop("body")
    for _ in range(2):
        for message in await mortal.queue.claim(TOPIC):
            assert message.message_id == fine
            assert await mortal.queue.ack(message)
        await clock.advance(100)
    assert "its content is gone from the server" in caplog.text
    (letter,) = (await mortal.queue.dead_letters(TOPIC)).data
    assert (letter.message_id, letter.failures) == (gone, 2)
    await mortal.queue.purge_dead_letters(TOPIC)


async def test_a_letter_whose_content_is_gone_is_listed(
    mortal: RedisWorld, backend: Backend
) -> None:
    sent = await send(mortal, {**content(1), "data": LARGE}, headers=HEADERS)
    for _ in range(2):
        assert await mortal.queue.retry(await claim_one(mortal), error="no", delay=0)
    with contextlib.closing(backend.client()) as client:
        find_record(client, sent).drop("body", "headers")
    (letter,) = (await mortal.queue.dead_letters(TOPIC)).data
    assert (letter.message_id, letter.payload, letter.headers) == (sent, wake(), None)
    assert letter.last_error == "no"
    await mortal.queue.purge_dead_letters(TOPIC)


async def test_one_that_is_stripped_while_it_is_read_comes_again(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its run deletes the content between a claim and the look at what is large."""
    options: dict[str, Any] = {"library": ManualClock.library(), "partitions": 1}
    async with backend.world(max_failures=1, **options) as world:
        await ManualClock(world).set()
        created = await world.events.create(
            None, e.run_created(attributes={"$retention": "0"}, allowReservedAttributes=True)
        )
        assert created.run is not None
        run_id = created.run.run_id
        await world.events.create(run_id, e.event("run_started"))
        sent = await send(world, {**content(1, run_id), "data": LARGE})
        read = world.queue._read_records

        async def late(*args: Any) -> Any:
            await finish_run(world, run_id)
            await world.sweep()
            return await read(*args)

        monkeypatch.setattr(world.queue, "_read_records", late)
        assert await world.queue.claim(TOPIC) == []
        monkeypatch.undo()
        message = await claim_one(world)
        assert (message.message_id, message.payload) == (sent, {"runId": run_id})
        assert (message.attempt, message.failures) == (1, 0)
        assert await world.queue.ack(message)
        await check_invariants(world)


async def test_a_letter_of_a_step_that_is_over_goes_with_its_run(backend: Backend) -> None:
    async with backend.world(max_failures=1) as world:
        run_id = await start_run(world)
        await e.write(world, run_id, e.step_created("s"))
        payload = {"runId": run_id, "stepId": "s", "stepName": "s"}
        sent = await send(world, payload, headers=HEADERS)
        assert await world.queue.retry(await claim_one(world), error="no", delay=0)
        await e.write(world, run_id, e.step_started("s"), e.step_completed("s"))
        await finish_run(world, run_id)
        assert await world.queue.redrive(sent) is None
        await check_invariants(world)
        assert (await world.queue.dead_letters(TOPIC)).data == []


async def test_what_scripts_walk_by_has_nothing_large(
    backend: Backend, mortal: RedisWorld
) -> None:
    """To walk by the fields of a hash Redis 7.0 copies all of its values."""
    sent = await send(mortal, {**content(1), "data": LARGE}, headers=HEADERS)
    with contextlib.closing(backend.client()) as client:
        book = find_record(client, sent).key
        assert all(len(value) < 1000 for value in client.hgetall(book).values())
    assert await mortal.queue.ack(await claim_one(mortal))
