"""The worker: takes messages from the queue and calls handlers (contract, section 7)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, Self

from redis_world.codec import Duration, to_duration_ms
from redis_world.config import WorldConfig
from redis_world.errors import (
    ConfigurationError,
    InvalidInputError,
    WorldError,
    WorldUnavailableError,
)
from redis_world.ids import new_request_id
from redis_world.queue import MAX_CLAIM, Claim, FollowUp, Message, backoff
from redis_world.signals import stopped_by_signals
from redis_world.values import shown, whole
from redis_world.world import RedisWorld

__all__ = ["Continuation", "Handler", "Postpone", "Worker"]

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 1.0
"""The longest sleep between two looks: what a lost hint may cost."""
_BEATS_PER_LEASE: Final = 3
_MAX_LEASE_SECONDS: Final = 24 * 3600
_RECONNECT_SECONDS: Final = 1.0


class Continuation(Protocol):
    """What a handler returns to be called again: with the same message, after a while."""

    @property
    def delay_seconds(self) -> float:
        """Seconds until then."""

    @property
    def idempotency_key(self) -> str | None:
        """Key of the new message; None takes over the old one's."""


class Handler(Protocol):
    """Handles one message; what it raises means that the message is tried again."""

    async def __call__(
        self, payload: dict[str, Any], /, *, attempt: int, queue_name: str, message_id: str
    ) -> Continuation | None: ...


class Postpone(Exception):  # noqa: N818 - an answer, not an error
    """A handler raises it for a message that is not for it, or not yet: others get it.

    Nothing is counted as an attempt or a failure.

    Args:
        delay: until it is due again, for this worker too; None: 1 s, growing to 30 s by how often
            it was postponed.

    Raises:
        InvalidInputError: the delay is not valid.
    """

    def __init__(self, delay: Duration | None = None) -> None:
        super().__init__(delay)
        self.delay = None if delay is None else to_duration_ms(delay, "delay") / 1000


class Worker:
    """Delivers the messages of some topics to handlers, in this process and event loop.

    Args:
        world: the World.
        handlers: topic -> handler. A topic is the prefix of its queue names.
        concurrency: how many messages are handled at a time, over all topics.
        lease: how long a message is this worker's; a thread extends it while its handler runs.
        max_replay: how long a replay may hold its run: one that hangs loses its lease then,
            or the run would wait for ever. Steps may take as long as they like.
        shutdown_timeout: how long a stopping worker lets its handlers finish, before it
            cancels them and releases their messages.
        sweep_interval: how often it sweeps, at most; None: the World's `sweep_interval`.

    Raises:
        ConfigurationError: there is no handler, or the concurrency is not positive.
    """

    def __init__(
        self,
        world: RedisWorld,
        handlers: Mapping[str, Handler],
        *,
        concurrency: int = 32,
        lease: Duration = 60.0,
        max_replay: Duration = 600.0,
        shutdown_timeout: Duration = 30.0,
        sweep_interval: Duration | None = None,
    ) -> None:
        if not isinstance(getattr(world, "config", None), WorldConfig):
            raise ConfigurationError(f"world is a RedisWorld, not {shown(world)}")
        if not isinstance(handlers, Mapping):
            raise ConfigurationError(f"handlers are a mapping, not {shown(handlers)}")
        if not handlers:
            raise ConfigurationError("a worker needs at least one handler")
        try:
            handlers = dict(handlers)
            concurrency = whole(concurrency, "concurrency", 1)
        except InvalidInputError as error:
            raise ConfigurationError(str(error)) from None
        except Exception as error:  # noqa: BLE001 - a mapping of others may raise anything
            raise ConfigurationError(f"handlers can't be read: {shown(str(error))}") from None
        self._world = world
        self._handlers = handlers
        self._concurrency = concurrency
        self._lease = _positive(lease, "lease")
        if self._lease > _MAX_LEASE_SECONDS:
            raise ConfigurationError(f"a lease is up to a day, not {shown(lease)}")
        self._max_replay = _positive(max_replay, "max_replay")
        self._shutdown_timeout = to_duration_ms(shutdown_timeout, "shutdown_timeout") / 1000
        if sweep_interval is None:
            sweep_interval = world.config.sweep_interval
        self._sweep_interval = _positive(sweep_interval, "sweep_interval")
        self._id = new_request_id()
        self._stopping = asyncio.Event()
        self._slots = _Slots(concurrency)
        self._running: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Claim nothing more; `run` returns once the handlers have finished."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop`.

        A signal stops all workers of the process; the handlers that it had are there again behind
        them. Only in the main thread: elsewhere, whoever runs a worker stops it.

        Raises:
            ConfigurationError: the World can't be opened.
            WorldUnavailableError: the server can't be reached at the start.
        """
        await self._world.open()
        stop = partial(asyncio.get_running_loop().call_soon_threadsafe, self.stop)
        with (
            stopped_by_signals(stop),
            _Heart(self._world, self._lease, self._max_replay) as heart,
        ):
            self._tell_begin()
            loops = [
                asyncio.create_task(self._consume(topic, heart), name=f"consume {topic}")
                for topic in self._handlers
            ]
            loops.append(asyncio.create_task(self._sweep(), name="sweep"))
            try:
                await self._until_stopped(loops)
            finally:
                for loop in loops:
                    loop.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
                await self._drain()
                logger.info("worker %d has ended", os.getpid())

    def _tell_begin(self) -> None:
        """Say so once signals are taken: whoever reads it may send one."""
        topics = ", ".join(self._handlers)
        where = self._world.connection.describe()
        namespace = self._world.config.namespace
        logger.info(
            "worker %d takes %s on %s, namespace %s", os.getpid(), topics, where, namespace
        )

    async def _until_stopped(self, loops: list[asyncio.Task[None]]) -> None:
        """Wait for the stop; a loop that ends by an error ends the worker with it."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([stopping, *loops], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stopping.cancel()

    # -- taking messages -------------------------------------------------------------------

    async def _consume(self, topic: str, heart: _Heart) -> None:
        connection = self._world.connection
        channels = [keys.queue_channel(topic) for keys in connection.partitions]
        async with connection.hub.subscribe(*channels) as hints:
            while True:
                wait = await self._claim(topic, heart)
                if wait > 0:
                    await hints.wait(wait)

    async def _claim(self, topic: str, heart: _Heart) -> float:
        """Claim as many messages as there are free slots; returns how long to sleep then."""
        # All that are free right now, for a batch of one round trip.
        taken = await self._slots.take(MAX_CLAIM)
        try:
            claim = await self._claim_whole(topic, taken)
            for message in claim.messages:
                taken -= 1
                self._start(message, heart)
        except WorldUnavailableError as error:
            logger.warning("no messages: %s", error)
            return _RECONNECT_SECONDS
        finally:
            self._slots.give(taken)
        # Whether something else is due the claim has said; of what comes later there is a hint.
        if claim.more:
            return 0.0
        return _POLL_SECONDS if claim.wait is None else min(claim.wait, _POLL_SECONDS)

    async def _claim_whole(self, topic: str, limit: int) -> Claim:
        """Claim, and release what a stop that came meanwhile leaves nobody to handle."""
        queue = self._world.queue
        claiming = asyncio.ensure_future(
            queue.claim_batch(topic, limit=limit, lease=self._lease, worker=self._id)
        )
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            with contextlib.suppress(WorldError):
                for message in (await claiming).messages:
                    await queue.release(message)
            raise

    def _start(self, message: Message, heart: _Heart) -> None:
        task = asyncio.create_task(self._deliver(message, heart), name=message.message_id)
        self._running.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.give(1)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("message %s was left to its lease", task.get_name(), exc_info=error)

    # -- one message -----------------------------------------------------------------------

    async def _deliver(self, message: Message, heart: _Heart) -> None:
        handler = self._handlers[message.topic]
        with heart.keeping(message) as kept_lease:
            try:
                continuation = await handler(
                    message.payload,
                    attempt=message.attempt,
                    queue_name=message.queue_name,
                    message_id=message.message_id,
                )
                follow_up = _follow_up(continuation)
            except KeyboardInterrupt:
                raise
            except Postpone as postponed:
                kept_lease.is_handled = True
                await self._world.queue.postpone(message, postponed.delay)
                return
            except BaseException as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    # The worker stops, and the handler took too long for it.
                    await asyncio.shield(self._world.queue.release(message))
                    raise
                # Its own error, be it the cancellation of a task of the handler's.
                kept_lease.is_handled = True
                await self._retry(message, error)
                return
            kept_lease.is_handled = True
            kept = await self._world.queue.ack(message, follow_up=follow_up)
        if not kept:
            logger.warning(
                "message %s was handled, but its lease was lost: it is delivered again",
                message.message_id,
            )

    async def _retry(self, message: Message, error: BaseException) -> None:
        logger.warning(
            "message %s failed at attempt %d", message.message_id, message.attempt, exc_info=error
        )
        floor: Any = getattr(error, "retry_after", None)
        delay = backoff(message.failures + 1)
        with contextlib.suppress(InvalidInputError):
            delay = max(delay, to_duration_ms(floor, "retry_after") / 1000)
        text = f"{type(error).__name__}: {error}"
        await self._world.queue.retry(message, error=text, delay=delay)

    # -- the rest --------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            # By chance, so that workers that began together do not sweep together.
            await asyncio.sleep(self._sweep_interval * random.uniform(0.5, 1.0))  # noqa: S311
            try:
                recovered = await self._world.sweep()
            except WorldUnavailableError as error:
                logger.warning("no sweep: %s", error)
                continue
            for name, count in recovered.items():
                if count:
                    logger.info("sweep: %d %s", count, name)

    async def _drain(self) -> None:
        """Let handlers finish; cancel, and release, what takes too long."""
        if self._running:
            await asyncio.wait(self._running, timeout=self._shutdown_timeout)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.gather(*self._running, return_exceptions=True)


def _follow_up(continuation: Continuation | None) -> FollowUp | None:
    """What a handler's answer asks for.

    Raises:
        AttributeError, InvalidInputError: it is no continuation.
    """
    if continuation is None:
        return None
    delay = max(0.0, continuation.delay_seconds)
    to_duration_ms(delay, "delay_seconds")
    return FollowUp(delay=delay, idempotency_key=continuation.idempotency_key)


def _positive(duration: Duration, what: str) -> float:
    seconds = to_duration_ms(duration, what) / 1000
    if not seconds:
        raise ConfigurationError(f"{what} must be more than nothing")
    return seconds


class _Slots:
    """How many more messages may be in work: taken and given many at a time."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._freed = asyncio.Event()

    async def take(self, most: int) -> int:
        """Wait until one is free, and take all that are, at most so many."""
        while not self._free:
            # Whoever finds none goes behind all others that wait.
            self._freed.clear()
            await self._freed.wait()
        taken = min(self._free, most)
        self._free -= taken
        return taken

    def give(self, count: int) -> None:
        """Give some back."""
        self._free += count
        self._freed.set()


@dataclass(slots=True)
class _Kept:
    message: Message
    since: float
    lost: bool = False
    is_handled: bool = False
    """Whether its end is on the way: a beat that crosses it finds no lease, and none is lost."""


class _Heart:
    """Extends the leases of the messages in work, from a thread.

    A replay can hold the event loop for most of a second, a blocking step for as long as it
    likes: whatever beats in the loop would miss its time then.
    """

    def __init__(self, world: RedisWorld, lease: float, max_replay: float) -> None:
        self._world = world
        self._lease = lease
        self._max_replay = max_replay
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="redis-world heart", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @contextlib.contextmanager
    def keeping(self, message: Message) -> Iterator[_Kept]:
        """Extend the lease of a message for the length of a block."""
        kept = _Kept(message, time.monotonic())
        with self._lock:
            self._kept[message.receipt + message.message_id] = kept
        try:
            yield kept
        finally:
            with self._lock:
                del self._kept[message.receipt + message.message_id]

    def _beat(self) -> None:
        caller = self._world.connection.sync_caller()
        try:
            while not self._stop.wait(self._lease / _BEATS_PER_LEASE):
                kept = self._due()
                if not kept:
                    continue
                calls = [self._world.queue.extension(item.message, self._lease) for item in kept]
                try:
                    replies = caller.call_many("queue/extend", calls)
                except WorldError as error:
                    logger.warning("leases were not extended: %s", error)
                    continue
                for item, reply in zip(kept, replies, strict=True):
                    if reply[0] != b"OK" and self._is_kept(item):
                        item.lost = True
                        logger.warning(
                            "the lease of message %s was lost while it is handled",
                            item.message.message_id,
                        )
        finally:
            caller.close()

    def _is_kept(self, item: _Kept) -> bool:
        """Whether it is still in work: one that has just ended has no lease to lose."""
        with self._lock:
            return not item.is_handled and item in self._kept.values()

    def _due(self) -> list[_Kept]:
        now = time.monotonic()
        with self._lock:
            return [
                item
                for item in self._kept.values()
                if not item.lost and (item.message.is_step or now - item.since < self._max_replay)
            ]
