"""Connections of the HTTP server, with limits on what comes before a request is complete.

Here, and not in the application, since most requests come in one piece, and need no timer then.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["BoundedProtocol"]

HEADER_SECONDS: Final = 10.0
"""How long the headers of a request may take to arrive."""
BODY_SECONDS: Final = 30.0
"""How long a body may take to arrive, after its headers."""
MAX_HEADER_BYTES: Final = 64 * 1024

_HEAD: Final = b"HTTP/1.1 2"
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
_TIMEOUT: Final = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


async def _refuse_headers(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer a request whose headers came in one piece, and are too large."""
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 431, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


class _WholeReplies:
    """A transport that sends the head of a reply together with the beginning of its body.

    Uvicorn writes them one after the other, which is two calls of the system for every request.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._write = transport.write
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write, but keep a head until something follows it."""
        if data.startswith(_HEAD):
            self._head = data
            return
        if self._head:
            data, self._head = self._head + data, b""
        self._write(data)

    def close(self) -> None:
        """Write what is kept, and close."""
        self.write(b"")
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose requests are slow, or whose headers are large.

    The application bounds the size of bodies.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._in_headers = True
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        whole: Any = _WholeReplies(transport)
        self.transport = whole
        self._start_timer(HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of the headers."""
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes:
            # What comes behind a request in the same piece is counted from the next one on.
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(_TOO_LARGE)
            elif self._timer is None:
                self._start_timer(HEADER_SECONDS)
        elif self._in_body and self._timer is None:
            self._start_timer(BODY_SECONDS)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The headers of a request are there."""
        is_large = self._header_bytes > MAX_HEADER_BYTES and self._header_size() > MAX_HEADER_BYTES
        self._in_headers, self._header_bytes, self._in_body = False, 0, True
        self._stop_timer()
        app = self.app
        if is_large:
            self.app = _refuse_headers
        super().on_headers_complete()
        self.app = app

    def _header_size(self) -> int:
        return sum(len(name) + len(value) for name, value in self.headers)

    def on_message_complete(self) -> None:
        """A request is there as a whole; what comes next are headers again."""
        super().on_message_complete()
        self._in_headers, self._in_body = True, False
        self._stop_timer()

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._refuse, _TIMEOUT)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, reply: bytes) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            # In the middle of another reply nobody would understand it.
            if (
                self.cycle is None
                or not self.cycle.response_started
                or self.cycle.response_complete
            ):
                self.transport.write(reply)
            self.transport.close()
