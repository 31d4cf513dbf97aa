"""What each script costs a real server: commands that it calls, bytes that it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
import redis

from redis_world.connection import Connection

__all__ = ["Cost", "Meter", "size_of"]

_OWN: Final = ("cmdstat_evalsha", "cmdstat_config|resetstat", "cmdstat_info", "cmdstat_ping")
"""Commands that no script has called."""


@dataclass
class Cost:
    """The largest call of a script."""

    calls: int = 0
    commands: int = 0
    bytes: int = 0
    microseconds: int = 0
    """Of the server, to be looked at: how fast it is differs from machine to machine."""


def size_of(reply: Any) -> int:
    """The bytes of a reply, without what frames them."""
    if isinstance(reply, bytes):
        return len(reply)
    return sum(map(size_of, reply)) if isinstance(reply, list) else 0


class Meter:
    """Measures every script that Worlds of this process call from now on, one at a time."""

    def __init__(self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        self.costs: dict[str, Cost] = {}
        self.reads: dict[str, Cost] = {}
        """The same of plain commands, by their names."""
        self._client = client
        self._turn = asyncio.Lock()
        run, execute = Connection.run, Connection.execute
        meter = self

        async def metered_call(
            connection: Connection,
            name: str,
            words: Sequence[Any],
            commands: Sequence[Any] = (),
        ) -> list[Any]:
            async with meter._turn:
                meter._client.config_resetstat()
                replies = await run(connection, name, words)
                meter._note(name, replies[0])
            if commands:
                replies = [*replies, *await connection.execute(*commands)]
            return replies

        async def metered_execute(connection: Connection, *commands: Any) -> list[Any]:
            replies = await execute(connection, *commands)
            for command, reply in zip(commands, replies, strict=True):
                cost = meter.reads.setdefault(command[0], Cost())
                cost.calls += 1
                cost.bytes = max(cost.bytes, size_of(reply))
            return replies

        monkeypatch.setattr(Connection, "run", metered_call)
        monkeypatch.setattr(Connection, "execute", metered_execute)

    def _note(self, name: str, reply: Any) -> None:
        stats: dict[str, Any] = self._client.info("commandstats")
        cost = self.costs.setdefault(name, Cost())
        cost.calls += 1
        commands = sum(each["calls"] for key, each in stats.items() if key not in _OWN)
        # A call whose reply was long in coming is sent again.
        tries = stats["cmdstat_evalsha"]["calls"]
        cost.commands = max(cost.commands, commands // tries)
        cost.bytes = max(cost.bytes, size_of(reply))
        cost.microseconds = max(cost.microseconds, stats["cmdstat_evalsha"]["usec"] // tries)

    def table(self) -> str:
        """All of it, a line each."""
        return "\n".join(
            f"{name:24} {cost.calls:>7} calls {cost.commands:>7} commands {cost.bytes:>11} bytes "
            f"{cost.microseconds / 1000:>9.2f} ms"
            for name, cost in sorted({**self.costs, **self.reads}.items())
        )
