"""`world.hooks`: reading live hooks (contract, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from redis_world.connection import Connection
from redis_world.errors import HookNotFoundError
from redis_world.keys import Keys
from redis_world.models import Hook, Page, ResolveData, ResumeCapabilities, SortOrder
from redis_world.paging import (
    DEFAULT_LIMIT,
    ask_all,
    check_limit,
    check_order,
    check_resolve_data,
    make_page,
    merge,
    parse_cursor,
    read_page,
)
from redis_world.payloads import Found, with_payloads
from redis_world.rows import hook_from, pairs
from redis_world.values import text

__all__ = ["Hooks"]

RESUME_DEDUP_VERSION: Final = 1
"""A resume id is recorded once per run."""


class Hooks:
    """Reads live hooks. Only events change them; the end of a run removes its hooks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(
        self, hook_id: str, *, run_id: str | None = None, resolve_data: ResolveData = "all"
    ) -> Hook:
        """Read a hook. If several runs have a hook with this id, read the newest one.

        Raises:
            HookNotFoundError: no live hook has this id.
        """
        limit = self._connection.config.max_name_bytes
        hook_id = text(hook_id, "hook_id", limit)
        if run_id is not None:
            run_id = text(run_id, "run_id", limit)
        resolve_data = check_resolve_data(resolve_data)
        # An id may be a hook of several runs; without a run all partitions are asked.
        partitions = self._connection.partitions
        asked = [*partitions] if run_id is None else [partitions.of(run_id)]
        replies = await ask_all(
            [self._get(keys, hook_id, run_id or "", resolve_data) for keys in asked]
        )
        found = [self._hook(reply[1], resolve_data) for reply in replies if reply[0] == b"OK"]
        if not found:
            raise HookNotFoundError(hook_id)
        return max(found, key=lambda hook: (hook.created_at, hook.run_id))

    async def _get(
        self, keys: Keys, hook_id: str, run_id: str, resolve_data: ResolveData
    ) -> Sequence[Any]:
        place: Sequence[Any] = (b"", b"")
        while True:
            args = {
                "base": keys.base,
                "hook_id": hook_id,
                "run_id": run_id,
                "resolve_data": resolve_data,
                "before_time": place[0],
                "before_run": place[1],
            }
            reply = await with_payloads(
                self._connection,
                partial(
                    self._connection.call,
                    "hooks/get",
                    {"hook_runs": keys.hook_runs(hook_id)},
                    args,
                ),
                _metadata_of_one,
            )
            if reply[0] != b"MORE":
                return reply
            place = reply[1:]

    async def get_by_token(self, token: str, *, resolve_data: ResolveData = "all") -> Hook:
        """Read the hook that holds a token, with the World's `resume_capabilities`.

        Raises:
            HookNotFoundError: no live hook has this token.
        """
        token = text(token, "token", self._connection.config.max_name_bytes, secret=True)
        resolve_data = check_resolve_data(resolve_data)
        keys = self._connection.partitions.of(token)
        if len(self._connection.partitions) == 1:
            reply = await with_payloads(
                self._connection,
                lambda: self._connection.call(
                    "hooks/get_by_token",
                    {"token": keys.token(token)},
                    {"base": keys.base, "resolve_data": resolve_data},
                ),
                _metadata_of_one,
            )
            if reply[0] != b"OK":
                raise HookNotFoundError.of_token()
            hook = self._hook(reply[1], resolve_data)
        else:
            hook = await self._holder(keys, token, resolve_data)
        capabilities = ResumeCapabilities(hook_resume_dedup_version=RESUME_DEDUP_VERSION)
        return hook.model_copy(update={"resume_capabilities": capabilities})

    async def _holder(self, keys: Keys, token: str, resolve_data: ResolveData) -> Hook:
        """The hook that a token's record names, if it lives and has this token."""
        (owner,) = await self._connection.execute(("HMGET", keys.token(token), "run", "hook"))
        if owner[0] is not None:
            run_id, hook_id = owner[0].decode(), owner[1].decode()
            of_run = self._connection.partitions.of(run_id)
            reply = await self._get(of_run, hook_id, run_id, resolve_data)
            if reply[0] == b"OK":
                hook = self._hook(reply[1], resolve_data)
                # One that was reserved for it may have been created with another one.
                if hook.token == token:
                    return hook
        raise HookNotFoundError.of_token()

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
            InvalidCursorError: the cursor does not come from this listing.
        """
        listing = "all_hooks" if run_id is None else "hooks"
        name_limit = self._connection.config.max_name_bytes
        if run_id is not None:
            run_id = text(run_id, "run_id", name_limit)
        resolve_data = check_resolve_data(resolve_data)
        limit = check_limit(limit)
        after = parse_cursor(listing, cursor, name_limit)
        args = {"resolve_data": resolve_data, "order": check_order(sort_order)}

        async def ask(keys: Keys, after: str, count: int) -> Sequence[Any]:
            page = {"base": keys.base, "after": after, "limit": str(count), **args}
            if run_id is None:
                call = partial(
                    self._connection.call, "hooks/list_all", {"all_hooks": keys.all_hooks}, page
                )
            else:
                of_run = keys.of_run(run_id)
                call = partial(
                    self._connection.call,
                    "hooks/list",
                    {"run": of_run.run, "hooks": of_run.hooks},
                    {**page, "run_id": run_id},
                )
            return await with_payloads(
                self._connection, call, lambda reply: [_metadata(row[1]) for row in reply[2]]
            )

        partitions = self._connection.partitions
        asked = [*partitions] if run_id is None else [partitions.of(run_id)]
        replies = await ask_all([read_page(partial(ask, keys), after, limit) for keys in asked])
        reply = merge(replies, limit, sort_order)
        return make_page(listing, reply, lambda row: self._hook(row[1], resolve_data), cursor)

    def _hook(self, row: Sequence[Any], resolve_data: ResolveData) -> Hook:
        environment = self._connection.config.environment
        return hook_from(row, row[2], environment, resolve_data)


def _metadata(row: Sequence[Any]) -> Found:
    """The run of a hook, and its payloads."""
    return pairs(row[0])[b"run_id"].decode(), row[1]


def _metadata_of_one(reply: Sequence[Any]) -> list[Found]:
    return [_metadata(reply[1])] if reply[0] == b"OK" else []
