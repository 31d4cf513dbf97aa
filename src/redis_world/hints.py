"""Hints: empty pub/sub messages that say "look again", over one connection for all readers.

A hint carries nothing and may be lost; whoever waits for one reads from where it was after
subscribing, after a reconnect, and every now and then. So a lost hint costs time, never data.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

import redis.asyncio
import redis.exceptions

if TYPE_CHECKING:
    from redis.asyncio.client import PubSub

__all__ = ["HintHub", "Subscription"]

logger = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 10.0
"""How long the subscriber waits in silence before it asks whether the server is still there."""
_RECONNECT_SECONDS: Final = 0.5
_DENIED_SECONDS: Final = 60.0
"""How long a user without rights on channels waits before it asks again."""
_CONFIRM_SECONDS: Final = 1.0
"""How long a subscriber waits for the server's confirmation before it goes on without."""


class Subscription:
    """One waiter's view of a channel."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake the waiter, now or at its next wait."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for a hint, at most so long; whether there was one.

        Take it before reading: a hint that comes while you read wakes the next wait.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


async def _close(pubsub: PubSub, client: redis.asyncio.Redis) -> None:
    with contextlib.suppress(redis.exceptions.RedisError, OSError):
        # The embedded server forgets a subscriber only when it says farewell.
        await pubsub.unsubscribe()
    with contextlib.suppress(redis.exceptions.RedisError, OSError):
        await pubsub.aclose()  # type: ignore[no-untyped-call]
    with contextlib.suppress(redis.exceptions.RedisError, OSError):
        await client.aclose()


def _heed_cancellation() -> None:
    """End a task that was told to end, and whose client has swallowed the word.

    `asyncio.wait_for` of Python 3.11 does when the cancellation meets the end of its wait, and
    clients that use it do: then nobody says it twice, and `asyncio.run` waits for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class HintHub:
    """All subscriptions of one event loop, over one connection that is opened on demand.

    Only a task of its own uses the connection: a waiter that is cancelled can't leave it half
    used.
    """

    def __init__(self, connect: Callable[[], redis.asyncio.Redis]) -> None:
        self._connect = connect
        self._task: asyncio.Task[None] | None = None
        self._waiters: dict[bytes, set[Subscription]] = {}
        # Channel -> whether the subscription stands on the server.
        self._confirmed: dict[bytes, asyncio.Event] = {}
        self._present: set[bytes] = set()
        # Channel -> confirmations under way: only the last one is of the present subscription.
        self._awaited: Counter[bytes] = Counter()
        self._changed = asyncio.Event()
        self._heard = False
        # Whether the server was asked if it is there, and has said nothing since.
        self._asked = False
        self._denied = False

    @contextlib.asynccontextmanager
    async def subscribe(self, *channels: str) -> AsyncIterator[Subscription]:
        """Subscribe to one channel or several for the length of a block.

        When the block begins the subscription stands on the server, so that what is read then
        and what is hinted later leave no gap. Where the server can't be reached the block
        begins all the same: the waiter then lives on its own looks.
        """
        names = [channel.encode() for channel in channels]
        subscription = Subscription()
        for name in names:
            self._waiters.setdefault(name, set()).add(subscription)
        confirmed = [self._confirmed.setdefault(name, asyncio.Event()) for name in names]
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="redis-world hints")
        try:
            if not self._denied:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CONFIRM_SECONDS):
                        for event in confirmed:
                            await event.wait()
            yield subscription
        finally:
            for name in names:
                self._leave(name, subscription)

    def _leave(self, name: bytes, subscription: Subscription) -> None:
        waiters = self._waiters.get(name, set())
        waiters.discard(subscription)
        if not waiters and name in self._waiters:
            del self._waiters[name]
            if name not in self._present:
                # Never subscribed to: nobody would unsubscribe from it, and forget it.
                self._confirmed.pop(name, None)
            self._changed.set()

    async def aclose(self) -> None:
        """Close the connection; waiters only have their own looks from then on."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _run(self) -> None:
        while True:
            while not self._waiters:
                self._changed.clear()
                await self._changed.wait()
            self._heard = self._asked = False
            client = self._connect()
            pubsub = client.pubsub()
            try:
                self._present = set()
                self._awaited.clear()
                await self._follow(pubsub)
                await self._serve(pubsub)
            except redis.exceptions.NoPermissionError as error:
                # As users of Redis are by default: no channel is theirs.
                if not self._denied:
                    logger.warning("without hints readers look by themselves: %s", error)
                self._denied = True
            except Exception as error:  # noqa: BLE001 - whatever it is, readers go on without
                logger.warning("hints are interrupted, readers look by themselves: %s", error)
            finally:
                for name in [*self._confirmed]:
                    self._confirmed[name].clear()
                    if name not in self._waiters:
                        del self._confirmed[name]
                await _close(pubsub, client)
            _heed_cancellation()
            # At once where the connection was good before it broke.
            if self._denied:
                await asyncio.sleep(_DENIED_SECONDS)
            elif not self._heard:
                await asyncio.sleep(_RECONNECT_SECONDS)

    async def _serve(self, pubsub: PubSub) -> None:
        """Take hints, and keep the subscriptions at what somebody waits for.

        One thing at a time: redis-py leaves sockets behind when a connection breaks under a
        reading and a writing task.
        """
        changed = asyncio.create_task(self._changed.wait())
        try:
            while True:
                _heed_cancellation()
                receiving = asyncio.create_task(self._receive(pubsub))
                try:
                    await asyncio.wait({changed, receiving}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if interrupted := not receiving.done():
                        receiving.cancel()
                        await asyncio.wait({receiving})
                if not receiving.cancelled():
                    receiving.result()
                    if not interrupted:
                        await self._ask(pubsub)
                if changed.done():
                    await self._follow(pubsub)
                    changed = asyncio.create_task(self._changed.wait())
        finally:
            changed.cancel()

    async def _receive(self, pubsub: PubSub) -> None:
        """Tell waiters of what comes, until nothing does for a while."""
        while message := await pubsub.get_message(timeout=_IDLE_SECONDS):
            self._asked = False
            self._take(message)
            _heed_cancellation()

    async def _follow(self, pubsub: PubSub) -> None:
        """Subscribe to what somebody waits for, and unsubscribe from what nobody does."""
        self._changed.clear()
        wanted = set(self._waiters)
        added, gone = wanted - self._present, self._present - wanted
        self._present = wanted
        if added:
            self._awaited.update(added)
            await pubsub.subscribe(*added)
        if gone:
            for name in gone:
                self._confirmed.pop(name, None)
            await pubsub.unsubscribe(*gone)

    async def _ask(self, pubsub: PubSub) -> None:
        """After a silence ask whether the server is there; after two it is not."""
        if self._asked:
            raise redis.exceptions.ConnectionError("the hint connection went silent")
        if pubsub.subscribed:
            await pubsub.ping()
            self._asked = True

    def _take(self, message: dict[str, Any]) -> None:
        self._heard = True
        channel = message["channel"]
        if message["type"] == "subscribe":
            self._awaited[channel] -= 1
            if self._awaited[channel] <= 0:
                del self._awaited[channel]
                if channel in self._present:
                    self._confirmed[channel].set()
        # Also of a subscription: what was hinted before it, on a lost connection, is looked for.
        for waiter in self._waiters.get(channel, ()):
            waiter.notify()
