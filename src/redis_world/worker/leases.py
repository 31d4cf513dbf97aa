"""Keeps the leases of messages in work, from a thread, and watches the replays.

A replay can hold the event loop for most of a second, a blocking step for as long as it likes:
whatever extends leases in the loop would miss its time then. So a thread does, with a connection
of its own, which it has before the first message is claimed.

* Each beat extends all leases, or asks for a sign of life where there are none. Whatever goes
  wrong is logged, and the thread goes on. While no beat gets through, `can_claim` waits: a
  message that was taken now could not be kept.
* A lease that turns out to be lost ends its handler: somebody else may have the message by now.
* A replay that holds its run for longer than `max_replay` gets no more extensions, and is lost
  when its lease has ended.
* A replay that keeps the loop from turning for `max_replay` can't be cancelled. The thread counts
  a failure of its message, releases the others, and ends the process where it is the worker's
  own; else the worker takes nothing more.
* A loop that does not turn when the worker should have stopped is ended likewise, in a process
  of the worker's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from redis_world.connection import SyncCaller
from redis_world.messages import Message, backoff
from redis_world.world import RedisWorld

__all__ = ["BLOCKED_EXIT_CODE", "INTERRUPTED_EXIT_CODE", "Lease", "Leases"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

BLOCKED_EXIT_CODE: Final = 70
"""Of a process that ends because its event loop does not turn any more."""
INTERRUPTED_EXIT_CODE: Final = 130
"""Of a process that ends by a second signal."""

_BEATS_PER_LEASE: Final = 3
_LOOKS_PER_REPLAY: Final = 4
_MOST_SECONDS: Final = 1.0
"""The longest sleep of the thread, and the pause before a failed beat is tried again."""
_LOOP_SECONDS: Final = 3.0
"""How late the loop may notice that its handlers' time is over."""
_HURRY_SECONDS: Final = 7
"""After how long the system ends a process that is to end at once: more than `call_each` takes."""
_FAREWELL_SECONDS: Final = 2.0


@dataclass(eq=False)
class Lease:
    """The lease of one message in work.

    Attributes:
        ends: when it ends if nothing extends it, by this process's clock; no later than the
            server has it.
        is_lost: nothing may be settled any more: somebody else has the message, or will.
        is_settling: its worker ends it. A beat that crosses the end finds no lease, and none is
            lost.
    """

    message: Message
    on_loss: Callable[[], object]
    since: float
    ends: float
    is_lost: bool = False
    is_settling: bool = False

    @property
    def is_ending(self) -> bool:
        """Whether its end is on the way or was reached, by the worker or by an event."""
        ending = self.message.ending
        return self.is_settling or ending.is_under_way or ending.is_over

    @property
    def is_replay(self) -> bool:
        """Whether it is a run's, but no step's: the only kind whose time is limited."""
        return self.message.run_id is not None and not self.message.is_step


@dataclass(eq=False)
class _Section:
    """A stretch of a replay in which the loop does not turn."""

    lease: Lease
    blocked_for: float = 0.0
    is_reported: bool = False


class Leases:
    """The leases of a worker's messages; a context manager of the running event loop.

    Args:
        world: the World.
        lease: seconds.
        max_replay: seconds.
        ends_process: whether the process is the worker's own, and may be ended.
        on_blocked: called in the loop when it turns again after a replay has blocked it.
    """

    def __init__(
        self,
        world: RedisWorld,
        *,
        lease: float,
        max_replay: float,
        ends_process: bool,
        on_blocked: Callable[[], object],
    ) -> None:
        self._world = world
        self._seconds = lease
        self._max_replay = max_replay
        self._ends_process = ends_process
        self._on_blocked = on_blocked
        self._caller: SyncCaller = world.connection.sync_caller()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._can_beat = asyncio.Event()
        self._ended = asyncio.Event()
        self._outage = world.connection.outage
        # Shared with the thread.
        self._kept: set[Lease] = set()
        self._lock = threading.Lock()
        self._section: _Section | None = None
        self._wake = threading.Event()
        self._is_ending = False
        self._is_hurried = False
        self._stop_at: float | None = None
        # The thread's alone.
        self._tick = max(
            0.01, min(lease / _BEATS_PER_LEASE, max_replay / _LOOKS_PER_REPLAY, _MOST_SECONDS)
        )
        self._next_beat = 0.0
        self._is_failing = False
        self._thread = threading.Thread(target=self._live, name="redis-world leases", daemon=True)

    # -- in the event loop -----------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Keep leases for the length of a block.

        Raises:
            WorldUnavailableError: there is no connection to be had.
        """
        try:
            await asyncio.to_thread(self._caller.open)
        except BaseException:
            self._caller.close()
            raise
        self._can_beat.set()
        self._next_beat = time.monotonic() + self._seconds / _BEATS_PER_LEASE
        self._thread.start()
        try:
            yield
        finally:
            self._is_ending = True
            self._wake.set()
            # It may be in a call that a lost server will never answer: it ends by itself then.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _FAREWELL_SECONDS)

    async def can_claim(self) -> None:
        """Wait until what is claimed can be kept."""
        await self._can_beat.wait()

    @contextlib.contextmanager
    def keeping(self, lease: Lease) -> Iterator[None]:
        """Extend a lease for the length of a block."""
        with self._lock:
            self._kept.add(lease)
        try:
            yield
        finally:
            with self._lock:
                self._kept.discard(lease)

    def settle(self, lease: Lease) -> bool:
        """Have its message end now; False when the lease is lost, and nothing may be settled."""
        with self._lock:
            lease.is_settling = not lease.is_lost
            return lease.is_settling

    @types.coroutine
    def watched(self, lease: Lease, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run a replay's coroutine; the thread sees for how long it keeps the loop from turning.

        Seen from here, since a runtime may leave the task for the body: `asyncio.current_task` of
        the loop is None then.
        """
        send: Callable[[Any], Any] = coroutine.send
        value: Any = None
        while True:
            self._section = _Section(lease)
            try:
                waits_for = send(value)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            finally:
                self._section = None
            try:
                value = yield waits_for
                send = coroutine.send
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - thrown into it
                value = error
                send = coroutine.throw

    # -- in signal handlers, and whenever the loop does not turn -----------------------------

    def stop_by(self, seconds: float) -> None:
        """The worker is to stop: in so many seconds its loop has to tell `noticed`."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + seconds + _LOOP_SECONDS

    def noticed(self) -> None:
        """The loop turns, though its handlers' time is over."""
        self._stop_at = float("inf")

    def hurry(self) -> None:
        """Release what can be in a few seconds, and end the process."""
        # Where the thread itself waits for a lost server; by the system, which needs no lock.
        if hasattr(signal, "SIGALRM"):  # not on Windows
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_HURRY_SECONDS)
        self._is_hurried = True
        self._wake.set()

    # -- in the thread ---------------------------------------------------------------------

    def _live(self) -> None:
        last = time.monotonic()
        try:
            while not self._is_ending:
                self._wake.wait(self._tick)
                now = time.monotonic()
                try:
                    self._look(now, now - last)
                except BaseException:  # who else would extend leases?
                    logger.exception(
                        "failed to extend leases, trying again",
                        extra={"event": "heartbeat.failed"},
                    )
                last = now
        finally:
            with contextlib.suppress(Exception):
                self._caller.close()
            self._tell(self._ended.set)

    def _look(self, now: float, elapsed: float) -> None:
        if self._is_hurried:
            logger.warning(
                "second signal: the worker ends now", extra={"event": "worker.interrupted"}
            )
            self._release_all()
            self._exit(INTERRUPTED_EXIT_CODE)
        self._watch(elapsed)
        self._end_replays(now)
        if self._ends_process and self._stop_at is not None and now >= self._stop_at:
            logger.critical(
                "a handler blocks the event loop during the stop: the process ends\n%s",
                self._stack(),
                extra={"event": "worker.blocked"},
            )
            self._release_all()
            self._exit(BLOCKED_EXIT_CODE)
        if now >= self._next_beat and not self._is_ending:
            self._beat(now)

    def _tell(self, call: Callable[[], object]) -> None:
        """Have the loop call something; a loop that is closed needs nothing."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    # -- beats -----------------------------------------------------------------------------

    def _beat(self, now: float) -> None:
        try:
            error = self._extend(now)
            is_failing = False
        except BaseException as whatever:  # noqa: BLE001 - a credential provider's, for one
            error, is_failing = whatever, True
        if error is None:
            self._outage.succeeded("heartbeat")
        elif not self._is_ending:
            meanwhile = "leases are not extended, nothing new is claimed" if is_failing else ""
            self._outage.failed("heartbeat", error, meanwhile=meanwhile)
        if is_failing is not self._is_failing:
            self._is_failing = is_failing
            self._tell(self._can_beat.clear if is_failing else self._can_beat.set)
        pause = self._seconds / _BEATS_PER_LEASE
        self._next_beat = now + (pause if error is None else min(pause, _MOST_SECONDS))

    def _extend(self, now: float) -> BaseException | None:
        """Extend all leases; returns what went wrong with some of them.

        Raises:
            Exception: nothing at all got through.
        """
        with self._lock:
            due = [
                lease
                for lease in self._kept
                if not lease.is_lost and not lease.is_ending and not self._is_over(lease, now)
            ]
        if not due:
            self._caller.open()
            return None
        calls = [self._world.queue.extension(lease.message, self._seconds) for lease in due]
        replies = self._caller.call_each("queue/extend", calls)
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        if len(errors) == len(replies):
            raise errors[0]
        for lease, reply in zip(due, replies, strict=True):
            if isinstance(reply, Exception):
                continue
            if reply[0] == b"OK":
                lease.ends = now + self._seconds
            else:
                self._lose(lease, "lost the lease of a message that is being handled")
        return errors[0] if errors else None

    def _is_over(self, lease: Lease, now: float) -> bool:
        return lease.is_replay and now - lease.since >= self._max_replay

    def _end_replays(self, now: float) -> None:
        with self._lock:
            over = [
                lease for lease in self._kept if self._is_over(lease, now) and now >= lease.ends
            ]
        for lease in over:
            self._lose(lease, f"a replay took longer than max_replay ({self._max_replay:g} s)")

    def _lose(self, lease: Lease, text: str) -> None:
        if self._take(lease):
            message = lease.message
            logger.warning(
                "%s (message %s)",
                text,
                message.message_id,
                extra={
                    "event": "lease.lost",
                    "message_id": message.message_id,
                    "run_id": message.run_id,
                    "topic": message.topic,
                    "attempt": message.attempt,
                },
            )
            self._tell(lease.on_loss)

    def _take(self, lease: Lease) -> bool:
        """Take a lease from its handler; False when that has ended."""
        with self._lock:
            if lease.is_lost or lease.is_ending or lease not in self._kept:
                return False
            lease.is_lost = True
            return True

    # -- a loop that does not turn ------------------------------------------------------------

    def _watch(self, elapsed: float) -> None:
        section = self._section
        if section is None or section.is_reported:
            return
        # Seen by looks, not by the clock: a process that was halted has blocked nothing.
        section.blocked_for += min(elapsed, 2 * self._tick)
        if section.blocked_for < self._max_replay:
            return
        section.is_reported = True
        # It blocks those beside it all the same when its own lease is lost by now.
        is_held = self._take(section.lease)
        message = section.lease.message
        text = f"a replay blocked the event loop for {self._max_replay:g} s"
        logger.critical(
            "%s: %s (message %s)\n%s",
            text,
            "the process ends" if self._ends_process else "this worker claims nothing more",
            message.message_id,
            self._stack(),
            extra={
                "event": "replay.blocked",
                "message_id": message.message_id,
                "run_id": message.run_id,
                "topic": message.topic,
                "queue_name": message.queue_name,
                "attempt": message.attempt,
            },
        )
        self._can_beat_no_more()
        if is_held:
            failure = self._world.queue.failure(message, text, backoff(message.failures + 1))
            self._call("queue/retry", [failure])
        self._release_all()
        if self._ends_process:
            self._exit(BLOCKED_EXIT_CODE)
        self._tell(section.lease.on_loss)
        self._tell(self._on_blocked)

    def _can_beat_no_more(self) -> None:
        self._tell(self._can_beat.clear)

    def _release_all(self) -> None:
        """Release all messages; those that are being settled are left to that, or their leases."""
        with self._lock:
            kept = [*self._kept]
        kept = [lease for lease in kept if self._take(lease)]
        if not kept:
            return
        calls = [self._world.queue.returning(lease.message) for lease in kept]
        count = self._call("queue/release", calls)
        logger.warning(
            "released %d of %d messages",
            count,
            len(kept),
            extra={"event": "messages.released", "released": count, "total": len(kept)},
        )
        for lease in kept:
            self._tell(lease.on_loss)

    def _call(self, script: str, calls: Sequence[Any]) -> int:
        """Call a script for some messages; for how many it worked."""
        try:
            replies = self._caller.call_each(script, calls)
        except BaseException as error:  # noqa: BLE001 - their leases will end
            self._tell_failure(script, error)
            return 0
        for reply in replies:
            if isinstance(reply, Exception):
                self._tell_failure(script, reply)
        return sum(not isinstance(reply, Exception) for reply in replies)

    @staticmethod
    def _tell_failure(script: str, error: BaseException) -> None:
        """Log what keeps a message from its end. Without a stack: an outage is not a bug."""
        logger.error(
            "%s failed: %s", script, error, extra={"event": "redis.call_failed", "script": script}
        )

    def _stack(self) -> str:
        """What the loop's thread is doing."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the only way
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    @staticmethod
    def _exit(code: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)
