"""Connections with TLS whose opening may be cancelled at any moment."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["open_stream"]


class _Protocol(asyncio.StreamReaderProtocol):
    """Keeps its transport, which is there as soon as the handshake is done."""

    # Those of other event loops are of no class of asyncio's.
    transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        super().connection_made(transport)


async def open_stream(
    host: str, port: int, **options: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection, like `asyncio.open_connection`; cancelled, it leaves nothing open.

    When the handshake ends in the same moment in which its caller gives up, asyncio closes the
    connection as one that stands: it waits for the other side, longer than its loop may live.

    Args:
        host: of the server.
        port: of the server.
        options: for `create_connection` of the event loop.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = _Protocol(reader, loop=loop)
    try:
        transport, _ = await loop.create_connection(lambda: protocol, host, port, **options)
    except BaseException:
        if protocol.transport is not None:
            protocol.transport.abort()
        raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
