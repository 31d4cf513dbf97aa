"""`world.steps`: reading steps (contract, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_world.connection import Connection
from redis_world.models import Page, ResolveData, SortOrder, Step
from redis_world.paging import (
    DEFAULT_LIMIT,
    check_limit,
    check_order,
    check_resolve_data,
    make_page,
    parse_cursor,
    read_page,
)
from redis_world.payloads import with_payloads
from redis_world.refusals import raise_refusal
from redis_world.rows import step_from
from redis_world.values import text

__all__ = ["Steps"]


class Steps:
    """Reads steps. Only events change them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, run_id: str, step_id: str, *, resolve_data: ResolveData = "all") -> Step:
        """Read a step.

        Raises:
            StepNotFoundError: the run has no such step, or there is no such run.
        """
        limit = self._connection.config.max_name_bytes
        run_id, step_id = text(run_id, "run_id", limit), text(step_id, "step_id", limit)
        resolve_data = check_resolve_data(resolve_data)
        keys = self._connection.partitions.of(run_id).of_run(run_id)
        reply = await with_payloads(
            self._connection,
            lambda: self._connection.call(
                "steps/get",
                {"run": keys.run, "events": keys.events},
                {"step_id": step_id, "resolve_data": resolve_data},
            ),
            lambda reply: [(run_id, reply[1][1])] if reply[0] == b"OK" else [],
        )
        if reply[0] != b"OK":
            raise_refusal(reply, run_id=run_id, entity_id=step_id)
        return step_from(run_id, step_id, reply[1], resolve_data)

    async def list(
        self,
        run_id: str,
        *,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
        sort_order: SortOrder = "asc",
        resolve_data: ResolveData = "all",
    ) -> Page[Step]:
        """List the steps of a run in the order of their creation.

        Raises:
            InvalidCursorError: the cursor does not come from this listing.
        """
        run_id = text(run_id, "run_id", self._connection.config.max_name_bytes)
        resolve_data = check_resolve_data(resolve_data)
        limit = check_limit(limit)
        keys = self._connection.partitions.of(run_id).of_run(run_id)
        order = check_order(sort_order)

        async def ask(after: str, count: int) -> Sequence[Any]:
            page = {
                "resolve_data": resolve_data,
                "order": order,
                "after": after,
                "limit": str(count),
            }
            return await with_payloads(
                self._connection,
                lambda: self._connection.call(
                    "steps/list", {"run": keys.run, "events": keys.events}, page
                ),
                lambda reply: [(run_id, row[2][1]) for row in reply[2]],
            )

        reply = await read_page(ask, parse_cursor("steps", cursor), limit)
        return make_page(
            "steps",
            reply,
            lambda row: step_from(run_id, row[1].decode(), row[2], resolve_data),
            cursor,
        )
