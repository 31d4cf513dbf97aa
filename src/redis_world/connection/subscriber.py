"""The connection that hints come over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import hiredis
import redis.asyncio
import redis.asyncio.connection
import redis.exceptions

from redis_world.connection.wires import INCOMPLETE, Wire, connect
from redis_world.hints import Hear, Subscriber, heed_cancellation

if TYPE_CHECKING:
    from redis.asyncio.client import PubSub

__all__ = ["open_subscriber"]

_FAREWELL_SECONDS: Final = 1.0
"""How long the end of a connection is waited for."""
_SILENCE_SECONDS: Final = 10.0
"""How long the embedded server's client waits at a time."""


async def open_subscriber(client: redis.asyncio.Redis, hear: Hear) -> Subscriber:
    """Connect to the server of a client, which is closed with the subscriber.

    Raises:
        redis.exceptions.RedisError, OSError: there is no connection.
    """
    pool = client.connection_pool
    try:
        if "server" in pool.connection_kwargs:
            pubsub = client.pubsub()
            await pubsub.connect()  # type: ignore[no-untyped-call]
            return _EmbeddedSubscriber(pubsub, client, hear)
        return _WireSubscriber(await connect(pool), client, hear)
    except BaseException:
        await client.aclose()
        raise


class _WireSubscriber(Wire):
    """Hears where the bytes arrive: no task has to be woken for it, and none be cancelled."""

    def __init__(
        self,
        connection: redis.asyncio.connection.AbstractConnection,
        client: redis.asyncio.Redis,
        hear: Hear,
    ) -> None:
        super().__init__(connection)
        self._client = client
        self._hear = hear

    def send(self, command: str, *channels: bytes) -> None:
        """Send a command; what the server says to it is heard, too."""
        # The hub learns of the end a moment later, and sends all of it over the next one.
        if self.is_usable:
            self._transport.write(hiredis.pack_command((command, *channels)))  # type: ignore[arg-type]

    async def aclose(self) -> None:
        """End the connection, and its client."""
        self.close()
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            await self._client.aclose()
        if not (await asyncio.wait({self.closed}, timeout=_FAREWELL_SECONDS))[0]:
            # What was sent last may never leave, where nobody takes it.
            self.close(at_once=True)

    # -- what the transport calls ----------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass on what the server says."""
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not INCOMPLETE:
                self._pass_on(reply)
        except redis.exceptions.RedisError as error:
            if not self.closed.done():
                self.closed.set_result(error)
            self.close(at_once=True)

    def _pass_on(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            raise reply
        # The answer to a PING is a word where nothing is subscribed to.
        kind, channel = reply[:2] if isinstance(reply, list) else (reply, b"")
        self._hear(kind, channel)


class _EmbeddedSubscriber:
    """The same by redis-py, whose client the embedded server has instead of a transport."""

    def __init__(self, pubsub: PubSub, client: redis.asyncio.Redis, hear: Hear) -> None:
        self._client = client
        self._pubsub = pubsub
        self._hear = hear
        self._commands: asyncio.Queue[tuple[str, tuple[bytes, ...]]] = asyncio.Queue()
        self.closed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._tasks = {
            asyncio.create_task(self._until_closed(work), name="redis-world hints")
            for work in (self._write, self._read)
        }

    def send(self, command: str, *channels: bytes) -> None:
        """Send a command, after those before it."""
        self._commands.put_nowait((command, channels))

    async def aclose(self) -> None:
        """End both tasks, and the client."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            # The embedded server forgets a subscriber only when it says farewell.
            await self._pubsub.unsubscribe()
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            await self._pubsub.aclose()  # type: ignore[no-untyped-call]
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            await self._client.aclose()

    async def _until_closed(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                await work()
                heed_cancellation()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the end
            if not self.closed.done():
                self.closed.set_result(error)

    async def _write(self) -> None:
        command, channels = await self._commands.get()
        await getattr(self._pubsub, command.lower())(*channels)

    async def _read(self) -> None:
        message = await self._pubsub.get_message(timeout=_SILENCE_SECONDS)
        if message is not None:
            self._hear(message["type"].encode(), message["channel"])
