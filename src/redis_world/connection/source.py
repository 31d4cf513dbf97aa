"""Where the server of a World is, and the redis-py clients for it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_world.config import WorldConfig
from redis_world.errors import ConfigurationError
from redis_world.memory import SCHEME as MEMORY
from redis_world.memory import memory_client, memory_sync_client

__all__ = ["Source", "abandon"]


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
            raise ConfigurationError("a World needs either a URL or a ready client")
        self._url = url or ""
        self._client = client
        self._config = config
        if client is not None:
            _check_client(client)
        else:
            _check_url(self._url)
        if self.is_memory and config.durability != "memory":
            raise ConfigurationError(
                f"{MEMORY}:// keeps nothing: durability={config.durability!r} needs a server"
            )

    @property
    def is_memory(self) -> bool:
        """Whether the server is the embedded one of this process."""
        return self._url.partition("://")[0] == MEMORY

    def client(self) -> redis.asyncio.Redis:
        """A client for commands, of the running event loop."""
        limits = {"max_connections": self._config.max_connections, "timeout": None}
        if self._client is not None:
            return _client_like(self._client, **limits)
        if self.is_memory:
            return memory_client(self._url)
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            self._url, retry=_no_retry(), **limits, **self._settings()
        )
        return redis.asyncio.Redis.from_pool(pool)

    def subscriber(self) -> redis.asyncio.Redis:
        """A client for the subscriber alone: it waits as long as nothing happens."""
        if self._client is not None:
            return _client_like(self._client, socket_timeout=None)
        if self.is_memory:
            return memory_client(self._url)
        settings = {**self._settings(), "socket_timeout": None}
        return redis.asyncio.Redis.from_url(self._url, retry=_no_retry(), **settings)

    def blocking(self) -> redis.Redis:
        """A client that blocks its thread."""
        if self._client is not None:
            return _sync_twin(self._client, self._settings())
        if self.is_memory:
            return memory_sync_client(self._url)
        return redis.Redis.from_url(self._url, **self._settings(), retry=_no_retry_sync())

    def describe(self, client: redis.asyncio.Redis) -> str:
        """The server's address, without its password."""
        if self.is_memory:
            return self._url
        kwargs = client.connection_pool.connection_kwargs
        return str(kwargs.get("path") or f"{kwargs.get('host')}:{kwargs.get('port')}")

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "socket_timeout": self._config.socket_timeout,
            "socket_connect_timeout": self._config.connect_timeout,
            # Replies of one shape, whatever the server would rather speak.
            "protocol": 2,
        }
        if not self._url.startswith("unix:"):
            settings["socket_keepalive"] = True
        return settings


def _no_retry() -> AsyncRetry:
    # redis-py sends a command again when its reply is lost, by default ten times. What may be
    # sent twice is for the World to know.
    return AsyncRetry(NoBackoff(), 0)


def _no_retry_sync() -> Retry:
    return Retry(NoBackoff(), 0)


def _check_client(client: object) -> None:
    if not isinstance(client, redis.asyncio.Redis):
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise ConfigurationError(f"a ready client is a redis.asyncio.Redis, not a {kind}")
    options = client.connection_pool.connection_kwargs
    _refuse_decoding(options)
    if not {"host", "path", "server"} & set(options):
        raise ConfigurationError(
            "this client finds its server by itself (a Sentinel's, for example): that is not "
            "supported yet"
        )


def _client_like(client: redis.asyncio.Redis, **settings: Any) -> redis.asyncio.Redis:
    """A client for the server of a ready one, with a pool of our own.

    The ready one's would send commands again by itself, and is its owner's to close.
    """
    pool = client.connection_pool
    kwargs = {**pool.connection_kwargs, "retry": _no_retry(), **settings}
    for name in ("retry_on_error", "retry_on_timeout"):
        kwargs.pop(name, None)
    return redis.asyncio.Redis.from_pool(
        redis.asyncio.BlockingConnectionPool(connection_class=pool.connection_class, **kwargs)
    )


def _check_url(url: str) -> None:
    schemes = (MEMORY, "redis", "rediss", "unix")
    scheme = url.partition("://")[0]
    if "://" not in url or scheme not in schemes:
        known = ", ".join(f"{name}://" for name in schemes)
        raise ConfigurationError(
            f"{_without_secrets(url)!r} is no URL of a server: they begin with one of {known}"
        )
    if scheme == MEMORY:
        return
    try:
        options = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ConfigurationError(
            f"{_without_secrets(url)!r} is no URL of a server: {error}"
        ) from None
    database = urlsplit(url).path.strip("/")
    if scheme != "unix" and database and not database.isdecimal():
        raise ConfigurationError(
            f"{_without_secrets(url)!r} is no URL of a server: {database!r} is no number of a "
            "database"
        )
    _refuse_decoding(dict(options))


def _without_secrets(url: str) -> str:
    """A URL as it may be shown: user, password and options may be anywhere in front or behind."""
    return url.rpartition("@")[2].partition("?")[0]


def _refuse_decoding(options: Mapping[str, Any]) -> None:
    if str(options.get("decode_responses", False)).lower() not in {"false", "0", "no", ""}:
        raise ConfigurationError(
            "decode_responses=True would break binary payloads: make the client without it"
        )


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


def abandon(client: redis.asyncio.Redis) -> None:
    """Drop the connections of a loop that is gone: nobody can wait for their farewell."""
    pool = client.connection_pool
    connections = [
        *getattr(pool, "_available_connections", ()),
        *getattr(pool, "_in_use_connections", ()),
    ]
    for connection in connections:
        writer = getattr(connection, "_writer", None)
        transport = getattr(writer, "transport", None)
        with contextlib.suppress(Exception):
            transport.abort()  # type: ignore[union-attr]
        with contextlib.suppress(Exception):
            connection._close()  # noqa: SLF001 - redis-py has no public way without its loop
