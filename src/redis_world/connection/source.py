"""Where the server of a World is, and the redis-py clients for it."""

from __future__ import annotations

import functools
import socket
from collections.abc import Mapping
from typing import Any, Final

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_world.config import WorldConfig
from redis_world.connection.blocking import (
    BlockingClient,
    BlockingCluster,
    BlockingServer,
)
from redis_world.connection.sentinels import SentinelPool
from redis_world.connection.slots import Address
from redis_world.connection.url import MEMORY, Place, name_of_memory, parse_url, refuse_decoding
from redis_world.connection.wires import WirePool, drop_connections
from redis_world.errors import ConfigurationError
from redis_world.memory import memory_client, memory_sync_client

__all__ = ["Source", "abandon", "close"]

_OF_SENTINELS: Final = {
    "driver_info", "protocol", "retry", "socket_timeout", "socket_connect_timeout",
    "socket_keepalive",
}  # fmt: skip
_OF_ITS_OWN: Final = {"retry_on_error", "retry_on_timeout"}
"""Settings of a ready client that are not taken over."""


class Source:
    """Makes the clients of a World, from its URL or after a ready client.

    Raises:
        ConfigurationError: there is neither or both of URL and client, the URL is no server's,
            or the client can't be used.
    """

    def __init__(
        self, url: str | None, client: redis.asyncio.Redis | None, config: WorldConfig
    ) -> None:
        if (url is None) == (client is None):
            raise ConfigurationError("give a World either a URL or a ready client")
        self._client = client
        self._config = config
        self._place = Place("", "", [], "") if url is None else parse_url(url)
        if client is not None:
            _check_client(client)
        if self._place.kind == "unix" and not hasattr(socket, "AF_UNIX"):
            raise ConfigurationError("unix:// URLs need Linux or macOS: use redis://host:port/0")
        if self.is_memory and config.durability != "memory":
            raise ConfigurationError(
                f"{MEMORY}:// keeps nothing after its process: durability={config.durability!r} "
                "needs a server"
            )

    @property
    def is_memory(self) -> bool:
        """Whether the server is the embedded one of this process."""
        return self._place.kind == MEMORY

    @property
    def is_cluster(self) -> bool:
        """Whether the servers are those of a Redis Cluster."""
        return self._place.kind == "cluster"

    @property
    def has_successors(self) -> bool:
        """Whether another server takes the place of a master that is gone."""
        return self._place.kind in ("cluster", "sentinel")

    @property
    def seeds(self) -> list[Address]:
        """The nodes of a cluster, or the Sentinels, that the URL names."""
        return [Address(*each) for each in self._place.hosts]

    def client(self, node: Address | None = None) -> redis.asyncio.Redis:
        """A client for commands, of the running event loop; of one node in a cluster."""
        limits = {"max_connections": self._config.max_connections, "timeout": None}
        if self._client is not None:
            return _client_like(self._client, **limits)
        if self.is_memory:
            return memory_client(self._place.url)
        settings = {"retry": _no_retry(), **limits, **self._settings()}
        if self._place.kind == "sentinel":
            return self._of_sentinels(settings)
        pool = WirePool.from_url(self._url_of(node), **settings)
        return redis.asyncio.Redis.from_pool(pool)

    def blocking(self) -> BlockingClient:
        """A client that blocks its thread."""
        if self._client is not None:
            return BlockingServer(_sync_twin(self._client, self._settings()))
        if self.is_memory:
            return BlockingServer(memory_sync_client(self._place.url))
        settings = {**self._settings(), "retry": _no_retry_sync()}
        if self._place.kind == "sentinel":
            return BlockingServer(self._sentinel(redis.sentinel.Sentinel, settings))
        if self.is_cluster:
            return BlockingCluster(
                self.seeds, lambda node: redis.Redis.from_url(self._url_of(node), **settings)
            )
        return BlockingServer(redis.Redis.from_url(self._place.url, **settings))

    def describe(self, client: redis.asyncio.Redis | None) -> str:
        """The server's address, without its password."""
        if self.is_memory:
            return name_of_memory(self._place.url)
        if self._place.hosts:
            return ",".join(f"{host}:{port}" for host, port in self._place.hosts)
        known = client or self._client
        kwargs: Mapping[str, Any] = (
            known.connection_pool.connection_kwargs
            if known is not None
            else redis.connection.parse_url(self._place.url)  # type: ignore[no-untyped-call]
        )
        if "server" in kwargs:
            return "the embedded server"
        kwargs = {"host": "localhost", "port": 6379, **kwargs}
        return str(kwargs.get("path") or f"{kwargs.get('host')}:{kwargs.get('port')}")

    def address(self, client: redis.asyncio.Redis) -> str:
        """The address of one node of a cluster; else as `describe` has it."""
        if not self.is_cluster:
            return self.describe(client)
        return "{host}:{port}".format_map(client.connection_pool.connection_kwargs)

    # -- inside ----------------------------------------------------------------------------

    def _url_of(self, node: Address | None) -> str:
        """The URL of a node: the World's, with its address."""
        if node is None:
            return self._place.url
        return self._place.url_of(*node)

    def _credentials(self) -> dict[str, Any]:
        """User, password and TLS settings of the URL, as keywords."""
        options = dict(redis.connection.parse_url(self._place.url))  # type: ignore[no-untyped-call]
        kind = options.pop("connection_class", None)
        for name in ("host", "port", "db"):
            options.pop(name, None)
        return {**options, "ssl": True} if kind is redis.SSLConnection else options

    def _of_sentinels(self, settings: Mapping[str, Any]) -> redis.asyncio.Redis:
        return self._sentinel(  # type: ignore[no-any-return]
            redis.asyncio.sentinel.Sentinel, settings, SentinelPool
        )

    def _sentinel(self, kind: Any, settings: Mapping[str, Any], pool_class: Any = None) -> Any:
        """A client of the master that the Sentinels name, asked anew at each connection."""
        known = {**self._credentials(), **settings}
        # The Sentinels have no user of the data, unless the URL says so.
        asked = {
            name: known[name] for name in known if name in _OF_SENTINELS or name.startswith("ssl")
        }
        asked |= {
            name.removeprefix("sentinel_"): known.pop(name)
            for name in [*known]
            if name.startswith("sentinel_")
        }
        sentinel = kind(self._place.hosts, sentinel_kwargs=asked)
        more = {} if pool_class is None else {"connection_pool_class": pool_class}
        db = {"db": self._place.database}
        return sentinel.master_for(self._place.service, **more, **db, **known)

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "socket_timeout": self._config.socket_timeout,
            "socket_connect_timeout": self._config.connect_timeout,
            # Replies of one shape, whatever the server would rather speak.
            "protocol": 2,
            **_driver_info(),
        }
        if self._place.kind != "unix":
            settings["socket_keepalive"] = True
        return settings


@functools.cache
def _driver_info() -> dict[str, Any]:
    """What redis-py says of itself; by itself it reads that from disk for each connection."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:  # of older releases, which read it once
        return {}
    return {"driver_info": DriverInfo()}


def _no_retry() -> AsyncRetry:
    # redis-py sends a command again when its reply is lost, by default ten times. What may be
    # sent twice is for the World to know.
    return AsyncRetry(NoBackoff(), 0)


def _no_retry_sync() -> Retry:
    return Retry(NoBackoff(), 0)


def _check_client(client: object) -> None:
    if not isinstance(client, redis.asyncio.Redis):
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise ConfigurationError(f"a ready client must be a redis.asyncio.Redis, not a {kind}")
    options = client.connection_pool.connection_kwargs
    refuse_decoding(options)
    if not {"host", "path", "server"} & set(options):
        raise ConfigurationError(
            "a ready client must name one server; for Sentinels, give a redis+sentinel:// URL"
        )


def _client_like(client: redis.asyncio.Redis, **settings: Any) -> redis.asyncio.Redis:
    """A client for the server of a ready one, with a pool of our own.

    The ready one's would send commands again by itself, and is its owner's to close.
    """
    pool = client.connection_pool
    # The protocol is that of all clients here: in the other one servers may say what nobody
    # has asked for, between two replies.
    known = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if name not in _OF_ITS_OWN and "maint_notifications" not in name
    }
    if not {"server", "lib_name", "lib_version"} & set(known):
        known = {**_driver_info(), **known}
    kwargs = {**known, "protocol": 2, "retry": _no_retry(), **settings}
    # The embedded server has no transport below its connections.
    kind = redis.asyncio.BlockingConnectionPool if "server" in kwargs else WirePool
    return redis.asyncio.Redis.from_pool(kind(connection_class=pool.connection_class, **kwargs))


def _sync_twin(client: redis.asyncio.Redis, settings: Mapping[str, Any]) -> redis.Redis:
    """A blocking client for the server of an asyncio one."""
    kwargs = client.connection_pool.connection_kwargs
    if "server" in kwargs:
        import fakeredis

        return fakeredis.FakeRedis(server=kwargs["server"])
    names = ("host", "port", "db", "username", "password", "path", "credential_provider")
    plain = {name: kwargs[name] for name in names if name in kwargs}
    path = plain.pop("path", None)
    if path is not None:
        plain = {"unix_socket_path": path, **plain}
    tls = {name: value for name, value in kwargs.items() if name.startswith("ssl_")}
    secure = issubclass(client.connection_pool.connection_class, redis.asyncio.SSLConnection)
    return redis.Redis(**plain, **(tls if secure else {}), ssl=secure, **settings)


async def close(client: redis.asyncio.Redis) -> None:
    """Close a client of our own for good."""
    if isinstance(client.connection_pool, WirePool):
        client.connection_pool.shut()
    await client.aclose()


def abandon(client: redis.asyncio.Redis) -> None:
    """Drop the connections of a client whose loop can't close them; see `drop_connections`."""
    pool = client.connection_pool
    drop_connections(pool)
    if isinstance(pool, SentinelPool):
        for sentinel in pool.sentinels:
            drop_connections(sentinel.connection_pool)
