"""The only package that talks to redis-py.

Calls that are made in one tick of the event loop share one pipeline: under load a worker sends
few large packets instead of many small ones, and no caller has to know.

A call whose reply does not come is sent again, until the server has answered or the patience of
`retry_timeout` is at its end. Every script finds what an earlier run of the same call has
written, so that nothing is done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import redis.asyncio

from redis_world.config import WorldConfig
from redis_world.connection.blocking import SyncCaller
from redis_world.connection.refusals import translate
from redis_world.connection.sender import Command, Reply, Sender, encode
from redis_world.connection.server import check_server, pin_namespace
from redis_world.connection.source import Source, abandon
from redis_world.hints import HintHub
from redis_world.keys import Keys, Partitions
from redis_world.lua import ScriptLibrary

__all__ = ["Command", "Connection", "SyncCaller"]

logger = logging.getLogger(__name__)

_SCANNED_AT_ONCE: Final = 1000


class _LoopState:
    """What belongs to one event loop: its client, its calls, its subscriber."""

    def __init__(self, client: redis.asyncio.Redis, sender: Sender) -> None:
        self.loop = asyncio.get_running_loop()
        self.client = client
        self.sender = sender
        self.opening = asyncio.Lock()
        self.opened = False
        self.hub: HintHub | None = None
        self.guardian: AsyncGenerator[None, None] | None = None
        """Closes the client with the loop, where nobody else does."""


class Connection:
    """Commands and scripts on one server.

    Args:
        url: where the server is; or
        client: a ready redis-py client, whose server and settings are used; it stays its
            owner's.
        config: the World's options.
        library: the scripts.

    Raises:
        ConfigurationError: there is neither or both of URL and client, the URL is no server's,
            or the client can't be used.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        client: redis.asyncio.Redis | None = None,
        config: WorldConfig,
        library: ScriptLibrary,
    ) -> None:
        self._source = Source(url, client, config)
        self.config = config
        self.partitions = Partitions(config.namespace, config.partitions)
        self._library = library
        self._state: _LoopState | None = None
        self._clock_offset = 0.0

    # -- life ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Reach the server, check it, load the scripts and pin the namespace; once per loop.

        A server that is starting is waited for; one that can't be reached is not.

        Raises:
            ConfigurationError: the server is too old, or the namespace was made otherwise.
            WorldUnavailableError: the server can't be reached.
        """
        state = self._for_this_loop()
        if state.opened:
            return
        async with state.opening:
            if not state.opened:
                if state.guardian is None:
                    state.guardian = _close_with_the_loop(state.client)
                    await anext(state.guardian)
                try:
                    now = await check_server(
                        state.client, self.config, self._library, self.describe()
                    )
                    self.observe_server_time(now)
                    await pin_namespace(
                        state.client,
                        self.config,
                        self._library,
                        seconds=self.config.retry_timeout,
                    )
                except BaseException as error:
                    # It connects again at the next try; there may be none.
                    with contextlib.suppress(Exception):
                        await state.client.connection_pool.disconnect()
                    if isinstance(error, Exception):
                        raise translate(error, where=self.describe()) from error
                    raise
                state.opened = True

    async def aclose(self) -> None:
        """Close what this object opened; a ready client is its owner's. Harmless when closed."""
        state, self._state = self._state, None
        if state is None or state.loop is not asyncio.get_running_loop():
            return
        await state.sender.finish()
        if state.hub is not None:
            await state.hub.aclose()
        if state.guardian is not None:
            await state.guardian.aclose()
        else:
            await state.client.aclose()

    @property
    def keys(self) -> Keys:
        """The keys of the first partition, which by default is the only one."""
        return self.partitions[0]

    @property
    def is_memory(self) -> bool:
        """Whether the server is the embedded one of this process."""
        return self._source.is_memory

    @property
    def hub(self) -> HintHub:
        """The hints of the running loop."""
        state = self._for_this_loop()
        if state.hub is None:
            state.hub = HintHub(self._source.subscriber)
        return state.hub

    def describe(self) -> str:
        """The server's address, without its password."""
        return self._source.describe(self._for_this_loop().client)

    # -- calls -----------------------------------------------------------------------------

    async def call(
        self, name: str, keys: Mapping[str, str | bytes], args: Mapping[str, Any]
    ) -> list[Any]:
        """Run one script by its name, with named keys and arguments.

        Returns:
            Its reply: a list whose first item is the status, as bytes.

        Raises:
            WorldUnavailableError: the server did not do it, or nobody knows.
            NotDurableError: it did, and the World's `durability` was not reached.
            InvalidInputError: an argument is not valid Unicode text.
        """
        replies = await self.call_then(name, keys, args, ())
        return replies[0]  # type: ignore[no-any-return]

    async def call_then(
        self,
        name: str,
        keys: Mapping[str, str | bytes],
        args: Mapping[str, Any],
        commands: Sequence[Command],
    ) -> list[Reply]:
        """Run one script and, behind it in the same round trip, commands that read."""
        await self.open()
        script = self._library[name]
        row = encode(("EVALSHA", script.sha, *script.arrange(keys, args)))
        sender = self._for_this_loop().sender
        return await sender.submit([row, *map(encode, commands)], {0: script})

    async def execute(self, *commands: Command) -> list[Reply]:
        """Run commands in order, in one round trip; they may be run again, so they read."""
        await self.open()
        return await self._for_this_loop().sender.submit([*map(encode, commands)], {})

    async def scan(self, pattern: str) -> AsyncGenerator[bytes, None]:
        """The keys that match, in no order, and maybe more than once."""
        cursor: int = 0
        while True:
            ((reply, keys),) = await self.execute(
                ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED_AT_ONCE)
            )
            for key in keys:
                yield key
            cursor = int(reply)
            if cursor == 0:
                return

    def server_time(self) -> int:
        """The server's time in ms, as far as this process knows it."""
        return int(time.monotonic() * 1000 + self._clock_offset)

    def observe_server_time(self, now_ms: int) -> None:
        """Take note of the server's time, as a reply carried it."""
        # Against a clock that nobody sets.
        self._clock_offset = now_ms - time.monotonic() * 1000

    def sync_caller(self) -> SyncCaller:
        """A blocking way to call scripts, with a connection of its own, for another thread."""
        return SyncCaller(self._source.blocking(), self._library)

    # -- inside ----------------------------------------------------------------------------

    def _for_this_loop(self) -> _LoopState:
        state = self._state
        if state is None or state.loop is not asyncio.get_running_loop():
            if state is not None:
                abandon(state.client)
            client = self._source.client()
            sender = Sender(client, self.config, lambda: self._restore(client))
            state = self._state = _LoopState(client, sender)
        return state

    async def _restore(self, client: redis.asyncio.Redis) -> None:
        """Pin the namespace again: a server without scripts was started anew, maybe empty."""
        if await pin_namespace(client, self.config, self._library, seconds=0):
            logger.error(
                "the server at %s has lost namespace %r with all that was in it",
                self._source.describe(client),
                self.config.namespace,
            )


async def _close_with_the_loop(client: redis.asyncio.Redis) -> AsyncGenerator[None, None]:
    """Close a client at the end of a block that nobody ends but `asyncio.run`.

    A loop that ends closes its asynchronous generators: the one place where connections that
    were never closed can still be.
    """
    try:
        yield
    finally:
        await client.aclose()
