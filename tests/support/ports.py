"""Ports that stay free for a test."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from redis_world.testing.ports import free_port

_ATTEMPTS = 10


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """One that refuses connections, and that no other test is given during the block.

    It is bound, but nobody listens at it. A server of this test can still be started there, since
    servers allow that an address is shared with a socket that does not listen.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield _bind(holder)


def _bind(holder: socket.socket) -> int:
    for _ in range(_ATTEMPTS):
        port = free_port()
        # Another process may be as quick.
        with contextlib.suppress(OSError):
            holder.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")
