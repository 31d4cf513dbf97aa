"""One message: its handler is called, and what comes of it ends its lease."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from redis_world.codec import Duration, to_duration_ms
from redis_world.errors import InvalidInputError
from redis_world.queue import FollowUp, Message, backoff
from redis_world.worker.leases import Lease, Leases
from redis_world.worker.report import report
from redis_world.world import RedisWorld

__all__ = [
    "RELEASED",
    "Call",
    "Continuation",
    "Delivery",
    "Handler",
    "MessageHandler",
    "Postpone",
    "caller_of",
    "current_message",
]

T = TypeVar("T")


class Continuation(Protocol):
    """A handler returns it to be called again later with the same message."""

    @property
    def delay_seconds(self) -> float:
        """Seconds until the next call."""

    @property
    def idempotency_key(self) -> str | None:
        """Key of the new message; None: the key of the old one."""


class Handler(Protocol):
    """Handles one message. If it raises, the worker retries the message."""

    async def __call__(
        self, payload: dict[str, Any], /, *, attempt: int, queue_name: str, message_id: str
    ) -> Continuation | None: ...


MessageHandler: TypeAlias = Callable[[Message], Awaitable[Continuation | None]]
"""A handler with one parameter: it gets the whole message."""


class Postpone(Exception):  # noqa: N818 - an answer, not an error
    """A handler raises it for a message that another worker should handle, or a later attempt.

    It counts neither as an attempt nor as a failure.

    Args:
        delay: how long until this worker may get the message again; None: 1 s, growing to 30 s
            with each time.

    Raises:
        InvalidInputError: the delay is not valid.
    """

    def __init__(self, delay: Duration | None = None) -> None:
        super().__init__(delay)
        self.delay = None if delay is None else to_duration_ms(delay, "delay") / 1000


# -- outcomes ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """The handler has ended well."""

    follow_up: FollowUp | None


@dataclass(frozen=True)
class Failed:
    """The handler raised an error, or returned something else than a continuation."""

    error: BaseException


@dataclass(frozen=True)
class Postponed:
    """The handler has postponed the message."""

    delay: Duration | None


@dataclass(frozen=True)
class _Interrupted:
    """The handler was cancelled, from outside."""

    what: str


RELEASED: Final = _Interrupted("released")
"""The worker stops: the message is as good as new."""
LOST: Final = _Interrupted("lease_lost")
"""The lease is lost: nothing is settled."""

Outcome: TypeAlias = Done | Failed | Postponed | _Interrupted

Call: TypeAlias = Callable[[Message], Awaitable[Continuation | None]]

_current: ContextVar[Message | None] = ContextVar("redis_world_message", default=None)


def current_message() -> Message | None:
    """The message that the present handler was called with; None outside of handlers."""
    return _current.get()


def caller_of(handler: Handler | MessageHandler) -> Call:
    """How a handler is called; looked up once, at each message it would take its time."""
    if _wants_message(handler):
        return cast("MessageHandler", handler)
    return partial(_call_with_payload, cast("Handler", handler))


def _wants_message(handler: Callable[..., Any]) -> bool:
    try:
        parameters = [*inspect.signature(handler).parameters.values()]
    except (TypeError, ValueError):
        return False
    return len(parameters) == 1 and parameters[0].kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )


def _call_with_payload(handler: Handler, message: Message) -> Awaitable[Continuation | None]:
    return handler(
        message.payload,
        attempt=message.attempt,
        queue_name=message.queue_name,
        message_id=message.message_id,
    )


class Delivery:
    """The delivery of one message.

    Args:
        world: the World.
        message: the message, which is leased.
        call: calls its handler.
        leases: keeps its lease.
        ends: when its lease ends if nothing extends it.
        is_stopping: whether its worker is to stop.
    """

    def __init__(
        self,
        world: RedisWorld,
        message: Message,
        call: Call,
        leases: Leases,
        *,
        ends: float,
        is_stopping: Callable[[], bool],
    ) -> None:
        self.message = message
        self.is_handling = True
        """Whether its handler has not ended yet."""
        self.outcome = ""
        """What came of it, in a word."""
        self._queue = world.queue
        self._waited_ms = world.connection.server_time() - message.due_at.timestamp() * 1000
        self._begun = time.monotonic()
        self._call = call
        self._leases = leases
        self._lease = Lease(message, lambda: self.interrupt(LOST), self._begun, ends)
        self._interruption: _Interrupted | None = None
        self._is_abandoned = False
        self._is_stopping = is_stopping
        self._has_begun = False
        self._error: BaseException | None = None
        self.task = asyncio.create_task(self._run(), name=message.message_id)

    def interrupt(self, why: _Interrupted) -> None:
        """Cancel the handler, if it has not ended."""
        if not self.is_handling:
            return
        if self._interruption is None and self._has_begun:
            self.task.cancel()
        # A lease that is lost has no message to release.
        if self._interruption is not LOST:
            self._interruption = why

    async def abandon(self) -> None:
        """Release the message while its handler still runs: it ignores its cancellation."""
        if not self.is_handling:
            return
        self._is_abandoned = True
        await self._conclude(RELEASED)

    async def _run(self) -> None:
        with self._leases.keeping(self._lease):
            outcome = await self._handle()
            self.is_handling = False
            if not self._is_abandoned:
                await self._conclude(outcome)

    async def _conclude(self, outcome: Outcome) -> None:
        try:
            if not self._leases.settle(self._lease):
                outcome = LOST
            self.outcome = await self._settle(outcome)
        except BaseException as error:
            # Its lease will end.
            self.outcome = "unsettled"
            self._error = None if isinstance(error, asyncio.CancelledError) else error
            raise
        finally:
            self._report()

    async def _handle(self) -> Outcome:
        self._has_begun = True
        _current.set(self.message)
        if self._interruption is not None:
            return self._interruption
        try:
            return Done(_follow_up(await self._answer()))
        except BaseException as error:  # noqa: BLE001 - the one place that judges what it raises
            return self._outcome_of(error)

    async def _answer(self) -> Continuation | None:
        if self._lease.is_replay:
            return await self._leases.watched(self._lease, self._called())
        return await self._call(self.message)

    async def _called(self) -> Continuation | None:
        return await self._call(self.message)

    def _outcome_of(self, error: BaseException) -> Outcome:
        """What an error of the handler means; raises it where it is none of the handler's."""
        task = asyncio.current_task()
        assert task is not None
        if isinstance(error, KeyboardInterrupt | SystemExit) and self._is_stopping():
            # Of a second signal, which falls to the handlers of before.
            raise error
        if self._interruption is not None:
            task.uncancel()
            # Whatever it raises then is a consequence.
            return self._interruption
        if isinstance(error, asyncio.CancelledError) and task.cancelling():
            # Its loop ends, and all tasks with it.
            return RELEASED
        if isinstance(error, Postpone):
            return Postponed(error.delay)
        return Failed(error)

    async def _settle(self, outcome: Outcome) -> str:
        """End the lease as the outcome wants it; the outcome in a word."""
        message, queue = self.message, self._queue
        if message.ending.is_over:
            # By an event of the handler's: whatever came behind that changes nothing.
            self._error = outcome.error if isinstance(outcome, Failed) else None
            return "acked"
        try:
            match outcome:
                case Done(follow_up):
                    kept = await queue.ack(message, follow_up=follow_up)
                    word = "acked" if follow_up is None else "continued"
                case Postponed(delay):
                    kept = await queue.postpone(message, delay)
                    word = "postponed"
                case Failed(error):
                    self._error = error
                    text, delay = _text_of(error), _delay_after(error, message)
                    kept = await queue.retry(message, error=text, delay=delay)
                    word = "failed"
                case _:
                    kept = outcome is RELEASED and await queue.release(message)
                    word = "released"
        except InvalidInputError as error:
            if isinstance(outcome, Failed | _Interrupted):
                raise
            # What the handler asks for can't be had: left to its lease, the message would come
            # again and again, and never be a dead letter.
            return await self._settle(Failed(error))
        return word if kept else LOST.what

    def _report(self) -> None:
        report(
            self.message,
            self.outcome,
            error=self._error,
            duration=time.monotonic() - self._begun,
            waited_ms=self._waited_ms,
            is_abandoned=self._is_abandoned,
        )


def _follow_up(continuation: Continuation | None) -> FollowUp | None:
    """What a handler's answer asks for.

    Raises:
        AttributeError, TypeError, InvalidInputError: it is no continuation.
    """
    if continuation is None:
        return None
    delay = continuation.delay_seconds
    if delay < 0:
        delay = 0.0
    to_duration_ms(delay, "delay_seconds")
    key = continuation.idempotency_key
    if key is not None and not isinstance(key, str):
        raise InvalidInputError(f"idempotency_key must be a string, not a {type(key).__name__}")
    return FollowUp(delay=delay, idempotency_key=key)


def _delay_after(error: BaseException, message: Message) -> float:
    """Seconds until a failed message is due again; the error may set a floor."""
    floor = _attempt(lambda: to_duration_ms(error.retry_after, "retry_after") / 1000, 0.0)  # type: ignore[attr-defined]
    return max(backoff(message.failures + 1), floor)


def _text_of(error: BaseException) -> str:
    """The text of an error; its `__str__` is foreign code, which may fail."""
    return f"{type(error).__name__}: {_attempt(lambda: str(error), '(its text raises an error)')}"


def _attempt(call: Callable[[], T], otherwise: T) -> T:
    try:
        return call()
    except BaseException:  # noqa: BLE001 - an error can't be asked: its message still has to end
        return otherwise
