"""The janitor: removes what has had its time (contract, section 5, retention).

Runs go some time after their end, hooks that outlived their run at the time until which they were
to. What is large goes piece by piece, so that no script holds the server for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from redis_world.cleaning import go_on
from redis_world.codec import to_duration_ms
from redis_world.connection import Connection
from redis_world.keys import Keys
from redis_world.tokens import release_stale

__all__ = ["FinishedRun", "Janitor"]

_AT_ONCE: Final = 100
"""What one look finds, and what is removed at a time."""
_MAX_LOOKS: Final = 1000
"""Looks of one round: what is left then is the next round's."""


Mode: TypeAlias = Literal["", "postpone", "look"]


class FinishedRun(NamedTuple):
    """A run that ended a while ago, and its place in the index of those."""

    run_id: str
    status: str
    since: str


class Janitor:
    """Removes runs and hooks of a partition after their retention."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys

    async def clean(self) -> dict[str, int]:
        """Do one round.

        Returns:
            How many have gone: `expired_hooks` and `removed_runs`.
        """
        hooks = await self._expire_hooks()
        retention = self._connection.config.retention
        removed = 0
        if retention is not None:
            age = to_duration_ms(retention, "retention")
            for _ in range(_MAX_LOOKS):
                runs, more, _ = await self._look(str(age), None)
                removed += sum(await self.remove([r.run_id for r in runs], age, "postpone"))
                if not more:
                    break
        await self._finish_cleaning()
        if len(self._connection.partitions) > 1:
            await release_stale(self._connection, self._keys)
        return {"expired_hooks": hooks, "removed_runs": removed}

    async def finished(self, older_than: int) -> AsyncIterator[Sequence[FinishedRun]]:
        """The runs that ended at least so many ms ago, oldest first, in pages."""
        place: FinishedRun | None = None
        more = True
        while more:
            runs, more, _ = await self._look(str(older_than), place)
            if runs:
                place = runs[-1]
                yield runs

    async def remove(self, run_ids: Sequence[str], older_than: int, mode: Mode = "") -> list[bool]:
        """Remove runs that ended at least so many ms ago; which of them have gone.

        A run stays as long as one of its hooks has to; with `postpone` it is not found before
        that time either. With `look` nothing is removed.
        """
        gone = await asyncio.gather(
            *(self._remove(run_id, older_than, mode) for run_id in run_ids)
        )
        return [*gone]

    # -- inside ----------------------------------------------------------------------------

    async def _look(
        self, older_than: str, place: FinishedRun | None
    ) -> tuple[list[FinishedRun], bool, list[str]]:
        """A page of finished runs, whether there are more, and what is left to be cleaned."""
        keys = self._keys
        reply = await self._connection.call(
            "runs/finished",
            {"finished": keys.finished, "cleaning": keys.cleaning},
            {
                "base": keys.base,
                "older_than": older_than,
                "after_time": "" if place is None else place.since,
                "after_id": "" if place is None else place.run_id,
                "limit": str(_AT_ONCE),
            },
        )
        runs = [
            FinishedRun(run_id.decode(), status.decode(), since.decode())
            for since, run_id, status in reply[2]
        ]
        return runs, reply[1] == b"1", [member.decode() for member in reply[3]]

    async def _remove(self, run_id: str, older_than: int, mode: Mode) -> bool:
        keys = self._keys
        of_run = keys.of_run(run_id)
        after = b"0"
        while True:
            reply = await self._connection.call(
                "runs/remove",
                {"run": of_run.run, "hooks": of_run.hooks, "finished": keys.finished},
                {
                    "base": keys.base,
                    "run_id": run_id,
                    "older_than": str(older_than),
                    "mode": mode,
                    "after": after,
                },
            )
            if reply[0] != b"MORE":
                break
            after = reply[1]
        if reply[0] != b"OK":
            return False
        if reply[1] != b"1":
            await go_on(self._connection, "run", run_id)
        return True

    async def _expire_hooks(self) -> int:
        keys = self._keys
        total = 0
        for _ in range(_MAX_LOOKS):
            reply = await self._connection.call(
                "hooks/expire",
                {"retained": keys.retained},
                {"base": keys.base, "limit": str(_AT_ONCE)},
            )
            count = int(reply[1])
            total += count
            if count < _AT_ONCE:
                break
        return total

    async def _finish_cleaning(self) -> None:
        """Go on with what another script, or a janitor that is gone, has begun."""
        for _ in range(_MAX_LOOKS):
            _, _, members = await self._look("", None)
            chores = [member.partition("/") for member in members]
            # One that fails keeps no other from being done.
            ends = await asyncio.gather(
                *(go_on(self._connection, kind, run_id) for kind, _, run_id in chores),
                return_exceptions=True,
            )
            for error in ends:
                if error is not None:
                    raise error
            if len(members) < _AT_ONCE:
                break
