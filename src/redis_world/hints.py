"""Hints: empty pub/sub messages that say "look again", over one connection for all readers.

A hint carries nothing and may be lost; whoever waits for one reads from where it was after
subscribing, after a reconnect, and every now and then. So a lost hint costs time, never data.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias

import redis.exceptions

from redis_world.errors import WorldClosedError
from redis_world.outages import Outage

__all__ = ["Connect", "Hear", "HintHub", "Subscriber", "Subscription", "heed_cancellation"]

logger = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 10.0
"""How long the hub waits in silence before it asks whether the server is still there."""
_RECONNECT_SECONDS: Final = 0.5
_DENIED_SECONDS: Final = 60.0
"""How long a user without rights on channels waits before it asks again."""
_CONFIRM_SECONDS: Final = 1.0
"""How long a subscriber waits for the server's confirmation before it goes on without."""

_SELDOM_SECONDS: Final = 5.0
"""How long a waiter rests whose subscription stands: a single notification may be lost."""
_LOOKS_PER_SECOND: Final = 200
"""How often the waiters of a loop may look all together, as long as their subscriptions stand."""

_SOURCE: Final = "notifications"
"""What its outages are reported as."""


Hear: TypeAlias = Callable[[bytes, bytes], None]
"""Is told what the server says: the kind of it (`message`, `subscribe`, ...), and the channel."""


class Subscriber(Protocol):
    """A connection that hints come over."""

    @property
    def closed(self) -> asyncio.Future[Exception]:
        """Done when the connection is gone: why it is."""

    def send(self, command: str, *channels: bytes) -> None:
        """Send SUBSCRIBE, UNSUBSCRIBE or PING, after those before it."""

    async def aclose(self) -> None:
        """End the connection."""


Connect: TypeAlias = Callable[[Hear], Awaitable[Subscriber]]


class Subscription:
    """One waiter's view of its channels."""

    def __init__(
        self, confirmed: Sequence[asyncio.Event] = (), *, hears_losses: bool = False
    ) -> None:
        self._event = asyncio.Event()
        self._heard: set[bytes] = set()
        self.hears_losses = hears_losses
        self._confirmed = confirmed
        self._is_over = False

    @property
    def is_confirmed(self) -> bool:
        """Whether the subscription stands on the server, as far as this process knows."""
        return all(event.is_set() for event in self._confirmed)

    def notify(self, channel: bytes | None = None) -> None:
        """Wake the waiter, now or at its next wait: for a hint, or for a reason of its own."""
        if channel is not None:
            self._heard.add(channel)
        self._event.set()

    def heard(self) -> set[bytes]:
        """The channels of the hints since the last time that this was asked."""
        heard, self._heard = self._heard, set()
        return heard

    def end(self) -> None:
        """Wake the waiter for the last time: the World is closed."""
        self._is_over = True
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for a hint, at most so long; whether there was one.

        Take it before reading: a hint that comes while you read wakes the next wait.

        Raises:
            WorldClosedError: the World was closed, now or before.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        if self._is_over:
            raise WorldClosedError
        self._event.clear()
        return True


def heed_cancellation() -> None:
    """End a task that was told to end, and whose client has swallowed the word.

    `asyncio.wait_for` of Python 3.11 does when the cancellation meets the end of its wait, and
    clients that use it do: then nobody says it twice, and `asyncio.run` waits for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class HintHub:
    """All subscriptions of one event loop, over one connection that is opened on demand.

    Args:
        connect: opens a connection.
        outage: is told when the connection is lost, and when it is back.
    """

    def __init__(self, connect: Connect, *, outage: Outage | None = None) -> None:
        self._connect = connect
        self._outage = outage or Outage(lambda: "the server")
        self._task: asyncio.Task[None] | None = None
        self._subscriber: Subscriber | None = None
        self._waiters: dict[bytes, set[Subscription]] = {}
        self._waiting = 0
        # Channel -> whether the subscription stands on the server.
        self._confirmed: dict[bytes, asyncio.Event] = {}
        self._present: set[bytes] = set()
        # Channel -> confirmations under way: only the last one is of the present subscription.
        self._awaited: Counter[bytes] = Counter()
        self._wanted = asyncio.Event()
        # Whether the server was asked if it is there, and has said nothing since.
        self._asked = False
        self._denied = False

    @contextlib.asynccontextmanager
    async def subscribe(
        self, *channels: str, hears_losses: bool = False
    ) -> AsyncIterator[Subscription]:
        """Subscribe to one channel or several for the length of a block.

        When the block begins the subscription stands on the server, so that what is read then
        and what is hinted later leave no gap. Where the server can't be reached the block
        begins all the same: the waiter then lives on its own looks.

        Args:
            channels: their names.
            hears_losses: wake the waiter when the connection is lost, too, as by a hint on each
                channel: for one that looks seldom as long as hints come.
        """
        names = [channel.encode() for channel in channels]
        confirmed = [self._confirmed.setdefault(name, asyncio.Event()) for name in names]
        subscription = Subscription(confirmed, hears_losses=hears_losses)
        self._waiting += 1
        try:
            for name in names:
                self._waiters.setdefault(name, set()).add(subscription)
            self._follow(names)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="redis-world notifications")
            if not self._denied:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CONFIRM_SECONDS):
                        for event in confirmed:
                            await event.wait()
            yield subscription
        finally:
            self._waiting -= 1
            for name in names:
                self._leave(name, subscription)
            self._follow(names)

    def rest(self, subscription: Subscription, seconds: float) -> float:
        """How long a waiter rests between two looks, where nothing wakes it, in seconds.

        Where its subscription stands that is seldom, and the more waiters there are the less
        often: ten thousand that look every second would keep a processor busy with nothing. They
        don't look all at once.

        Args:
            subscription: one that hears losses.
            seconds: how long it rests without a subscription.
        """
        if not subscription.is_confirmed:
            return seconds
        seldom = max(_SELDOM_SECONDS, self._waiting / _LOOKS_PER_SECOND)
        return seldom * random.uniform(0.75, 1.25)  # noqa: S311 - no secret

    def _leave(self, name: bytes, subscription: Subscription) -> None:
        waiters = self._waiters.get(name, set())
        waiters.discard(subscription)
        if not waiters and name in self._waiters:
            del self._waiters[name]
            if name not in self._present:
                # Never subscribed to: nobody would unsubscribe from it, and forget it.
                self._confirmed.pop(name, None)

    def end(self) -> None:
        """Wake all waiters for the last time: the World is closed."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.end()
        # Those whose block has not begun yet learn of it at their first wait.
        for event in self._confirmed.values():
            event.set()

    async def aclose(self) -> None:
        """Close the connection; waiters only have their own looks from then on."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _run(self) -> None:
        while True:
            while not self._waiters:
                self._wanted.clear()
                await self._wanted.wait()
            self._asked = False
            begun = time.monotonic()
            try:
                await self._serve()
            except redis.exceptions.NoPermissionError as error:
                # As users of Redis are by default: no channel is theirs.
                if not self._denied:
                    logger.warning(
                        "no permission to subscribe to notifications; polling every second: %s",
                        error,
                        extra={"event": "notifications.denied"},
                    )
                self._denied = True
            except Exception as error:  # noqa: BLE001 - whatever it is, readers go on without
                self._outage.failed(
                    _SOURCE,
                    error,
                    what="the notification connection to",
                    meanwhile="polling every second until it is back",
                )
            heed_cancellation()
            # At once where the connection was good for a while before it broke.
            if self._denied:
                await asyncio.sleep(_DENIED_SECONDS)
            elif time.monotonic() - begun < _RECONNECT_SECONDS:
                await asyncio.sleep(_RECONNECT_SECONDS)

    async def _serve(self) -> None:
        """Connect, and look now and then whether the connection still stands, until it breaks."""
        subscriber = self._subscriber = await self._connect(self._hear)
        try:
            heed_cancellation()
            self._follow(self._waiters)
            while True:
                await asyncio.wait({subscriber.closed}, timeout=_IDLE_SECONDS)
                if subscriber.closed.done():
                    raise subscriber.closed.result()
                if self._asked:
                    raise redis.exceptions.ConnectionError("no answer to PING")
                if self._present:
                    subscriber.send("PING")
                    self._asked = True
        finally:
            self._subscriber = None
            self._tell_loss()
            self._present.clear()
            self._awaited.clear()
            for name in [*self._confirmed]:
                self._confirmed[name].clear()
                if name not in self._waiters:
                    del self._confirmed[name]
            await subscriber.aclose()

    def _tell_loss(self) -> None:
        for name, waiters in self._waiters.items():
            for waiter in waiters:
                if waiter.hears_losses:
                    waiter.notify(name)

    def _follow(self, names: Iterable[bytes]) -> None:
        """Subscribe to those that somebody waits for, unsubscribe from those that nobody does."""
        self._wanted.set()
        if self._subscriber is None:
            return
        # Of these alone: a look at all channels for each of thousands of readers is much work.
        added = {name for name in names if name in self._waiters} - self._present
        gone = {name for name in names if name not in self._waiters} & self._present
        self._present |= added
        self._present -= gone
        if added:
            self._awaited.update(added)
            self._subscriber.send("SUBSCRIBE", *added)
        if gone:
            for name in gone:
                self._confirmed.pop(name, None)
            self._subscriber.send("UNSUBSCRIBE", *gone)

    def _hear(self, kind: bytes, channel: bytes) -> None:
        self._asked = False
        if kind == b"subscribe":
            self._denied = False
            self._outage.succeeded(_SOURCE)
            self._awaited[channel] -= 1
            if self._awaited[channel] <= 0:
                del self._awaited[channel]
                if channel in self._present:
                    self._confirmed[channel].set()
        # Also of a subscription: what was hinted before it, on a lost connection, is looked for.
        for waiter in self._waiters.get(channel, ()):
            waiter.notify(channel)
