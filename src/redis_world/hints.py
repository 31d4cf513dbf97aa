"""Hints: empty pub/sub messages that say "look again", over one connection for all readers.

A hint carries nothing and may be lost; whoever waits for one reads from where it was after
subscribing, after a reconnect, and every now and then. So a lost hint costs time, never data.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

import redis.asyncio
import redis.exceptions

if TYPE_CHECKING:
    from redis.asyncio.client import PubSub

__all__ = ["HintHub", "Subscription"]

logger = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 10.0
"""How long the subscriber waits in silence before it asks whether the server is still there."""
_RECONNECT_SECONDS: Final = 0.5


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


class HintHub:
    """All subscriptions of one event loop, over one connection that is opened on demand."""

    def __init__(self, connect: Callable[[], redis.asyncio.Redis]) -> None:
        self._connect = connect
        self._client: redis.asyncio.Redis | None = None
        self._pubsub: PubSub | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiters: dict[bytes, set[Subscription]] = {}
        self._confirmed: dict[bytes, asyncio.Event] = {}
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def subscribe(self, channel: str) -> AsyncIterator[Subscription]:
        """Subscribe for the length of a block.

        When the block begins the subscription stands on the server, so that what is read then
        and what is hinted later leave no gap. Where the server can't be reached the block
        begins all the same: the waiter then lives on its own looks.
        """
        name = channel.encode()
        subscription = Subscription()
        waiters = self._waiters.setdefault(name, set())
        waiters.add(subscription)
        try:
            await self._ensure_subscribed(name)
            yield subscription
        finally:
            waiters.discard(subscription)
            if not waiters and self._waiters.get(name) is waiters:
                del self._waiters[name]
                self._confirmed.pop(name, None)
                if self._pubsub is not None:
                    with contextlib.suppress(redis.exceptions.RedisError, OSError):
                        await self._pubsub.unsubscribe(name)

    async def aclose(self) -> None:
        """Close the connection; waiters only have their own looks from then on."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._disconnect()

    async def _ensure_subscribed(self, name: bytes) -> None:
        confirmed = self._confirmed.get(name)
        if confirmed is None:
            confirmed = self._confirmed[name] = asyncio.Event()
            async with self._lock:
                with contextlib.suppress(redis.exceptions.RedisError, OSError):
                    if self._pubsub is None:
                        await self._resubscribe()
                    else:
                        await self._pubsub.subscribe(name)
            if self._task is None:
                self._task = asyncio.create_task(self._listen(), name="redis-world hints")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await confirmed.wait()

    async def _resubscribe(self) -> None:
        if self._client is None:
            self._client = self._connect()
        pubsub = self._client.pubsub()
        # Before it is anybody's: a subscriber that comes meanwhile is in `_waiters` already.
        await pubsub.subscribe(*self._waiters)
        self._pubsub = pubsub

    async def _disconnect(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        client, self._client = self._client, None
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            if pubsub is not None:
                await pubsub.aclose()  # type: ignore[no-untyped-call]
            if client is not None:
                await client.aclose()

    async def _listen(self) -> None:
        while True:
            try:
                async with self._lock:
                    if self._pubsub is None:
                        await self._resubscribe()
                        self._wake_all()
                await self._receive()
            except (redis.exceptions.RedisError, OSError) as error:
                logger.warning("hints are interrupted, readers look by themselves: %s", error)
                await self._disconnect()
                await asyncio.sleep(_RECONNECT_SECONDS)

    async def _receive(self) -> None:
        silent = False
        while (pubsub := self._pubsub) is not None:
            message = await pubsub.get_message(timeout=_IDLE_SECONDS)
            if message is None:
                if silent:
                    # Two silences in a row, and a ping between them: the line is dead.
                    raise redis.exceptions.ConnectionError("the hint connection went silent")
                silent = True
                await pubsub.ping()
                continue
            silent = False
            channel = message["channel"]
            if message["type"] == "subscribe":
                confirmed = self._confirmed.get(channel)
                if confirmed is not None:
                    confirmed.set()
            for waiter in self._waiters.get(channel, ()):
                waiter.notify()

    def _wake_all(self) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.notify()
