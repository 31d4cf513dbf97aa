"""Sentinels, who say which server is the master."""

from __future__ import annotations

import redis.asyncio.sentinel
import redis.exceptions

from redis_world.connection.wires import WirePool
from redis_world.errors import ConfigurationError

__all__ = ["SentinelPool", "meet_sentinels"]


class SentinelPool(redis.asyncio.sentinel.SentinelConnectionPool, WirePool):
    """Asks the Sentinels for the master, and lets callers wait for a free connection."""

    async def disconnect(self, inuse_connections: bool = True) -> None:  # noqa: FBT001
        await super().disconnect(inuse_connections)
        if inuse_connections:
            # Those to the Sentinels belong to nobody else. With the idle ones they stay: at any
            # time another connection may be asking where the master is.
            await self.sentinel_manager.aclose()


async def meet_sentinels(pool: SentinelPool) -> None:
    """Find a Sentinel that watches the service; its master may be away at the moment.

    Raises:
        redis.exceptions.RedisError: none of the Sentinels answers.
        ConfigurationError: those that answer watch no such service.
    """
    failure: Exception | None = None
    has_answer = False
    for sentinel in pool.sentinel_manager.sentinels:
        try:
            address = await sentinel.sentinel_get_master_addr_by_name(pool.service_name)
        except (redis.exceptions.RedisError, OSError) as error:
            failure = error
            continue
        if address is not None:
            return
        has_answer = True
    if has_answer or failure is None:
        raise ConfigurationError(f"the Sentinels watch no service named {pool.service_name!r}")
    raise failure
