"""What a server must be, and how a namespace on it was created."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any, Final

import redis.asyncio
import redis.exceptions

from redis_world.config import WorldConfig
from redis_world.connection.needs import needs_of
from redis_world.connection.redis_errors import (
    base_of,
    first_refusal,
    is_lost,
    is_passing,
    is_sentinel,
    mark,
)
from redis_world.connection.sender import Command, Patience, Reply, round_trip
from redis_world.connection.wires import WirePool
from redis_world.errors import ConfigurationError
from redis_world.keys import SCHEMA, Partitions, meta_key
from redis_world.lua import ScriptLibrary

__all__ = ["MIN_VERSIONS", "check_server", "find_namespace", "mode_of", "pin_namespace"]

logger = logging.getLogger(__name__)


MIN_VERSIONS: Final = {"redis": (7, 0), "valkey": (8, 0)}


async def check_server(
    client: redis.asyncio.Redis,
    config: WorldConfig,
    library: ScriptLibrary,
    where: str,
    *,
    is_of_cluster: bool = False,
) -> int:
    """Check a server and load the scripts into it; its time in ms.

    Raises:
        ConfigurationError: it is not a server that a World can use; the text says why.
        redis.exceptions.RedisError: it does not answer, or refuses a command.
    """
    # Before the scripts: from a stranger a server takes no more than a few bytes, and hangs
    # up on the rest, so that nobody would be told about the password.
    asked: list[Command] = [
        ("TIME",),
        ("INFO", "server"),
        ("INFO", "memory"),
        ("SCRIPT", "EXISTS", *(script.sha for script in library)),
    ]
    # One that is starting is waited for; one that is not there may be a wrong address.
    now, server, memory, loaded = await _ask_until(
        is_passing,
        client,
        asked,
        config.retry_timeout,
        # An embedded server has no INFO, and an ACL may deny it: then nothing is known.
        look=lambda replies: _check_kind(replies[1], where, client),
    )
    if isinstance(server, dict) and not is_of_cluster and mode_of(server) == "cluster":
        await _check_slots(client, config)
    await _load(client, config, library, loaded, where)
    if isinstance(memory, dict):
        _check_eviction(memory)
    if config.durability == "disk":
        (reply,) = await round_trip(client, [("WAITAOF", 1, 0, 1)])
        if isinstance(reply, Exception):
            raise ConfigurationError(
                "durability='disk' needs Redis 7.2 or Valkey 8 with `appendonly yes`, but the "
                f"server at {where} refuses WAITAOF: {reply}"
            )
    return int(now[0]) * 1000 + int(now[1]) // 1000


async def _load(
    client: redis.asyncio.Redis,
    config: WorldConfig,
    library: ScriptLibrary,
    loaded: Reply,
    where: str,
) -> None:
    """Load what scripts the server does not have; ask first whether it has what they use."""
    # Of a server that does not tell, they are all loaded.
    known = loaded if isinstance(loaded, list) and len(loaded) == len([*library]) else ()
    lacking: list[Command] = [
        ("SCRIPT", "LOAD", script.source)
        for script, is_there in zip_longest(library, known)
        if not is_there
    ]
    if not lacking:
        return
    needs = needs_of(library)
    # In the same round trip. The embedded server is known.
    probe: list[Command] = [needs.probe()] if isinstance(client.connection_pool, WirePool) else []

    def look(replies: list[Reply]) -> None:
        missing = needs.missing(replies[0]) if probe else []
        if missing:
            raise ConfigurationError(
                f"the server at {where} lacks what the scripts need ({', '.join(missing)}): "
                "use Redis 7.0, Valkey 8.0 or newer"
            )

    await _ask_until(is_passing, client, [*probe, *lacking], config.retry_timeout, look=look)


async def pin_namespace(
    client: redis.asyncio.Redis, config: WorldConfig, library: ScriptLibrary, *, seconds: float
) -> bool:
    """Pin the schema and the partitions of a namespace; whether it was new.

    Args:
        client: a client of the running loop.
        config: the World's options.
        library: the scripts.
        seconds: for which it is tried, while the server does not answer.

    Raises:
        ConfigurationError: it was made otherwise.
    """
    script = library["worlds/open"]
    namespace = config.namespace
    row = script.arrange(
        {"meta": meta_key(namespace)},
        {
            "schema": str(SCHEMA),
            "partitions": str(config.partitions),
            "writer": "redis-world",
        },
    )
    # EVAL: the server may have lost its scripts.
    (reply,) = await _ask_until(is_lost, client, [("EVAL", script.source, *row)], seconds)
    partitions = _check_pinned(namespace, reply[1], reply[2])
    if partitions != config.partitions:
        raise ConfigurationError(
            f"namespace {namespace!r} was created with partitions={partitions}, not "
            f"{config.partitions}: open it with partitions={partitions}, "
            "or use another namespace"
        )
    return bool(reply[0] == b"CREATED")


async def find_namespace(
    client: redis.asyncio.Redis, config: WorldConfig, *, seconds: float
) -> int | None:
    """The number of partitions of a namespace, or None when there is none; nothing is written.

    Args:
        client: a client of the running loop.
        config: the World's options.
        seconds: for which it is tried, while the server does not answer.

    Raises:
        ConfigurationError: another version of redis-world made it.
    """
    asked: Command = ("HMGET", meta_key(config.namespace), "schema", "partitions")
    ((schema, partitions),) = await _ask_until(is_lost, client, [asked], seconds)
    if schema is None:
        return None
    return _check_pinned(config.namespace, schema, partitions)


def _check_pinned(namespace: str, schema: bytes | None, partitions: bytes | None) -> int:
    """Refuse a namespace of another version; its number of partitions."""
    found, number = (int(each) if each and each.isdigit() else 0 for each in (schema, partitions))
    if found and found != SCHEMA:
        raise ConfigurationError(
            f"namespace {namespace!r} has schema {found}, but this version of redis-world "
            f"writes schema {SCHEMA}: install a version for schema {found}, "
            "or use another namespace"
        )
    if not found or not number:
        raise ConfigurationError(
            f"namespace {namespace!r} has no valid record in the key {meta_key(namespace)}: "
            "restore the key from a backup, or use another namespace"
        )
    return number


async def _ask_until(
    passes: Callable[[Exception], bool],
    client: redis.asyncio.Redis,
    commands: list[Command],
    seconds: float,
    *,
    look: Callable[[list[Reply]], None] | None = None,
) -> list[Reply]:
    """Ask again, for so many seconds, after trouble that passes.

    Args:
        passes: whether it does.
        client: of the server.
        commands: to ask.
        seconds: for how long.
        look: called with all replies, before a refusal among them counts.
    """
    patience = Patience(seconds)
    while True:
        refusal: Exception | None
        try:
            replies = await round_trip(client, commands)
        except redis.exceptions.RedisError as error:
            refusal = error
        else:
            if look is not None:
                look(replies)
            # INFO may be denied, or not be there; likewise what only saves time.
            needed = [
                reply
                for command, reply in zip(commands, replies, strict=True)
                if command[0] != "INFO" and command[:2] != ("SCRIPT", "EXISTS")
            ]
            refusal = first_refusal(needed)
        if refusal is None:
            return replies
        if not passes(refusal) or not await patience.pause():
            raise mark(refusal, client.connection_pool)


# -- what a server is ----------------------------------------------------------------------

_UNFIT: Final = {"dragonfly": "Dragonfly", "keydb": "KeyDB"}
"""Other servers that speak Redis's protocol and call themselves a Redis of some version."""


def _check_kind(info: Reply, where: str, client: redis.asyncio.Redis) -> None:
    """Refuse what is another server than a World can use, or too old."""
    if not isinstance(info, dict):
        return
    if mode_of(info) == "sentinel":
        raise is_sentinel(f" at {where}", base_of(client.connection_pool))
    for name, title in _UNFIT.items():
        version = info.get(f"{name}_version", "")
        if version or name in str(info.get("executable", "")).rpartition("/")[2]:
            what = f"{title} {version}".strip()
            raise ConfigurationError(
                f"the server at {where} is {what}, which redis-world does not support: use Redis "
                "7.0, Valkey 8.0 or newer"
            )
    _check_version(info, where)


def mode_of(info: Mapping[str, Any]) -> str:
    """What a server's INFO says that it is: `standalone`, `cluster` or `sentinel`; else empty."""
    return str(info.get("redis_mode") or info.get("server_mode") or "")


def _check_version(info: Mapping[str, Any], where: str) -> None:
    """Refuse a server without `XADD key 0-*` and friends."""
    name = "valkey" if info.get("valkey_version") else "redis"
    text = str(info.get(f"{name}_version", ""))
    try:
        version = tuple(int(part) for part in text.split(".")[:2])
    except ValueError:
        return
    if version and version < MIN_VERSIONS[name]:
        raise ConfigurationError(
            f"the server at {where} is {name.capitalize()} {text}: use Redis 7.0, Valkey 8.0 or "
            "newer"
        )


async def _check_slots(client: redis.asyncio.Redis, config: WorldConfig) -> None:
    """See that a node of a cluster, which is used alone, has all slots of the namespace."""
    keys = [meta_key(config.namespace)]
    if config.partitions is not None:
        keys += [each.parked for each in Partitions(config.namespace, config.partitions)]
    replies = await round_trip(client, [("EXISTS", key) for key in keys])
    refusal = first_refusal(replies)
    if refusal is not None:
        raise mark(refusal, client.connection_pool)


def _check_eviction(info: Mapping[str, Any]) -> None:
    policy = info.get("maxmemory_policy")
    if policy is not None and policy != "noeviction":
        text = (
            f"the server's maxmemory-policy is {policy}: a full server deletes parts of runs. "
            "Set `maxmemory-policy noeviction`"
        )
        logger.warning(text, extra={"event": "server.evicts", "maxmemory_policy": policy})
        warnings.warn(text, RuntimeWarning, stacklevel=2)
