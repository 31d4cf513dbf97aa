"""The embedded default: fakeredis with Lua, in this process.

Worlds of one process share a store by its name, `memory://<name>`; nothing outside the process
sees it, and nothing outlives it.
"""

from __future__ import annotations

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


def memory_client(url: str) -> redis.asyncio.Redis:
    """A client of the store that the URL names."""
    from fakeredis.aioredis import FakeRedis

    return FakeRedis(server=_server(url))


def memory_sync_client(url: str) -> redis.Redis:
    """A blocking client of the same store, for another thread."""
    from fakeredis import FakeRedis

    return FakeRedis(server=_server(url))
