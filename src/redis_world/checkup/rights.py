"""The rights that a user of the server needs for a World: the text of doctor and of the manual."""

from __future__ import annotations

from typing import Final

__all__ = ["RIGHTS", "patterns", "rights"]

_COMMANDS: Final = (
    "auth", "cluster|slots", "command|info", "del", "eval", "evalsha", "exists",
    "expire", "get", "hdel", "hello", "hexists", "hget", "hgetall",
    "hkeys", "hlen", "hmget", "hscan", "hset", "incr", "info",
    "persist", "ping", "publish", "pubsub|numsub", "rename", "sadd", "script|exists",
    "script|load", "select", "set", "smembers", "subscribe", "time", "unlink", "unsubscribe",
    "wait", "xadd", "xlen", "xrange", "zadd", "zcard", "zcount",
    "zpopmin", "zrandmember", "zrange", "zrem", "zscore",
)  # fmt: skip
RIGHTS: Final = " ".join(f"+{each}" for each in _COMMANDS)
"""All commands that a World, its workers and `redis-world inspect` send, and no others."""


def patterns(namespaces: str) -> str:
    """The keys and channels of a namespace, or of those that a glob-style pattern names.

    A brace closes the name, or a slash does: those of `orders2` are others.
    """
    return f"~{{{namespaces}}}:* ~{{{namespaces}/* &{{{namespaces}/*"


def rights(namespaces: str, *, durability: str = "memory") -> str:
    """All that a user needs, as ACL SETUSER has it."""
    more = " +waitaof" if durability == "disk" else ""
    return f"{patterns(namespaces)} {RIGHTS}{more}"
