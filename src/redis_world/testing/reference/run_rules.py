"""What the events of a run do (contract, section 5)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from redis_world.codec import encode_data, from_ms
from redis_world.errors import (
    AttributeValidationError,
    EntityConflictError,
    InvalidEventError,
    RunExpiredError,
)
from redis_world.events.validation import MAX_ATTRIBUTES, creates_run
from redis_world.ids import run_id_time
from redis_world.models import (
    AttrSetEvent,
    RunCreatedData,
    RunCreatedEvent,
    RunFailedEvent,
    RunStartedData,
    RunStartedEvent,
)
from redis_world.testing.reference.retention import expire_data
from redis_world.testing.reference.state import Fields, StoredRun
from redis_world.testing.reference.write import (
    Outcome,
    Write,
    refuse_at_ceiling,
    refuse_on_ended,
    the_run,
)

__all__ = [
    "attr_set",
    "run_cancelled",
    "run_completed",
    "run_created",
    "run_failed",
    "run_started",
]

_MAX_ID_AGE: Final = timedelta(hours=24)
_MAX_ID_AHEAD: Final = timedelta(minutes=5)


def run_created(write: Write) -> Outcome:
    """Create a run, pending; its id, where a client made it, is not old and not of the future."""
    assert isinstance(write.event, RunCreatedEvent)
    data = write.event.event_data
    assert data is not None
    if write.run_id in write.state.runs:
        raise EntityConflictError(f"run {write.run_id} already exists")
    if not write.made_id:
        age = write.at - from_ms(run_id_time(write.run_id))
        if age > _MAX_ID_AGE or age < -_MAX_ID_AHEAD:
            raise InvalidEventError(
                f"the time in run id {write.run_id} must be at most 24 hours in the past and "
                "5 minutes in the future"
            )
    run = _new_run(write, data)
    return Outcome(write.append(run), shows="run")


def run_started(write: Write) -> Outcome:
    """Start a run; one that is missing is created first, if the event has what it takes."""
    assert isinstance(write.event, RunStartedEvent)
    data = write.event.event_data
    if write.run_id not in write.state.runs and creates_run(write.event):
        assert data is not None
        run = _new_run(write, data)
        write.append(run, event_type="run_created", correlation_id=None, occurred_at=None)
    else:
        run = the_run(write)
    if not run.is_live:
        raise RunExpiredError(f"run {write.run_id} is {run.fields['status']}")
    if run.fields["status"] == "running":
        first = next(each for each in run.events if each.event_type == "run_started")
        return Outcome(first, is_new=False, shows="run")
    run.fields.update(status="running", started_at=write.at, updated_at=write.at)
    return Outcome(write.append(run, data=None, payload=None), shows="run")


def run_completed(write: Write) -> Outcome:
    """End a run well, with its output."""
    return _end(write, "completed", {"output": write.payload})


def run_failed(write: Write) -> Outcome:
    """End a run with an error and its code."""
    assert isinstance(write.event, RunFailedEvent)
    data = write.event.event_data
    assert data is not None
    return _end(write, "failed", {"error": write.payload, "error_code": data.error_code})


def run_cancelled(write: Write) -> Outcome:
    """Cancel a run; on a cancelled one it succeeds again, and is recorded again."""
    run = the_run(write)
    if run.fields["status"] == "cancelled":
        return Outcome(write.append(run), shows="run")
    return _end(write, "cancelled", {})


def attr_set(write: Write) -> Outcome:
    """Merge changes into the attributes; a write of the workflow's body counts once."""
    assert isinstance(write.event, AttrSetEvent)
    data = write.event.event_data
    assert data is not None
    run = the_run(write)
    refuse_on_ended(write, run)
    counts_once = data.writer.type == "workflow" and write.correlation_id != ""
    if counts_once and write.correlation_id in run.attribute_writes:
        raise EntityConflictError(f"{write.correlation_id!r} has already set its attributes")
    refuse_at_ceiling(write, run)
    attributes = dict(run.fields["attributes"])
    for change in data.changes:
        if change.value is None:
            attributes.pop(change.key, None)
        else:
            attributes[change.key] = change.value
    if len(attributes) > MAX_ATTRIBUTES:
        raise AttributeValidationError(
            f"run {write.run_id} would have {len(attributes)} attributes; "
            f"the limit is {MAX_ATTRIBUTES}"
        )
    if counts_once:
        run.attribute_writes.add(write.correlation_id)
    run.fields.update(attributes=attributes, updated_at=write.at)
    return Outcome(write.append(run), shows="run")


def _new_run(write: Write, data: RunCreatedData | RunStartedData) -> StoredRun:
    fields: Fields = {
        "run_id": write.run_id,
        "deployment_id": data.deployment_id,
        "workflow_name": data.workflow_name,
        "spec_version": write.spec_version,
        "status": "pending",
        "attributes": dict(data.attributes or {}),
        "created_at": write.at,
        "updated_at": write.at,
    }
    if write.payload is not None:
        fields["input"] = write.payload
    if data.execution_context is not None:
        fields["execution_context"] = encode_data(data.execution_context, "executionContext")
    if data.encryption_public_key is not None:
        fields["encryption_public_key"] = data.encryption_public_key
    # The streams of runs that did not come in time are gone, and don't come back with the run.
    write.state.forget_orphan_streams()
    run = write.state.runs[write.run_id] = StoredRun(fields)
    return run


def _end(write: Write, status: str, result: Fields) -> Outcome:
    """End a run: in the same instant it has no wait, and no hook but those that outlive it."""
    run = the_run(write)
    refuse_on_ended(write, run)
    run.fields.update(status=status, completed_at=write.at, updated_at=write.at)
    run.fields.update({name: value for name, value in result.items() if value is not None})
    run.hooks = run.live_hooks(write.at)
    run.waits.clear()
    event = write.append(run)
    if run.fields["attributes"].get("$retention") == "0":
        expire_data(write.state, run)
    return Outcome(event, shows="run")
