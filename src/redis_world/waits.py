"""`world.waits`: reading waits (contract, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_world.connection import Connection
from redis_world.models import Page, SortOrder, Wait
from redis_world.paging import (
    DEFAULT_LIMIT,
    check_limit,
    check_order,
    make_page,
    parse_cursor,
    read_page,
)
from redis_world.refusals import raise_refusal
from redis_world.rows import wait_from
from redis_world.values import text

__all__ = ["Waits"]


class Waits:
    """Reads waits. Only events change them; the end of a run removes its waits."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, run_id: str, correlation_id: str) -> Wait:
        """Read a wait.

        Raises:
            WaitNotFoundError: the run has no such wait, has ended, or does not exist.
        """
        limit = self._connection.config.max_name_bytes
        run_id = text(run_id, "run_id", limit)
        correlation_id = text(correlation_id, "correlation_id", limit)
        keys = self._connection.partitions.of(run_id).of_run(run_id)
        reply = await self._connection.call(
            "waits/get", {"wait_states": keys.wait_states}, {"correlation_id": correlation_id}
        )
        if reply[0] != b"OK":
            raise_refusal(reply, run_id=run_id, entity_id=correlation_id)
        return wait_from(run_id, correlation_id, reply[1])

    async def list(
        self,
        run_id: str,
        *,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
        sort_order: SortOrder = "asc",
    ) -> Page[Wait]:
        """List the waits of a run in the order of their creation.

        Raises:
            InvalidCursorError: the cursor does not come from this listing.
        """
        run_id = text(run_id, "run_id", self._connection.config.max_name_bytes)
        keys = self._connection.partitions.of(run_id).of_run(run_id)
        order = check_order(sort_order)

        async def ask(after: str, count: int) -> Sequence[Any]:
            return await self._connection.call(
                "waits/list",
                {"waits": keys.waits, "wait_states": keys.wait_states},
                {"order": order, "after": after, "limit": str(count)},
            )

        reply = await read_page(ask, parse_cursor("waits", cursor), check_limit(limit))
        return make_page(
            "waits", reply, lambda row: wait_from(run_id, row[1].decode(), row[2]), cursor
        )
