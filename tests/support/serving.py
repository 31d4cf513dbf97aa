"""Servers of a test's own in asyncio, whose connections all end with them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeAlias

__all__ = ["Serve", "serving"]

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_HOST: Final = "127.0.0.1"
_TURNS: Final = 3
"""Of the loop, after which a connection that was accepted is known."""


@contextlib.asynccontextmanager
async def serving(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve connections for the length of a block; the port.

    At its end each connection is closed, also one that came so late that nobody has begun to
    serve it.
    """
    writers: list[asyncio.StreamWriter] = []
    tasks: list[asyncio.Future[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        tasks.append(asyncio.ensure_future(serve(reader, writer)))

    server = await asyncio.start_server(accept, _HOST, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        # Those that wait for the end of a connection are told in its turn.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
