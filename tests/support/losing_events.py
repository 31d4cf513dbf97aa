"""Every event, and what is there before it, to be recorded while replies are lost."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from redis_world import RedisWorld
from redis_world.models import EventResult
from redis_world.testing import ManualClock
from support.events import (
    Wire,
    attr_set,
    event,
    event_id,
    hook_created,
    hook_disposed,
    hook_received,
    lazy_start,
    resilient_start,
    run_created,
    run_ended,
    step_completed,
    step_created,
    step_failed,
    step_retrying,
    step_started,
    wait_completed,
    wait_created,
)
from support.losing import MOMENT, OTHER, RUN, Case, Prepare

__all__ = ["EVENTS", "LATER", "REFUSED", "Recording", "create_run", "of_run", "recording"]


@dataclass(frozen=True)
class Recording:
    """One event, what is written before it, and the run's status before that."""

    wire: Wire
    before: tuple[Wire, ...]
    status: str | None
    run_id: str | None
    prepare: Prepare | None
    params: Mapping[str, Any]

    def case(self, *, refused: bool = False, **more: Any) -> Case:
        async def prepare(world: RedisWorld, clock: ManualClock) -> None:
            if self.status is not None:
                await create_run(world, RUN, self.status)
            if self.prepare is not None:
                await self.prepare(world, clock)
            for each in self.before:
                await world.events.create(RUN, each)

        def call(world: RedisWorld, _: None) -> Awaitable[EventResult]:
            return world.events.create(self.run_id, self.wire, **self.params, **more)

        return Case(f"events/{self.wire['eventType']}", call, prepare, refused)


def of_run(wire: Wire, number: int) -> Wire:
    """The same event for another run: a token is one run's alone."""
    data = wire.get("eventData") or {}
    if "token" not in data:
        return wire
    return {**wire, "eventData": {**data, "token": f"token_{number}"}}


def recording(
    wire: Wire,
    *before: Wire,
    status: str | None = "running",
    run_id: str | None = RUN,
    prepare: Prepare | None = None,
    **params: Any,
) -> Recording:
    return Recording(wire, before, status, run_id, prepare, params)


async def create_run(world: RedisWorld, run_id: str, status: str) -> None:
    await world.events.create(run_id, run_created(attributes={"a": "1"}))
    if status != "pending":
        await world.events.create(run_id, event("run_started"))
    if status not in {"pending", "running"}:
        await world.events.create(run_id, run_ended(status))


async def take_token(world: RedisWorld, _: ManualClock) -> None:
    await create_run(world, OTHER, "running")
    await world.events.create(OTHER, hook_created("hook_9", "token_1"))


async def resume(world: RedisWorld, _: ManualClock) -> None:
    await world.events.create(RUN, hook_created())
    await world.events.create(RUN, hook_received(), resume_id="r1", payload_digest="d1")


LATER: Final = MOMENT + timedelta(hours=1)
SINCE: Final = f"eid:{event_id(1)}"
BY_STEP: Final = attr_set({"a": "2"}, "attr_1", step="step_1")

EVENTS: Final[dict[str, Recording]] = {
    "run_created": recording(
        run_created(attributes={"a": "1"}, executionContext={"b": 2}), status=None
    ),
    "run_created, id made here": recording(run_created(), status=None, run_id=None),
    "run_started": recording(event("run_started"), status="pending"),
    "run_started, no preload": recording(
        event("run_started"), status="pending", skip_preload=True
    ),
    "run_started, running": recording(event("run_started")),
    "run_started, resilient": recording(resilient_start(attributes={"a": "1"}), status=None),
    "run_started, resilient, pending": recording(resilient_start(), status="pending"),
    "run_completed": recording(
        run_ended("completed"), hook_created(), wait_created(), lazy_start()
    ),
    "run_failed": recording(run_ended("failed"), hook_created(), wait_created()),
    "run_cancelled": recording(run_ended("cancelled"), hook_created(), wait_created()),
    "run_cancelled again": recording(run_ended("cancelled"), status="cancelled"),
    "attr_set of the workflow": recording(attr_set({"b": "2", "a": None}, "attr_1")),
    "attr_set without an id": recording(attr_set({"b": "2"})),
    "attr_set of a step": recording(BY_STEP, lazy_start()),
    "attr_set of a step again": recording(BY_STEP, lazy_start(), BY_STEP),
    "step_created": recording(step_created()),
    "step_started": recording(step_started(), step_created()),
    "step_started again": recording(step_started(), lazy_start()),
    "step_started, lazy": recording(lazy_start()),
    "step_completed": recording(step_completed(), lazy_start()),
    "step_completed, bare": recording(step_completed(result=None), lazy_start()),
    "step_completed, run ended": recording(step_completed(), lazy_start(), run_ended("completed")),
    "step_completed, since": recording(step_completed(), lazy_start(), since_cursor=SINCE),
    "step_completed, counted": recording(step_completed(), lazy_start(), event_count=2),
    "step_failed": recording(step_failed(), lazy_start()),
    "step_retrying": recording(step_retrying(), lazy_start()),
    "step_retrying, later": recording(step_retrying(retryAfter=LATER), lazy_start()),
    "hook_created": recording(hook_created(metadata=b"m", isWebhook=True)),
    "hook_created, conflict": recording(hook_created(), prepare=take_token),
    "hook_received": recording(hook_received(), hook_created()),
    "hook_received again": recording(hook_received(), hook_created(), hook_received()),
    "hook_received, preloaded": recording(hook_received(), hook_created(), preload_events=True),
    "hook_received, resume id": recording(
        hook_received(), hook_created(), resume_id="r1", payload_digest="d1"
    ),
    "hook_received, resumed": recording(hook_received(), prepare=resume, resume_id="r1"),
    "hook_disposed": recording(hook_disposed(), hook_created()),
    "wait_created": recording(wait_created()),
    "wait_completed": recording(wait_completed(), wait_created()),
}

REFUSED: Final[dict[str, Recording]] = {
    "run_created": recording(run_created()),
    "run_started": recording(event("run_started"), status="completed"),
    "run_started, missing": recording(event("run_started"), status=None),
    "run_completed": recording(run_ended("completed"), status="completed"),
    "run_failed": recording(run_ended("failed"), status="completed"),
    "run_cancelled": recording(run_ended("cancelled"), status="completed"),
    "attr_set": recording(attr_set({"b": "1"}, "a1"), attr_set({}, "a1")),
    "step_created": recording(step_created(), step_created()),
    "step_started, lazy": recording(lazy_start(), lazy_start()),
    "step_started": recording(step_started(), lazy_start(), step_completed()),
    "step_started, early": recording(
        step_started(), lazy_start(), step_retrying(retryAfter=LATER)
    ),
    "step_completed": recording(step_completed(), lazy_start(), step_completed()),
    "step_failed": recording(step_failed(), lazy_start(), step_completed()),
    "step_retrying": recording(step_retrying(), lazy_start(), step_failed()),
    "hook_created": recording(hook_created(), hook_created()),
    "hook_created, conflict": recording(hook_created(), hook_created(), prepare=take_token),
    "hook_received": recording(hook_received(), hook_created(), hook_disposed()),
    "hook_received, resumed": recording(
        hook_received(), prepare=resume, resume_id="r1", payload_digest="d2"
    ),
    "hook_disposed": recording(hook_disposed(), hook_created(), hook_disposed()),
    "wait_created": recording(wait_created(), wait_created()),
    "wait_completed": recording(wait_completed(), wait_created(), wait_completed()),
}
