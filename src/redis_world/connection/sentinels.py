"""Sentinels, which know the server that is the master."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio.sentinel
import redis.exceptions

from redis_world.connection.redis_errors import NoNodeError, base_of, is_unknown_command, mark
from redis_world.connection.wires import WirePool, without_leftovers
from redis_world.errors import ConfigurationError

__all__ = ["SentinelPool", "meet_sentinels"]


class SentinelPool(redis.asyncio.sentinel.SentinelConnectionPool, WirePool):
    """Asks the Sentinels for the master, and lets callers wait for a free connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.sentinels: Final[Sequence[redis.asyncio.Redis]] = (*self.sentinel_manager.sentinels,)
        """All of them, in the order of the URL."""
        for sentinel in self.sentinels:
            pool = sentinel.connection_pool
            kind: Any = pool.connection_class
            pool.connection_class = without_leftovers(kind)

    async def get_master_address(self) -> Any:
        """Where the master is now; the error of redis-py would show its objects."""
        try:
            return await super().get_master_address()  # type: ignore[no-untyped-call]
        except redis.asyncio.sentinel.MasterNotFoundError:
            raise redis.asyncio.sentinel.MasterNotFoundError(
                f"no Sentinel of {', '.join(_addresses(self))} names a master of the service "
                f"{self.service_name!r}"
            ) from None
        finally:
            # redis-py puts the one that has answered first. Where several callers do that at
            # once, it loses another one for ever.
            known = [*self.sentinel_manager.sentinels, *self.sentinels]
            self.sentinel_manager.sentinels = [*dict.fromkeys(known)]

    async def disconnect(self, inuse_connections: bool = True) -> None:  # noqa: FBT001
        await super().disconnect(inuse_connections)
        if inuse_connections:
            # Those to the Sentinels belong to nobody else. With the idle ones they stay: at any
            # time another connection may be asking where the master is.
            # Not by their manager: that of older releases of redis-py can't close them.
            for sentinel in self.sentinels:
                await sentinel.aclose()


def _addresses(pool: SentinelPool) -> list[str]:
    return [_address(each) for each in pool.sentinels]


def _address(sentinel: redis.asyncio.Redis) -> str:
    return "{host}:{port}".format_map(sentinel.connection_pool.connection_kwargs)


async def meet_sentinels(client: redis.asyncio.Redis) -> None:
    """Find a Sentinel that watches the client's service; its master may be away at the moment.

    A client that does not ask Sentinels needs none.

    Raises:
        redis.exceptions.RedisError: none of the Sentinels answers.
        ConfigurationError: those that answer watch no such service, or are no Sentinels.
    """
    pool = client.connection_pool
    if not isinstance(pool, SentinelPool):
        return
    failures: dict[str, Exception] = {}
    refusals: list[Exception] = []
    strangers: list[str] = []
    unaware: list[str] = []
    for sentinel in pool.sentinels:
        name = _address(sentinel)
        try:
            address = await sentinel.sentinel_get_master_addr_by_name(pool.service_name)
        except (redis.exceptions.RedisError, OSError) as error:
            failures[name] = mark(error, sentinel.connection_pool)
            if is_unknown_command(error):
                strangers.append(name)
            elif isinstance(
                error, redis.exceptions.AuthenticationError | redis.exceptions.ResponseError
            ):
                refusals.append(error)
            continue
        if address is not None:
            return
        unaware.append(name)
    if unaware:
        raise ConfigurationError(
            f"the Sentinels at {', '.join(unaware)} watch no service named "
            f"{pool.service_name!r}: correct the name in the URL, redis+sentinel://host:port/service"
        )
    if strangers:
        base = base_of(pool)
        raise ConfigurationError(
            f"the server at {', '.join(strangers)} is not a Sentinel: give the addresses of "
            f"Sentinels, whose port is usually 26379, or use {base}:// instead of {base}+sentinel://"
        )
    if refusals:
        raise refusals[0]
    raise NoNodeError("no Sentinel can be reached", failures)
