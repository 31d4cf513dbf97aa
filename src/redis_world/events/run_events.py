"""Wrappers of the scripts of a run's own events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_world.codec import encode_data
from redis_world.events.request import Call, Request, payloads_of_entity, result_of
from redis_world.events.validation import MAX_ATTRIBUTES, creates_run
from redis_world.ids import run_id_time
from redis_world.models import (
    AttrSetEvent,
    EventResult,
    RunCancelledEvent,
    RunCompletedEvent,
    RunCreatedData,
    RunCreatedEvent,
    RunFailedEvent,
    RunStartedData,
    RunStartedEvent,
)
from redis_world.rows import run_from
from redis_world.text import utf8

__all__ = [
    "attr_set",
    "run_cancelled",
    "run_completed",
    "run_created",
    "run_failed",
    "run_started",
]


def _run_result(request: Request, reply: Sequence[Any], **event_changes: Any) -> EventResult:
    slot = reply[1]
    return result_of(
        event=request.stored_event(slot, reply[2], **event_changes),
        run=run_from(request.run_id, reply[4], request.resolve_data, request.own_payload(slot)),
        max_events=request.config.max_events_per_run,
    )


def _creation_args(data: RunCreatedData | RunStartedData) -> dict[str, Any]:
    context = data.execution_context
    attributes = (data.attributes or {}).items()
    return {
        "deployment_id": data.deployment_id or "",
        "workflow_name": data.workflow_name or "",
        "execution_context": _optional(
            None if context is None else encode_data(context, "executionContext")
        ),
        "encryption_public_key": _optional(data.encryption_public_key),
        "attribute_pairs": [part for pair in attributes for part in pair],
    }


def _optional(value: str | bytes | None) -> bytes:
    """A value that may be absent, as an argument: empty, or the value behind a `=`."""
    if value is None:
        return b""
    return b"=" + (utf8(value) if isinstance(value, str) else value)


def _run_keys(request: Request) -> dict[str, str]:
    run = request.run
    return {
        "run": run.run,
        "attributes": run.attributes,
        "events": run.events,
        "payloads": run.payloads,
    }


def run_created(request: Request) -> Call:
    """Create a run."""
    assert isinstance(request.event, RunCreatedEvent)
    data = request.event.event_data
    assert data is not None
    id_time = run_id_time(request.run_id)
    stored, payload = request.split(data)
    return Call(
        script="events/run_created",
        keys=_run_keys(request),
        args={
            **request.common(),
            **_creation_args(data),
            "run_id": request.run_id,
            "id_time": "" if request.made_id else str(id_time),
            "data": stored,
            "payload": payload,
            "resolve_data": request.resolve_data,
        },
        read=lambda reply: _run_result(request, reply),
        payloads=payloads_of_entity,
        goes_on="keep",
    )


def run_started(request: Request) -> Call:
    """Start a run, creating it first when it is missing and the event carries its data."""
    event = request.event
    assert isinstance(event, RunStartedEvent)
    creates = creates_run(event)
    data = event.event_data if creates and event.event_data is not None else RunStartedData()
    if creates:
        run_id_time(request.run_id)
    stored, payload = request.split(data)

    def read(reply: Sequence[Any]) -> EventResult:
        if reply[0] == b"RUNNING":
            return result_of(
                run=run_from(request.run_id, reply[4], request.resolve_data),
                max_events=request.config.max_events_per_run,
            )
        return _run_result(request, reply, event_data=None)

    return Call(
        script="events/run_started",
        keys=_run_keys(request),
        args={
            **request.common(),
            **_creation_args(data),
            "run_id": request.run_id,
            "creates": "1" if creates else "",
            "data": stored,
            "payload": payload,
            "resolve_data": request.resolve_data,
        },
        read=read,
        accepted=(b"OK", b"RUNNING"),
        payloads=payloads_of_entity,
        goes_on="keep",
    )


def _finish(request: Request, **extra: bytes | str) -> Call:
    run = request.run
    stored, payload = request.split(request.event.event_data)
    return Call(
        script=f"events/{request.event.event_type}",
        keys={
            **_run_keys(request),
            "ops": run.ops,
            "waits": run.waits,
            "wait_states": run.wait_states,
        },
        args={
            **request.common(),
            "run_id": request.run_id,
            "data": stored,
            "payload": payload,
            "resolve_data": request.resolve_data,
            **extra,
        },
        read=lambda reply: _run_result(request, reply),
        payloads=payloads_of_entity,
        goes_on="log",
    )


def run_completed(request: Request) -> Call:
    """End a run well."""
    assert isinstance(request.event, RunCompletedEvent)
    return _finish(request)


def run_failed(request: Request) -> Call:
    """End a run with an error."""
    assert isinstance(request.event, RunFailedEvent)
    data = request.event.event_data
    assert data is not None
    return _finish(request, error_code=_optional(data.error_code))


def run_cancelled(request: Request) -> Call:
    """Cancel a run."""
    assert isinstance(request.event, RunCancelledEvent)
    return _finish(request, once="")


def attr_set(request: Request) -> Call:
    """Change the attributes of a run."""
    assert isinstance(request.event, AttrSetEvent)
    data = request.event.event_data
    assert data is not None
    run = request.run
    stored, _ = request.split(data)
    changes: list[str] = []
    for change in data.changes:
        kind = "remove" if change.value is None else "set"
        changes += [change.key, kind, change.value or ""]
    once = data.writer.type == "workflow" and request.correlation_id
    return Call(
        script="events/attr_set",
        keys={**_run_keys(request), "claims": run.claims, "ops": run.ops},
        args={
            **request.common(),
            "run_id": request.run_id,
            "data": stored,
            "resolve_data": request.resolve_data,
            "max_events": request.max_events,
            "max_attributes": str(MAX_ATTRIBUTES),
            "claims_once": "1" if once else "",
            "change_triples": changes,
        },
        read=lambda reply: _run_result(request, reply),
        payloads=payloads_of_entity,
        entity_id=request.correlation_id,
    )
