"""Reading runs, steps, hooks and waits (contract, section 6)."""

from __future__ import annotations

import asyncio
import builtins
from collections import Counter
from collections.abc import Sequence
from typing import Final, get_args

from redis_world.codec import Duration, to_duration_ms, to_ms
from redis_world.errors import (
    EntityConflictError,
    HookNotFoundError,
    InvalidEventError,
    InvalidInputError,
    RunNotFoundError,
    StepNotFoundError,
    WaitNotFoundError,
    WorldError,
)
from redis_world.events.validation import validate_event
from redis_world.models import (
    CancelManyResult,
    CancelOutcome,
    CancelSummary,
    Hook,
    Page,
    ResolveData,
    ResumeCapabilities,
    Run,
    RunCancelledData,
    RunCancelledEvent,
    RunStatus,
    SortOrder,
    Step,
    Wait,
)
from redis_world.paging import DEFAULT_LIMIT
from redis_world.testing.reference.events import ReferenceEvents
from redis_world.testing.reference.pages import make_page
from redis_world.testing.reference.request import check_text
from redis_world.testing.reference.state import TERMINAL, Entity, State
from redis_world.testing.reference.views import hook_view, run_view, step_view, wait_view

__all__ = ["ReferenceHooks", "ReferenceRuns", "ReferenceSteps", "ReferenceWaits"]

_STATUSES: Final[tuple[str, ...]] = get_args(RunStatus)


_MAX_CANCELLED: Final = 500


class ReferenceRuns:
    """Reads runs, and cancels many; they change through events alone."""

    def __init__(self, state: State, events: ReferenceEvents) -> None:
        self._state = state
        self._events = events

    async def cancel_many(
        self, run_ids: Sequence[str], reason: str | None = None
    ) -> CancelManyResult:
        """Cancel runs, each by itself; one that is cancelled already is left as it is.

        Args:
            run_ids: 1 to 500 ids, each one once.
            reason: up to 512 UTF-16 units, kept on the events.

        Raises:
            InvalidInputError: the ids or the reason can't be; no run was cancelled.
        """
        ids = [*run_ids]
        check_text(*ids, reason)
        if not 1 <= len(ids) <= _MAX_CANCELLED or len({*ids}) < len(ids):
            raise InvalidInputError(
                f"can cancel 1 to {_MAX_CANCELLED} different runs at once, not {len(ids)} "
                f"({len({*ids})} different)"
            )
        data = None if reason is None else RunCancelledData(cancel_reason=reason)
        event = RunCancelledEvent() if data is None else RunCancelledEvent(event_data=data)
        try:
            validate_event(event)
        except InvalidEventError as error:
            raise InvalidInputError(str(error)) from None
        results = [await self._cancel(run_id, event) for run_id in ids]
        counts = Counter(each.outcome for each in results)
        summary = CancelSummary(
            requested=len(ids),
            cancelled=counts["cancelled"],
            already_cancelled=counts["already_cancelled"],
            not_cancellable=counts["not_cancellable"],
            not_found=counts["not_found"],
            failed=counts["failed"],
        )
        return CancelManyResult(summary=summary, results=results)

    async def _cancel(self, run_id: str, event: RunCancelledEvent) -> CancelOutcome:
        run = self._state.runs.get(run_id)
        if run is None:
            return CancelOutcome(run_id=run_id, outcome="not_found")
        status = run.fields["status"]
        try:
            if status == "cancelled":
                return CancelOutcome(run_id=run_id, outcome="already_cancelled")
            await self._events.create(run_id, event)
        except EntityConflictError:
            return CancelOutcome(run_id=run_id, outcome="not_cancellable", status=status)
        except WorldError as error:
            return CancelOutcome(run_id=run_id, outcome="failed", code=error.code, retryable=False)
        return CancelOutcome(run_id=run_id, outcome="cancelled")

    async def get(self, run_id: str, *, resolve_data: ResolveData = "all") -> Run:
        """Read a run.

        Raises:
            RunNotFoundError: there is none.
        """
        run = (await self.get_many([run_id], resolve_data=resolve_data))[0]
        if run is None:
            raise RunNotFoundError(run_id)
        return run

    async def get_many(
        self, run_ids: Sequence[str], *, resolve_data: ResolveData = "all"
    ) -> builtins.list[Run | None]:
        """Read runs in the order of their ids, None for a missing one."""
        check_text(*run_ids)
        found = (self._state.runs.get(run_id) for run_id in run_ids)
        return [None if run is None else run_view(run, resolve_data) for run in found]

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
        """List runs by their ids, newest first by default; `status=[]` gives none."""
        if isinstance(status, str):
            status = [status]
        check_text(workflow_name)
        for name in status or ():
            if name not in _STATUSES:
                raise InvalidInputError(f"{name!r} is not a run status")
        found = [
            run
            for run in self._state.runs.values()
            if workflow_name in (None, run.fields["workflow_name"])
            and (status is None or run.fields["status"] in status)
        ]
        return make_page(
            "runs",
            found,
            place=lambda run: run.fields["run_id"],
            view=lambda run: run_view(run, resolve_data),
            limit=limit,
            cursor=cursor,
            sort_order=sort_order,
        )

    async def wait_for_terminal(
        self,
        run_id: str,
        *,
        timeout: Duration = 25.0,  # noqa: ASYNC109 - it is no error
        resolve_data: ResolveData = "all",
    ) -> Run:
        """Wait until a run is terminal, and read it; at the timeout, as it is then.

        The timeout passes on the event loop, whatever the World's clock says.

        Raises:
            RunNotFoundError: there is no such run, at once.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + to_duration_ms(timeout, "timeout") / 1000
        while True:
            changed = self._state.changed.next()
            run = await self.get(run_id, resolve_data=resolve_data)
            if run.status in TERMINAL:
                return run
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                return await self.get(run_id, resolve_data=resolve_data)


class ReferenceSteps:
    """Reads steps; they change through events alone."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def get(self, run_id: str, step_id: str, *, resolve_data: ResolveData = "all") -> Step:
        """Read a step.

        Raises:
            StepNotFoundError: the run has no such step, or there is no such run.
        """
        check_text(run_id, step_id)
        run = self._state.runs.get(run_id)
        if run is None or step_id not in run.steps:
            raise StepNotFoundError(step_id)
        return step_view(run.steps[step_id], resolve_data)

    async def list(
        self,
        run_id: str,
        *,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
        sort_order: SortOrder = "asc",
        resolve_data: ResolveData = "all",
    ) -> Page[Step]:
        """List the steps of a run in the order of their creation."""
        check_text(run_id)
        run = self._state.runs.get(run_id)
        steps = [] if run is None else [*enumerate(run.steps.values(), start=1)]
        return make_page(
            "steps",
            steps,
            place=lambda step: step[0],
            view=lambda step: step_view(step[1], resolve_data),
            limit=limit,
            cursor=cursor,
            sort_order=sort_order,
            parse=int,
        )


class ReferenceHooks:
    """Reads live hooks; they change through events alone, and go with the end of their run."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def get(
        self, hook_id: str, *, run_id: str | None = None, resolve_data: ResolveData = "all"
    ) -> Hook:
        """Read a hook; where several runs have one of this id, the newest one.

        Raises:
            HookNotFoundError: there is no live one.
        """
        check_text(hook_id, run_id)
        found = [
            hook
            for hook in self._state.hooks()
            if hook.fields["hook_id"] == hook_id
            and (run_id or None) in (None, hook.fields["run_id"])
        ]
        if not found:
            raise HookNotFoundError(hook_id)
        newest = max(found, key=lambda hook: (hook.fields["created_at"], hook.fields["run_id"]))
        return self._view(newest, resolve_data)

    async def get_by_token(self, token: str, *, resolve_data: ResolveData = "all") -> Hook:
        """Read the hook that holds a token, with what this World can do for its resume.

        Raises:
            HookNotFoundError: the token is free.
        """
        check_text(token)
        for hook in self._state.hooks():
            if hook.fields["token"] == token:
                capabilities = ResumeCapabilities(hook_resume_dedup_version=1)
                shown = self._view(hook, resolve_data)
                return shown.model_copy(update={"resume_capabilities": capabilities})
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
        """List the hooks of a run, or of all runs, in the order of their creation."""
        if run_id is None:
            return make_page(
                "all_hooks",
                self._state.hooks(),
                place=_place,
                view=lambda hook: self._view(hook, resolve_data),
                limit=limit,
                cursor=cursor,
                sort_order=sort_order,
            )
        check_text(run_id)
        run = self._state.runs.get(run_id)
        hooks = [] if run is None else run.live_hooks(self._state.now()).values()
        return make_page(
            "hooks",
            hooks,
            place=lambda hook: hook.slot,
            view=lambda hook: self._view(hook, resolve_data),
            limit=limit,
            cursor=cursor,
            sort_order=sort_order,
            parse=int,
        )

    def _view(self, hook: Entity, resolve_data: ResolveData) -> Hook:
        run = self._state.runs[hook.fields["run_id"]]
        return hook_view(hook, run, self._state.config.environment, resolve_data)


class ReferenceWaits:
    """Reads waits; they change through events alone, and go with the end of their run."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def get(self, run_id: str, correlation_id: str) -> Wait:
        """Read a wait.

        Raises:
            WaitNotFoundError: the run has no such wait, or it ended, or there is no such run.
        """
        check_text(run_id, correlation_id)
        run = self._state.runs.get(run_id)
        if run is None or correlation_id not in run.waits:
            raise WaitNotFoundError(correlation_id)
        return wait_view(run.waits[correlation_id])

    async def list(
        self,
        run_id: str,
        *,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
        sort_order: SortOrder = "asc",
    ) -> Page[Wait]:
        """List the waits of a run in the order of their creation."""
        check_text(run_id)
        run = self._state.runs.get(run_id)
        waits = [] if run is None else run.waits.values()
        return make_page(
            "waits",
            waits,
            place=lambda wait: wait.slot,
            view=wait_view,
            limit=limit,
            cursor=cursor,
            sort_order=sort_order,
            parse=int,
        )


def _place(hook: Entity) -> str:
    """Where a hook stands among those of all runs: creation, hook id, run; text sorts it."""
    created_ms = to_ms(hook.fields["created_at"])
    hook_id: str = hook.fields["hook_id"]
    return f"{created_ms:015d}/{hook_id.encode().hex()}/{hook.fields['run_id']}"
