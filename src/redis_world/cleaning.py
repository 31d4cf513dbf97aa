"""What is too large for one script is gone on with piece by piece."""

from __future__ import annotations

import contextlib

from redis_world.connection import Connection
from redis_world.errors import NotDurableError, WorldUnavailableError

__all__ = ["go_on", "go_on_if_possible"]


async def go_on(connection: Connection, kind: str, run_id: str) -> None:
    """Do to the end what `cleaning` has of a run.

    Args:
        connection: to the partitions.
        kind: `hooks`, `streams`, `messages` or `run`, which are deleted, `log`, whose payloads
            are, or `keep`, the streams that were there before their run.
        run_id: the run.

    Raises:
        WorldUnavailableError: the rest is left to the next sweep.
    """
    keys = connection.partitions.of(run_id)
    after = b""
    while True:
        reply = await connection.call(
            "runs/clean",
            {"run": keys.of_run(run_id).run, "cleaning": keys.cleaning},
            {"base": keys.base, "kind": kind, "run_id": run_id, "after": after},
        )
        after = reply[1]
        if not after:
            return


async def go_on_if_possible(connection: Connection, kind: str, run_id: str) -> None:
    """The same behind a call that has done its own part: what fails here the next sweep does."""
    with contextlib.suppress(WorldUnavailableError, NotDurableError):
        await go_on(connection, kind, run_id)
