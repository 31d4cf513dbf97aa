"""Builders of events in the wire's form, and of runs in a state, for tests of the contract."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from ulid import ULID

from redis_world import RedisWorld
from redis_world.models import Event, EventResult

Wire: TypeAlias = dict[str, Any]

ALL_BYTES: Final = bytes(range(256))
"""A payload with NUL and every other value of a byte."""

PAYLOADS: Final[dict[str, Any]] = {
    "bytes": ALL_BYTES,
    "no bytes": b"",
    "text": "",
    "None": None,
    "a number": 0,
    "a structure": {"list": [1, 2.5, None, {"b": b"\x00"}], "text": "\u00e9\U0001f600"},
}
"""Values of a payload field that must stay apart; an absent field is one more."""

CREATION: Final[Wire] = {"deploymentId": "dpl_1", "workflowName": "workflow//w", "input": b"in"}
"""What a run is made of."""

RUN_STATES: Final = ("pending", "running", "completed", "failed", "cancelled")
TERMINAL: Final = ("completed", "failed", "cancelled")


def event(kind: str, correlation_id: str | None = None, /, **data: Any) -> Wire:
    """An event with this data; without any, `eventData` is absent."""
    wire: Wire = {"eventType": kind}
    if correlation_id is not None:
        wire["correlationId"] = correlation_id
    if data:
        wire["eventData"] = data
    return wire


def run_created(**data: Any) -> Wire:
    return event("run_created", **{**CREATION, **data})


def resilient_start(**data: Any) -> Wire:
    """A run_started that can create its run."""
    return event("run_started", **{**CREATION, **data})


def run_ended(status: str) -> Wire:
    """The terminal event that leads to this status."""
    data: dict[str, Wire] = {
        "completed": {"output": b"out"},
        "failed": {"error": b"err", "errorCode": "E1"},
        "cancelled": {},
    }
    return event(f"run_{status}", **data[status])


def attr_set(
    changes: Mapping[str, str | None] | Sequence[Wire],
    correlation_id: str | None = None,
    *,
    step: str | None = None,
    **data: Any,
) -> Wire:
    """An attribute write by the workflow, or by the first attempt of a step."""
    if isinstance(changes, Mapping):
        changes = [{"key": key, "value": value} for key, value in changes.items()]
    writer: Wire = {"type": "workflow"}
    if step is not None:
        writer = {"type": "step", "stepId": step, "attempt": 1}
    return event("attr_set", correlation_id, changes=list(changes), writer=writer, **data)


def step_created(step_id: str = "step_1", **data: Any) -> Wire:
    return event("step_created", step_id, **{"stepName": "s", "input": b"in", **data})


def step_started(step_id: str = "step_1", **data: Any) -> Wire:
    return event("step_started", step_id, **data)


def lazy_start(step_id: str = "step_1", **data: Any) -> Wire:
    """A step_started that creates its step."""
    return event("step_started", step_id, **{"stepName": "s", "input": b"in", **data})


def step_completed(step_id: str = "step_1", **data: Any) -> Wire:
    return event("step_completed", step_id, **{"result": b"res", **data})


def step_failed(step_id: str = "step_1", **data: Any) -> Wire:
    return event("step_failed", step_id, **{"error": b"err", **data})


def step_retrying(step_id: str = "step_1", **data: Any) -> Wire:
    return event("step_retrying", step_id, **{"error": b"again", **data})


def hook_created(hook_id: str = "hook_1", token: str = "token_1", **data: Any) -> Wire:
    return event("hook_created", hook_id, token=token, **data)


def hook_received(hook_id: str = "hook_1", **data: Any) -> Wire:
    return event("hook_received", hook_id, **{"payload": b"sent", **data})


def hook_disposed(hook_id: str = "hook_1", **data: Any) -> Wire:
    return event("hook_disposed", hook_id, **data)


def wait_created(wait_id: str = "wait_1", resume_at: datetime | None = None, **data: Any) -> Wire:
    moment = resume_at or datetime(2040, 1, 1, tzinfo=UTC)
    return event("wait_created", wait_id, resumeAt=moment, **data)


def wait_completed(wait_id: str = "wait_1", **data: Any) -> Wire:
    return event("wait_completed", wait_id, **data)


# -- runs ----------------------------------------------------------------------------------


def run_id_at(moment: datetime) -> str:
    """A run id that a client made at this moment."""
    time_ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return f"wrun_{ULID.from_bytes(time_ms.to_bytes(6, 'big') + secrets.token_bytes(10))}"


def new_run_id() -> str:
    """A run id as a client makes it now."""
    return run_id_at(datetime.now(UTC))


async def new_run(world: RedisWorld, status: str = "running", **data: Any) -> str:
    """A run of this status."""
    result = await world.events.create(None, run_created(**data))
    assert result.run is not None
    run_id = result.run.run_id
    if status != "pending":
        await world.events.create(run_id, event("run_started"), skip_preload=True)
    if status in TERMINAL:
        await world.events.create(run_id, run_ended(status))
    return run_id


async def write(world: RedisWorld, run_id: str, *events: Wire) -> EventResult:
    """Create events one after another; the result of the last."""
    results = [await world.events.create(run_id, each) for each in events]
    return results[-1]


async def attempt(
    world: RedisWorld, run_id: str | None, wire: Wire, **params: Any
) -> EventResult | Exception:
    """Create an event; its result, or the error that it raised."""
    try:
        return await world.events.create(run_id, wire, **params)
    except Exception as error:  # noqa: BLE001 - which errors may come is the caller's matter
        return error


async def race(
    worlds: Sequence[RedisWorld],
    run_ids: str | Sequence[str],
    events: Sequence[Wire],
    **params: Any,
) -> list[EventResult | Exception]:
    """Create all events at once, spread over the Worlds; results and errors in their order."""
    ids = [run_ids] * len(events) if isinstance(run_ids, str) else run_ids
    return await asyncio.gather(
        *(
            attempt(worlds[i % len(worlds)], run_id, each, **params)
            for i, (run_id, each) in enumerate(zip(ids, events, strict=True))
        )
    )


# -- logs ----------------------------------------------------------------------------------


async def log(world: RedisWorld, run_id: str) -> list[Event]:
    """The whole log."""
    return (await world.events.list(run_id)).data


async def log_types(world: RedisWorld, run_id: str) -> list[str]:
    """The types of the whole log's events."""
    return [each.event_type for each in await log(world, run_id)]


def event_id(slot: int) -> str:
    return f"evnt_{slot:026d}"


def data_of(some_event: Event | None) -> Wire:
    """The wire form of an event's data."""
    assert some_event is not None
    data = some_event.to_wire().get("eventData")
    assert isinstance(data, dict)
    return data
