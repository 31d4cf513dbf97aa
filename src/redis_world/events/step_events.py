"""Wrappers of the scripts of a step's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis_world.codec import encode_data, to_ms
from redis_world.events.request import (
    Call,
    Request,
    payloads_of_entity,
    result_of,
    without_field,
)
from redis_world.models import (
    EventResult,
    Step,
    StepCreatedData,
    StepCreatedEvent,
    StepRetryingEvent,
    StepStartedData,
    StepStartedEvent,
)
from redis_world.rows import step_from

__all__ = ["step_created", "step_ended", "step_retrying", "step_started"]


def _step_keys(request: Request) -> dict[str, str]:
    run = request.run
    return {"run": run.run, "events": run.events, "payloads": run.payloads}


def _step(request: Request, reply: Sequence[Any]) -> Step:
    return step_from(
        request.run_id,
        request.correlation_id,
        reply[4],
        request.resolve_data,
        request.own_payload(reply[1]),
    )


def _new_step_result(request: Request, data: StepCreatedData, reply: Sequence[Any]) -> EventResult:
    # The reply has no row: all of a new step is known, but the time.
    event = request.stored_event(reply[1], reply[2])
    step: dict[str, Any] = {
        "run_id": request.run_id,
        "step_id": request.correlation_id,
        "step_name": data.step_name,
        "status": "pending",
        "attempt": 0,
        "spec_version": request.spec_version,
        "created_at": event.created_at,
        "updated_at": event.created_at,
    }
    if request.resolve_data == "all" and "input" in data.model_fields_set:
        step["input"] = data.input
    return result_of(event=event, step=Step.trusted(step))


def step_created(request: Request) -> Call:
    """Create a step."""
    assert isinstance(request.event, StepCreatedEvent)
    data = request.event.event_data
    assert data is not None
    stored, payload = request.split(data)
    return Call(
        script="events/step_created",
        keys=_step_keys(request),
        args={
            **request.common(),
            "run_id": request.run_id,
            "data": stored,
            "payload": payload,
            "step_name": data.step_name,
            "max_events": request.max_events,
        },
        read=lambda reply: _new_step_result(request, data, reply),
        entity_id=request.correlation_id,
    )


def is_lazy(data: StepStartedData | None) -> bool:
    """Whether a step_started creates its step."""
    return data is not None and data.step_name is not None and "input" in data.model_fields_set


def step_started(request: Request) -> Call:
    """Start an attempt of a step; a lazy start creates the step first."""
    assert isinstance(request.event, StepStartedEvent)
    data = request.event.event_data
    lazy = is_lazy(data)
    stored, payload = request.split(data)
    name = (data.step_name if data is not None else None) or ""
    # A lazy start's input belongs to the synthetic step_created event.
    rest = without_field(data, "input") if lazy and data is not None else data

    def read(reply: Sequence[Any]) -> EventResult:
        return result_of(
            event=request.stored_event(reply[1], reply[2], event_data=rest),
            step=_step(request, reply),
            step_created=True if lazy else None,
        )

    return Call(
        script="events/step_started",
        keys={**_step_keys(request), "ops": request.run.ops},
        args={
            **request.common(),
            "run_id": request.run_id,
            "data": stored if rest is not None else b"",
            "resolve_data": request.resolve_data,
            "max_events": request.max_events,
            "creates": "1" if lazy else "",
            "created_data": encode_data({"stepName": name}, "stepName") if lazy else b"",
            "payload": payload,
            "step_name": name,
        },
        read=read,
        entity_id=request.correlation_id,
        payloads=payloads_of_entity,
    )


def _change(request: Request, keys: Mapping[str, str], args: Mapping[str, str]) -> Call:
    """A call that changes a step."""
    stored, payload = request.split(request.event.event_data)
    return Call(
        script=f"events/{request.event.event_type}",
        keys={**_step_keys(request), **keys},
        args={
            **request.common(),
            "run_id": request.run_id,
            "data": stored,
            "payload": payload,
            "resolve_data": request.resolve_data,
            **args,
        },
        read=lambda reply: result_of(
            event=request.stored_event(reply[1], reply[2]), step=_step(request, reply)
        ),
        entity_id=request.correlation_id,
        payloads=payloads_of_entity,
    )


def step_ended(request: Request) -> Call:
    """Complete or fail a step."""
    return _change(request, {}, {})


def step_retrying(request: Request) -> Call:
    """Send a step back to pending."""
    assert isinstance(request.event, StepRetryingEvent)
    data = request.event.event_data
    assert data is not None
    retry_after = "" if data.retry_after is None else str(to_ms(data.retry_after))
    return _change(request, {"ops": request.run.ops}, {"retry_after": retry_after})
