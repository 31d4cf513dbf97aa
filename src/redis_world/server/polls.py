"""Long polls for messages: the server looks for them on behalf of workers elsewhere.

A worker polls again and again, through any process of the server. Between two polls this process
goes on listening for it, so that the next poll claims a message that comes meanwhile at once. If
there is no next one soon, another worker is told of the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from redis_world.errors import WorldError, WorldUnavailableError
from redis_world.hints import Subscription
from redis_world.messages import Message
from redis_world.queue import Claim
from redis_world.requests import request_scope
from redis_world.scatter import complete
from redis_world.sleepers import hand_on
from redis_world.worker.lookout import Lookout, look_seconds
from redis_world.world import RedisWorld

__all__ = ["Poll", "Polls"]

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 1.0
"""The rest between two looks where no notification can come."""
_GAP_SECONDS: Final = 0.05
"""How long a message waits for the next poll of the worker that was told of it."""
_IDLE_SECONDS: Final = 5.0
"""After so long without a poll a worker counts as gone."""
_FAREWELL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Poll:
    """What a worker asks for.

    Attributes:
        topics: the prefixes of the queue names.
        limit: the most messages.
        lease: seconds.
        worker: who polls; letters and digits.
        ends_at: when it has waited long enough, by `time.monotonic`.
        request_id: the id that the worker gave the request; None for none.
        attempt: which try it is.
    """

    topics: tuple[str, ...]
    limit: int
    lease: float
    worker: str
    ends_at: float
    request_id: str | None
    attempt: int


class Polls:
    """The polls of one namespace in this process.

    Args:
        world: the namespace.
        stopping: set when the server stops: then no poll waits any longer.
    """

    def __init__(self, world: RedisWorld, stopping: asyncio.Event) -> None:
        self._world = world
        self._stopping = stopping
        self._listeners: dict[tuple[str, str], _Listener] = {}

    async def poll(self, poll: Poll) -> list[Message]:
        """Lease messages as soon as there are some.

        Returns:
            None of them if there were none in time, or if the server stops.
        """
        if poll.attempt > 1:
            messages = await self._claim_again(poll)
            if messages or time.monotonic() >= poll.ends_at:
                return messages
        listeners = [self._listener(topic, poll.worker) for topic in poll.topics]
        for listener in listeners:
            listener.begin_poll()
        try:
            return await self._wait(poll, listeners)
        finally:
            for listener in listeners:
                listener.end_poll()

    async def _wait(self, poll: Poll, listeners: list[_Listener]) -> list[Message]:
        while True:
            rest = max(0.0, poll.ends_at - time.monotonic())
            for listener in listeners:
                messages, wait = await listener.claim(poll)
                if messages:
                    return messages
                rest = min(rest, wait)
            if self._stopping.is_set() or time.monotonic() >= poll.ends_at:
                return []
            await self._rest(listeners, rest)

    async def _rest(self, listeners: list[_Listener], seconds: float) -> None:
        """Wait until one of the listeners has heard something, or it is time to look."""
        waiting = [asyncio.create_task(listener.heard()) for listener in listeners]
        waiting.append(asyncio.create_task(_set(self._stopping)))
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def _claim_again(self, poll: Poll) -> list[Message]:
        """What an earlier try of the request has leased, or else what is due."""
        claims = await complete([_claim(self._world, topic, poll) for topic in poll.topics])
        messages = [message for claim in claims for message in claim.messages]
        surplus = messages[poll.limit :]
        await complete([self._world.queue.release(message) for message in surplus])
        return messages[: poll.limit]

    def _listener(self, topic: str, worker: str) -> _Listener:
        listener = self._listeners.get((topic, worker))
        if listener is None:
            listener = _Listener(self._world, topic, worker, self._forget)
            self._listeners[topic, worker] = listener
        return listener

    def _forget(self, listener: _Listener) -> None:
        self._listeners.pop((listener.topic, listener.worker), None)

    async def aclose(self) -> None:
        """Let other workers be told of what these were to take."""
        await asyncio.gather(*(each.aclose() for each in [*self._listeners.values()]))


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _claim(
    world: RedisWorld,
    topic: str,
    poll: Poll,
    places: Iterable[int] | None = None,
    look: float | None = None,
) -> Claim:
    """One claim. Each of a request has the same receipt, by which its repetition finds it."""
    scope = (
        contextlib.nullcontext()
        if poll.request_id is None
        else request_scope(poll.request_id, attempt=poll.attempt)
    )
    with scope:
        return await world.queue.claim_batch(
            topic,
            limit=poll.limit,
            lease=poll.lease,
            worker=poll.worker,
            partitions=None if places is None else [*places],
            look=look,
        )


class _Listener:
    """What this process hears for one worker of one topic.

    Args:
        world: the namespace.
        topic: the topic.
        worker: the worker.
        forget: called when the worker has not polled for long.
    """

    def __init__(
        self, world: RedisWorld, topic: str, worker: str, forget: Callable[[_Listener], None]
    ) -> None:
        self.topic, self.worker = topic, worker
        self._world = world
        self._forget = forget
        connection = world.connection
        channels = {
            channel: keys.number
            for keys in connection.partitions
            for channel in (keys.queue_channel(topic), keys.worker_channel(topic, worker))
        }
        self._channels = [*channels]
        self._look_seconds = look_seconds(len(connection.partitions))
        self._lookout = Lookout({name.encode(): number for name, number in channels.items()})
        self._hints: Subscription | None = None
        self._claiming = asyncio.Lock()
        self._heard = asyncio.Event()
        self._polls = 0
        self._polled = asyncio.Event()
        """Set while there is a poll."""
        self._last_poll = time.monotonic()
        self._task = asyncio.create_task(self._listen(), name=f"listen for {topic}")

    def begin_poll(self) -> None:
        """A poll of the worker is here."""
        self._polls += 1
        self._polled.set()

    def end_poll(self) -> None:
        """It has ended; the next one is to come."""
        self._polls -= 1
        self._last_poll = time.monotonic()
        if not self._polls:
            self._polled.clear()

    async def heard(self) -> None:
        """Wait until there is something to look at."""
        await self._heard.wait()

    async def claim(self, poll: Poll) -> tuple[list[Message], float]:
        """Claim where something may be; and in how many seconds to look again."""
        async with self._claiming:
            while True:
                self._take_hints()
                now = time.monotonic()
                places = self._lookout.next_places(now, poll.limit)
                if not places:
                    return [], max(0.0, self._lookout.next_look(now) - now)
                claim = await self._claim_from(places, poll)
                if claim.messages:
                    return claim.messages, 0.0

    async def _claim_from(self, places: list[int], poll: Poll) -> Claim:
        # Whom no notification can reach looks every second.
        is_confirmed = self._hints is not None and self._hints.is_confirmed
        look = self._look_seconds if is_confirmed else None
        try:
            claim = await _claim(self._world, self.topic, poll, places, look)
        except WorldUnavailableError:
            self._lookout.unanswered(places, time.monotonic(), _POLL_SECONDS)
            raise
        rest = 0.0 if claim.messages or claim.more else _POLL_SECONDS
        if claim.wait is not None:
            rest = min(rest, claim.wait)
        now = time.monotonic()
        self._lookout.looked({*places} - claim.lost, claim.asleep, now, rest)
        self._lookout.unanswered(claim.lost, now, _POLL_SECONDS)
        self._lookout.told(claim.told)
        return claim

    def _take_hints(self) -> None:
        self._heard.clear()
        if self._hints is not None:
            self._lookout.hear(self._hints.heard())

    async def _listen(self) -> None:
        """Listen until the worker has not polled for long."""
        try:
            hub = self._world.connection.hub
            async with hub.subscribe(*self._channels, hears_losses=True) as hints:
                self._hints = hints
                while self._polls or time.monotonic() - self._last_poll < _IDLE_SECONDS:
                    if not await hints.wait(_IDLE_SECONDS):
                        continue
                    self._heard.set()
                    await self._hand_on_unless_polled(hints)
        except WorldError as error:
            # The next poll begins anew.
            logger.debug("stopped listening: %s", error, extra={"event": "poll.interrupted"})
        finally:
            self._hints = None
            self._forget(self)
            # Polls that are here look by themselves, every second.
            self._heard.set()
            await self._farewell()

    async def _hand_on_unless_polled(self, hints: Subscription) -> None:
        """Have others told of messages that this worker is busy for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GAP_SECONDS):
                await self._polled.wait()
                return
        self._lookout.hear(hints.heard())
        missed = self._lookout.missed(time.monotonic())
        await self._tell_others(missed)

    async def _tell_others(self, partitions: Iterable[int]) -> None:
        connection = self._world.connection
        calls = [hand_on(connection, self.topic, each, self.worker) for each in partitions]
        # Without a server nobody is told; they find it at their own looks.
        await asyncio.gather(*calls, return_exceptions=True)

    async def _farewell(self) -> None:
        """Be woken for nothing more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                numbers = [keys.number for keys in self._world.connection.partitions]
                await self._tell_others(numbers)

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
