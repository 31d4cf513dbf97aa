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
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import redis.asyncio
import redis.exceptions

from redis_world.config import WorldConfig
from redis_world.connection.blocking import SyncCaller
from redis_world.connection.cluster import ClusterRoutes, ask_by_owner, fence_of, slot_of
from redis_world.connection.refusals import is_elsewhere, is_lost, translate
from redis_world.connection.sender import (
    Command,
    Patience,
    Reply,
    Sender,
    encode,
    scan,
)
from redis_world.connection.sentinels import SentinelPool, meet_sentinels
from redis_world.connection.server import check_server, pin_namespace
from redis_world.connection.source import Source, abandon, close
from redis_world.connection.subscriber import open_subscriber
from redis_world.hints import HintHub
from redis_world.keys import Keys, Partitions
from redis_world.lua import ScriptLibrary
from redis_world.outages import Outage

__all__ = ["Command", "Connection", "SyncCaller"]

logger = logging.getLogger(__name__)

_FIRST_KEY: Final = 3
"""Behind EVALSHA, its script and the number of keys."""


class _Routes(Protocol):
    """The ways to the server, or to the nodes of a cluster."""

    async def open(self) -> None: ...

    async def finish(self) -> None: ...

    async def aclose(self) -> None: ...

    @property
    def clients(self) -> list[redis.asyncio.Redis]: ...

    @property
    def masters(self) -> list[redis.asyncio.Redis]: ...

    def client_of(self, key: str) -> redis.asyncio.Redis: ...

    def sender_of(self, slot: int | None) -> Sender: ...

    def subscriber(self) -> redis.asyncio.Redis: ...


class _OneServer:
    """The way to a server that is alone, or the master of its replicas."""

    def __init__(
        self, source: Source, config: WorldConfig, restore: Callable[[_Routes], Awaitable[None]]
    ) -> None:
        self._source = source
        self._client = source.client()
        self._sender = Sender(self._client, config, partial(restore, self))

    async def open(self) -> None:
        """See that somebody knows where the server is."""
        pool = self._client.connection_pool
        if isinstance(pool, SentinelPool):
            await meet_sentinels(pool)

    async def finish(self) -> None:
        await self._sender.finish()

    async def aclose(self) -> None:
        await close(self._client)

    @property
    def clients(self) -> list[redis.asyncio.Redis]:
        return [self._client]

    @property
    def masters(self) -> list[redis.asyncio.Redis]:
        return [self._client]

    def client_of(self, _key: str) -> redis.asyncio.Redis:
        return self._client

    def sender_of(self, _slot: int | None) -> Sender:
        return self._sender

    def subscriber(self) -> redis.asyncio.Redis:
        return self._source.client()


class _LoopState:
    """What belongs to one event loop: its clients, its calls, its subscriber."""

    def __init__(self, routes: _Routes) -> None:
        self.loop = asyncio.get_running_loop()
        self.routes = routes
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

    Attributes:
        outage: what tells the log that the server was lost, for all who notice.
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
        self.outage = Outage(lambda: self._source.describe(None))
        self._state: _LoopState | None = None
        self._clock_offset = 0.0

    # -- life ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Reach the server, check it, load the scripts and pin the namespace; once per loop.

        A server that is starting is waited for, and so is the successor of a master that is
        gone, behind Sentinels and in a cluster; a server that can't be reached is not.

        Raises:
            ConfigurationError: the server is too old, the namespace was made otherwise, or the
                Sentinels don't know the service.
            WorldUnavailableError: the server can't be reached.
        """
        state = self._for_this_loop()
        if state.opened:
            return
        async with state.opening:
            if not state.opened:
                if state.guardian is None:
                    state.guardian = _close_with_the_loop(state.routes)
                    await anext(state.guardian)
                try:
                    await self._open(state.routes)
                except BaseException as error:
                    # It connects again at the next try; there may be none.
                    for client in state.routes.clients:
                        with contextlib.suppress(Exception):
                            await client.connection_pool.disconnect()
                    if isinstance(error, Exception):
                        raise translate(error, where=self.describe()) from error
                    raise
                state.opened = True

    async def _open(self, routes: _Routes) -> None:
        if not self._source.has_successors:
            await routes.open()
            await self._prepare(routes, seconds=self.config.retry_timeout)
            return
        patience = Patience(self.config.retry_timeout)
        while True:
            await routes.open()
            try:
                await self._prepare(routes, seconds=0)
            except redis.exceptions.RedisError as error:
                if not (is_lost(error) or is_elsewhere(error)) or not await patience.pause():
                    raise
            else:
                return

    async def _prepare(self, routes: _Routes, *, seconds: float) -> None:
        """Check the masters, load the scripts and pin the namespace."""
        now = 0
        for client in routes.masters:
            now = await check_server(client, self.config, self._library, self.describe())
        self.observe_server_time(now)
        home = routes.client_of(self.keys.meta)
        await pin_namespace(home, self.config, self._library, seconds=seconds)

    async def aclose(self) -> None:
        """Close what this object opened; a ready client is its owner's. Harmless when closed."""
        state, self._state = self._state, None
        if state is None or state.loop is not asyncio.get_running_loop():
            return
        await state.routes.finish()
        if state.hub is not None:
            await state.hub.aclose()
        if state.guardian is not None:
            await state.guardian.aclose()
        else:
            await state.routes.aclose()

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
            subscriber = state.routes.subscriber
            state.hub = HintHub(
                lambda hear: open_subscriber(subscriber(), hear), outage=self.outage
            )
        return state.hub

    def describe(self) -> str:
        """The server's address, without its password."""
        return self._source.describe(next(iter(self._for_this_loop().routes.clients), None))

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
        state = self._for_this_loop()
        if not state.opened:
            await self.open()
        script = self._library[name]
        row: Command = (b"EVALSHA", script.sha.encode(), *script.arrange(keys, args))
        slot = None
        if self._source.is_cluster:
            slot = slot_of(row)
            end = _FIRST_KEY + len(script.keys)
            row = (*row[:2], len(script.keys) + 1, *row[3:end], fence_of(row[3]), *row[end:])
        rows = [row, *map(encode, commands)]
        return await state.routes.sender_of(slot).submit(rows, {0: script}, slot)

    async def execute(self, *commands: Command) -> list[Reply]:
        """Run commands in order, in one round trip; they may be run again, so they read.

        In a cluster those of one node are in order.
        """
        await self.open()
        routes = self._for_this_loop().routes
        encoded = [*map(encode, commands)]
        if not self._source.is_cluster:
            return await routes.sender_of(None).submit(encoded, {})
        return await ask_by_owner(
            [slot_of(command) for command in commands],
            lambda slot, places: routes.sender_of(slot).submit(
                [encoded[place] for place in places], {}, slot
            ),
        )

    async def scan(self, pattern: str) -> AsyncGenerator[bytes, None]:
        """The keys that match, in no order, and maybe more than once.

        Raises:
            WorldUnavailableError: the server was lost; nothing is tried again.
        """
        await self.open()
        for client in self._for_this_loop().routes.masters:
            try:
                async for some in scan(client, pattern):
                    for key in some:
                        yield key
            except (redis.exceptions.RedisError, OSError) as error:
                raise translate(error, where=self._source.describe(client)) from error

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
            for client in state.routes.clients if state is not None else ():
                abandon(client)
            kind = ClusterRoutes if self._source.is_cluster else _OneServer
            state = self._state = _LoopState(kind(self._source, self.config, self._restore))
        return state

    async def _restore(self, routes: _Routes) -> None:
        """Pin the namespace again: a server without scripts was started anew, maybe empty."""
        client = routes.client_of(self.keys.meta)
        if await pin_namespace(client, self.config, self._library, seconds=0):
            logger.error(
                "the server at %s has lost namespace %r with all that was in it",
                self._source.describe(client),
                self.config.namespace,
            )


async def _close_with_the_loop(routes: _Routes) -> AsyncGenerator[None, None]:
    """Close clients at the end of a block that nobody ends but `asyncio.run`.

    A loop that ends closes its asynchronous generators: the one place where connections that
    were never closed can still be.
    """
    try:
        yield
    finally:
        await routes.aclose()
