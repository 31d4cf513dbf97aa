"""Connections on which many commands travel at a time, at little cost.

redis-py makes them, with all that it knows about users, TLS, sockets and Sentinels. What travels
on them is packed and read by hiredis right in the transport's protocol: redis-py's streams, its
packing in Python and its look at every connection before each use take most of the time of a
call.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import hiredis
import redis.asyncio
import redis.asyncio.connection
import redis.exceptions

from redis_world.connection.handshakes import open_stream
from redis_world.errors import WorldClosedError

__all__ = [
    "FAREWELL_SECONDS",
    "INCOMPLETE",
    "Wire",
    "WirePool",
    "connect",
    "drop_connections",
    "without_leftovers",
]

INCOMPLETE: Final = object()
"""What the reader says while a reply is not there as a whole."""
FAREWELL_SECONDS: Final = 1.0
"""How long the end of connections is waited for."""


async def connect(
    pool: redis.asyncio.ConnectionPool,
) -> redis.asyncio.connection.AbstractConnection:
    """A new connection to the server of a pool, which does not know it."""
    connection = pool.make_connection()  # type: ignore[no-untyped-call]
    _made_by(pool).add(connection)
    try:
        await connection.connect()
        _check_standing(connection)
    except BaseException:
        connection._close()  # noqa: SLF001 - it may be half open
        raise
    return connection  # type: ignore[no-any-return]


class _WithoutLeftovers:
    """What makes a connection of redis-py's end for certain.

    The end of TLS is agreed upon by both sides: a transport that is only closed waits for the
    other one, longer than its event loop may live.
    """

    _writer: asyncio.StreamWriter | None

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        writer = self._writer
        try:
            await super().disconnect(*args, **kwargs)  # type: ignore[misc]
        finally:
            if writer is not None:
                writer.transport.abort()

    def _close(self) -> None:
        if self._writer is not None:
            # First: asyncio's transport of TLS forgets at a second `close` what to abort.
            self._writer.transport.abort()
        super()._close()  # type: ignore[misc]


class _OverTls(_WithoutLeftovers):
    """The same of one with TLS, whose opening may be given up, too."""

    _reader: asyncio.StreamReader | None
    socket_connect_timeout: float | None
    socket_keepalive: bool
    socket_keepalive_options: Mapping[int, int | bytes]

    def _connection_arguments(self) -> Mapping[str, Any]:
        return super()._connection_arguments()  # type: ignore[misc, no-any-return]

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout):
            reader, writer = await open_stream(**self._connection_arguments())
        self._reader, self._writer = reader, writer
        try:
            self._set_options(writer.get_extra_info("socket"))
        except BaseException:
            # An option of the caller's that can't be: the connection must not pass for a good one.
            self._close()
            raise

    def _set_options(self, plain: Any) -> None:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.socket_keepalive:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in self.socket_keepalive_options.items():
                plain.setsockopt(socket.SOL_TCP, name, value)


@functools.cache
def without_leftovers(kind: Any) -> Any:
    """A class of connections like one of redis-py's; its connections end for certain."""
    if issubclass(kind, _WithoutLeftovers):
        return kind
    with_tls = issubclass(kind, redis.asyncio.connection.SSLConnection)
    return type(kind.__name__, (_OverTls if with_tls else _WithoutLeftovers, kind), {})


def _check_standing(connection: redis.asyncio.connection.AbstractConnection) -> None:
    """Raise if it has ended: redis-py's own protocol was told, and nobody will be again."""
    reader, writer = connection._reader, connection._writer  # noqa: SLF001 - no public way
    if reader is None or writer is None or reader.at_eof() or writer.transport.is_closing():
        raise redis.exceptions.ConnectionError("Connection closed by server.")


def _made_by(
    pool: redis.asyncio.ConnectionPool,
) -> weakref.WeakSet[redis.asyncio.connection.AbstractConnection]:
    """The connections of a pool, whoever has them now."""
    found: weakref.WeakSet[redis.asyncio.connection.AbstractConnection]
    found = pool.__dict__.setdefault("redis_world_made", weakref.WeakSet())
    return found


def drop_connections(pool: redis.asyncio.ConnectionPool) -> None:
    """Close the sockets of a pool's connections, and nothing else.

    For connections whose event loop can't close them: it is closed itself, or another process's.
    In a forked child the loop's set of watched sockets is shared with the parent: to take a
    socket out of it there would make the parent deaf.
    """
    connections = [
        *_made_by(pool),
        *getattr(pool, "_available_connections", ()),
        *getattr(pool, "_in_use_connections", ()),
    ]
    for connection in connections:
        writer = getattr(connection, "_writer", None)
        # What is collected later would close it once more, through its loop.
        connection._writer = connection._reader = None  # noqa: SLF001 - redis-py has no public way
        with contextlib.suppress(Exception):
            _drop_transport(getattr(writer, "transport", None))
        with contextlib.suppress(Exception):
            # The embedded server's; a connection of redis-py's has none.
            connection._sock.close()  # noqa: SLF001 - as above


def _drop_transport(transport: Any) -> None:
    while transport is not None:
        shared = transport.get_extra_info("socket")
        # That of asyncio; another kind of loop closes its sockets by itself.
        own = getattr(shared, "_sock", None)
        if own is not None:
            own.close()
        for name, value in (("_closing", True), ("_closed", True), ("_sock", None)):
            # Neither warned of nor closed once more, when it is collected.
            if hasattr(transport, name):
                setattr(transport, name, value)
        transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)


class Wire(asyncio.Protocol):
    """A connection that redis-py has made, and whose transport is our own from now on."""

    def __init__(self, connection: redis.asyncio.connection.AbstractConnection) -> None:
        self._connection = connection
        parse_error = connection._parser.parse_error  # noqa: SLF001 - the class of each error
        self._reader = hiredis.Reader(
            protocolError=redis.exceptions.InvalidResponse,
            replyError=parse_error,
            notEnoughData=INCOMPLETE,
        )
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[Exception] = self._loop.create_future()
        """Done when the connection is gone: why it is."""
        self._is_over = False
        writer = connection._writer  # noqa: SLF001 - redis-py has no public way
        assert writer is not None
        self._transport = writer.transport
        self._transport.set_protocol(self)

    @property
    def is_usable(self) -> bool:
        """Whether something can be sent."""
        return not self._is_over and not self._transport.is_closing()

    def close(self, *, at_once: bool = False) -> None:
        """End the connection."""
        if at_once and not self._is_over:
            # A transport of TLS can't bear it twice, nor behind its end.
            self._is_over = True
            self._transport.abort()
        elif not self._transport.is_closing():
            self._transport.close()
        self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits for the end."""
        self._is_over = True
        reason = "Connection closed by server." if exc is None else str(exc)
        if not self.closed.done():
            error = redis.exceptions.ConnectionError(reason)
            error.__cause__ = exc
            self.closed.set_result(error)
        self._forget()

    def _forget(self) -> None:
        """Tell redis-py, which counts the connection as open until then."""
        connection = self._connection
        connection._writer = connection._reader = None  # noqa: SLF001 - the public way waits for its own protocol


class _Asking(Wire):
    """Commands go out, their replies come in order."""

    def __init__(
        self, connection: redis.asyncio.connection.AbstractConnection, timeout: float | None
    ) -> None:
        super().__init__(connection)
        self._timeout = timeout
        self._heard_at = 0.0
        self.asker: asyncio.Task[Any] | None = None
        """The task that waits for the answer."""
        self.received_at = 0.0
        """When something last came of the answer, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._replies: list[Any] = []
        self._expected = 0
        self._answer: asyncio.Future[list[Any]] | None = None

    def ask(self, packed: bytes, count: int) -> asyncio.Future[list[Any]]:
        """Send commands; as many replies, errors among them."""
        answer: asyncio.Future[list[Any]] = self._loop.create_future()
        self._answer, self._expected, self._replies = answer, count, []
        self.received_at = 0.0
        self._transport.write(packed)
        if self._timeout is not None:
            self._heard_at = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeout, self._listen)
        return answer

    def close(self, *, at_once: bool = False) -> None:
        """End the connection; whoever waits for an answer gets an error."""
        super().close(at_once=at_once)
        self._fail(redis.exceptions.ConnectionError("the connection was closed"))

    def _listen(self) -> None:
        """Give up on a server that is silent; one timer serves for many questions."""
        assert self._timeout is not None
        self._timer = None
        if self._answer is None:
            return
        left = self._heard_at + self._timeout - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._listen)
        else:
            self._fail(redis.exceptions.TimeoutError(f"no reply within {self._timeout} s"))
            self.close(at_once=True)

    def _fail(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)

    # -- what the transport calls ----------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Collect replies."""
        reader, replies = self._reader, self._replies
        self._heard_at = self.received_at = self._loop.time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not INCOMPLETE:
                replies.append(reply)
        except redis.exceptions.InvalidResponse as error:
            lost = redis.exceptions.ConnectionError(f"not a reply of Redis: {error}")
            lost.__cause__ = error
            self._fail(lost)
            self.close(at_once=True)
            return
        if self._answer is None or len(replies) > self._expected:
            # Nobody has asked: what comes next would be taken for another answer.
            self.close(at_once=True)
        elif len(replies) == self._expected:
            answer, self._answer = self._answer, None
            if not answer.done():
                answer.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits for an answer, too."""
        super().connection_lost(exc)
        self._fail(self.closed.result())
        if self._timer is not None:
            self._timer.cancel()


class WirePool(redis.asyncio.BlockingConnectionPool):
    """A pool of redis-py's whose connections become wires, for `ask`.

    There are at most `max_connections` of them; callers wait for one, in order.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        kind: Any = self.connection_class
        self.connection_class = without_leftovers(kind)
        self._idle: list[_Asking] = []
        self._wires: set[_Asking] = set()
        self._making = 0
        self._is_shut = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def ask(
        self, commands: Sequence[Sequence[Any]], packed: Sequence[bytes] | None = None
    ) -> list[Any]:
        """Send commands on a wire that nobody else uses meanwhile.

        Args:
            commands: what is asked.
            packed: all of it as it travels, by who has packed it already.

        Returns:
            The replies in order, errors among them.

        Raises:
            redis.exceptions.RedisError, OSError: there is no connection, or it was lost.
        """
        if not commands:
            return []
        wire = await self._take()
        wire.asker = asyncio.current_task()
        try:
            if packed is None:
                packed = [hiredis.pack_command(command) for command in commands]  # type: ignore[arg-type]
            return await wire.ask(b"".join(packed), len(commands))
        except BaseException:
            # What comes on it now would be an answer that nobody waits for.
            wire.close(at_once=True)
            raise
        finally:
            wire.asker = None
            self._give_back(wire)

    def received_at(self, task: asyncio.Task[Any] | None) -> float:
        """When something last came of the answer that a task waits for; 0 for never."""
        return next((wire.received_at for wire in self._wires if wire.asker is task), 0.0)

    def make_connection(self) -> redis.asyncio.connection.AbstractConnection:
        """A connection that is not open yet, and is dropped with the pool."""
        connection = super().make_connection()  # type: ignore[no-untyped-call]
        _made_by(self).add(connection)
        return connection  # type: ignore[no-any-return]

    async def disconnect(self, inuse_connections: bool = True) -> None:  # noqa: FBT001
        """Close the wires, or the idle ones, as redis-py does with connections."""
        leaving = [*(self._wires if inuse_connections else self._idle)]
        self._idle.clear()
        for wire in leaving:
            self._wires.discard(wire)
            wire.close()
        await super().disconnect(inuse_connections)
        if leaving and inuse_connections:
            try:
                await asyncio.wait({wire.closed for wire in leaving}, timeout=FAREWELL_SECONDS)
            finally:
                for wire in leaving:
                    wire.close(at_once=not wire.closed.done())

    def shut(self) -> None:
        """Let no wire come any more: one that is being made now is there behind the end."""
        self._is_shut = True

    # -- inside ----------------------------------------------------------------------------

    async def _take(self) -> _Asking:
        while True:
            while self._idle:
                wire = self._idle.pop()
                if wire.is_usable:
                    return wire
                self._wires.discard(wire)
            if len(self._wires) + self._making < self.max_connections:
                return await self._make()
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._call_next()
                raise

    async def _make(self) -> _Asking:
        self._making += 1
        try:
            self._check_open()
            connection = await connect(self)
            wire = _Asking(connection, connection.socket_timeout)
            if self._is_shut:
                wire.close()
            self._check_open()
        except BaseException:
            self._making -= 1
            self._call_next()
            raise
        self._making -= 1
        self._wires.add(wire)
        return wire

    def _check_open(self) -> None:
        """Raise if it was shut."""
        if self._is_shut:
            raise WorldClosedError("the World was closed during the call")

    def _give_back(self, wire: _Asking) -> None:
        if wire.is_usable and wire in self._wires:
            self._idle.append(wire)
        else:
            self._wires.discard(wire)
        self._call_next()

    def _call_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
