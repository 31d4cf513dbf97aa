"""The least that a user of the server may do for a World to work."""

from __future__ import annotations

import re
from typing import Final

from redis_world.checkup.rights import rights
from redis_world.lua import script_root

__all__ = ["CHECKING", "CONNECTING", "READING", "acl_rule", "minimal_commands"]

_CALL: Final = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'")

CONNECTING: Final = (
    *("hello", "auth", "select", "ping", "time", "info", "cluster|slots", "command|info"),
    *(
        "eval",
        "evalsha",
        "script|exists",
        "script|load",
        "subscribe",
        "unsubscribe",
        "wait",
        "pubsub|numsub",
    ),
)
"""What connections, checks and waiting need; `durability="disk"` needs waitaof, too."""
READING: Final = (
    "exists",
    "hget",
    "hmget",
    "hset",
    "smembers",
    "xrange",
    "zcard",
    "zrange",
    "zrem",
)
"""What Python sends beside scripts."""
CHECKING: Final = ("get", "hgetall", "hkeys", "pttl", "scan", "set", "type")
"""What `check_invariants` and `ManualClock` need besides."""


def minimal_commands() -> list[str]:
    """All commands of a World, those in its scripts included."""
    scripted = {
        command.lower()
        for path in script_root().rglob("*.lua")
        for command in _CALL.findall(path.read_text(encoding="utf-8"))
    }
    return sorted({*CONNECTING, *READING, *scripted})


def acl_rule(namespaces: str, *, more: tuple[str, ...] = ()) -> list[str]:
    """The rule of a user of these namespaces, a glob-style pattern, in words."""
    return [*rights(namespaces).split(), *(f"+{command}" for command in more)]
