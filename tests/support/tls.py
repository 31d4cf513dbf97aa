"""TLS in front of a server: certificates of a test's own, and a proxy that speaks it."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import trustme

from support.serving import Serve, serving

__all__ = ["Authority", "Frost", "listener", "tls_proxy"]

HOST: Final = "127.0.0.1"


@dataclass(frozen=True)
class Authority:
    """Issues certificates.

    Attributes:
        ca_file: what its certificates are checked with.
    """

    ca_file: Path
    _ca: trustme.CA

    @classmethod
    def make(cls, folder: Path) -> Authority:
        ca = trustme.CA()
        path = folder / "ca.pem"
        ca.cert_pem.write_to_path(str(path))
        return cls(path, ca)

    def server(self, *names: str, until: datetime | None = None) -> ssl.SSLContext:
        """What a server of these names presents itself with."""
        certificate = self._ca.issue_cert(*(names or (HOST, "localhost")), not_after=until)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        return context

    def demanding_server(self) -> ssl.SSLContext:
        """The same, of one that wants certificates of its clients."""
        context = self.server()
        context.verify_mode = ssl.CERT_REQUIRED
        self._ca.configure_trust(context)
        return context

    def client_files(self, folder: Path) -> tuple[Path, Path]:
        """Certificate and key of a client."""
        certificate = self._ca.issue_cert("client.example")
        cert, key = folder / "client.pem", folder / "client.key"
        certificate.cert_chain_pems[0].write_to_path(str(cert))
        certificate.private_key_pem.write_to_path(str(key))
        return cert, key


PAST: Final = datetime(2020, 1, 1, tzinfo=UTC)


@contextlib.contextmanager
def listener(serve: Serve, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve connections in a thread of its own; the port."""
    begun: Future[tuple[int, Callable[[], object]]] = Future()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        # A handshake that fails is what some tests are about.
        loop.set_exception_handler(lambda *_: None)
        over = asyncio.Event()
        async with serving(serve, context) as port:
            begun.set_result((port, partial(loop.call_soon_threadsafe, over.set)))
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    port, end = begun.result()
    try:
        yield port
    finally:
        end()
        thread.join()


class Frost:
    """Stops a proxy: connections stay, but nothing more goes over them, not even their end.

    Args:
        answers: how many answers of the server each connection may have before; None for any
            number. With -1 there is no handshake either.
    """

    def __init__(self, answers: int | None = None) -> None:
        self._answers = answers
        self._has_come = threading.Event()
        self._is_over = threading.Event()

    def come(self) -> None:
        """Stop all of it now."""
        self._has_come.set()

    def end(self) -> None:
        """Let the connections go."""
        self._is_over.set()

    def hold(self, answers: int) -> None:
        """Wait for the end, if a connection with so many answers is to be stopped."""
        if self._has_come.is_set() or (self._answers is not None and answers >= self._answers):
            self._is_over.wait()


@contextlib.contextmanager
def tls_proxy(port: int, context: ssl.SSLContext, frost: Frost | None = None) -> Iterator[int]:
    """The port of a proxy that speaks TLS, and passes all on to a port that does not.

    In threads: where a handshake fails, OpenSSL tells the other side why; asyncio hangs up.
    """
    frost = frost or Frost()
    with socket.create_server((HOST, 0)) as own:
        threading.Thread(target=_accept, args=(own, port, context, frost), daemon=True).start()
        try:
            yield own.getsockname()[1]
        finally:
            frost.end()
            own.shutdown(socket.SHUT_RDWR)


def _accept(own: socket.socket, port: int, context: ssl.SSLContext, frost: Frost) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = own.accept()
            threading.Thread(
                target=_serve, args=(connection, port, context, frost), daemon=True
            ).start()


def _serve(connection: socket.socket, port: int, context: ssl.SSLContext, frost: Frost) -> None:
    with contextlib.suppress(OSError), connection:
        frost.hold(-1)
        with (
            context.wrap_socket(connection, server_side=True) as near,
            socket.create_connection((HOST, port)) as far,
        ):
            answers = 0
            while True:
                frost.hold(answers)
                ready = [near] if near.pending() else select.select([near, far], [], [])[0]
                frost.hold(answers)
                for source in ready:
                    data = source.recv(65_536)
                    if not data:
                        return
                    (far if source is near else near).sendall(data)
                answers += far in ready
