"""`world.hooks`: reading live hooks (contract, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redis_world.connection import Connection
from redis_world.models import Hook, Page, ResolveData, ResumeCapabilities, SortOrder
from redis_world.paging import DEFAULT_LIMIT, check_limit, check_order, make_page, parse_cursor
from redis_world.rows import hook_from, raise_refusal

__all__ = ["Hooks"]

RESUME_DEDUP_VERSION: Final = 1
"""A resume id is recorded once per run."""


class Hooks:
    """Reads live hooks; they change through events alone, and go with the end of their run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(
        self, hook_id: str, *, run_id: str | None = None, resolve_data: ResolveData = "all"
    ) -> Hook:
        """Read a hook; where several runs have one of this id, the newest run's.

        Raises:
            HookNotFoundError: there is no live one.
        """
        keys = self._connection.keys
        reply = await self._connection.call(
            "hooks/get",
            {"hook_runs": keys.hook_runs(hook_id)},
            {
                "base": keys.base,
                "hook_id": hook_id,
                "run_id": run_id or "",
                "resolve_data": resolve_data,
            },
        )
        if reply[0] != b"OK":
            raise_refusal(reply, entity_id=hook_id)
        return self._hook(reply[1], resolve_data)

    async def get_by_token(self, token: str, *, resolve_data: ResolveData = "all") -> Hook:
        """Read the hook that holds a token, with what this World can do for its resume.

        Raises:
            HookNotFoundError: the token is free.
        """
        keys = self._connection.keys
        reply = await self._connection.call(
            "hooks/get_by_token",
            {"token": keys.token(token)},
            {"base": keys.base, "resolve_data": resolve_data},
        )
        if reply[0] != b"OK":
            raise_refusal(reply, entity_id=token)
        capabilities = ResumeCapabilities(hook_resume_dedup_version=RESUME_DEDUP_VERSION)
        hook = self._hook(reply[1], resolve_data)
        return hook.model_copy(update={"resume_capabilities": capabilities})

    async def list(
        self,
        run_id: str | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
        sort_order: SortOrder = "asc",
        resolve_data: ResolveData = "all",
    ) -> Page[Hook]:
        """List the hooks of a run, or of all runs, in the order of their creation.

        Raises:
            InvalidCursorError: the cursor is not one of this listing.
        """
        keys = self._connection.keys
        listing = "all_hooks" if run_id is None else "hooks"
        args = {
            "base": keys.base,
            "resolve_data": resolve_data,
            "order": check_order(sort_order),
            "after": parse_cursor(listing, cursor),
            "limit": str(check_limit(limit)),
        }
        if run_id is None:
            reply = await self._connection.call(
                "hooks/list_all", {"all_hooks": keys.all_hooks}, args
            )
        else:
            reply = await self._connection.call(
                "hooks/list", {"hooks": keys.of_run(run_id).hooks}, {**args, "run_id": run_id}
            )
        return make_page(listing, reply, lambda row: self._hook(row[1], resolve_data), cursor)

    def _hook(self, row: Sequence[Any], resolve_data: ResolveData) -> Hook:
        environment = self._connection.config.environment
        return hook_from(row, row[2], environment, resolve_data)
