"""A look at the server from beside the World, by connections of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

import redis.asyncio
import redis.exceptions

from redis_world.bench.limits import Usage
from redis_world.checkup.nodes import Nodes
from redis_world.config import WorldConfig
from redis_world.connection.cluster import ClusterRoutes
from redis_world.connection.diagnosis import explain
from redis_world.connection.redis_errors import translate
from redis_world.connection.sender import Reply, scan
from redis_world.connection.source import Source
from redis_world.errors import ConfigurationError
from redis_world.keys import meta_key, pattern_of
from redis_world.values import shown

__all__ = ["Observer", "cores", "observing"]


async def _first_key(client: redis.asyncio.Redis, pattern: str, *, is_fresh: bool) -> bytes | None:
    """Some key that matches; None when there is none, or none among the first ones."""
    async with contextlib.aclosing(scan(client, pattern)) as parts:
        async for found in parts:
            if found or is_fresh:
                return next(iter(found), None)
    return None


class Observer:
    """What a bench wants to know of the server, and a World does not ask."""

    def __init__(self, nodes: Nodes, where: str, *, is_memory: bool) -> None:
        self._nodes = nodes
        self._is_memory = is_memory
        self.where = where
        """The server's address, without its password."""

    async def check_unused(self, namespace: str, *, is_fresh: bool) -> None:
        """See that nothing is in a namespace, and that this user may look.

        Args:
            namespace: where a bench is going to work, and remove all that it finds.
            is_fresh: it was made up by chance, so that a look at some keys is enough.

        Raises:
            ConfigurationError: something is in it, or keys of others begin as its own do.
            WorldError: the server can't be asked, or refuses.
        """
        try:
            # Each World pins its namespace there before it writes anything.
            (there,) = await self._nodes.ask([("EXISTS", meta_key(namespace))])
            if isinstance(there, Exception):
                raise there
            if there:
                raise ConfigurationError(
                    f"namespace {namespace!r} already exists, and bench removes its namespace at "
                    "the end: give a new name, or none"
                )
            for client in self._nodes.clients:
                if key := await _first_key(client, pattern_of(namespace), is_fresh=is_fresh):
                    raise ConfigurationError(
                        f"key {shown(key.decode(errors='replace'))} exists, and bench removes all "
                        f"keys of namespace {namespace!r} at the end: give a new name, or none"
                    )
        except (redis.exceptions.RedisError, OSError) as error:
            raise translate(error, where=self.where) from error

    async def version(self) -> dict[str, str | None]:
        """Kind and version of the server, None where it does not tell."""
        if self._is_memory:
            return {"kind": "memory", "version": None}
        info = await self._ask_each("INFO", "server")
        if isinstance(info[0], Mapping):
            for kind in ("valkey", "redis"):
                if text := info[0].get(f"{kind}_version"):
                    return {"kind": kind, "version": str(text)}
        # Which no ACL can deny.
        hello = _pairs((await self._ask_each("HELLO"))[0])
        return {"kind": hello.get("server"), "version": hello.get("version")}

    async def usage(self) -> list[Usage] | None:
        """CPU time of each master so far; None where it is not to be had."""
        if self._is_memory:
            return None
        found = []
        for reply in await self._ask_each("INFO", "cpu"):
            if not isinstance(reply, Mapping) or "used_cpu_user" not in reply:
                return None
            total = float(reply["used_cpu_user"]) + float(reply["used_cpu_sys"])
            parts = [reply.get(f"used_cpu_{each}_main_thread") for each in ("user", "sys")]
            main = total if None in parts else sum(map(float, parts))  # type: ignore[arg-type]
            found.append(Usage(total, main))
        return found

    async def _ask_each(self, *command: str) -> list[Reply]:
        """Ask all masters; what is asked here is worth no error."""
        try:
            return await self._nodes.ask_each(command)
        except (redis.exceptions.RedisError, OSError):
            return [None]


def _pairs(reply: Reply) -> dict[str, str]:
    if not isinstance(reply, list):
        return {}
    texts = [each.decode() if isinstance(each, bytes) else str(each) for each in reply]
    return dict(zip(texts[::2], texts[1::2], strict=False))


@contextlib.asynccontextmanager
async def observing(url: str, config: WorldConfig) -> AsyncIterator[Observer]:
    """An observer of the server of a World, or of the masters of its cluster.

    Raises:
        ConfigurationError: the URL can't be used.
        WorldUnavailableError: the server can't be reached.
    """
    source = Source(url, None, config)
    async with contextlib.AsyncExitStack() as stack:
        where = source.describe(None)
        try:
            if source.is_cluster:
                routes = ClusterRoutes(source, config, _restore_nothing)
                await stack.enter_async_context(contextlib.aclosing(routes))
                await routes.open()
                nodes = Nodes(routes.masters, routes.client_of_slot)
            else:
                client = await stack.enter_async_context(contextlib.aclosing(source.client()))
                where = source.describe(client)
                nodes = Nodes([client])
            await nodes.ask_each(("PING",))
        except (redis.exceptions.RedisError, OSError, TypeError) as error:
            raise await explain(error, where=where) from None
        yield Observer(nodes, where, is_memory=source.is_memory)


async def _restore_nothing(_: object) -> None:
    """Nothing is pinned by a look."""


def cores(
    before: Sequence[Usage] | None, after: Sequence[Usage] | None, seconds: float
) -> dict[str, float]:
    """How many cores were in use between two looks.

    Returns:
        `server`, by all masters, and `main`, by the busiest thread that runs commands; nothing
        where a look failed, or a server has begun anew meanwhile.
    """
    pairs = [*zip(before or (), after or (), strict=False)]
    if not pairs or any(b.main < a.main for a, b in pairs):
        return {}
    return {
        "server": sum(b.total - a.total for a, b in pairs) / seconds,
        "main": max(b.main - a.main for a, b in pairs) / seconds,
    }
