"""What a server has to be, and what a namespace on it was made as."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any, Final

import redis.asyncio
import redis.exceptions

from redis_world.config import WorldConfig
from redis_world.connection.refusals import first_refusal, is_lost, is_passing
from redis_world.connection.sender import Command, Patience, Reply, round_trip
from redis_world.errors import ConfigurationError
from redis_world.keys import SCHEMA, meta_key
from redis_world.lua import ScriptLibrary

__all__ = ["MIN_VERSIONS", "check_server", "pin_namespace"]

logger = logging.getLogger(__name__)

MIN_VERSIONS: Final = {"redis": (7, 0), "valkey": (8, 0)}


async def check_server(
    client: redis.asyncio.Redis, config: WorldConfig, library: ScriptLibrary, where: str
) -> int:
    """Check a server and load the scripts into it; its time in ms."""
    # In front of the scripts: from a stranger a server takes no more than a few bytes, and hangs
    # up on the rest, so that nobody would be told about the password.
    asked: list[Command] = [
        ("TIME",),
        ("INFO", "server"),
        ("INFO", "memory"),
        ("SCRIPT", "EXISTS", *(script.sha for script in library)),
    ]
    # One that is starting is waited for; one that is not there may be a wrong address.
    now, server, memory, loaded = await _ask_until(is_passing, client, asked, config.retry_timeout)
    # Of a server that does not tell, they are all loaded.
    known = loaded if isinstance(loaded, list) and len(loaded) == len([*library]) else ()
    lacking: list[Command] = [
        ("SCRIPT", "LOAD", script.source)
        for script, is_there in zip_longest(library, known)
        if not is_there
    ]
    if lacking:
        await _ask_until(is_passing, client, lacking, config.retry_timeout)
    # An embedded server has no INFO, and an ACL may deny it: then nothing is known.
    if isinstance(server, dict):
        _check_version(server)
    if isinstance(memory, dict):
        _check_eviction(memory)
    if config.durability == "disk":
        (reply,) = await round_trip(client, [("WAITAOF", 1, 0, 1)])
        if isinstance(reply, Exception):
            raise ConfigurationError(
                "durability='disk' needs Redis 7.2 or Valkey 8 with `appendonly yes`: "
                f"the server at {where} says {reply}"
            )
    return int(now[0]) * 1000 + int(now[1]) // 1000


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
    schema, partitions = int(reply[1]), int(reply[2])
    if schema != SCHEMA:
        raise ConfigurationError(
            f"namespace {namespace!r} has schema {schema}, this version of redis-world "
            f"writes schema {SCHEMA}: install a version that knows schema {schema}, "
            "or use another namespace"
        )
    if partitions != config.partitions:
        raise ConfigurationError(
            f"namespace {namespace!r} was created with partitions={partitions}, not "
            f"{config.partitions}: open it with partitions={partitions}, "
            "or use another namespace"
        )
    return bool(reply[0] == b"CREATED")


async def _ask_until(
    passes: Callable[[Exception], bool],
    client: redis.asyncio.Redis,
    commands: list[Command],
    seconds: float,
) -> list[Reply]:
    """Ask again, for so many seconds, after trouble that passes."""
    patience = Patience(seconds)
    while True:
        refusal: Exception | None
        try:
            replies = await round_trip(client, commands)
            # INFO may be denied, or not be there; likewise what only saves time.
            needed = [
                reply
                for command, reply in zip(commands, replies, strict=True)
                if command[0] != "INFO" and command[:2] != ("SCRIPT", "EXISTS")
            ]
            refusal = first_refusal(needed)
        except redis.exceptions.RedisError as error:
            refusal = error
        if refusal is None:
            return replies
        if not passes(refusal) or not await patience.pause():
            raise refusal


def _check_version(info: Mapping[str, Any]) -> None:
    """Refuse a server without `XADD key 0-*` and friends."""
    name = "valkey" if info.get("valkey_version") else "redis"
    text = str(info.get(f"{name}_version", ""))
    try:
        version = tuple(int(part) for part in text.split(".")[:2])
    except ValueError:
        return
    if version and version < MIN_VERSIONS[name]:
        raise ConfigurationError(
            f"the server is {name.capitalize()} {text}; redis-world needs Redis 7.0 or Valkey 8.0 "
            "or newer"
        )


def _check_eviction(info: Mapping[str, Any]) -> None:
    policy = info.get("maxmemory_policy")
    if policy is not None and policy != "noeviction":
        text = (
            f"the server's maxmemory-policy is {policy}: when its memory is full it deletes keys "
            "of runs. Set `maxmemory-policy noeviction`"
        )
        logger.warning(text, extra={"event": "server.evicts", "maxmemory_policy": policy})
        warnings.warn(text, RuntimeWarning, stacklevel=2)
