"""What a look at a server brings: its replies, and its refusals among them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import redis.asyncio
import redis.exceptions

from redis_world.checkup.finding import Finding
from redis_world.checkup.nodes import Nodes
from redis_world.checkup.rights import RIGHTS, rights
from redis_world.config import WorldConfig
from redis_world.connection import Command
from redis_world.connection.namespaces import Namespaces, list_namespaces
from redis_world.connection.redis_errors import first_refusal
from redis_world.connection.sender import Reply, round_trip
from redis_world.keys import Partitions, meta_key

__all__ = [
    "RIGHTS",
    "Facts",
    "Reading",
    "adopt_partitions",
    "ask_namespace",
    "ask_server",
    "find_others",
    "read_clock",
]

_INFO: Final = ("server", "memory", "persistence", "replication")
_SETTINGS: Final = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save")

_WAIT_SECONDS: Final = 1.0
"""For a replica to answer; a World waits for `durability_timeout`."""


class Reading(NamedTuple):
    """One look at the server's clock; all in seconds."""

    server: float
    host: float
    """This machine's clock, in the middle of the round trip."""
    monotonic: float
    """The clock that nobody sets, likewise."""
    round_trip: float


@dataclass(frozen=True)
class Facts:
    """What is known of a server.

    Attributes:
        config: what the World would be opened with.
        user: whom the server knows the World as.
        is_memory: whether it is the embedded store, of which most of this is not to be had.
        replies: by the command: `INFO memory`, `CONFIG GET save`, `HELLO` and so on.
        others: the namespaces of the server, when there is none of this name.
    """

    config: WorldConfig
    user: str
    is_memory: bool = False
    replies: Mapping[str, Reply] = field(default_factory=dict)
    others: Namespaces | None = None

    @cached_property
    def partitions(self) -> Partitions:
        """The keys of the namespace."""
        return _partitions_of(self.config)

    def info(self, section: str) -> Mapping[str, Any]:
        """A section of INFO; empty when it was refused."""
        reply = self.replies.get(f"INFO {section}")
        return reply if isinstance(reply, Mapping) else {}

    def hello(self, name: str) -> str:
        """What HELLO says, which no ACL can deny; empty when there is none."""
        reply = self.replies.get("HELLO")
        if not isinstance(reply, list):
            return ""
        value = dict(zip(reply[::2], reply[1::2], strict=False)).get(name.encode(), b"")
        return value.decode() if isinstance(value, bytes) else str(value)

    def setting(self, name: str, section: str = "", field: str = "") -> str | None:
        """A setting of the server, of INFO or else of CONFIG; None when neither tells it."""
        if field in self.info(section):
            return str(self.info(section)[field])
        reply = self.replies.get(f"CONFIG GET {name}")
        if isinstance(reply, list) and len(reply) == 2:
            return str(reply[1].decode())
        return None

    def grant(self, rights: str) -> str:
        """The command that gives the World's user more rights."""
        return f"`ACL SETUSER {self.user} {rights}`"

    def grant_all(self) -> str:
        """The command that gives the World's user all that it needs."""
        return self.grant(rights(self.config.namespace, durability=self.config.durability))

    def unknown(
        self, name: str, what: str, command: str, right: str, reply: Reply = None
    ) -> Finding:
        """The finding where a command was refused.

        Args:
            name: of the finding.
            what: could not be read.
            command: that was refused.
            right: what the user lacks, when that is why.
            reply: to the command, where `replies` does not have it.
        """
        reply = reply or self.replies.get(command)
        if isinstance(reply, redis.exceptions.NoPermissionError):
            text = f"Can't read {what}: user {self.user} may not run {command}"
            return Finding(name=name, level="unknown", text=text, advice=self.grant(right))
        why = f"the server answers {command} with {reply}" if reply else f"{command} has no answer"
        text = f"Can't read {what}: {why}"
        return Finding(
            name=name, level="unknown", text=text, advice="ask the operator of the server"
        )


def _partitions_of(config: WorldConfig) -> Partitions:
    assert config.partitions is not None, "adopt_partitions comes first"
    return Partitions(config.namespace, config.partitions)


async def adopt_partitions(nodes: Nodes, config: WorldConfig) -> WorldConfig:
    """The options, with the namespace's own number of partitions where they leave it open."""
    if config.partitions is not None:
        return config
    (reply,) = await nodes.ask([("HGET", meta_key(config.namespace), "partitions")])
    is_number = isinstance(reply, bytes) and reply.isdigit()
    return config.model_copy(update={"partitions": int(reply) if is_number else 1})


async def find_others(nodes: Nodes, shared: Mapping[str, Reply]) -> Namespaces | None:
    """The namespaces of the server, where the one that was asked for does not exist."""
    reply = shared["HMGET"]
    if not isinstance(reply, list) or reply[0] is not None:
        return None
    return await list_namespaces(nodes.clients)


async def ask_server(client: redis.asyncio.Redis, config: WorldConfig) -> dict[str, Reply]:
    """Ask for what the checks of a server judge, in one round trip. Nothing is changed."""
    keys = _partitions_of(config)[0]
    commands: dict[str, Command] = {
        "HELLO": ("HELLO",),
        **{f"INFO {section}": ("INFO", section) for section in _INFO},
        **{f"CONFIG GET {name}": ("CONFIG", "GET", name) for name in _SETTINGS},
        # A channel that nobody waits at.
        "PUBLISH": ("PUBLISH", keys.queue_channel(""), ""),
    }
    match config.durability:
        case "replica":
            # The hint above goes to the replicas, too: they have to say that they have it.
            seconds = min(config.durability_timeout, _WAIT_SECONDS)
            commands["WAIT"] = ("WAIT", 1, math.ceil(seconds * 1000))
        case "disk":
            commands["WAITAOF"] = ("WAITAOF", 1, 0, 1)
    replies = await round_trip(client, [*commands.values()])
    return dict(zip(commands, replies, strict=True))


async def ask_namespace(nodes: Nodes, config: WorldConfig) -> dict[str, Reply]:
    """Ask for what the checks of a namespace judge. Nothing is changed.

    Of the replies of many partitions there is the first refusal, or else what all of them say.
    """
    partitions = _partitions_of(config)
    meta, *replies = await nodes.ask(
        [
            ("HMGET", partitions[0].meta, "schema", "partitions", "swept_at"),
            *(("SMEMBERS", keys.topics) for keys in partitions),
            # A write that changes nothing, for what denies writes: the ACL, a full memory or
            # disk, a replica. XX: it only updates, and no run has this name.
            *(("ZADD", keys.parked, "XX", 0, "") for keys in partitions),
        ]
    )
    topics, writes = replies[: len(partitions)], replies[len(partitions) :]
    return {
        "HMGET": meta,
        "SMEMBERS": first_refusal(topics) or {name for names in topics for name in names},
        "ZADD": first_refusal(writes) or 0,
    }


async def read_clock(client: redis.asyncio.Redis) -> Reading | Exception:
    """Read the server's clock; its refusal when it does not tell."""
    began, host = time.monotonic(), time.time()
    (reply,) = await round_trip(client, [("TIME",)])
    took = time.monotonic() - began
    if isinstance(reply, Exception):
        return reply
    server = int(reply[0]) + int(reply[1]) / 1e6
    return Reading(server, host + took / 2, began + took / 2, took)
