"""A checkup of a server and a namespace, before or while a World works there.

It changes nothing: it reads the namespace by plain commands, since opening a World creates it. If
the server refuses a command, the finding is `unknown`, and the checkup continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import redis.asyncio
import redis.exceptions

from redis_world.checkup import contents, safety, server
from redis_world.checkup.facts import (
    Facts,
    Reading,
    adopt_partitions,
    ask_namespace,
    ask_server,
    find_others,
    read_clock,
)
from redis_world.checkup.finding import LEVELS, Finding, Level, worst
from redis_world.checkup.nodes import Nodes
from redis_world.config import WorldConfig
from redis_world.connection.cluster import ClusterRoutes
from redis_world.connection.diagnosis import explain
from redis_world.connection.redis_errors import is_passing, mark
from redis_world.connection.sentinels import meet_sentinels
from redis_world.connection.source import Source
from redis_world.errors import ConfigurationError
from redis_world.lua import ScriptLibrary, default_library

__all__ = ["LEVELS", "Finding", "Level", "check_up", "worst"]

_EMBEDDED: Final = Finding(
    name="version",
    level="info",
    text="The embedded store: only this process can see it, and it ends with the process",
    advice="use a server: --url or REDIS_WORLD_URL",
)
_PINGS: Final = 5
_CLOCK_SECONDS: Final = 0.3
"""Between the two looks at the server's clock, at least."""


async def check_up(
    url: str | None = None,
    *,
    client: redis.asyncio.Redis | None = None,
    config: WorldConfig,
    library: ScriptLibrary | None = None,
) -> list[Finding]:
    """Check everything that a World needs. The findings come in the order in which to fix them.

    Args:
        url: the URL of the server; or
        client: a redis-py client. The checkup uses its server and settings; its owner closes it.
        config: the options of the World. With `partitions=None` the checkup takes the number from
            the namespace. It compares any other number with the namespace's.
        library: scripts to use instead of those of this package, for tests.

    Returns:
        The findings. If the server can't be reached, the last one is an error `connection`.

    Raises:
        ConfigurationError: the URL or the client is invalid, or both or neither are given.
    """
    source = Source(url, client, config)
    where = source.describe(None)
    findings: list[Finding] = []
    try:
        async with _nodes(source, config) as nodes:
            where = source.describe(nodes.clients[0])
            findings.append(await _reach(nodes, where))
            if findings[0].level == "ok":
                await _look(nodes, source, config, library or default_library(), findings)
    except (redis.exceptions.RedisError, ConfigurationError, OSError) as error:
        findings.append(await _unreachable(error, where))
    return findings


@contextlib.asynccontextmanager
async def _nodes(source: Source, config: WorldConfig) -> AsyncIterator[Nodes]:
    """The server, or the masters of a cluster, with clients of their own."""
    if not source.is_cluster:
        async with contextlib.aclosing(source.client()) as own:
            await meet_sentinels(own)
            yield Nodes([own])
        return
    async with contextlib.aclosing(ClusterRoutes(source, config, _restore_nothing)) as routes:
        await routes.open()
        if not routes.masters:
            raise redis.exceptions.ClusterDownError("no node of the cluster has slots")
        yield Nodes(routes.masters, routes.client_of_slot)


async def _restore_nothing(_: object) -> None:
    """No call of a checkup is sent again."""


async def _reach(nodes: Nodes, where: str) -> Finding:
    """Whether the server answers, and how fast; in a cluster, whether all masters do."""
    try:
        took = [await _ping(nodes) for _ in range(1 + _PINGS)]
    except Exception as error:  # noqa: BLE001 - whatever connecting fails with, as in `open`
        return await _unreachable(error, where)
    # The first one connects.
    median = round(statistics.median(took[1:]), 3)
    return Finding(
        name="connection",
        level="ok",
        text=f"{where} answers in {median:.1f} ms",
        figures={"server": where, "round_trip_ms": median},
    )


async def _ping(nodes: Nodes) -> float:
    """Measure one round trip, in ms."""
    began = time.perf_counter()
    for reply in await nodes.ask_each(("PING",)):
        # Other refusals are answers: of a user who may not ping, of a server that can't write.
        if is_passing(reply):
            raise mark(reply, nodes.clients[0].connection_pool)
    return (time.perf_counter() - began) * 1000


async def _unreachable(error: Exception, where: str) -> Finding:
    known = await explain(error, where=where)
    if isinstance(known, ConfigurationError):
        advice = "give user and password in the URL: redis://user:password@host:port/0"
        if not isinstance(error, redis.exceptions.AuthenticationError):
            advice = "fix the URL: --url or REDIS_WORLD_URL"
    elif isinstance(error, redis.exceptions.ResponseError | redis.exceptions.BusyLoadingError):
        advice = "wait until the server is ready; see its log"
    else:
        advice = "start the server, or fix its address: --url or REDIS_WORLD_URL"
    text = str(known)
    return Finding(
        name="connection",
        level="error",
        text=text[:1].upper() + text[1:],
        advice=advice,
        figures={"server": where},
    )


async def _look(
    nodes: Nodes,
    source: Source,
    config: WorldConfig,
    library: ScriptLibrary,
    findings: list[Finding],
) -> None:
    """Add finding by finding: those before a lost connection are worth telling."""
    began = await read_clock(nodes.clients[0])
    config = await adopt_partitions(nodes, config)
    of_nodes = await asyncio.gather(*(ask_server(each, config) for each in nodes.clients))
    shared = await ask_namespace(nodes, config)
    others = await find_others(nodes, shared)
    user = str(_settings_of(nodes.clients[0]).get("username") or "default")
    by_node = {
        "{host}:{port}".format_map({"host": "", "port": "", **_settings_of(client)}): Facts(
            config, user, source.is_memory, {**replies, **shared}, others
        )
        for client, replies in zip(nodes.clients, of_nodes, strict=True)
    }
    facts = next(iter(by_node.values()))
    if facts.is_memory:
        findings.append(_EMBEDDED)
    else:
        findings.append(_worst_of(by_node, server.check_version))
        masters = len(nodes.clients) if source.is_cluster else None
        findings += server.check_cluster(facts, masters)
    namespace, is_open = contents.check_namespace(facts)
    names = contents.topic_names(facts)
    replies, topics, now = await contents.look_at_topics(nodes, facts, library, names)
    findings.append(server.check_scripts(facts, replies))
    findings += [server.check_writes(facts), _worst_of(by_node, server.check_notifications)]
    if not facts.is_memory:
        checks = [safety.check_eviction, safety.check_memory, safety.check_persistence,
                  safety.check_replicas]  # fmt: skip
        if config.durability != "memory":
            checks.append(safety.check_durability)
        findings += [_worst_of(by_node, check) for check in checks]
    findings.append(await _check_clock(nodes.clients[0], facts, began))
    findings.append(namespace)
    if is_open:
        findings += contents.check_topics(facts, names, topics)
        if now is not None:
            findings += await _check_ages(nodes, facts, names, now)


def _settings_of(client: redis.asyncio.Redis) -> Mapping[str, Any]:
    return client.connection_pool.connection_kwargs


def _worst_of(by_node: Mapping[str, Facts], check: Callable[[Facts], Finding]) -> Finding:
    """The finding of the worst node; of the first, when all are equal."""
    findings = {node: check(facts) for node, facts in by_node.items()}
    node = max(findings, key=lambda each: LEVELS.index(findings[each].level))
    finding = findings[node]
    if len(by_node) == 1:
        return finding
    return finding.model_copy(
        update={"text": f"{node}: {finding.text}", "figures": {**finding.figures, "node": node}}
    )


async def _check_clock(
    client: redis.asyncio.Redis, facts: Facts, began: Reading | Exception
) -> Finding:
    if isinstance(began, Reading):
        await asyncio.sleep(began.monotonic + _CLOCK_SECONDS - time.monotonic())
    return server.check_clock(facts, began, await read_clock(client))


async def _check_ages(nodes: Nodes, facts: Facts, names: Sequence[str], now: int) -> list[Finding]:
    """Look for leases and wake-ups that a running worker would have handled by now."""
    leased = [keys.topic(name, "leased") for name in names for keys in facts.partitions]
    leases = await contents.count_old(nodes, leased, now, contents.LEASE_SECONDS)
    limit = contents.sweep_limit(facts)
    indexes = [keys.owed for keys in facts.partitions]
    indexes += [keys.parked for keys in facts.partitions]
    waiting = await contents.count_old(nodes, indexes, now, limit)
    debts, idle = waiting[: len(facts.partitions)], waiting[len(facts.partitions) :]
    return [
        contents.check_leases(facts, leases),
        contents.check_sweeps(facts, debts, idle, now),
    ]
