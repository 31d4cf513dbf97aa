"""The embedded default: fakeredis with Lua, in this process.

Worlds of one process share a store by its name, `memory://<name>`; nothing outside the process
sees it, and nothing outlives it.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import fakeredis
    import redis
    import redis.asyncio

__all__ = ["SCHEME", "memory_client", "memory_sync_client"]

SCHEME: Final = "memory"
_VERSION: Final = (7, 4)

_servers: dict[str, fakeredis.FakeServer] = {}
_lock = threading.Lock()


# fakeredis is imported where it is needed: who has a server need not wait for it.


def _server(url: str) -> fakeredis.FakeServer:
    import fakeredis

    parts = urlsplit(url)
    with _lock:
        return _servers.setdefault(
            parts.netloc + parts.path, fakeredis.FakeServer(version=_VERSION)
        )


_held: Final[list[fakeredis.FakeServer]] = []
"""The stores that are held for a fork."""


def _hold() -> None:
    """Let no other thread be in the middle of a command, which the child would never end."""
    _lock.acquire()
    for server in _servers.values():
        server.lock.acquire()
        _held.append(server)


def _let_go() -> None:
    while _held:
        _held.pop().lock.release()
    _lock.release()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    # A child gets a copy of the stores, and nothing of it is seen outside of the child.
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)


def memory_client(url: str) -> redis.asyncio.Redis:
    """A client of the store that the URL names."""
    from fakeredis.aioredis import FakeRedis

    return FakeRedis(server=_server(url))


def memory_sync_client(url: str) -> redis.Redis:
    """A blocking client of the same store, for another thread."""
    from fakeredis import FakeRedis

    return FakeRedis(server=_server(url))
