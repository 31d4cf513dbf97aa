"""Connections of the HTTP server, with limits on what comes before a request is complete.

Here, and not in the application, since most requests come in one piece, and need no timer then.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from redis_world.server.failures import RequestError, failure_of
from redis_world.server.wire import JSON, encode

__all__ = ["BoundedProtocol"]

HEADER_SECONDS: Final = 10.0
"""How long the headers of a request may take to arrive."""
BODY_SECONDS: Final = 30.0
"""How long a body may take to arrive, after its headers."""
MAX_HEADER_BYTES: Final = 64 * 1024

_HEAD: Final = b"HTTP/1.1 2"


def _refusal(status: HTTPStatus, code: str, message: str) -> bytes:
    """A whole reply, for what the application never sees; its body is as its errors have it."""
    body = encode(failure_of(RequestError(status, code, message)), JSON)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {JSON}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


_TOO_LARGE: Final = _refusal(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "headers-too-large",
    f"headers may have {MAX_HEADER_BYTES} bytes",
)
_TIMEOUT: Final = _refusal(
    HTTPStatus.REQUEST_TIMEOUT, "timeout", "the request did not arrive in time"
)


async def _leave_unanswered(_scope: Any, receive: Any, _send: Any) -> None:
    """Stand in for the application where the protocol has answered."""
    while (await receive())["type"] != "http.disconnect":
        pass


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
        """Whether the next byte is one of headers, or else of a body."""

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
        elif not self._in_headers and self._timer is None:
            self._start_timer(BODY_SECONDS)

    def on_headers_complete(self) -> None:
        """The headers of a request are there."""
        # They may have come in one piece with a body.
        is_large = self._header_bytes > MAX_HEADER_BYTES and self._header_size() > MAX_HEADER_BYTES
        self._in_headers, self._header_bytes = False, 0
        self._stop_timer()
        app = self.app
        if is_large:
            self._refuse(_TOO_LARGE)
            self.app = _leave_unanswered
        super().on_headers_complete()
        self.app = app

    def _header_size(self) -> int:
        return sum(len(name) + len(value) for name, value in self.headers)

    def on_message_complete(self) -> None:
        """A request is there as a whole; what comes next are headers again."""
        super().on_message_complete()
        self._in_headers = True
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
            is_answering = self.cycle is not None and self.cycle.response_started
            if not is_answering or self.cycle.response_complete:
                self.transport.write(reply)
            self.transport.close()
