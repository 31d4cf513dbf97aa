"""A checkup of a server and a namespace, before or while a World works there.

It changes nothing: the namespace is read by plain commands, since a World that opens pins it.
What the server refuses to tell is said to be unknown, and the checkup goes on.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Final

import redis.asyncio
import redis.exceptions

from redis_world.checkup import contents, safety, server
from redis_world.checkup.facts import Facts, Reading, ask_server, read_clock
from redis_world.checkup.finding import LEVELS, Finding, Level, worst
from redis_world.config import WorldConfig
from redis_world.connection.refusals import is_passing, translate
from redis_world.connection.sender import round_trip
from redis_world.connection.source import Source
from redis_world.errors import ConfigurationError
from redis_world.lua import ScriptLibrary, default_library

__all__ = ["LEVELS", "Finding", "Level", "check_up", "worst"]

_EMBEDDED: Final = Finding(
    name="version",
    level="info",
    text="The embedded store: nobody outside of this process sees it, and it ends with it",
    advice="give a server: --url, or REDIS_WORLD_URL",
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
    """Look at everything that a World needs, in the order in which to mend it.

    Args:
        url: where the server is; or
        client: a ready redis-py client, whose server and settings are used; it stays its
            owner's.
        config: the options that the World has or would have.
        library: other scripts than the ones of this package, for tests.

    Returns:
        The findings; where the server can't be reached, the last one says so.

    Raises:
        ConfigurationError: there is neither or both of URL and client, the URL is no server's,
            or the client can't be used.
    """
    source = Source(url, client, config)
    own = source.client()
    where = source.describe(own)
    findings: list[Finding] = []
    try:
        findings.append(await _reach(own, where))
        user = str(own.connection_pool.connection_kwargs.get("username") or "default")
        if findings[0].level == "ok":
            facts = Facts(config, user, source.is_memory, await ask_server(own, config))
            await _look(own, facts, library or default_library(), findings)
    except (redis.exceptions.RedisError, OSError) as error:
        findings.append(_unreachable(error, where))
    finally:
        await own.aclose()
    return findings


async def _reach(client: redis.asyncio.Redis, where: str) -> Finding:
    """Say whether the server answers, and how fast."""
    try:
        took = [await _ping(client) for _ in range(1 + _PINGS)]
    except Exception as error:  # noqa: BLE001 - whatever connecting fails with, as in `open`
        return _unreachable(error, where)
    # The first one connects.
    median = round(statistics.median(took[1:]), 3)
    return Finding(
        name="connection",
        level="ok",
        text=f"{where} answers within {median:.1f} ms",
        figures={"server": where, "round_trip_ms": median},
    )


async def _ping(client: redis.asyncio.Redis) -> float:
    """Measure one round trip, in ms."""
    began = time.perf_counter()
    (reply,) = await round_trip(client, [("PING",)])
    # Other refusals are answers: of a user who may not ping, of a server that can't write.
    if is_passing(reply):
        raise reply
    return (time.perf_counter() - began) * 1000


def _unreachable(error: Exception, where: str) -> Finding:
    known = translate(error, where=where)
    if isinstance(known, ConfigurationError):
        advice = "give user and password in the URL: redis://user:password@host:port/0"
        if not isinstance(error, redis.exceptions.AuthenticationError):
            advice = "mend the URL: --url, or REDIS_WORLD_URL"
    elif isinstance(error, redis.exceptions.ResponseError | redis.exceptions.BusyLoadingError):
        advice = "wait until the server is ready; its log says what it does"
    else:
        advice = "start the server, or give its address: --url, or REDIS_WORLD_URL"
    text = str(known)
    return Finding(
        name="connection",
        level="error",
        text=text[:1].upper() + text[1:],
        advice=advice,
        figures={"server": where},
    )


async def _look(
    client: redis.asyncio.Redis, facts: Facts, library: ScriptLibrary, findings: list[Finding]
) -> None:
    """Add finding by finding: those before a lost connection are worth telling."""
    began = await read_clock(client)
    if facts.is_memory:
        findings.append(_EMBEDDED)
    else:
        findings += [server.check_version(facts), *server.check_cluster(facts)]
    namespace, is_open = contents.check_namespace(facts)
    names = contents.topic_names(facts)
    replies, topics, now = await contents.look_at_topics(client, facts, library, names)
    findings.append(server.check_scripts(facts, replies))
    findings += [server.check_writes(facts), server.check_hints(facts)]
    if not facts.is_memory:
        findings += [safety.check_eviction(facts), safety.check_memory(facts)]
        findings += [safety.check_persistence(facts), safety.check_replicas(facts)]
        findings += safety.check_durability(facts)
    findings.append(await _check_clock(client, facts, began))
    findings.append(namespace)
    if is_open:
        findings += contents.check_topics(facts, names, topics)
        if now is not None:
            findings += await _check_ages(client, facts, names, now)


async def _check_clock(
    client: redis.asyncio.Redis, facts: Facts, began: Reading | Exception
) -> Finding:
    if isinstance(began, Reading):
        await asyncio.sleep(began.monotonic + _CLOCK_SECONDS - time.monotonic())
    return server.check_clock(facts, began, await read_clock(client))


async def _check_ages(
    client: redis.asyncio.Redis, facts: Facts, names: Sequence[str], now: int
) -> list[Finding]:
    """Look for what nobody has seen to for longer than anybody who works would let it be."""
    keys = facts.keys
    leased = [keys.topic(name, "leased") for name in names]
    leases = await contents.count_old(client, leased, now, contents.LEASE_SECONDS)
    limit = contents.sweep_limit(facts)
    owed, parked = await contents.count_old(client, [keys.owed, keys.parked], now, limit)
    return [
        contents.check_leases(facts, leases),
        contents.check_sweeps(facts, owed, parked),
    ]
