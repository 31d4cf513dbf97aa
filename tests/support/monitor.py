"""What clients send to a real server, as the server sees it."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

__all__ = ["Monitor", "monitor"]


class Monitor:
    """Commands of clients since it began; those that scripts call are left out."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 6379)
        self._socket = socket.create_connection(self._address, timeout=30)
        self._lines = self._socket.makefile("rb")
        self._socket.sendall(b"MONITOR\r\n")
        assert self._lines.readline() == b"+OK\r\n"

    def commands(self) -> list[str]:
        """Upper-case names of the commands since the last look, in order."""
        # A mark of our own ends the look: the feed is in the server's order.
        mark = secrets.token_hex(16)
        with socket.create_connection(self._address, timeout=30) as client:
            client.sendall(f"ECHO {mark}\r\n".encode())
            assert client.recv(64)
        found: list[str] = []
        while True:
            _, source, command = self._lines.readline().split(b" ", 2)
            place, text = command.split(b"] ", 1)
            name = shlex.split(text.split(b" ", 1)[0].decode())[0].upper()
            if name == "ECHO" and mark.encode() in text:
                return found
            if source.startswith(b"[") and place != b"lua":
                found.append(name)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@contextlib.contextmanager
def monitor(url: str) -> Iterator[Monitor]:
    """Watch a real server for the length of a block."""
    with contextlib.closing(Monitor(url)) as found:
        yield found
