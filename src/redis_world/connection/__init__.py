"""The only package that talks to redis-py.

Calls that are made in one tick of the event loop share one pipeline: under load a worker sends
few large packets instead of many small ones, and no caller has to know.

A call whose reply does not come is sent again, until the server has answered or the patience of
`retry_timeout` is at its end. Every script finds what an earlier run of the same call has
written, so that nothing is done twice.

A World is used by whatever threads and event loops its process has. Each loop has a state of its
own: clients, senders, hints. Nobody touches the state of another loop, and what ends it is called
in its loop. Only one whose loop can't do it any more, because it is closed or was left behind by a
fork, is dropped from elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import redis.asyncio
import redis.exceptions

from redis_world.config import WorldConfig
from redis_world.connection.blocking import SyncCaller
from redis_world.connection.cluster import ClusterRoutes, ask_by_owner, fence_of, slot_of
from redis_world.connection.diagnosis import explain
from redis_world.connection.namespaces import list_namespaces, no_such_namespace
from redis_world.connection.redis_errors import is_elsewhere, is_lost, translate
from redis_world.connection.sender import (
    Command,
    Patience,
    Reply,
    Sender,
    encode,
    scan,
)
from redis_world.connection.sentinels import meet_sentinels
from redis_world.connection.server import check_server, find_namespace, pin_namespace
from redis_world.connection.source import Source, abandon, close
from redis_world.connection.subscriber import open_subscriber
from redis_world.errors import ConfigurationError, WorldClosedError
from redis_world.hints import HintHub
from redis_world.keys import Keys, Partitions, meta_key
from redis_world.lua import Argument, Script, ScriptLibrary
from redis_world.outages import Outage

__all__ = ["Command", "Connection", "SyncCaller"]

logger = logging.getLogger(__name__)

_FIRST_KEY: Final = 3
"""Behind EVALSHA, its script and the number of keys."""
_OLD_ANSWER_MS: Final = 1000
"""By how much the server's time in an answer may lie behind what is known, without that its
clock was set back."""


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
        await meet_sentinels(self._client)

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

    def __init__(self, routes: _Routes, outage: Outage) -> None:
        self.loop = asyncio.get_running_loop()
        self.routes = routes
        self._outage = outage
        self.opening = asyncio.Lock()
        self.opened = False
        self.is_over = False
        self._hub: HintHub | None = None
        self._subscribers: weakref.WeakSet[redis.asyncio.Redis] = weakref.WeakSet()
        self._guardian: AsyncGenerator[None, None] | None = None
        """Closes the clients with the loop, where nobody else does."""
        self._end: asyncio.Task[None] | None = None
        """Closes everything on behalf of another thread."""
        self._is_closed = False
        """Whether the clients are closed, or the loop's own end closes them."""

    @property
    def hub(self) -> HintHub:
        """The hints of the loop."""
        if self._hub is None:
            self._hub = HintHub(
                lambda hear: open_subscriber(self._subscriber(), hear), outage=self._outage
            )
        return self._hub

    def _subscriber(self) -> redis.asyncio.Redis:
        client = self.routes.subscriber()
        self._subscribers.add(client)
        return client

    async def guard(self) -> None:
        """Have the loop's own end close the clients."""
        if self._guardian is None:
            self._guardian = self._close_with_the_loop()
            await anext(self._guardian)

    async def _close_with_the_loop(self) -> AsyncGenerator[None, None]:
        """Close the clients at the end of a block that nobody ends but `asyncio.run`.

        A loop that ends closes its asynchronous generators: the one place where connections that
        were never closed can still be.
        """
        try:
            yield
        finally:
            if not self._is_closed:
                self._is_closed = True
                # Nobody else may close a generator that is at work.
                self._guardian = None
                if self._end is not None:
                    # The loop would be closed before it had its turns.
                    await asyncio.wait({self._end})
                await self.routes.aclose()

    async def aclose(self) -> None:
        """Wait for what is under way, and close everything.

        All of it, also where it is cancelled meanwhile: nobody would close the rest later.
        """
        self.is_over, self.opened = True, False
        async with contextlib.AsyncExitStack() as closing:
            closing.push_async_callback(self._close_clients)
            if self._hub is not None:
                self._hub.end()
                closing.push_async_callback(self._hub.aclose)
            await self.routes.finish()

    async def _close_clients(self) -> None:
        try:
            await self.routes.aclose()
        finally:
            self._is_closed = True
            if self._guardian is not None:
                await self._guardian.aclose()

    def end_soon(self) -> None:
        """Close it in its own loop, from another thread or none.

        A loop that stands still does it when it runs again, or at its end.
        """
        with contextlib.suppress(RuntimeError):  # it is closed by now, and has done so
            self.loop.call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        self.is_over, self.opened = True, False
        if not self._is_closed:
            self._end = self.loop.create_task(self.aclose(), name="redis-world end")

    def drop(self) -> None:
        """Close its sockets without its loop, which is closed or another process's."""
        self.is_over, self.opened = True, False
        for client in [*self.routes.clients, *self._subscribers]:
            abandon(client)


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
        self._partitions: Partitions | None = None
        if config.partitions is not None:
            self._partitions = Partitions(config.namespace, config.partitions)
        self._library = library
        self.outage = Outage(self.describe)
        self._notifications = Outage(self.describe)
        self._states: dict[asyncio.AbstractEventLoop, _LoopState] = {}
        self._leaving: list[_LoopState] = []
        """Those that end in their own loops."""
        self._lock = threading.Lock()
        """For changes of the states and of whether it is closed."""
        self._is_closed = False
        self._was_opened = False
        """Whether the server was reached once: then it is waited for, as calls do."""
        self._clock_offset: float | None = None
        _connections.add(self)

    # -- life ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Reach the server, check it, load the scripts and pin the namespace; once per loop.

        A server that is starting is waited for, and so is the successor of a master that is
        gone, behind Sentinels and in a cluster. A server that can't be reached is waited for
        only where it was reached before, in this loop or in another one.

        Raises:
            ConfigurationError: the server is too old, the namespace was made otherwise, or the
                Sentinels don't know the service.
            NamespaceNotFoundError: it does not exist, and `partitions` is None.
            WorldClosedError: it was closed, before or meanwhile.
            WorldUnavailableError: the server can't be reached.
        """
        state = self._for_this_loop()
        if state.opened:
            return
        async with state.opening:
            if state.is_over:
                raise WorldClosedError("the World was closed during the call")
            if not state.opened:
                await state.guard()
                try:
                    await self._open(state.routes)
                    if state.is_over:
                        raise WorldClosedError("the World was closed during the call")  # noqa: TRY301
                except BaseException as error:
                    # It connects again at the next try; there may be none.
                    for client in state.routes.clients:
                        with contextlib.suppress(Exception):
                            await client.connection_pool.disconnect()
                    if isinstance(error, Exception):
                        # Its text tells what happened; redis-py's trace would bury it.
                        raise await explain(error, where=self.describe()) from None
                    raise
                state.opened = True

    async def _open(self, routes: _Routes) -> None:
        # One more loop of a World that is in use opens it like a call: each request of a threaded
        # web server may have a loop of its own.
        if not (self._source.has_successors or self._was_opened):
            await routes.open()
            await self._prepare(routes, seconds=self.config.retry_timeout)
            self._was_opened = True
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
                self._was_opened = True
                return

    async def _prepare(self, routes: _Routes, *, seconds: float) -> None:
        """Check the masters, load the scripts and pin the namespace."""
        now = 0
        for client in routes.masters:
            now = await check_server(
                client,
                self.config,
                self._library,
                self._source.address(client),
                is_of_cluster=self._source.is_cluster,
            )
        self.observe_server_time(now)
        await self._pin(routes, seconds=seconds)

    async def _pin(self, routes: _Routes, *, seconds: float) -> bool:
        """Pin the namespace, or take it as it is; whether it was new."""
        namespace = self.config.namespace
        home = routes.client_of(meta_key(namespace))
        if self.config.partitions is not None:
            return await pin_namespace(home, self.config, self._library, seconds=seconds)
        number = await find_namespace(home, self.config, seconds=seconds)
        if number is None:
            found = await list_namespaces(routes.masters)
            raise no_such_namespace(namespace, found, self.describe())
        if self._partitions is None:
            self._partitions = Partitions(namespace, number)
        elif len(self._partitions) != number:
            # Keys of the old ones are in the hands of callers, in other loops, too.
            raise ConfigurationError(
                f"namespace {namespace!r} was deleted, and created again with "
                f"partitions={number}: make a new World for it"
            )
        return False

    async def reopen(self) -> None:
        """Open it also where it was closed."""
        with self._lock:
            self._is_closed = False
        await self.open()

    async def aclose(self) -> None:
        """Close what this object opened, in all threads and loops, for good.

        What belongs to the running loop is closed at the return; other loops close their own
        as soon as they can. A ready client is its owner's. Harmless when closed.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            self._is_closed = True
            self._drop_gone()
            states, self._states = self._states, {}
            own = states.pop(loop, None)
            self._leaving += states.values()
        for state in states.values():
            state.end_soon()
        if own is not None:
            await own.aclose()

    @property
    def partitions(self) -> Partitions:
        """The keys of the namespace, partition by partition.

        Raises:
            ConfigurationError: the namespace has to tell how many there are, and the World is not
                open yet.
        """
        if self._partitions is None:
            raise ConfigurationError(
                "a World with partitions=None has to be opened before its first call: use "
                "`async with`, or `await world.open()`"
            )
        return self._partitions

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
        return self._for_this_loop().hub

    def describe(self) -> str:
        """The server's address, without its password."""
        return self._source.describe(None)

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
        return await self.run(name, self._library[name].arrange(keys, args)[1:], commands)

    async def run(
        self, name: str, words: Sequence[Argument], commands: Sequence[Command] = ()
    ) -> list[Reply]:
        """The same with keys and arguments in the order of the script's header."""
        state = self._for_this_loop()
        if not state.opened:
            await self.open()
        script = self._library[name]
        row: Command = (*script.evalsha, *words)
        slot = None
        if self._source.is_cluster:
            slot = slot_of(row)
            end = _FIRST_KEY + len(script.keys)
            row = (*row[:2], len(script.keys) + 1, *row[3:end], fence_of(row[3]), *row[end:])
        rows = [row, *map(encode, commands)] if commands else [row]
        replies = await state.routes.sender_of(slot).submit(rows, {0: script}, slot)
        if script.times:
            self._hear_time(script, replies[0])
        return replies

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
                raise translate(error, where=self._source.address(client)) from None

    @property
    def is_open(self) -> bool:
        """Whether `open` has nothing left to do in the running loop."""
        return self._for_this_loop().opened

    def script(self, name: str) -> Script:
        """One of the scripts."""
        return self._library[name]

    def server_time(self) -> int:
        """The server's time in ms, as far as this process knows it."""
        return int(time.monotonic() * 1000 + (self._clock_offset or 0.0))

    def observe_server_time(self, now_ms: int) -> None:
        """Take note of the server's time, as somebody knows it."""
        # Against a clock that nobody sets. It stands still while the machine sleeps, and may go
        # at another speed than the server's: hence the look at each answer.
        self._clock_offset = now_ms - time.monotonic() * 1000

    def _hear_time(self, script: Script, reply: list[Any]) -> None:
        """Take note of the server's time where an answer carries it."""
        place = script.times.get(reply[0])
        if place is None:
            return
        offset = int(reply[place]) - time.monotonic() * 1000
        known = self._clock_offset
        # An answer is old when it is read, and that of a repeated request is its first run's: so
        # the latest is the best, unless the clock was set back.
        if known is None or not 0 <= known - offset <= _OLD_ANSWER_MS:
            self._clock_offset = offset

    def sync_caller(self) -> SyncCaller:
        """A blocking way to call scripts, with a connection of its own, for another thread."""
        return SyncCaller(self._source.blocking(), self._library)

    # -- inside ----------------------------------------------------------------------------

    def _for_this_loop(self) -> _LoopState:
        loop = asyncio.get_running_loop()
        state = self._states.get(loop)
        return self._begin(loop) if state is None else state

    def _begin(self, loop: asyncio.AbstractEventLoop) -> _LoopState:
        with self._lock:
            if self._is_closed:
                raise WorldClosedError
            self._drop_gone()
            kind = ClusterRoutes if self._source.is_cluster else _OneServer
            state = _LoopState(kind(self._source, self.config, self._restore), self._notifications)
            self._states[loop] = state
        return state

    def _drop_gone(self) -> None:
        """Drop what belongs to loops that were closed without it."""
        gone = [loop for loop in self._states if loop.is_closed()]
        for state in [*map(self._states.pop, gone), *self._leaving]:
            if state.loop.is_closed():
                state.drop()
        self._leaving = [state for state in self._leaving if not state.loop.is_closed()]

    def leave_parent(self) -> None:
        """In a forked child: begin anew, without what is the parent's."""
        self._lock = threading.Lock()
        states, self._states = [*self._states.values(), *self._leaving], {}
        self._leaving = []
        for state in states:
            state.drop()
        _of_parents.extend(states)

    async def _restore(self, routes: _Routes) -> None:
        """Pin the namespace again: a server without scripts was started anew, maybe empty."""
        if await self._pin(routes, seconds=0):
            client = routes.client_of(meta_key(self.config.namespace))
            logger.error(
                "the server at %s has lost namespace %r with all its data",
                self._source.address(client),
                self.config.namespace,
                extra={"event": "namespace.lost", "namespace": self.config.namespace},
            )


_connections: Final[weakref.WeakSet[Connection]] = weakref.WeakSet()
_of_parents: Final[list[_LoopState]] = []
"""States of the process that this one was forked from. They are kept: to collect them would have
their clients and tasks say farewell, over what they share with the parent."""


def _leave_parent() -> None:
    for connection in [*_connections]:
        connection.leave_parent()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_leave_parent)
