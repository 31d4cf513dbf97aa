"""What a worker does with a message whose delivery an event of its handler's has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.connection import Connection
from redis_world.queue import Message
from redis_world.testing import check_invariants
from redis_world.worker import Continuation, current_message
from support.at_work import at_work, deliveries
from support.events import attr_set, log, new_run, step_created
from support.message_fields import take_lease
from support.queue_tools import TOPIC, content, send, step
from support.until import until

pytestmark = pytest.mark.large

LEASE: Final = 0.6
"""Seconds; three beats come in this time."""

After = Callable[[], Awaitable[Continuation | None]]


@dataclass(frozen=True)
class Again:
    delay_seconds: float = 0.0
    idempotency_key: str | None = None


async def returns() -> None:
    pass


async def continues() -> Continuation:
    return Again()


async def raises() -> None:
    raise ValueError("behind its event")


async def goes_on_for_long() -> None:
    await asyncio.sleep(2 * LEASE)


AFTER: Final[list[After]] = [returns, continues, raises, goes_on_for_long]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "redis_world")
    return caplog


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts that this process calls."""
    called: list[str] = []
    run = Connection.run

    async def noting(connection: Connection, name: str, *args: Any) -> Any:
        called.append(name)
        return await run(connection, name, *args)

    monkeypatch.setattr(Connection, "run", noting)
    return called


@pytest.mark.parametrize("payload", [content, step], ids=["replay", "step"])
@pytest.mark.parametrize("after", AFTER, ids=lambda after: after.__name__)
async def test_nothing_is_left_to_do(
    world: RedisWorld,
    lines: pytest.LogCaptureFixture,
    scripts: list[str],
    after: After,
    payload: Callable[[Any, str], dict[str, Any]],
) -> None:
    run_id = await new_run(world)
    ended: list[str] = []

    async def handle(message: Message) -> Continuation | None:
        result = await world.events.create(run_id, step_created("step_9"), ack=message)
        assert result.acked
        try:
            return await after()
        finally:
            ended.append(message.message_id)

    async with at_work(world, handle, lease=LEASE, sweep_interval=3600):
        message_id = await send(world, payload("1", run_id))
        await until(lambda: bool(deliveries(lines, message_id)))
    (line,) = deliveries(lines, message_id)
    assert line.__dict__["event"] == "delivery.acked"
    assert (line.exc_info is not None) is (after is raises)
    assert ended == [message_id], "delivered once, and not interrupted"
    assert "lease.lost" not in {getattr(record, "event", "") for record in lines.records}
    settling = {"queue/ack", "queue/retry", "queue/release", "queue/postpone"}
    assert not settling & {*scripts}
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.leased, stats.delayed) == (0, 0, 0)
    await check_invariants(world)


async def test_a_stop_releases_nothing_that_has_ended(
    world: RedisWorld, lines: pytest.LogCaptureFixture
) -> None:
    run_id = await new_run(world)
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        await world.events.create(run_id, step_created("step_9"), ack=message)
        begun.set()
        await asyncio.Event().wait()

    async with at_work(world, handle, shutdown_timeout=0):
        message_id = await send(world, content(1, run_id))
        await begun.wait()
    (line,) = deliveries(lines, message_id)
    assert line.__dict__["event"] == "delivery.acked"
    (end,) = (record for record in lines.records if record.__dict__.get("event") == "worker.ended")
    assert end.__dict__["released"] == 0


async def test_what_a_refused_event_would_have_ended_is_acked_by_the_worker(
    world: RedisWorld, lines: pytest.LogCaptureFixture
) -> None:
    run_id = await new_run(world)
    await world.events.create(run_id, step_created())

    async def handle(message: Message) -> None:
        with pytest.raises(Exception, match="step_1"):
            await world.events.create(run_id, step_created(), ack=message)

    async with at_work(world, handle):
        message_id = await send(world, content(1, run_id))
        await until(lambda: bool(deliveries(lines, message_id)))
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.leased, stats.delayed) == (0, 0, 0)


async def test_a_lease_that_was_lost_before_is_told(
    world: RedisWorld, lines: pytest.LogCaptureFixture
) -> None:
    run_id = await new_run(world)

    async def handle(message: Message) -> None:
        await take_lease(world, message.message_id)
        result = await world.events.create(run_id, attr_set({"k": "v"}), ack=message)
        assert result.acked is False
        await asyncio.Event().wait()

    async with at_work(world, handle, lease=LEASE):
        message_id = await send(world, content(1, run_id))
        await until(lambda: bool(deliveries(lines, message_id)))
    assert deliveries(lines, message_id)[0].__dict__["event"] == "delivery.lease_lost"
    assert [each.event_type for each in await log(world, run_id)][-1] == "attr_set"


async def test_a_handler_of_payloads_can_ask_for_its_message(world: RedisWorld) -> None:
    found: list[Message | None] = []

    async def handle(payload: dict[str, Any], *, message_id: str, **_: Any) -> None:
        message = current_message()
        assert message is not None
        assert (message.message_id, message.payload) == (message_id, payload)
        found.append(message)

    async with at_work(world, handle):
        await asyncio.gather(*(send(world, content(number)) for number in range(3)))
        await until(lambda: len(found) == 3)
    assert len({message.message_id for message in found if message}) == 3
    assert current_message() is None
