"""Has the queue judged by a script in the server, after every operation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis_world import RedisWorld

__all__ = ["Judge", "Verdict"]

_SOURCE: Final = Path(__file__).with_name("simulation_invariants.lua").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge has found.

    Attributes:
        wrong: a sentence for everything that must not be so.
        leased: the receipt of each leased message, by its id.
        dead: run and kind of each dead letter, by its id.
    """

    wrong: list[str]
    leased: dict[str, str]
    dead: dict[str, tuple[str, str]]


class Judge:
    """Looks at the raw keys of one World's queue."""

    def __init__(self, world: RedisWorld) -> None:
        self._connection = world.connection
        self._serialized = "1" if world.config.serialize_runs else ""
        self._sha = b""

    async def look(self, needing: Collection[str] = ()) -> Verdict:
        """Judge what is there.

        Args:
            needing: runs with an event that no replay has begun after.
        """
        if not self._sha:
            (self._sha,) = await self._connection.execute(("SCRIPT", "LOAD", _SOURCE))
        base = self._connection.keys.base
        (reply,) = await self._connection.execute(
            ("EVALSHA", self._sha, 1, f"{base}topics", base, self._serialized, *needing)
        )
        wrong, leased, dead = ([part.decode() for part in parts] for parts in reply)
        return Verdict(
            wrong,
            dict(zip(leased[::2], leased[1::2], strict=True)),
            {
                message_id: (run_id, kind)
                for message_id, run_id, kind in zip(dead[::3], dead[1::3], dead[2::3], strict=True)
            },
        )
