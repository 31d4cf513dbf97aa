"""The connection that hints come over."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import hiredis
import redis.asyncio
import redis.asyncio.connection
import redis.exceptions

from redis_world.connection.redis_errors import is_lost, reason_of
from redis_world.connection.wires import FAREWELL_SECONDS, INCOMPLETE, Wire, connect
from redis_world.hints import Hear, Subscriber, heed_cancellation

__all__ = ["open_subscriber"]

_SILENCE_SECONDS: Final = 10.0
"""How long a read of the embedded server waits at a time."""


async def open_subscriber(client: redis.asyncio.Redis, hear: Hear) -> Subscriber:
    """Connect to the server of a client, which is closed with the subscriber.

    Raises:
        redis.exceptions.RedisError, OSError: there is no connection.
    """
    pool = client.connection_pool
    kind = _EmbeddedSubscriber if "server" in pool.connection_kwargs else _WireSubscriber
    try:
        return kind(await connect(pool), client, hear)
    except BaseException as error:
        await client.aclose()
        if isinstance(error, Exception) and is_lost(error):
            # The log names the address already.
            raise redis.exceptions.ConnectionError(reason_of(error)) from error
        raise


def _pass_on(reply: Any, hear: Hear) -> None:
    if isinstance(reply, Exception):
        raise reply
    # The answer to a PING is a word where nothing is subscribed to.
    kind, channel = reply[:2] if isinstance(reply, list) else (reply, b"")
    hear(kind, channel)


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
        if not (await asyncio.wait({self.closed}, timeout=FAREWELL_SECONDS))[0]:
            # What was sent last may never leave, where nobody takes it.
            self.close(at_once=True)

    # -- what the transport calls ----------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass on what the server says."""
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not INCOMPLETE:
                _pass_on(reply, self._hear)
        except redis.exceptions.RedisError as error:
            if not self.closed.done():
                self.closed.set_result(error)
            self.close(at_once=True)


class _EmbeddedSubscriber:
    """The same where a connection has no transport: a task reads."""

    def __init__(
        self,
        connection: redis.asyncio.connection.AbstractConnection,
        client: redis.asyncio.Redis,
        hear: Hear,
    ) -> None:
        self._connection = connection
        self._client = client
        self._hear = hear
        self.closed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(), name="redis-world notifications")

    def send(self, command: str, *channels: bytes) -> None:
        """Send a command, at once: no cancellation can meet it halfway."""
        writer = self._connection._writer  # noqa: SLF001 - redis-py has no public way
        if writer is not None:
            writer.writelines(self._connection.pack_command(command, *channels))

    async def aclose(self) -> None:
        """End the task, the connection and its client."""
        self._reading.cancel()
        # The embedded server forgets a subscriber only when it says farewell.
        self.send("UNSUBSCRIBE")
        await asyncio.wait({self._reading})
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            await self._connection.disconnect()
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            await self._client.aclose()

    async def _read(self) -> None:
        try:
            while True:
                reply = await self._connection.read_response(
                    timeout=_SILENCE_SECONDS, disconnect_on_error=False, push_request=True
                )
                heed_cancellation()
                if reply is not None:
                    _pass_on(reply, self._hear)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the end
            self.closed.set_result(error)
