"""The worker, with plain handlers; what it is for, the tests in tests/sdk show."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import (
    ConfigurationError,
    InvalidInputError,
    ScriptError,
    WorldUnavailableError,
)
from redis_world.queue import backoff
from redis_world.testing import ManualClock, memory_world, redis_server
from redis_world.worker import Continuation, Handler, Postpone, Worker, running
from support.backends import Backend
from support.marks import slow
from support.message_fields import stored, take_lease
from support.ports import reserved_port
from support.private_servers import any_kind
from support.queue_tools import NAME, TOPIC, content, send, step
from support.sdk import until

ORDERS: Final = "__orders_wkf_workflow_"


@dataclass(frozen=True)
class Again:
    """A continuation."""

    delay_seconds: float = 0.0
    idempotency_key: str | None = None


@dataclass
class Recorder:
    """A handler that notes its deliveries, and does with each what it is told to."""

    act: Callable[[int], Any] | None = None
    """Gets the number of the delivery, from 1 up; may be a coroutine function."""
    deliveries: list[dict[str, Any]] = field(default_factory=list)
    active: int = 0
    peak: int = 0
    finished: int = 0

    async def __call__(
        self, payload: dict[str, Any], /, *, attempt: int, queue_name: str, message_id: str
    ) -> Continuation | None:
        delivery = {"attempt": attempt, "queue_name": queue_name, "message_id": message_id}
        self.deliveries.append({"payload": payload, **delivery})
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            result = self.act(len(self.deliveries)) if self.act is not None else None
            if asyncio.iscoroutine(result):
                result = await result
        finally:
            self.active -= 1
        self.finished += 1
        return result if isinstance(result, Again) else None

    async def delivered(self, count: int) -> None:
        """Wait for so many deliveries."""

        async def enough() -> bool:
            return len(self.deliveries) >= count

        await until(enough, what=f"delivery {count}")


@contextlib.asynccontextmanager
async def at_work(
    world: RedisWorld, handler: Handler | dict[str, Handler], **options: Any
) -> AsyncIterator[Worker]:
    """Run a worker for the length of a block; it must end well."""
    handlers = handler if isinstance(handler, dict) else {TOPIC: handler}
    working = Worker(world, handlers, **{"shutdown_timeout": 5.0, **options})
    # A worker that ends by an error ends the block, too.
    async with asyncio.TaskGroup() as group:
        group.create_task(working.run())
        yield working
        working.stop()


async def nothing_left(world: RedisWorld, topic: str = TOPIC) -> None:
    """Wait until a topic is empty."""

    async def empty() -> bool:
        stats = await world.queue.stats(topic)
        return not (stats.ready or stats.delayed or stats.leased or stats.held or stats.dead)

    await until(empty, what="an empty queue")


async def delayed_by(world: RedisWorld, clock: ManualClock) -> float:
    """Wait for the one message that is delayed; the seconds until it is due."""
    due = world.connection.keys.topic(TOPIC, "due")

    async def look() -> float:
        (messages,) = await world.connection.execute(("ZRANGE", due, 0, 0))
        if not messages:
            return 0.0
        (score,) = await world.connection.execute(("ZSCORE", due, messages[0]))
        return round(max(0.0, float(score or 0) / 1000 - clock.now.timestamp()), 3)

    return await until(look, what="a delayed message")


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a clock that tests move: no hint tells of it."""
    monkeypatch.setattr(running, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(running, "look_seconds", lambda _: 0.05)


# -- taking messages -----------------------------------------------------------------------


# Contract: 7.handlers
async def test_a_message_is_handled_and_gone(world: RedisWorld) -> None:
    seen = Recorder()
    async with at_work(world, seen):
        message_id = await send(world, content(b"\x00"))
        await seen.delivered(1)
        await nothing_left(world)
    assert seen.deliveries == [
        {
            "payload": content(b"\x00"),
            "attempt": 1,
            "queue_name": NAME,
            "message_id": message_id,
        }
    ]


async def test_concurrency_is_respected(world: RedisWorld) -> None:
    gate = asyncio.Event()
    seen = Recorder(lambda _: gate.wait())
    for number in range(10):
        await send(world, step(f"step_{number}"))
    async with at_work(world, seen, concurrency=3):
        await seen.delivered(3)
        # What it has no room for is anybody's.
        stats = await world.queue.stats(TOPIC)
        assert (stats.leased, stats.ready) == (3, 7)
        gate.set()
        await nothing_left(world)
    assert len(seen.deliveries) == 10
    assert seen.peak == 3


@pytest.mark.parametrize("concurrency", [1, 1001])
async def test_any_concurrency_works(concurrency: int) -> None:
    seen = Recorder()
    async with memory_world() as world, at_work(world, seen, concurrency=concurrency):
        for number in range(5):
            await send(world, step(f"step_{number}"))
        await nothing_left(world)
    assert len(seen.deliveries) == 5


async def test_two_topics_share_the_concurrency(world: RedisWorld) -> None:
    gate = asyncio.Event()
    plain, orders = Recorder(lambda _: gate.wait()), Recorder(lambda _: gate.wait())
    async with at_work(world, {TOPIC: plain, ORDERS: orders}, concurrency=4):
        for number in range(3):
            await send(world, step(f"step_{number}"))
            await send(world, step(f"step_{number}", "wrun_o"), name=f"{ORDERS}o")

        async def four() -> bool:
            return plain.active + orders.active == 4

        await until(four, what="four handlers")
        gate.set()
        await nothing_left(world)
        await nothing_left(world, ORDERS)
    assert {delivery["queue_name"] for delivery in plain.deliveries} == {NAME}
    assert {delivery["queue_name"] for delivery in orders.deliveries} == {f"{ORDERS}o"}
    assert (len(plain.deliveries), len(orders.deliveries)) == (3, 3)


async def test_an_idle_worker_is_woken_by_the_hint(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than the test waits: what comes in time was told.
    monkeypatch.setattr(running, "_POLL_SECONDS", 600.0)
    looks = count_claims(world, monkeypatch)
    seen = Recorder()
    async with at_work(world, seen):
        await until(lambda: claimed(looks, 1), what="the first look")
        for number in range(1, 11):
            await send(world, content(number))
            await seen.delivered(number)
        await nothing_left(world)
    # A message is one look: the one that brings it says that no other is due. In front of them is
    # one, and one more once hints are heard.
    assert looks.count(1) == 10
    assert looks.count(0) <= 2


async def test_a_delayed_message_needs_no_second_hint(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_POLL_SECONDS", 600.0)
    seen = Recorder()
    async with at_work(world, seen):
        await send(world, content(1), delay=0.2)
        await seen.delivered(1)
        await nothing_left(world)


def count_claims(world: RedisWorld, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each claim of this World brings, from now on."""
    claims: list[int] = []
    claim_batch = world.queue.claim_batch

    async def counted(*args: Any, **kwargs: Any) -> Any:
        claim = await claim_batch(*args, **kwargs)
        claims.append(len(claim.messages))
        return claim

    monkeypatch.setattr(world.queue, "claim_batch", counted)
    return claims


async def claimed(claims: list[int], count: int) -> bool:
    return len(claims) >= count


# -- outcomes ------------------------------------------------------------------------------


# Contract: 7.handlers, 7.continuation
async def test_a_continuation_is_a_message_of_its_own(world: RedisWorld) -> None:
    seen = Recorder(lambda number: Again() if number == 1 else None)
    async with at_work(world, seen):
        await send(world, {**content(1), "runInput": {"input": b"once"}})
        await seen.delivered(2)
        await nothing_left(world)
    first, second = seen.deliveries
    assert first["payload"] == {**content(1), "runInput": {"input": b"once"}}
    assert second["payload"] == content(1)
    assert (first["attempt"], second["attempt"]) == (1, 1)
    assert first["message_id"] != second["message_id"]


# Contract: 7.handlers, 7.continuation
@pytest.mark.usefixtures("quick_looks")
async def test_a_continuation_comes_after_its_delay(
    clocked: tuple[RedisWorld, ManualClock],
) -> None:
    world, clock = clocked
    seen = Recorder(lambda number: Again(82_800.5, "wait_1:hop-2") if number == 1 else None)
    async with at_work(world, seen):
        await send(world, content(1))
        assert await delayed_by(world, clock) == pytest.approx(82_800.5, abs=0.001)
        # Under its key nothing else is stored.
        await send(world, content(1), idempotency_key="wait_1:hop-2")
        stats = await world.queue.stats(TOPIC)
        assert (stats.ready, stats.delayed) == (0, 1)
        await clock.advance(82_800.5)
        await seen.delivered(2)
        await nothing_left(world)


# Contract: 7.handlers
async def test_a_negative_delay_is_none(world: RedisWorld) -> None:
    seen = Recorder(lambda number: Again(-1.0) if number == 1 else None)
    async with at_work(world, seen):
        await send(world, content(1))
        await seen.delivered(2)
        await nothing_left(world)


class RetryAfterError(Exception):
    """Tells how long to wait."""

    def __init__(self, retry_after: object) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


# Contract: 7.failures
@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize(
    ("error", "least", "most"),
    [
        (ValueError("no"), 5.0, 5.5),
        (RetryAfterError(60), 60.0, 60.0),
        (RetryAfterError(7.25), 7.25, 7.25),
        # A floor, no ceiling.
        (RetryAfterError(1), 5.0, 5.5),
        (RetryAfterError(-5), 5.0, 5.5),
        (RetryAfterError(None), 5.0, 5.5),
        (RetryAfterError(True), 5.0, 5.5),
        (RetryAfterError("soon"), 5.0, 5.5),
        (asyncio.CancelledError("a task of the handler's own"), 5.0, 5.5),
    ],
    ids=lambda value: repr(getattr(value, "retry_after", value)),
)
async def test_what_fails_is_tried_again_later(
    clocked: tuple[RedisWorld, ManualClock],
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    least: float,
    most: float,
) -> None:
    world, clock = clocked

    def act(number: int) -> None:
        if number == 1:
            raise error

    seen = Recorder(act)
    async with at_work(world, seen):
        message_id = await send(world, content(1))
        delay = await until(lambda: delayed_or_handled(world, clock, seen))
        assert len(seen.deliveries) == 1, "tried again at once"
        assert least - 0.001 <= delay <= most + 0.001
        failures, last_error = await stored(world, message_id, "failures", "error")
        assert failures == "1"
        assert last_error == f"{type(error).__name__}: {error}"
        assert f"orders: failed (message {message_id})" in caplog.text
        await clock.advance(delay)
        await seen.delivered(2)
        await nothing_left(world)
    assert [delivery["attempt"] for delivery in seen.deliveries] == [1, 2]


async def delayed_or_handled(world: RedisWorld, clock: ManualClock, seen: Recorder) -> float:
    if len(seen.deliveries) > 1:
        return -1.0
    stats = await world.queue.stats(TOPIC)
    return await delayed_by(world, clock) if stats.delayed else 0.0


# Contract: 7.handlers
@pytest.mark.parametrize("answer", ["later", Again(float("inf"))], ids=str)
async def test_an_answer_that_is_no_continuation_is_a_failure(answer: Any) -> None:
    """Left to its lease it would come again and again, and never be a dead letter."""

    async def handler(*_: Any, **__: Any) -> Any:
        return answer

    async with memory_world(max_failures=2) as world, at_work(world, handler):
        message_id = await send(world, content(1))

        async def failed() -> str | None:
            (failures,) = await stored(world, message_id, "failures")
            return failures if failures != "0" else None

        async with asyncio.timeout(10):
            assert await until(failed) == "1"


# Contract: 7.failures
@pytest.mark.usefixtures("quick_looks")
async def test_failures_wait_longer_and_longer(clocked: tuple[RedisWorld, ManualClock]) -> None:
    world, clock = clocked

    def fail(_: int) -> None:
        raise ValueError("no")

    seen = Recorder(fail)
    delays = []
    async with at_work(world, seen):
        await send(world, content(1))
        for attempt in range(1, 7):
            await seen.delivered(attempt)
            delays.append(await delayed_by(world, clock))
            await clock.advance(delays[-1])
    for delay, base in zip(delays, [5, 5, 5, 10, 20, 40], strict=True):
        assert base - 0.001 <= delay <= 1.1 * base + 0.001


# Contract: 7.failures
def test_backoff_has_a_cap() -> None:
    assert all(300.0 <= backoff(failures) <= 330.0 for failures in (9, 10, 100, 10_000))


async def test_a_failed_ack_frees_the_slot_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_world() as world:
        ack = world.queue.ack

        async def fail_once(*args: Any, **kwargs: Any) -> bool:
            monkeypatch.setattr(world.queue, "ack", ack)
            raise ScriptError("no ack")

        monkeypatch.setattr(world.queue, "ack", fail_once)
        seen = Recorder()
        async with at_work(world, seen, concurrency=1):
            first = await send(world, content(1, "wrun_1"))
            await send(world, content(2, "wrun_2"))
            await seen.delivered(2)
        assert (
            f"can't end the message, it is delivered again after its lease (message {first})"
            in (caplog.text)
        )
        assert (await world.queue.stats(TOPIC)).leased == 1


# -- leases --------------------------------------------------------------------------------


class Rival(threading.Thread):
    """Somebody with an event loop of its own who claims all the time."""

    def __init__(self, world: RedisWorld) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._ended = threading.Event()
        self.ready = threading.Event()
        self.claimed: list[str] = []

    def run(self) -> None:
        asyncio.run(self._claim())

    async def _claim(self) -> None:
        async with self._world as world:
            while not self._ended.is_set():
                for message in await world.queue.claim(TOPIC):
                    self.claimed.append(message.message_id)
                self.ready.set()
                await asyncio.sleep(0.02)

    def end(self) -> None:
        self._ended.set()
        self.join()


# Contract: 7.lease
async def test_leases_hold_while_the_loop_is_blocked(backend: Backend) -> None:
    lease = 1.0
    namespace = backend.namespace()
    rival = Rival(backend.world(namespace=namespace))

    def block(_: int) -> None:
        rival.start()
        rival.ready.wait()
        time.sleep(1.5 * lease)
        rival.end()

    seen = Recorder(block)
    async with backend.world(namespace=namespace) as world, at_work(world, seen, lease=lease):
        await send(world, content(1))
        await seen.delivered(1)
        await nothing_left(world)
    assert rival.claimed == []
    assert len(seen.deliveries) == 1


async def test_a_replay_that_hangs_loses_its_lease_and_a_step_does_not(
    world: RedisWorld, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()
    replays: list[int] = []
    steps: list[int] = []

    async def handler(
        payload: dict[str, Any], /, *, attempt: int, queue_name: str, message_id: str
    ) -> Continuation | None:
        attempts = steps if "stepId" in payload else replays
        attempts.append(attempt)
        if len(attempts) == 1:
            await gate.wait()
        return None

    async with at_work(world, handler, lease=1.0, max_replay=0.05):
        message_id = await send(world, content(1))
        await send(world, step())

        async def delivered_again() -> bool:
            return len(replays) > 1

        await until(delivered_again, what="the second delivery")
        assert (replays, steps) == ([1, 2], [1])
        assert (await world.queue.stats(TOPIC)).leased >= 1
        gate.set()
        await nothing_left(world)
    assert (replays, steps) == ([1, 2], [1])
    assert f"lost the lease, the message is delivered again (message {message_id})" in caplog.text


# Contract: 7.lease
async def test_a_lease_that_is_lost_meanwhile_is_logged_once(
    world: RedisWorld, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()
    seen = Recorder(lambda _: gate.wait())
    # Not so short that it could end by itself.
    async with at_work(world, seen, lease=3.0):
        message_id = await send(world, step())
        await seen.delivered(1)
        await take_lease(world, message_id)
        text = f"lost the lease of a message that is being handled (message {message_id})"

        async def logged() -> bool:
            return text in caplog.text

        await until(logged, what="the warning")
        gate.set()

        async def finished() -> bool:
            return f"lost the lease, the message is delivered again (message {message_id})" in (
                caplog.text
            )

        await until(finished, what="the end of the handler")
    assert caplog.text.count(text) == 1


async def test_an_ended_message_is_no_lost_lease(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The heart may have looked just before: its extension comes behind the ack."""
    async with memory_world() as world:
        extending, acked = threading.Event(), threading.Event()
        extension = world.queue.extension

        def slow_extension(*args: Any, **kwargs: Any) -> Any:
            extending.set()
            acked.wait()
            return extension(*args, **kwargs)

        monkeypatch.setattr(world.queue, "extension", slow_extension)

        async def wait_for_the_heart() -> None:
            await asyncio.to_thread(extending.wait)

        seen = Recorder(lambda _: wait_for_the_heart())
        async with at_work(world, seen, lease=0.3):
            await send(world, step())
            await seen.delivered(1)
            await nothing_left(world)
            acked.set()
        assert "lost" not in caplog.text


# Contract: 7.lease
async def test_expired_leases_are_swept(clocked: tuple[RedisWorld, ManualClock]) -> None:
    """Those of topics, too, that this worker does not work for."""
    world, clock = clocked
    await send(world, content(1), name=f"{ORDERS}o")
    (lost,) = await world.queue.claim(ORDERS, lease=10)
    async with at_work(world, Recorder(), sweep_interval=0.02):
        await clock.advance(10.001)

        async def freed() -> bool:
            return (await world.queue.stats(ORDERS)).ready == 1

        await until(freed, what="the sweep")
    (again,) = await world.queue.claim(ORDERS)
    assert (again.message_id, again.attempt, again.failures) == (lost.message_id, 2, 0)


async def test_a_failed_sweep_is_logged_and_done_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with memory_world() as world:
        rounds: Iterator[dict[str, int] | Exception] = iter(
            [WorldUnavailableError("gone"), {"expired_leases": 0, "runs": 3}]
        )
        swept = asyncio.Event()

        async def sweep() -> dict[str, int]:
            found = next(rounds, None)
            if isinstance(found, Exception):
                raise found
            if found is None:
                swept.set()
            return found or {}

        monkeypatch.setattr(world, "sweep", sweep)
        async with at_work(world, Recorder(), sweep_interval=0.01):
            await swept.wait()
    assert ": gone" in caplog.text
    assert "sweep: 3 runs" in caplog.text
    assert "expired_leases" not in caplog.text


# -- the end -------------------------------------------------------------------------------


async def test_a_stop_lets_handlers_finish(world: RedisWorld) -> None:
    gate = asyncio.Event()
    seen = Recorder(lambda _: gate.wait())
    for number in range(3):
        await send(world, step(f"step_{number}"))
    working = Worker(world, {TOPIC: seen}, concurrency=2)
    task = asyncio.create_task(working.run())
    await seen.delivered(2)
    working.stop()
    await until(no_consumer, what="the end of the consumers")
    assert not task.done()
    gate.set()
    await task
    assert seen.finished == 2
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.leased) == (1, 0)


async def no_consumer() -> bool:
    return not any(task.get_name().startswith("consume ") for task in asyncio.all_tasks())


async def test_what_takes_too_long_is_given_back(world: RedisWorld) -> None:
    seen = Recorder(lambda _: asyncio.Event().wait())
    message_id = await send(world, content(1))
    async with at_work(world, seen, shutdown_timeout=0.0):
        await seen.delivered(1)
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.leased) == (1, 0)
    # It has cost no attempt: this one is the first again.
    (message,) = await world.queue.claim(TOPIC)
    assert (message.message_id, message.attempt, message.failures) == (message_id, 1, 0)


async def test_a_stop_during_a_claim_leaves_nothing_leased(
    world: RedisWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, go = asyncio.Event(), asyncio.Event()
    claim_batch = world.queue.claim_batch

    async def held_claim(*args: Any, **kwargs: Any) -> Any:
        claim = await claim_batch(*args, **kwargs)
        claimed.set()
        await go.wait()
        return claim

    for number in range(3):
        await send(world, step(f"step_{number}"))
    monkeypatch.setattr(world.queue, "claim_batch", held_claim)
    seen = Recorder()
    working = Worker(world, {TOPIC: seen})
    task = asyncio.create_task(working.run())
    await claimed.wait()
    working.stop()
    (consumer,) = (each for each in asyncio.all_tasks() if each.get_name().startswith("consume"))

    async def is_stopped() -> bool:
        return consumer.cancelling() > 0

    await until(is_stopped, what="the stop")
    go.set()
    await task
    assert seen.deliveries == []
    stats = await world.queue.stats(TOPIC)
    assert (stats.ready, stats.leased) == (3, 0)
    monkeypatch.undo()
    assert [message.attempt for message in await world.queue.claim(TOPIC)] == [1, 1, 1]


async def test_an_error_that_will_not_pass_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with memory_world() as world:

        async def claim_batch(*_: Any, **__: Any) -> Any:
            raise ScriptError("a broken script")

        monkeypatch.setattr(world.queue, "claim_batch", claim_batch)
        with pytest.raises(ScriptError, match="broken"):
            await Worker(world, {TOPIC: Recorder()}).run()
        assert await no_consumer()


def test_a_worker_in_a_thread(backend: Backend) -> None:
    """Where the loop can't take signals; whoever runs it stops it."""
    namespace = backend.namespace()
    seen = Recorder()
    stops: list[Callable[[], object]] = []
    started = threading.Event()

    async def work() -> None:
        async with backend.world(namespace=namespace) as world:
            working = Worker(world, {TOPIC: seen})
            loop = asyncio.get_running_loop()
            stops.append(lambda: loop.call_soon_threadsafe(working.stop))
            started.set()
            await working.run()

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    started.wait()

    async def use() -> None:
        async with backend.world(namespace=namespace) as world:
            await send(world, content(1))
            await seen.delivered(1)
            await nothing_left(world)

    asyncio.run(use())
    stops[0]()
    thread.join()


async def consumers(count: int) -> None:
    """So many workers have begun to take messages."""

    async def begun() -> bool:
        names = [task.get_name() for task in asyncio.all_tasks()]
        return sum(name.startswith("consume") for name in names) == count

    await until(begun, what="the workers")


async def test_a_signal_stops_all_workers_of_a_process(
    others_signal: tuple[signal.Signals, list[int]],
) -> None:
    number, handled = others_signal
    async with memory_world() as world, asyncio.timeout(60):
        works = [
            asyncio.create_task(Worker(world, {topic: Recorder()}).run())
            for topic in (TOPIC, ORDERS)
        ]
        await consumers(2)
        signal.raise_signal(number)
        await asyncio.gather(*works)
        assert handled == [number], "the program's own handler has it, once"


@pytest.mark.parametrize("first", [0, 1])
async def test_workers_give_a_signal_back(
    others_signal: tuple[signal.Signals, list[int]], first: int
) -> None:
    number, handled = others_signal
    theirs = signal.getsignal(number)
    async with memory_world() as world:
        workers = [Worker(world, {topic: Recorder()}) for topic in (TOPIC, ORDERS)]
        works = [asyncio.create_task(each.run()) for each in workers]
        await consumers(2)
        workers[first].stop()
        await works[first]
        assert signal.getsignal(number) is not theirs
        workers[1 - first].stop()
        await works[1 - first]
        assert signal.getsignal(number) is theirs
        signal.raise_signal(number)
        assert handled == [number]


async def test_handlers_of_the_loop_stay(
    others_signal: tuple[signal.Signals, list[int]],
) -> None:
    number, _ = others_signal
    handled: list[str] = []

    async def times(count: int) -> None:
        async def arrived() -> bool:
            return len(handled) == count

        await until(arrived, what="the signal in the loop")

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, handled.append, "the loop's")
    try:
        async with memory_world() as world, asyncio.timeout(60):
            work = asyncio.create_task(Worker(world, {TOPIC: Recorder()}).run())
            await consumers(1)
            signal.raise_signal(number)
            await work
            await times(1)
            signal.raise_signal(number)
            await times(2)
    finally:
        loop.remove_signal_handler(number)


_PROGRAM: Final = textwrap.dedent(
    """
    import asyncio, pathlib, sys

    from redis_world import RedisWorld
    from redis_world.worker import Worker

    url, namespace, gate = sys.argv[1:]


    async def handler(payload, /, *, attempt, queue_name, message_id):
        pathlib.Path(gate + payload["stepId"]).touch()
        if payload["stepId"] == "endless":
            await asyncio.Event().wait()
        while not pathlib.Path(gate).exists():
            await asyncio.sleep(0.01)


    async def main():
        async with RedisWorld(url, namespace=namespace) as world:
            await Worker(world, {"__wkf_workflow_": handler}, shutdown_timeout=4.0).run()


    asyncio.run(main())
    """
)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(_PROGRAM, encoding="utf-8")
    return path


@contextlib.contextmanager
def process(*command: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process of our own, which does not outlive the block."""
    with subprocess.Popen([str(part) for part in command], **options) as started:
        try:
            yield started
        finally:
            started.kill()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, slow(signal.SIGINT)], ids=lambda value: value.name
)
async def test_a_signal_ends_the_process_well(
    real_backend: Backend, program: Path, tmp_path: Path, number: signal.Signals
) -> None:
    namespace, gate = real_backend.namespace(), tmp_path / "gate"
    async with real_backend.world(namespace=namespace) as world:
        await send(world, step("short"))
        await send(world, step("endless"))
        command = [sys.executable, program, real_backend.url, namespace, gate]
        with process(*command) as started:

            async def both() -> bool:
                assert started.poll() is None
                # Not only leased: a claim that a stop meets on its way is released whole.
                return len(list(tmp_path.glob("gate*"))) == len(("short", "endless"))  # noqa: ASYNC240

            await until(both, what="the deliveries")
            started.send_signal(number)
            # Only now the short one can end, and it gets the time to.
            gate.touch()
            assert await asyncio.to_thread(started.wait, 60) == 0
        stats = await world.queue.stats(TOPIC)
        assert (stats.ready, stats.leased, stats.delayed) == (1, 0, 0)
        (message,) = await world.queue.claim(TOPIC)
        assert (message.payload["stepId"], message.attempt) == ("endless", 1)
        assert message.failures == 0


# -- trouble with the server ---------------------------------------------------------------


# Contract: 7.lease, 7.delivery
async def test_a_killed_process_costs_its_leases_only(
    real_backend: Backend, program: Path, tmp_path: Path
) -> None:
    namespace = real_backend.namespace()
    async with real_backend.world(namespace=namespace) as world:
        await send(world, step("endless"))
        with process(sys.executable, program, real_backend.url, namespace, tmp_path / "x") as dead:

            async def taken() -> bool:
                return (await world.queue.stats(TOPIC)).leased == 1

            await until(taken, what="the delivery")
            os.kill(dead.pid, signal.SIGKILL)
            dead.wait()
        assert (await world.queue.stats(TOPIC)).leased == 1
        # Its end of time, without waiting for it.
        leased = world.connection.keys.topic(TOPIC, "leased")
        ((message_id,),) = await world.connection.execute(("ZRANGE", leased, 0, -1))
        await world.connection.execute(("ZADD", leased, "1", message_id))
        seen = Recorder()
        async with at_work(world, seen):
            await seen.delivered(1)
            await nothing_left(world)
        assert seen.deliveries[0]["attempt"] == 2


async def test_broken_connections_cost_nothing(real_backend: Backend) -> None:
    gate = asyncio.Event()
    seen = Recorder(lambda number: gate.wait() if number == 1 else None)
    async with real_backend.world() as world, at_work(world, seen, lease=3.0):
        await send(world, step("step_1"))
        await seen.delivered(1)
        with contextlib.closing(real_backend.client()) as client:
            for kind in ("normal", "pubsub"):
                client.client_kill_filter(_type=kind, skipme=True)
        gate.set()

        async def finished() -> bool:
            return seen.finished == 1

        await until(finished, what="the end of the handler")
        await until(lambda: sent(world, step("step_2", "wrun_2")), what="the server")
        await seen.delivered(2)
        await nothing_left(world)
    # It had ended: a lost connection must not make it run once more.
    assert [each["payload"]["stepId"] for each in seen.deliveries] == ["step_1", "step_2"]


async def sent(world: RedisWorld, payload: dict[str, Any]) -> bool:
    try:
        return bool(await send(world, payload))
    except WorldUnavailableError:
        return False


async def test_a_server_that_is_gone_for_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = any_kind()
    monkeypatch.setattr(running, "_RECONNECT_SECONDS", 0.1)
    seen = Recorder()
    async with contextlib.AsyncExitStack() as stack:
        port = stack.enter_context(reserved_port())
        with redis_server(kind, args=("--port", str(port))):
            world = await stack.enter_async_context(
                RedisWorld(f"redis://127.0.0.1:{port}/0", retry_timeout=0.1)
            )
            await stack.enter_async_context(at_work(world, seen, sweep_interval=0.1))
            await send(world, content(1))
            await seen.delivered(1)
            await nothing_left(world)

        async def noticed() -> bool:
            return f"127.0.0.1:{port}" in caplog.text and "lost " in caplog.text

        await until(noticed, what="the warnings")
        # Another one in its place, which knows neither scripts nor keys.
        with redis_server(kind, args=("--port", str(port))):
            await until(lambda: sent(world, content(2)), what="the server")
            await seen.delivered(2)
            await nothing_left(world)
            await stack.aclose()
    assert [delivery["payload"]["number"] for delivery in seen.deliveries] == [1, 2]


async def test_without_a_server_it_does_not_begin() -> None:
    world = RedisWorld("redis://127.0.0.1:1/0")
    with pytest.raises(WorldUnavailableError, match=r"127\.0\.0\.1:1"):
        await Worker(world, {TOPIC: Recorder()}).run()
    await world.aclose()


# -- arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"handlers": {}},
        {"concurrency": 0},
        {"concurrency": -1},
        {"lease": 0},
        {"lease": -1.0},
        {"lease": float("nan")},
        {"lease": "long"},
        {"max_replay": -1},
        {"shutdown_timeout": -1},
        {"sweep_interval": -1},
        {"sweep_interval": 0},
    ],
    ids=str,
)
def test_bad_arguments(options: dict[str, Any]) -> None:
    handlers = options.pop("handlers", {TOPIC: Recorder()})
    world = memory_world()
    with pytest.raises((ConfigurationError, InvalidInputError)):
        Worker(world, handlers, **options)


async def test_a_handler_of_no_topic() -> None:
    async with memory_world() as world:
        with pytest.raises((ConfigurationError, InvalidInputError), match="topic must be"):
            await Worker(world, {"jobs": Recorder()}).run()


# -- what is not for this worker -----------------------------------------------------------


# Contract: 7.postpone
async def test_a_handler_gives_a_message_to_others(world: RedisWorld) -> None:
    """Nothing is counted, and the next one has it at once."""

    def decline(_: int) -> None:
        raise Postpone(3600)

    declining, taking = Recorder(decline), Recorder()
    async with at_work(world, declining):
        sent = await send(world, content(1))
        await declining.delivered(1)
        async with at_work(world, taking):
            await taking.delivered(1)
            await nothing_left(world)
    assert len(declining.deliveries) == 1
    (delivery,) = taking.deliveries
    assert (delivery["message_id"], delivery["attempt"]) == (sent, 1)


# Contract: 7.postpone
@pytest.mark.usefixtures("quick_looks")
async def test_a_handler_gets_it_again_after_its_delay(
    clocked: tuple[RedisWorld, ManualClock],
) -> None:
    world, clock = clocked
    delays: list[float | None] = [7, None, None]

    def not_yet(number: int) -> None:
        if number <= len(delays):
            raise Postpone(delays[number - 1])

    seen = Recorder(not_yet)
    async with at_work(world, seen):
        await send(world, content(1))
        for number, seconds in enumerate((7, 2, 4), 1):
            await seen.delivered(number)
            assert await delayed_by(world, clock) == seconds
            await clock.advance(seconds)
        await seen.delivered(4)
        await nothing_left(world)
    assert [each["attempt"] for each in seen.deliveries] == [1, 1, 1, 1]


# Contract: 7.postpone
@pytest.mark.parametrize("delay", [-1, "soon", float("inf")])
async def test_a_delay_that_is_none_is_a_failure(world: RedisWorld, delay: Any) -> None:
    seen = Recorder(lambda number: Postpone(delay) if number == 1 else None)
    async with at_work(world, seen):
        await send(world, content(1))
        await seen.delivered(1)

        async def failed() -> bool:
            return (await world.queue.stats(TOPIC)).delayed == 1

        await until(failed)
    assert (await world.queue.stats(TOPIC)).postponed == 0
