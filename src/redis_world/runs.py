"""`world.runs`: reading runs (contract, section 6)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, get_args

from redis_world.cleaning import go_on_if_possible
from redis_world.codec import Duration, encode_data, to_duration_ms
from redis_world.connection import Connection
from redis_world.errors import (
    InvalidInputError,
    NotDurableError,
    RunNotFoundError,
    ThrottleError,
    WorldError,
    WorldUnavailableError,
)
from redis_world.ids import new_request_id
from redis_world.keys import Keys
from redis_world.models import (
    CancelManyResult,
    CancelOutcome,
    CancelSummary,
    Page,
    ResolveData,
    Run,
    RunStatus,
    SortOrder,
)
from redis_world.paging import (
    ask_all,
    check_limit,
    check_order,
    check_resolve_data,
    make_page,
    merge,
    parse_cursor,
    read_page,
)
from redis_world.payloads import read_run, with_payloads
from redis_world.refusals import SPEC_VERSION, refusal
from redis_world.rows import run_from
from redis_world.text import MAX_CANCEL_REASON_UNITS, utf16_units
from redis_world.values import items, shown, text

__all__ = ["MAX_CANCELLED", "TERMINAL", "Runs", "check_terminal"]

TERMINAL: Final = ("completed", "failed", "cancelled")
_STATUSES: Final[tuple[str, ...]] = get_args(RunStatus)
MAX_CANCELLED: Final = 500
_LOOK_SECONDS: Final = 1.0
"""How often a waiter polls while it has no subscription."""


class Runs:
    """Reads runs and cancels many at once. Only events change runs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, run_id: str, *, resolve_data: ResolveData = "all") -> Run:
        """Read a run.

        Raises:
            RunNotFoundError: there is none.
        """
        run_id = text(run_id, "run_id", self._connection.config.max_name_bytes)
        run = (await self.get_many([run_id], resolve_data=resolve_data))[0]
        if run is None:
            raise RunNotFoundError(run_id)
        return run

    async def get_many(
        self, run_ids: Sequence[str], *, resolve_data: ResolveData = "all"
    ) -> list[Run | None]:
        """Read runs in the order of their ids, None for a missing one.

        All in one round trip, and in one or more further ones for large payloads.
        """
        ids = self._check_ids(run_ids)
        resolve_data = check_resolve_data(resolve_data)
        replies = await asyncio.gather(
            *(read_run(self._connection, run_id, resolve_data) for run_id in ids)
        )
        return [
            None if reply[0] != b"OK" else run_from(run_id, reply[1], resolve_data)
            for run_id, reply in zip(ids, replies, strict=True)
        ]

    def _check_ids(self, run_ids: Iterable[str]) -> list[str]:
        limit = self._connection.config.max_name_bytes
        return [text(each, "run_ids", limit) for each in items(run_ids, "run_ids")]

    async def list(
        self,
        *,
        workflow_name: str | None = None,
        status: RunStatus | Sequence[RunStatus] | None = None,
        limit: int = 20,
        cursor: str | None = None,
        sort_order: SortOrder = "desc",
        resolve_data: ResolveData = "all",
    ) -> Page[Run]:
        """List runs by their ids, newest first by default.

        Args:
            workflow_name: only runs of this workflow.
            status: only runs with this status, or with one of several; an empty list gives none.
            limit: 1 to 1,000.
            cursor: the cursor of an earlier page.
            sort_order: `asc` or `desc`.
            resolve_data: `none` leaves payloads out.

        Raises:
            InvalidCursorError: the cursor does not come from this listing.
        """
        place = parse_cursor("runs", cursor)
        statuses = _check_statuses(status)
        limit = check_limit(limit)
        sort_order = check_order(sort_order)
        resolve_data = check_resolve_data(resolve_data)
        if workflow_name is not None:
            name_limit = self._connection.config.max_name_bytes
            workflow_name = text(workflow_name, "workflow_name", name_limit)
        if statuses is not None and not statuses:
            return Page[Run].model_construct(None, data=[], cursor=cursor, has_more=False)
        if statuses is None:
            statuses = [] if workflow_name is None else list(_STATUSES)
        args = {
            "resolve_data": resolve_data,
            "order": sort_order,
            # A prefix keeps a workflow named "" apart from no name at all.
            "workflow_name": "" if workflow_name is None else f"={workflow_name}",
            "statuses": statuses,
        }

        async def ask(keys: Keys, after: str, count: int) -> Sequence[Any]:
            page = {"base": keys.base, "after": after, "limit": str(count), **args}
            return await with_payloads(
                self._connection,
                lambda: self._connection.call("runs/list", {"runs": keys.runs}, page),
                lambda reply: [(row[0].decode(), row[1][1]) for row in reply[2]],
            )

        replies = await ask_all(
            [read_page(partial(ask, keys), place, limit) for keys in self._connection.partitions]
        )
        return make_page(
            "runs",
            merge(replies, limit, sort_order),
            lambda row: run_from(row[0].decode(), row[1], resolve_data),
            cursor,
        )

    async def cancel_many(
        self, run_ids: Sequence[str], reason: str | None = None
    ) -> CancelManyResult:
        """Cancel runs independently of each other, in one round trip (contract, section 6).

        Unlike a second run_cancelled, it writes nothing to a cancelled run.

        Args:
            run_ids: 1 to 500 different ids.
            reason: up to 512 UTF-16 units, stored on the events.

        Returns:
            The outcome of each run, in their order, including the error of a run that failed.

        Raises:
            InvalidInputError: the ids or the reason are invalid; no run was cancelled.
        """
        ids = self._check_ids([run_ids] if isinstance(run_ids, str) else run_ids)
        reason = _check_cancellation(ids, reason, self._connection.config.max_name_bytes)
        outcomes = await asyncio.gather(*(self._cancel(run_id, reason) for run_id in ids))
        counts = Counter(each.outcome for each in outcomes)
        summary = CancelSummary(
            requested=len(ids),
            cancelled=counts["cancelled"],
            already_cancelled=counts["already_cancelled"],
            not_cancellable=counts["not_cancellable"],
            not_found=counts["not_found"],
            failed=counts["failed"],
        )
        return CancelManyResult(summary=summary, results=[*outcomes])

    async def _cancel(self, run_id: str, reason: str | None) -> CancelOutcome:
        keys = self._connection.partitions.of(run_id)
        of_run = keys.of_run(run_id)
        data = {} if reason is None else {"cancelReason": reason}
        try:
            reply = await self._connection.call(
                "events/run_cancelled",
                {
                    "run": of_run.run,
                    "attributes": of_run.attributes,
                    "events": of_run.events,
                    "payloads": of_run.payloads,
                    "ops": of_run.ops,
                    "waits": of_run.waits,
                    "wait_states": of_run.wait_states,
                },
                {
                    "base": keys.base,
                    "outbox": b"",
                    "op": new_request_id(),
                    "run_id": run_id,
                    "spec_version": str(SPEC_VERSION),
                    "occurred_at": "",
                    "correlation_id": "",
                    "data": encode_data(data, "eventData of run_cancelled") if data else b"",
                    "payload": b"",
                    "resolve_data": "none",
                    "once": "1",
                },
            )
        except WorldError as error:
            return _failed(run_id, error)
        match reply[0]:
            case b"OK":
                if reply[5]:
                    await go_on_if_possible(self._connection, "log", run_id)
                return CancelOutcome(run_id=run_id, outcome="cancelled")
            case b"RUN_NOT_FOUND":
                return CancelOutcome(run_id=run_id, outcome="not_found")
            case b"RUN_TERMINAL":
                status = reply[1].decode()
                if status == "cancelled":
                    return CancelOutcome(run_id=run_id, outcome="already_cancelled")
                return CancelOutcome(run_id=run_id, outcome="not_cancellable", status=status)
            case _:
                return _failed(run_id, refusal(reply, run_id=run_id))

    async def wait_for_terminal(
        self,
        run_id: str,
        *,
        timeout: Duration = 25.0,  # noqa: ASYNC109 - it is no error
        resolve_data: ResolveData = "all",
    ) -> Run:
        """Wait until a run is terminal, and read it.

        Returns as soon as the notification of the run's end arrives, also from another process. At
        the timeout it returns the run as it is then.

        Raises:
            RunNotFoundError: the run does not exist. Raised at once.
        """
        run_id = text(run_id, "run_id", self._connection.config.max_name_bytes)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + to_duration_ms(timeout, "timeout") / 1000
        if await self._is_over(run_id):
            return await self.get(run_id, resolve_data=resolve_data)
        # What there is to return at the time-out where the server does not answer any more.
        snapshot = await self.get(run_id, resolve_data="none")
        is_over = False
        # At the time-out it is the latest snapshot that there is, and no error.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._wait_for_end(run_id)
            is_over = True
        while True:
            try:
                # Payloads of any size may take their time.
                async with asyncio.timeout(None if is_over else _LOOK_SECONDS):
                    return await self.get(run_id, resolve_data=resolve_data)
            except TimeoutError:
                return snapshot
            except WorldUnavailableError:
                # Lost since the end was seen: the snapshot is of before.
                left = deadline - loop.time()
                if not is_over or left <= 0:
                    return snapshot
            await asyncio.sleep(min(_LOOK_SECONDS, left))

    async def _is_over(self, run_id: str) -> bool:
        """Whether a run is terminal: a look that reads none of its payloads."""
        run = self._connection.partitions.of(run_id).of_run(run_id).run
        (status,) = await self._connection.execute(("HGET", run, "status"))
        if status is None:
            raise RunNotFoundError(run_id)
        return status.decode() in TERMINAL

    async def _wait_for_end(self, run_id: str) -> None:
        channel = self._connection.partitions.of(run_id).of_run(run_id).done
        hub = self._connection.hub
        async with hub.subscribe(channel, hears_losses=True) as hints:
            while True:
                with contextlib.suppress(WorldUnavailableError):
                    if await self._is_over(run_id):
                        return
                await hints.wait(hub.rest(hints, _LOOK_SECONDS))


def _check_cancellation(ids: Sequence[str], reason: str | None, limit: int) -> str | None:
    if not 1 <= len(ids) <= MAX_CANCELLED:
        raise InvalidInputError(f"can cancel 1 to {MAX_CANCELLED} runs at once, not {len(ids)}")
    if len({*ids}) < len(ids):
        twice = next(each for each, count in Counter(ids).items() if count > 1)
        raise InvalidInputError(f"run {shown(twice)} is named twice: name each run once")
    if reason is None:
        return None
    reason = text(reason, "reason", limit)
    units = utf16_units(reason)
    if units > MAX_CANCEL_REASON_UNITS:
        raise InvalidInputError(
            f"reason has {units} UTF-16 units; the limit is {MAX_CANCEL_REASON_UNITS}"
        )
    return reason


def _failed(run_id: str, error: WorldError) -> CancelOutcome:
    retryable = isinstance(error, WorldUnavailableError | NotDurableError | ThrottleError)
    return CancelOutcome(run_id=run_id, outcome="failed", code=error.code, retryable=retryable)


def _check_statuses(status: RunStatus | Sequence[RunStatus] | None) -> list[str] | None:
    if status is None:
        return None
    return sorted(_names(status, _STATUSES, "status of a run"))


def check_terminal(status: str | Sequence[str]) -> set[str]:
    """The terminal statuses that are named.

    Raises:
        InvalidInputError: one is not a status, or not terminal.
    """
    return _names(status, TERMINAL, "terminal status")


def _names(status: str | Iterable[str], allowed: Sequence[str], kind: str) -> set[str]:
    names = [status] if isinstance(status, str) else items(status, "status")
    for name in names:
        if not isinstance(name, str) or name not in allowed:
            raise InvalidInputError(
                f"{shown(name)} is not a {kind}: use one of {', '.join(allowed)}"
            )
    return {str.__str__(name) for name in names}
