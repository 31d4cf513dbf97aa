"""A network that breaks when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Proxy:
    """Passes bytes between clients and a server, until it is cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._transports: set[asyncio.WriteTransport] = set()
        self._is_cut = False
        self.port = 0
        self.refused = 0
        """How many connections were refused while it was cut."""

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        self._is_cut = True
        for transport in self._transports:
            transport.abort()

    def mend(self) -> None:
        self._is_cut = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.add(writer.transport)
        try:
            if self._is_cut:
                self.refused += 1
                writer.transport.abort()
                return
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection(*self._target)
                self._transports.add(back.transport)
                try:
                    await asyncio.gather(_pass(reader, back), _pass(there, writer))
                finally:
                    self._transports.discard(back.transport)
                    back.transport.abort()
        finally:
            self._transports.discard(writer.transport)
            writer.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    # One way is over: the other one has nobody to talk to.
    writer.transport.abort()


@contextlib.asynccontextmanager
async def proxy_to(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy in front of a server, and the URL to use instead of the server's."""
    parts = urlsplit(url)
    proxy = Proxy(parts.hostname or "", parts.port or 6379)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(proxy.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, parts._replace(netloc=f"127.0.0.1:{proxy.port}").geturl()
    finally:
        server.close()
        proxy.cut()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
