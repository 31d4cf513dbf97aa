"""What becomes of a message: each end of a handler, for each kind of message, stopped or not."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import pytest

from redis_world import RedisWorld
from redis_world.queue import Message
from redis_world.testing import memory_world
from redis_world.worker import Continuation, Postpone, Worker
from support.at_work import at_work, deliveries, told
from support.message_fields import stored, take_lease
from support.queue_tools import RUN, TOPIC, content, health_check, send, step
from support.sdk import until

KINDS: Final = {
    "replay": content(1),
    "step": step(),
    "message of no run": health_check(),
}
MAX_REPLAY: Final = 0.1


@dataclass
class Scene:
    """One delivery, and what the test lets its handler do."""

    world: RedisWorld
    message_id: str = ""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0

    async def ignore_cancellations(self) -> None:
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1

    async def hang(self) -> NoReturn:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
        raise AssertionError


@dataclass(frozen=True)
class Again:
    delay_seconds: float = 3600.0
    idempotency_key: str | None = "again"


async def returns(scene: Scene) -> None:
    await scene.go.wait()


async def continues(scene: Scene) -> Continuation:
    await scene.go.wait()
    return Again()


async def raises(scene: Scene) -> NoReturn:
    await scene.go.wait()
    raise ValueError("no")


async def swallows(scene: Scene) -> None:
    await scene.ignore_cancellations()


async def blocks(scene: Scene) -> None:
    await scene.go.wait()
    # Less than a replay may.
    time.sleep(MAX_REPLAY / 4)  # noqa: ASYNC251 - that's the case


async def hangs(scene: Scene) -> None:
    await scene.hang()


async def loses(scene: Scene) -> None:
    """Somebody else has the message by now."""
    await take_lease(scene.world, scene.message_id)
    await scene.hang()


Ending = Callable[[Scene], Awaitable[Continuation | None]]
ENDINGS: Final[list[Ending]] = [returns, continues, raises, swallows, blocks, hangs, loses]


def outcome_of(ending: Ending, kind: str, *, stopped: bool) -> str | None:
    """What has to become of it; None: the handler goes on."""
    if ending is loses:
        return "lease_lost"
    if ending in (hangs, swallows) and stopped:
        return "released"
    if ending is hangs:
        # Only a replay may be taken from a handler that runs for too long.
        return "lease_lost" if kind == "replay" else None
    if ending is swallows:
        return "lease_lost" if kind == "replay" else "acked"
    words: dict[Ending, str] = {continues: "continued", raises: "failed"}
    return words.get(ending, "acked")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "redis_world.worker")
    return caplog


@pytest.fixture
def scene(world: RedisWorld) -> Iterator[Scene]:
    """A scene whose handler ends with the test: what ignores cancellations would keep its loop."""
    scene = Scene(world)
    yield scene
    scene.go.set()


# Contract: 7.handlers, 7.lease, 7.failures
@pytest.mark.parametrize("stopped", [False, True], ids=["", "stopped"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda each: each.__name__)
async def test_each_end_of_a_handler_ends_its_message(
    scene: Scene, lines: pytest.LogCaptureFixture, ending: Ending, kind: str, *, stopped: bool
) -> None:
    world = scene.world
    expected = outcome_of(ending, kind, stopped=stopped)
    calls = itertools.count(1)

    async def handler(message: Message) -> Continuation | None:
        if next(calls) > 1:
            return None
        scene.message_id = message.message_id
        scene.begun.set()
        return await ending(scene)

    # Handlers that can't end by themselves get no time at the end, the others enough.
    timeout = 0.0 if ending in (swallows, hangs, loses) else 30.0
    lease = 0.6
    working = Worker(
        world,
        {TOPIC: handler},
        lease=lease,
        max_replay=MAX_REPLAY if ending in (hangs, swallows) and not stopped else 60.0,
        shutdown_timeout=timeout,
    )
    task = asyncio.create_task(working.run())
    message_id = await send(world, KINDS[kind])
    await scene.begun.wait()
    if stopped and ending is not loses:
        working.stop()
    if ending in (returns, continues, raises, blocks):
        scene.go.set()
    if expected is None:
        # Longer than a replay may take, and than a lease that nobody extends.
        await asyncio.sleep(2 * lease)
        assert (scene.cancelled, deliveries(lines, message_id)) == (0, [])
        assert (await world.queue.stats(TOPIC)).leased == 1
        expected = "released"
        working.stop()
    if ending is swallows and not stopped:
        await asyncio.sleep(2 * lease)
        scene.go.set()
    record = await told(lines, message_id)
    left = await stored(world, message_id, "attempt", "failures", "error")
    working.stop()
    await task
    first = [line for line in deliveries(lines, message_id) if line.__dict__["attempt"] == 1]
    assert first == [record]
    check_line(record, expected, kind)
    stats = await world.queue.stats(TOPIC)
    match expected:
        case "acked":
            assert left == [None, None, None]
            assert (stats.ready, stats.delayed, stats.leased) == (0, 0, 0)
        case "continued":
            assert left == [None, None, None]
            assert (stats.ready, stats.delayed, stats.leased) == (0, 1, 0)
        case "failed":
            assert left == ["1", "1", "ValueError: no"]
            assert (stats.ready, stats.delayed, stats.leased) == (0, 1, 0)
        case "released":
            assert left == ["0", "0", None]
            assert (stats.ready, stats.delayed, stats.leased) == (1, 0, 0)
        case "lease_lost" if ending is loses:
            assert left == ["1", "0", None]
            assert scene.cancelled == 1
    # A handler that was left behind ends nothing any more.
    scene.go.set()
    await asyncio.sleep(0)
    if expected != "lease_lost":
        after = await world.queue.stats(TOPIC)
        assert (after.ready, after.delayed, after.leased) == (
            stats.ready,
            stats.delayed,
            stats.leased,
        )


def check_line(record: logging.LogRecord, outcome: str, kind: str) -> None:
    """One line, with what a reader of logs looks for, and no payload."""
    fields = record.__dict__
    assert fields["event"] == f"delivery.{outcome}"
    assert fields["outcome"] == outcome
    assert fields["topic"] == TOPIC
    assert fields["workflow"] == "orders"
    assert fields["attempt"] == 1
    assert fields["run_id"] == (None if kind == "message of no run" else RUN)
    assert fields["step_id"] == ("step_1" if kind == "step" else None)
    assert fields["step"] == ("charge" if kind == "step" else None)
    assert isinstance(fields["duration_ms"], int)
    assert isinstance(fields["wait_ms"], int)
    text = record.getMessage()
    words = {"lease_lost": "lost the lease", "unsettled": "can't end the message"}
    assert words.get(outcome, outcome) in text
    assert fields["message_id"] in text
    assert text.startswith("charge: " if kind == "step" else "orders: ")


# -- errors of all kinds -------------------------------------------------------------------


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no text either")


class NoStringError(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]  # noqa: PLE0307 - that's the case


class ImpatientError(Exception):
    @property
    def retry_after(self) -> float:
        raise RuntimeError("never")


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class OwnBaseError(BaseException):
    pass


def odd_errors() -> Iterator[BaseException]:
    yield UnspeakableError()
    yield NoStringError()
    yield ImpatientError("soon")
    yield ExitingError()
    yield OwnBaseError("mine")
    yield KeyboardInterrupt()
    yield SystemExit(3)
    yield GeneratorExit()
    yield asyncio.CancelledError("of a task of the handler's own")
    yield TimeoutError()
    yield StopAsyncIteration()
    yield ExceptionGroup("two", [ValueError("a"), UnspeakableError()])
    yield BaseExceptionGroup("two", [KeyboardInterrupt(), asyncio.CancelledError()])
    yield ValueError("x" * 10_000)


# Contract: 7.failures
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [*odd_errors()], ids=lambda each: type(each).__name__)
async def test_every_error_counts_as_a_failure(
    lines: pytest.LogCaptureFixture, error: BaseException, kind: str
) -> None:
    async def handler(_: Message) -> None:
        raise error

    async with memory_world() as world:
        async with at_work(world, handler):
            message_id = await send(world, KINDS[kind])
            record = await told(lines, message_id)
        attempt, failures, last = await stored(world, message_id, "attempt", "failures", "error")
        stats = await world.queue.stats(TOPIC)
    check_line(record, "failed", kind)
    assert (attempt, failures) == ("1", "1")
    assert str(last).startswith(type(error).__name__)
    assert (stats.delayed, stats.leased) == (1, 0)


async def test_an_error_whose_text_is_no_unicode_counts_as_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def handler(_: Message) -> None:
        raise ValueError("\ud800" * 10_000)

    # What is captured here could not be reported to the process that collects the results.
    monkeypatch.setattr(logging.getLogger("redis_world"), "propagate", False)
    async with memory_world() as world:
        async with at_work(world, handler):
            message_id = await send(world, KINDS["replay"])
            await until(lambda: _is_delayed(world))
        failures, last = await stored(world, message_id, "failures", "error")
    assert failures == "1"
    assert str(last).startswith("ValueError: ?")


async def _is_delayed(world: RedisWorld) -> bool:
    return (await world.queue.stats(TOPIC)).delayed == 1


@dataclass(frozen=True)
class BadKey:
    delay_seconds: float = 0.0
    idempotency_key: Any = 7


@dataclass(frozen=True)
class BadDelay:
    delay_seconds: Any = "soon"
    idempotency_key: str | None = None


class NoDelay:
    @property
    def delay_seconds(self) -> float:
        raise OwnBaseError


@pytest.mark.parametrize(
    "answer",
    [BadKey(), BadDelay(), NoDelay(), "later", Again(float("nan"))],
    ids=["key", "delay", "no delay", "text", "nan"],
)
async def test_every_wrong_answer_counts_as_a_failure(
    lines: pytest.LogCaptureFixture, answer: Any
) -> None:
    async def handler(_: Message) -> Any:
        return answer

    async with memory_world() as world, at_work(world, handler):
        message_id = await send(world, content(1))
        check_line(await told(lines, message_id), "failed", "replay")


# -- handlers ------------------------------------------------------------------------------


class Whole:
    """Handlers that get the whole message."""

    def __init__(self) -> None:
        self.got: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.got.append(message)

    async def method(self, message: Message, /) -> None:
        self.got.append(message)


@pytest.mark.parametrize("form", ["object", "method", "function"])
async def test_a_handler_of_one_parameter_gets_the_whole_message(
    world: RedisWorld, form: str
) -> None:
    whole = Whole()

    async def function(message: Message) -> None:
        await whole(message)

    handler = {"object": whole, "method": whole.method, "function": function}[form]
    async with at_work(world, handler):
        message_id = await send(world, step(), headers={"a": "b"})

        async def got() -> bool:
            return bool(whole.got)

        await until(got)
    (message,) = whole.got
    assert (message.message_id, message.headers, message.payload) == (
        message_id,
        {"a": "b"},
        step(),
    )


@pytest.mark.parametrize("delay", [7.5, None])
async def test_a_postponed_message_is_given_to_others(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, delay: float | None
) -> None:
    postponed: list[tuple[str, float | None]] = []

    async def postpone(message: Message, delay: float | None = None) -> bool:
        postponed.append((message.message_id, delay))
        return await world.queue.release(message) if len(postponed) > 9 else True

    async def handler(_: Message) -> None:
        raise Postpone(delay)

    async with memory_world() as world:
        monkeypatch.setattr(world.queue, "postpone", postpone, raising=False)
        async with at_work(world, handler):
            message_id = await send(world, content(1))
            record = await told(lines, message_id)
    check_line(record, "postponed", "replay")
    assert postponed == [(message_id, delay)]
    assert record.levelno == logging.INFO


# -- running -------------------------------------------------------------------------------


async def test_a_worker_runs_a_second_time(world: RedisWorld) -> None:
    whole = Whole()
    working = Worker(world, {TOPIC: whole})
    for number in (1, 2):
        task = asyncio.create_task(working.run())
        await send(world, content(number))

        async def got(count: int = number) -> bool:
            return len(whole.got) == count

        await until(got)
        working.stop()
        await task


async def test_a_worker_runs_once_at_a_time() -> None:
    from redis_world.errors import ConfigurationError

    async with memory_world() as world:
        working = Worker(world, {TOPIC: Whole()})
        task = asyncio.create_task(working.run())
        await asyncio.sleep(0)
        with pytest.raises(ConfigurationError, match="already running"):
            await working.run()
        working.stop()
        await task


async def test_a_stop_before_the_run_ends_it_at_once() -> None:
    async with memory_world() as world:
        working = Worker(world, {TOPIC: Whole()})
        working.stop()
        async with asyncio.timeout(20):
            await working.run()


def test_a_worker_runs_in_another_loop_than_it_was_made_in() -> None:
    whole = Whole()

    async def make() -> tuple[RedisWorld, Worker]:
        world = memory_world()
        return world, Worker(world, {TOPIC: whole})

    async def work(world: RedisWorld, working: Worker) -> None:
        async with world, asyncio.timeout(20):
            task = asyncio.create_task(working.run())
            await send(world, content(1))

            async def got() -> bool:
                return bool(whole.got)

            await until(got)
            # Harmless from any thread.
            await asyncio.to_thread(working.stop)
            await task

    made = asyncio.run(make())
    asyncio.run(work(*made))
    assert len(whole.got) == 1
    with contextlib.suppress(RuntimeError):
        made[1].stop()
