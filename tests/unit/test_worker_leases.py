"""The thread that extends leases, in trouble; and stops that nothing may delay."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import pytest

from redis_world import RedisWorld
from redis_world.connection import SyncCaller
from redis_world.errors import WorldUnavailableError
from redis_world.queue import Message
from redis_world.testing import cutting_proxy, memory_world, redis_server
from redis_world.worker import Worker
from support.at_work import at_work, told
from support.backends import Backend
from support.marks import slow
from support.message_fields import stored
from support.private_servers import any_kind
from support.queue_tools import RUN, TOPIC, content, send, step
from support.sdk import until

LEASE: Final = 1.5


class Caller:
    """A blocking caller that does what a test wants first."""

    def __init__(self, caller: SyncCaller, act: Callable[[str], object]) -> None:
        self._caller = caller
        self._act = act

    def open(self) -> None:
        self._act("open")
        self._caller.open()

    def call_each(
        self, name: str, calls: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]]
    ) -> list[list[Any] | Exception]:
        self._act(name)
        return self._caller.call_each(name, calls)

    def close(self) -> None:
        self._caller.close()


@pytest.fixture
def acting(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[str], object]], None]:
    """Have something done before each blocking call of the worker's thread."""
    make = world.connection.sync_caller

    def use(act: Callable[[str], object]) -> None:
        monkeypatch.setattr(world.connection, "sync_caller", lambda: Caller(make(), act))

    return use


Acting = Callable[[Callable[[str], object]], None]


async def test_without_a_connection_for_leases_nothing_is_claimed(
    world: RedisWorld, acting: Acting
) -> None:
    def fail(_: str) -> NoReturn:
        raise WorldUnavailableError("max number of clients reached")

    acting(fail)
    message_id = await send(world, content(1))
    with pytest.raises(WorldUnavailableError, match="max number"):
        await Worker(world, {TOPIC: unreachable}).run()
    assert await stored(world, message_id, "attempt") == ["0"]


async def unreachable(_: Message) -> NoReturn:
    raise AssertionError("it was handled")


# Contract: 7.lease
async def test_at_the_most_clients_of_a_server_nothing_runs_twice() -> None:
    """The connection for leases was opened at the first beat, when there was none to be had."""
    with redis_server(any_kind(), args=("--maxclients", "12")) as server:
        async with RedisWorld(server.url, max_connections=2) as world:
            message_id = await send(world, step())
            with contextlib.ExitStack() as stack:
                for _ in range(12):
                    stack.enter_context(
                        contextlib.closing(socket.create_connection((server.host, server.port)))
                    )
                with pytest.raises(WorldUnavailableError):
                    await Worker(world, {TOPIC: unreachable}, lease=LEASE).run()
            (message,) = await until(lambda: claim(world), what="the message")
            assert (message.message_id, message.attempt) == (message_id, 1)


async def claim(world: RedisWorld) -> list[Message]:
    with contextlib.suppress(WorldUnavailableError):
        return await world.queue.claim(TOPIC)
    return []


# Contract: 7.lease
@pytest.mark.parametrize(
    "error",
    [
        WorldUnavailableError("gone"),
        slow(RuntimeError("a credential provider")),
        slow(ValueError()),
        slow(SystemExit(1)),
        KeyboardInterrupt(),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_the_thread_goes_on_whatever_comes(
    world: RedisWorld,
    acting: Acting,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    """And while it can't extend leases, nothing new is claimed."""
    caplog.set_level(logging.INFO)
    failing = threading.Event()
    failed = threading.Event()
    gate = asyncio.Event()
    handled: list[int] = []

    def act(_: str) -> None:
        if failing.is_set():
            failed.set()
            raise error

    async def handler(message: Message) -> None:
        handled.append(message.payload["number"])
        await gate.wait()

    acting(act)
    async with at_work(world, handler, lease=LEASE):
        first = await send(world, content(1))
        await until(lambda: count(handled, 1), what="the first message")
        failing.set()
        # Less than a lease: the first of these tries may not even come.
        await asyncio.to_thread(failed.wait)

        async def is_told() -> bool:
            return "nothing new is claimed" in caplog.text

        await until(is_told, what="the outage")
        # What is under way may still bring one; it waits for a notification by then.
        await asyncio.sleep(0.05)
        await send(world, content(2, "wrun_2"))
        await asyncio.sleep(0.1)
        assert handled == [1]
        failing.clear()
        await until(lambda: count(handled, 2), what="the second message")
        await asyncio.sleep(LEASE)
        gate.set()
        record = await told(caplog, first)
    assert record.__dict__["outcome"] == "acked"
    assert handled == [1, 2]


async def count(handled: list[int], number: int) -> bool:
    return len(handled) >= number


async def test_a_stop_does_not_wait_for_the_thread(world: RedisWorld, acting: Acting) -> None:
    """It may be in a call that takes half a minute: the loop turns, and the worker ends."""
    stuck, go = threading.Event(), threading.Event()

    def act(name: str) -> None:
        if name == "queue/extend":
            stuck.set()
            go.wait(60)

    acting(act)
    turns = 0
    gate = asyncio.Event()

    async def handler(_: Message) -> None:
        await gate.wait()

    working = Worker(world, {TOPIC: handler}, lease=0.3)
    task = asyncio.create_task(working.run())
    await send(world, step())
    await asyncio.to_thread(stuck.wait)
    try:
        gate.set()
        working.stop()
        while not task.done():
            await asyncio.sleep(0.01)
            turns += 1
            assert turns < 3000, "it waits for the thread"
        await task
    finally:
        go.set()
    assert turns > 5


# -- replays that block --------------------------------------------------------------------


# Contract: 7.lease, 7.failures
async def test_an_embedded_worker_tells_of_a_blocked_loop_and_takes_nothing_more(
    world: RedisWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    waiting = asyncio.Event()
    blocked: list[str] = []

    def is_told() -> bool:
        return any(each.__dict__.get("event") == "replay.blocked" for each in caplog.records)

    async def handler(message: Message) -> None:
        if message.is_step:
            waiting.set()
            await asyncio.Event().wait()
        blocked.append(message.message_id)
        # Until all is done that can be done from outside.
        end = time.monotonic() + 30
        while not (is_told() and "released 1 of 1 messages" in caplog.text):
            assert time.monotonic() < end

    async with asyncio.timeout(60):
        working = asyncio.create_task(
            Worker(world, {TOPIC: handler}, max_replay=0.2, lease=5).run()
        )
        released = await send(world, step())
        await waiting.wait()
        failed = await send(world, content(1, "wrun_2"))
        # It ends by itself.
        await working
    assert blocked == [failed]
    (line,) = [each for each in caplog.records if each.__dict__.get("event") == "replay.blocked"]
    assert line.levelno == logging.CRITICAL
    assert "in handler" in line.getMessage()
    assert line.__dict__["message_id"] == failed
    attempt, failures, error = await stored(world, failed, "attempt", "failures", "error")
    assert (attempt, failures) == ("1", "1")
    assert error == "a replay blocked the event loop for 0.2 s"
    assert await stored(world, released, "attempt", "failures") == ["0", "0"]
    stats = await world.queue.stats(TOPIC)
    # The failed one is due again after its back-off, which may be over by now.
    assert (stats.ready + stats.delayed, stats.leased) == (2, 0)


async def test_a_replay_that_blocks_behind_its_lost_lease_is_told_too(
    world: RedisWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """It stands in the way of all others, whosever its message is by now."""
    caplog.set_level(logging.INFO)

    def is_told(event: str) -> bool:
        return any(each.__dict__.get("event") == event for each in caplog.records)

    deliveries = 0

    async def handler(_: Message) -> None:
        nonlocal deliveries
        deliveries += 1
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        end = time.monotonic() + 30
        while not is_told("replay.blocked"):
            assert time.monotonic() < end

    async with asyncio.timeout(60):
        sent = await send(world, content(1, "wrun_2"))
        # The only slot: nobody else here has the message before the block.
        await Worker(world, {TOPIC: handler}, concurrency=1, max_replay=0.2, lease=0.3).run()
    assert is_told("lease.lost")
    attempt, failures = await stored(world, sent, "attempt", "failures")
    assert (attempt, failures) == ("1", "0")
    assert deliveries == 1, "it claims nothing behind its stop"


# Contract: 7.lease
async def test_a_step_may_block_for_longer_than_a_replay(
    world: RedisWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def handler(_: Message) -> None:
        time.sleep(1.0)  # noqa: ASYNC251 - that's the case

    async with at_work(world, handler, max_replay=0.1, lease=0.6):
        message_id = await send(world, step())
        assert (await told(caplog, message_id)).__dict__["outcome"] == "acked"


# -- stops ---------------------------------------------------------------------------------


async def test_a_stop_is_bounded_while_redis_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One release after the other, each of which waits for the server, would take for ever."""
    caplog.set_level(logging.INFO)
    many = 50
    begun: list[str] = []

    async def handler(message: Message) -> None:
        begun.append(message.message_id)
        await asyncio.Event().wait()

    async def never(*_: Any) -> bool:
        await asyncio.Event().wait()
        return True

    async with memory_world() as world:
        monkeypatch.setattr(world.queue, "release", never)
        for number in range(many):
            await send(world, step(f"step_{number}"))
        working = Worker(world, {TOPIC: handler}, concurrency=many, shutdown_timeout=0)
        task = asyncio.create_task(working.run())

        async def all_begun() -> bool:
            return len(begun) == many

        await until(all_begun)
        working.stop()
        async with asyncio.timeout(25):
            await task
    assert released_at_end(caplog) == 0


def released_at_end(caplog: pytest.LogCaptureFixture) -> int:
    """How many messages the worker released, by its last line."""
    (line,) = [each for each in caplog.records if each.__dict__.get("event") == "worker.ended"]
    assert line.getMessage() == "worker ended"
    return int(line.__dict__["released"])


async def test_it_tells_what_it_has_released(
    world: RedisWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    begun: list[str] = []

    async def handler(message: Message) -> None:
        begun.append(message.message_id)
        await asyncio.Event().wait()

    async with at_work(world, handler, shutdown_timeout=0):
        for number in range(7):
            await send(world, step(f"step_{number}", RUN))

        async def all_begun() -> bool:
            return len(begun) == 7

        await until(all_begun)
    assert released_at_end(caplog) == 7
    assert (await world.queue.stats(TOPIC)).ready == 7


async def test_signals_reach_the_programs_own_handlers_too(
    others_signal: tuple[signal.Signals, list[int]],
) -> None:
    number, handled = others_signal
    theirs = signal.getsignal(number)
    gate = asyncio.Event()
    begun = asyncio.Event()

    async def handler(_: Message) -> None:
        begun.set()
        await gate.wait()

    async with memory_world() as world:
        await send(world, content(1))
        task = asyncio.create_task(Worker(world, {TOPIC: handler}).run())
        await begun.wait()
        assert signal.getsignal(number) is not theirs
        signal.raise_signal(number)
        # A web server that has a worker inside wants to know, too.
        assert handled == [number]
        signal.raise_signal(number)
        assert handled == [number, number]
        assert not task.done()
        gate.set()
        await task
        assert signal.getsignal(number) is theirs


async def test_a_lost_server_is_told_apart_from_lost_notifications(
    real_backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def handler(_: Message) -> None: ...

    async def has_told(text: str) -> bool:
        return text in caplog.text

    namespace = real_backend.namespace()
    async with (
        cutting_proxy(real_backend.url) as proxy,
        RedisWorld(proxy.url, namespace=namespace) as world,
        at_work(world, handler, lease=0.6),
    ):
        await until(partial(has_told, "worker started"), what="the worker")
        proxy.cut()
        for what in ("lost the notification connection to", "lost Redis at"):
            await until(partial(has_told, what), what=what)
        proxy.restore()
        await until(partial(has_told, "reconnected after"), what="reconnected")
