"""What the events of a step do (contract, section 5)."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from redis_world.codec import encode_data
from redis_world.errors import (
    EntityConflictError,
    RunExpiredError,
    StepNotFoundError,
    TooEarlyError,
)
from redis_world.models import StepCreatedEvent, StepRetryingEvent, StepStartedEvent
from redis_world.testing.reference.state import TERMINAL, Entity, StoredEvent, StoredRun
from redis_world.testing.reference.write import (
    Outcome,
    Write,
    refuse_at_ceiling,
    refuse_on_ended,
    the_run,
)

__all__ = ["step_completed", "step_created", "step_failed", "step_retrying", "step_started"]


def step_created(write: Write) -> Outcome:
    """Create a step, pending, not yet attempted."""
    assert isinstance(write.event, StepCreatedEvent)
    data = write.event.event_data
    assert data is not None
    run = _run_for_new_step(write)
    event = write.append(run)
    _new_step(write, run, event, data.step_name)
    return Outcome(event, shows="step")


def step_started(write: Write) -> Outcome:
    """Begin an attempt of a step; with a name and an input, of a step that it creates first."""
    assert isinstance(write.event, StepStartedEvent)
    data = write.event.event_data
    is_lazy = data is not None and data.step_name is not None and "input" in data.model_fields_set
    if is_lazy:
        assert data is not None
        assert data.step_name is not None
        run = _run_for_new_step(write)
        name_alone = encode_data({"stepName": data.step_name}, "stepName")
        created = write.append(run, event_type="step_created", data=name_alone)
        step = _new_step(write, run, created, data.step_name)
    else:
        run = the_run(write)
        if not run.is_live:
            raise RunExpiredError(f"run {write.run_id} is {run.fields['status']}")
        step = _open_step(write)
        _refuse_too_early(step, write.at)
    step.fields.pop("retry_after", None)
    step.fields.setdefault("started_at", write.at)
    step.fields["attempt"] += 1
    step.fields.update(status="running", updated_at=write.at)
    # The input of a lazy start is stored with the event that created the step.
    event = write.append(run, payload=None) if is_lazy else write.append(run)
    return Outcome(event, shows="step", step_created=True if is_lazy else None)


def step_completed(write: Write) -> Outcome:
    """End a step well, with its result; the error of its last failed attempt stays."""
    step = _open_step(write)
    _set_payload(write, step, "output")
    return _end(write, step, "completed")


def step_failed(write: Write) -> Outcome:
    """End a step with its error."""
    the_run(write)
    step = _open_step(write)
    _set_payload(write, step, "error")
    return _end(write, step, "failed")


def step_retrying(write: Write) -> Outcome:
    """Send a step back to pending; it must not start again before `retryAfter`."""
    assert isinstance(write.event, StepRetryingEvent)
    data = write.event.event_data
    assert data is not None
    step = _open_step(write)
    _set_payload(write, step, "error")
    step.fields.update(status="pending", updated_at=write.at)
    step.fields.pop("retry_after", None)
    if data.retry_after is not None:
        step.fields["retry_after"] = data.retry_after
    return Outcome(write.append(write.state.runs[write.run_id]), shows="step")


def _run_for_new_step(write: Write) -> StoredRun:
    """The run, if a step of this id can begin in it."""
    run = the_run(write)
    refuse_on_ended(write, run)
    if write.correlation_id in run.steps:
        raise EntityConflictError(f"step {write.correlation_id!r} already exists")
    refuse_at_ceiling(write, run)
    return run


def _new_step(write: Write, run: StoredRun, event: StoredEvent, name: str) -> Entity:
    step = run.steps[write.correlation_id] = Entity(
        event.slot,
        {
            "run_id": write.run_id,
            "step_id": write.correlation_id,
            "step_name": name,
            "status": "pending",
            "attempt": 0,
            "spec_version": write.spec_version,
            "created_at": write.at,
            "updated_at": write.at,
        },
    )
    _set_payload(write, step, "input")
    return step


def _open_step(write: Write) -> Entity:
    """The step, if it may still change; in a run that has ended only a running one may."""
    run = write.state.runs.get(write.run_id)
    step = None if run is None else run.steps.get(write.correlation_id)
    if run is None or step is None:
        raise StepNotFoundError(write.correlation_id)
    status = step.fields["status"]
    if status in TERMINAL:
        raise EntityConflictError(
            f"step {write.correlation_id!r} is {status}", reason="step_terminal"
        )
    if status != "running" and not run.is_live:
        raise RunExpiredError(f"run {write.run_id} is {run.fields['status']}")
    return step


def _refuse_too_early(step: Entity, at: datetime) -> None:
    retry_after = step.fields.get("retry_after")
    if retry_after is not None and retry_after > at:
        seconds = max(1, math.ceil((retry_after - at) / timedelta(seconds=1)))
        raise TooEarlyError(
            f"the step can't start yet: try again in {seconds} s",
            retry_after=seconds,
        )


def _set_payload(write: Write, step: Entity, name: str) -> None:
    """Set a payload field to what the event brought; without any it is absent."""
    step.fields.pop(name, None)
    if write.payload is not None and not write.state.runs[write.run_id].has_expired:
        step.fields[name] = write.payload


def _end(write: Write, step: Entity, status: str) -> Outcome:
    step.fields.update(status=status, completed_at=write.at, updated_at=write.at)
    return Outcome(write.append(write.state.runs[write.run_id]), shows="step")
