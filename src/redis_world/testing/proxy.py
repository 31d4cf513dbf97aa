"""A network between clients and a server. A test chooses when and where it breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import hiredis

__all__ = ["Command", "CuttingProxy", "cutting_proxy"]

Command: TypeAlias = list[bytes]
"""A command as the server gets it: its name and its arguments."""

_HOST: Final = "127.0.0.1"
_CHUNK: Final = 65536
_TICK: Final = 0.02
"""Seconds between two pieces of a reply that travels slowly."""
_INCOMPLETE: Final = object()
_SPEAKS_UNASKED: Final = frozenset(
    {b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"MONITOR", b"SYNC", b"PSYNC"}
)
"""Behind one of these a server speaks without being asked: its replies can't be counted."""


@contextlib.asynccontextmanager
async def cutting_proxy(url: str) -> AsyncIterator[CuttingProxy]:
    """Run a proxy between clients and a server for the length of a block.

    It listens on a free port of the loopback interface and runs in the event loop of the block: a
    client that blocks this loop waits for ever. At the end its connections break::

        async with cutting_proxy(server.url) as proxy, RedisWorld(proxy.url) as world:
            proxy.drop_replies(lambda command: command[0] == b"EVALSHA")
            await world.events.create(run_id, event)  # stored once, though the reply was lost

    Args:
        url: the `redis://` URL of the server. The URL of the proxy has the same user, password,
            database and options.

    Raises:
        ValueError: the URL does not name a server on plain TCP.
        Exception: at the end, the error that a `matching` or `then` of the test raised.
    """
    proxy = CuttingProxy(url)
    server = await asyncio.start_server(proxy.accept, _HOST, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    proxy.url = parts._replace(netloc=f"{user}{at}{_HOST}:{proxy.port}").geturl()
    try:
        yield proxy
    finally:
        server.close()
        await proxy.aclose()
        await server.wait_closed()
    if proxy.errors:
        raise proxy.errors[0]


class CuttingProxy:
    """Forwards commands and replies between clients and a server until a test breaks it.

    `cutting_proxy` creates it. Tests choose losses by command: the proxy reads the commands that
    it forwards. After SUBSCRIBE or MONITOR it forwards the connection unread.

    Attributes:
        url: clients use it instead of the server's URL.
        port: the port that it listens on.
        accepted: how many connections it has accepted.
        refused: how many connections it has refused while it was cut.
        dropped: how many replies and requests it has dropped.
        errors: errors that a `matching` or `then` raised; each broke its connection.
        rate: bytes of replies per second and connection; None: no limit.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = 0
        self.accepted = 0
        self.refused = 0
        self.dropped = 0
        self.errors: list[BaseException] = []
        self.rate: float | None = None
        self._target = _address(url)
        self._is_cut = False
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._links: dict[asyncio.Task[None], _Link] = {}
        self._lost_replies: list[_Loss] = []
        self._lost_requests: list[_Loss] = []

    # -- the network -----------------------------------------------------------------------

    def cut(self) -> None:
        """Break all connections, and refuse new ones until `restore`."""
        self._is_cut = True
        self.break_connections()

    def restore(self) -> None:
        """Accept connections again."""
        self._is_cut = False

    def break_connections(self) -> None:
        """Break all open connections; new ones work."""
        for task, link in self._links.items():
            link.abort()
            task.cancel()

    def silence(self) -> None:
        """Forward nothing, either way, until `resume`, like a network that drops all packets.

        Connections stay open, and new ones are accepted.
        """
        self._speaks.clear()

    def resume(self) -> None:
        """Forward the data that was held back, and all data from now on."""
        self._speaks.set()

    def forget_connections(self) -> None:
        """Forward nothing more on the open connections; new ones work.

        A firewall does the same with idle connections: neither side gets an error.
        """
        for link in self._links.values():
            link.is_forgotten = True

    def throttle(self, bytes_per_second: float | None) -> None:
        """Limit the bytes of replies per second and connection; None: no limit."""
        self.rate = bytes_per_second

    def retarget(self, url: str) -> None:
        """Forward new connections to another server, and break the open ones.

        Raises:
            ValueError: the URL does not name a server on plain TCP.
        """
        self._target = _address(url)
        self.break_connections()

    # -- losses ----------------------------------------------------------------------------

    def drop_replies(
        self,
        matching: Callable[[Command], bool],
        times: int = 1,
        *,
        then: Callable[[], object] | None = None,
    ) -> None:
        """Drop replies: the server runs the command, but the client gets no answer.

        The proxy forwards the command. When the server has answered it, the proxy breaks its
        connection. Replies to earlier commands arrive; its own and later ones do not. Later
        commands may or may not have run.

        Args:
            matching: whether to drop the reply to a command; called for each command, in order,
                while there are replies to drop.
            times: how many replies to drop, each with its connection.
            then: called at each drop, before a client can notice it: for example `proxy.cut`.
        """
        self._lost_replies.append(_Loss(matching, times, then))

    def drop_requests(
        self,
        matching: Callable[[Command], bool],
        times: int = 1,
        *,
        then: Callable[[], object] | None = None,
    ) -> None:
        """Drop commands before the server gets them.

        The proxy forwards the earlier commands of the connection and their replies. Then it breaks
        the connection. The command and later ones never arrive.

        Args:
            matching: whether to drop a command; called for each command, in order, while there are
                commands to drop.
            times: how many commands to drop, each with its connection.
            then: called at each drop, before a client can notice it.
        """
        self._lost_requests.append(_Loss(matching, times, then))

    # -- for its connections ---------------------------------------------------------------

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a client's connection, or refuse it."""
        if self._is_cut:
            self.refused += 1
            writer.transport.abort()
            return
        self.accepted += 1
        link = _Link(self, _End(reader, writer))
        task = asyncio.get_running_loop().create_task(link.run())
        self._links[task] = link
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._links[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    async def aclose(self) -> None:
        """Break everything and wait until it is gone."""
        self.cut()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def connect(self) -> _End:
        """Connect to the server."""
        await self.wait_to_speak()
        return _End(*await asyncio.open_connection(*self._target))

    async def wait_to_speak(self) -> None:
        """Wait while the network is silent."""
        await self._speaks.wait()

    def loss_of_reply(self, command: Command) -> _Loss | None:
        """The loss that the reply to a command may be for; it happens with the reply."""
        return next((loss for loss in self._lost_replies if loss.is_of(command)), None)

    def loss_of_request(self, command: Command) -> _Loss | None:
        """The loss that a command is for. It has begun: the command is not forwarded."""
        loss = next((loss for loss in self._lost_requests if loss.is_of(command)), None)
        if loss is not None:
            loss.left -= 1
        return loss

    def count(self, loss: _Loss) -> None:
        """Note that a loss has happened."""
        self.dropped += 1
        if loss.then is not None:
            loss.then()


@dataclass(eq=False, slots=True)
class _Loss:
    """What a test wants to be lost."""

    matching: Callable[[Command], bool]
    left: int
    then: Callable[[], object] | None

    def is_of(self, command: Command) -> bool:
        return self.left > 0 and self.matching(command)


class _End:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        # So that `drain` waits until all is sent: an abort throws away what is not.
        writer.transport.set_write_buffer_limits(high=0)

    async def read(self) -> bytes:
        return await self._reader.read(_CHUNK)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    def abort(self) -> None:
        self._writer.transport.abort()


class _ProtocolError(Exception):
    """What came is not of Redis.

    A class of our own, and of PushNotification nothing but the name is looked at: the sandbox of
    the Python SDK imports hiredis once more, which then uses the classes of that import.
    """


class _Link:
    """A client's connection, and the one to the server behind it."""

    def __init__(self, proxy: CuttingProxy, client: _End) -> None:
        self._proxy = proxy
        self._client = client
        self._server: _End | None = None
        self._awaited: deque[_Loss | None] = deque()
        """For each forwarded command without a reply, the loss that its reply may be for."""
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._is_unread = False
        self.is_forgotten = False
        """Whether nothing passes any more, for ever."""

    def abort(self) -> None:
        """Break both connections, without farewell."""
        self._client.abort()
        if self._server is not None:
            self._server.abort()

    async def run(self) -> None:
        """Pass on, both ways, until one of them ends."""
        try:
            with contextlib.suppress(OSError, _ProtocolError):
                self._server = await self._proxy.connect()
                await _until_one_ends(
                    self._pass_requests(self._client, self._server),
                    self._pass_replies(self._server, self._client),
                )
        finally:
            self.abort()

    async def _read(self, end: _End) -> bytes:
        """What comes next from one end; nothing when it has left. Neither passes in silence."""
        try:
            data = await end.read()
        except OSError:
            data = b""
        await self._proxy.wait_to_speak()
        if self.is_forgotten:
            await asyncio.Event().wait()
        return data

    async def _pass_requests(self, client: _End, server: _End) -> None:
        values = _Values()
        while data := await self._read(client):
            loss = self._forward(server, values, data)
            if loss is not None:
                await self._all_answered.wait()
                self._proxy.count(loss)
                return
            await server.drain()

    def _forward(self, server: _End, values: _Values, data: bytes) -> _Loss | None:
        """Forward commands, up to one that is to be lost."""
        if self._is_unread:
            server.write(data)
            return None
        for written, command in values.split(data):
            if not self._is_unread:
                loss = self._proxy.loss_of_request(command)
                if loss is not None:
                    return loss
                self._awaited.append(self._proxy.loss_of_reply(command))
                self._all_answered.clear()
                self._is_unread = command[0].upper() in _SPEAKS_UNASKED
            server.write(written)
        if self._is_unread:
            server.write(values.take_rest())
        return None

    async def _pass_replies(self, server: _End, client: _End) -> None:
        values = _Values()
        while data := await self._read(server):
            passed = bytearray()
            loss = self._give_back(passed, values, data)
            await self._send_slowly(client, bytes(passed))
            if loss is not None:
                self._proxy.count(loss)
                return
            if not self._awaited:
                self._all_answered.set()

    async def _send_slowly(self, client: _End, data: bytes) -> None:
        """Send as fast as the network is."""
        rate = self._proxy.rate
        step = max(1, len(data) if rate is None else int(rate * _TICK))
        for first in range(0, len(data), step):
            client.write(data[first : first + step])
            await client.drain()
            if rate is not None:
                await asyncio.sleep(_TICK)

    def _give_back(self, passed: bytearray, values: _Values, data: bytes) -> _Loss | None:
        """Collect the replies that pass, up to one that is to be lost."""
        if self._is_unread:
            passed += values.take_rest() + data
            return None
        for written, reply in values.split(data):
            loss = self._loss_at(reply)
            if loss is not None:
                return loss
            passed += written
        return None

    def _loss_at(self, reply: Any) -> _Loss | None:
        """The loss that happens with this reply, if any."""
        if type(reply).__name__ == "PushNotification" or not self._awaited:
            return None
        loss = self._awaited.popleft()
        if loss is None or loss.left == 0:
            return None
        loss.left -= 1
        return loss


class _Values:
    """Takes a stream of RESP apart into values: each as it is written, and as it reads.

    Every value ends with the end of a line. So the parser is fed line by line, and the line
    that makes a value complete is its last.
    """

    def __init__(self) -> None:
        self._parser = hiredis.Reader(protocolError=_ProtocolError, notEnoughData=_INCOMPLETE)
        self._begun = bytearray()

    def split(self, data: bytes) -> Iterator[tuple[bytes, Any]]:
        """The values that this piece of the stream completes."""
        for line in data.splitlines(keepends=True):
            self._begun += line
            self._parser.feed(line)
            value = self._parser.gets()
            if value is not _INCOMPLETE:
                yield self.take_rest(), value

    def take_rest(self) -> bytes:
        """What was not given out yet."""
        rest = bytes(self._begun)
        self._begun.clear()
        return rest


async def _until_one_ends(*ways: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "valkey") or not parts.hostname:
        raise ValueError(
            f"a proxy needs a redis:// URL of a server on plain TCP, not {parts.scheme}:// with "
            f"host {parts.hostname}"
        )
    return parts.hostname, parts.port or 6379
