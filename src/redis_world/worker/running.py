"""A worker at work: claims, delivers, sweeps, and ends in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from redis_world.errors import WorldError, WorldUnavailableError
from redis_world.hints import Subscription
from redis_world.ids import new_request_id
from redis_world.queue import MAX_CLAIM, Claim, Message
from redis_world.signals import HURRYING, stopped_by_signals
from redis_world.sleepers import hand_on
from redis_world.worker.delivery import RELEASED, Call, Delivery
from redis_world.worker.leases import Leases
from redis_world.worker.lookout import Lookout, look_seconds
from redis_world.worker.slots import Slots
from redis_world.worker.sweeping import sweep_by_turns
from redis_world.world import RedisWorld

__all__ = ["OwnProcess", "Running", "Settings"]

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 1.0
"""The rest between two looks where no hint can come."""
_FAREWELL_SECONDS: Final = 1.0
"""How long a worker that stops tries to tell that no message need wake it."""
_RECONNECT_SECONDS: Final = 1.0
_UNWIND_SECONDS: Final = 2.0
"""How long handlers that were cancelled may take to end."""
_RELEASE_SECONDS: Final = 5.0
"""How long a worker that ends tries to release what it holds."""


@dataclass(frozen=True)
class OwnProcess:
    """The process runs nothing but one worker, which may end the process.

    Attributes:
        is_supervised: whether SIGTERM and SIGINT may arrive twice for one stop: from a supervisor
            and from the terminal. Then SIGQUIT ends the process at once.
    """

    is_supervised: bool = False


@dataclass(frozen=True)
class Settings:
    """What a worker was told; durations in seconds."""

    concurrency: int
    lease: float
    max_replay: float
    shutdown_timeout: float
    sweep_interval: float
    own_process: OwnProcess | None


class Running:
    """One run of a worker, in the event loop that it is made in."""

    def __init__(self, world: RedisWorld, calls: Mapping[str, Call], settings: Settings) -> None:
        self._world = world
        self._calls = calls
        self._id = new_request_id()
        """Who claims: it gets no sooner what it has postponed."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._is_stopping = False
        self._slots = Slots(settings.concurrency)
        self._deliveries: set[Delivery] = set()
        self._released = 0
        self._outage = world.connection.outage
        self._look_seconds = 0.0
        self._handing_on: set[asyncio.Task[None]] = set()
        self._leases: Leases | None = None

    def stop(self) -> None:
        """Claim nothing more; from any thread, and from signal handlers."""
        if self._leases is not None and not self._is_stopping:
            self._leases.stop_by(self._settings.shutdown_timeout)
        self._is_stopping = True
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def work(self) -> None:
        """Work until `stop` or a signal."""
        await self._world.open()
        self._look_seconds = look_seconds(len(self._world.connection.partitions))
        settings = self._settings
        leases = self._leases = Leases(
            self._world,
            lease=settings.lease,
            max_replay=settings.max_replay,
            ends_process=settings.own_process is not None,
            on_blocked=self.stop,
        )
        async with leases.open():
            with self._signals(leases):
                await self._work(leases)

    async def _work(self, leases: Leases) -> None:
        self._tell_begin()
        loops = [
            asyncio.create_task(self._consume(topic, leases), name=f"consume {topic}")
            for topic in self._calls
        ]
        sweeping = sweep_by_turns(self._world, self._id, self._settings.sweep_interval)
        loops.append(asyncio.create_task(sweeping, name="sweep"))
        try:
            await self._until_stopped(loops)
        finally:
            self._is_stopping = True
            for task in (*loops, *self._handing_on):
                task.cancel()
            try:
                await self._drain(leases, loops)
            finally:
                self._tell_end()

    @contextlib.contextmanager
    def _signals(self, leases: Leases) -> Iterator[None]:
        """Let signals stop the worker, and end the process where it is the worker's own."""
        own_process = self._settings.own_process
        if own_process is None:
            with stopped_by_signals(self.stop, once=True):
                yield
            return
        stop = self.stop if own_process.is_supervised else partial(self._stop_or_hurry, leases)
        with stopped_by_signals(stop), stopped_by_signals(leases.hurry, HURRYING):
            yield

    def _stop_or_hurry(self, leases: Leases) -> None:
        if self._is_stopping:
            leases.hurry()
        else:
            self.stop()

    async def _until_stopped(self, loops: list[asyncio.Task[None]]) -> None:
        """Wait for the stop; a loop that ends by an error ends the worker with it."""
        stopping = asyncio.create_task(self._stopped.wait())
        try:
            done, _ = await asyncio.wait([stopping, *loops], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stopping.cancel()

    # -- what it tells ---------------------------------------------------------------------

    def _tell_begin(self) -> None:
        """Log the start once signals are handled: the reader may send one."""
        logger.info(
            "worker started on %s",
            self._world.connection.describe(),
            extra={
                "event": "worker.started",
                "pid": os.getpid(),
                "namespace": self._world.config.namespace,
                "topics": ",".join(self._calls),
                "concurrency": self._settings.concurrency,
            },
        )

    def _tell_end(self) -> None:
        stuck = sum(delivery.is_handling for delivery in self._deliveries)
        logger.info(
            "worker ended",
            extra={
                "event": "worker.ended",
                "pid": os.getpid(),
                "released": self._released,
                "abandoned": stuck,
            },
        )

    # -- taking messages -------------------------------------------------------------------

    async def _consume(self, topic: str, leases: Leases) -> None:
        partitions = self._world.connection.partitions
        channels = {
            channel: keys.number
            for keys in partitions
            for channel in (keys.queue_channel(topic), keys.worker_channel(topic, self._id))
        }
        lookout = Lookout({channel.encode(): number for channel, number in channels.items()})
        async with self._world.connection.hub.subscribe(*channels, hears_losses=True) as hints:
            try:
                while True:
                    await leases.can_claim()
                    await self._look(topic, leases, lookout, hints)
            except asyncio.CancelledError:
                # Behind it no hint is for this worker; one that has come is handed on with it.
                await self._sleep_no_more(topic)
                raise

    async def _look(
        self, topic: str, leases: Leases, lookout: Lookout, hints: Subscription
    ) -> None:
        """Claim where something may be, or wait until something is; for a free slot before."""
        now = time.monotonic()
        lookout.hear(hints.heard())
        if not lookout.due(now):
            await hints.wait(lookout.next_look(now) - now)
            return
        taken = self._slots.take(MAX_CLAIM)
        if not taken:
            self._slots.call_when_free(hints.notify)
            # Beside: a node that hangs must not keep it from a slot that becomes free.
            self._hand_on(topic, lookout.missed(now))
            await hints.wait(lookout.next_look(now) - now)
            return
        places = lookout.next_places(now, taken)
        rest = await self._claim(topic, places, taken, leases, hints, lookout)
        if rest > 0:
            await hints.wait(rest)

    async def _claim(
        self,
        topic: str,
        places: list[int],
        taken: int,
        leases: Leases,
        hints: Subscription,
        lookout: Lookout,
    ) -> float:
        """Claim as many messages as there are slots taken; returns how long to rest then."""
        ends = time.monotonic() + self._settings.lease
        # Whom no hint can reach looks every second.
        look = self._look_seconds if hints.is_confirmed else None
        try:
            if self._is_stopping:
                # Another thread said so while a handler blocked the event loop.
                return _POLL_SECONDS
            claim = await self._claim_whole(topic, places, taken, look)
            self._outage.succeeded("claim")
            for message in claim.messages:
                taken -= 1
                self._start(topic, message, leases, ends)
        except WorldUnavailableError as error:
            self._outage.failed("claim", error)
            return _RECONNECT_SECONDS
        finally:
            self._slots.give(taken)
        # Where it does not sleep it may have been for want of room; else it polls.
        rest = 0.0 if claim.messages or claim.more else _POLL_SECONDS
        if claim.wait is not None:
            rest = min(rest, claim.wait)
        lookout.looked({*places} - claim.lost, claim.asleep, time.monotonic(), rest)
        lookout.unanswered(claim.lost, time.monotonic(), _POLL_SECONDS)
        lookout.told(claim.told)
        return 0.0

    def _hand_on(self, topic: str, partitions: Iterable[int]) -> None:
        """Have others told of what this worker has no room for."""
        for partition in partitions:
            call = hand_on(self._world.connection, topic, partition, self._id)
            task = asyncio.create_task(call, name="hand on")
            self._handing_on.add(task)
            task.add_done_callback(self._handed_on)

    def _handed_on(self, task: asyncio.Task[None]) -> None:
        self._handing_on.discard(task)
        if not task.cancelled():
            task.exception()  # without the server others find it at their own looks

    async def _sleep_no_more(self, topic: str) -> None:
        """Be woken for nothing more; others have what this worker was to look at."""
        connection = self._world.connection
        calls = [hand_on(connection, topic, p.number, self._id) for p in connection.partitions]
        # Without a server nobody is woken there.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await asyncio.gather(*calls, return_exceptions=True)

    async def _claim_whole(
        self, topic: str, places: list[int], limit: int, look: float | None
    ) -> Claim:
        """Claim, and release what a stop that came meanwhile leaves nobody to handle."""
        queue = self._world.queue
        lease = self._settings.lease
        claiming = asyncio.ensure_future(
            queue.claim_batch(
                topic, limit=limit, lease=lease, worker=self._id, partitions=places, look=look
            )
        )
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            with contextlib.suppress(WorldError, TimeoutError):
                claim = await asyncio.wait_for(claiming, _RELEASE_SECONDS)
                await self._release(claim.messages)
            raise

    async def _release(self, messages: Iterable[Message]) -> None:
        """Release messages that no handler has begun with, all at once."""
        release = self._world.queue.release
        released = await asyncio.gather(*map(release, messages), return_exceptions=True)
        self._released += sum(each is True for each in released)

    def _start(self, topic: str, message: Message, leases: Leases, ends: float) -> None:
        delivery = Delivery(
            self._world,
            message,
            self._calls[topic],
            leases,
            ends=ends,
            is_stopping=lambda: self._is_stopping,
        )
        self._deliveries.add(delivery)
        delivery.task.add_done_callback(partial(self._finished, delivery))

    def _finished(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        self._deliveries.discard(delivery)
        self._slots.give(1)
        self._released += delivery.outcome == "released"
        if not task.cancelled():
            task.exception()  # it is told already

    # -- the end ---------------------------------------------------------------------------

    async def _drain(self, leases: Leases, loops: list[asyncio.Task[None]]) -> None:
        """Let handlers finish; cancel, and release, what takes too long.

        Args:
            leases: keep the leases meanwhile.
            loops: those that have claimed; what they are about to release has as much time.
        """
        try:
            await _wait([*self._tasks(), *loops], self._settings.shutdown_timeout)
        finally:
            leases.noticed()
            for delivery in self._deliveries:
                delivery.interrupt(RELEASED)
            await _wait([*self._tasks(), *loops], _UNWIND_SECONDS)
            await self._abandon(loops)

    async def _abandon(self, loops: list[asyncio.Task[None]]) -> None:
        """Leave the handlers that ignore their cancellation, and what Redis does not take."""
        stuck = [delivery for delivery in self._deliveries if delivery.is_handling]
        releases = [asyncio.create_task(delivery.abandon()) for delivery in stuck]
        settling = [each.task for each in self._deliveries if not each.is_handling]
        last = [*releases, *settling, *loops, *self._handing_on]
        await _wait(last, _RELEASE_SECONDS)
        for task in last:
            task.cancel()
        await _wait(last, _UNWIND_SECONDS)
        for task in last:
            if task.done() and not task.cancelled():
                task.exception()  # it is told already
        # Those that have ended by now are counted already.
        left = self._deliveries.intersection(stuck)
        self._released += sum(delivery.outcome == "released" for delivery in left)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [delivery.task for delivery in self._deliveries]


async def _wait(tasks: Iterable[asyncio.Task[Any]], seconds: float) -> None:
    if tasks := [*tasks]:
        await asyncio.wait(tasks, timeout=seconds)
