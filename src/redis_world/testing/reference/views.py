"""What is stored, as the models that a caller reads."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter

from redis_world.codec import decode_data, decode_payload
from redis_world.ids import event_id
from redis_world.models import (
    Event,
    Hook,
    ResolveData,
    ResumeContext,
    Run,
    Step,
    Wait,
)
from redis_world.testing.reference.state import Entity, Fields, StoredEvent, StoredRun

__all__ = ["event_view", "hook_view", "run_view", "step_view", "wait_view"]

_EVENT: Final[TypeAdapter[Event]] = TypeAdapter(Event)

_ENTITY_PAYLOADS: Final = ("input", "output", "error", "metadata")
_EVENT_PAYLOADS: Final = {
    "run_created": "input",
    "run_completed": "output",
    "run_failed": "error",
    "step_created": "input",
    "step_started": "input",
    "step_completed": "result",
    "step_failed": "error",
    "step_retrying": "error",
    "hook_created": "metadata",
    "hook_received": "payload",
}
"""Event type -> the opaque field of its data, where it has one."""


def _resolved(fields: Fields, resolve_data: ResolveData) -> Fields:
    """The fields with their payloads decoded, or left out."""
    shown: Fields = {}
    for name, value in fields.items():
        if name not in _ENTITY_PAYLOADS:
            shown[name] = value
        elif resolve_data == "all":
            shown[name] = decode_payload(value)
    return shown


def run_view(run: StoredRun, resolve_data: ResolveData = "all") -> Run:
    """A run as it is read."""
    fields = _resolved(run.fields, resolve_data)
    fields["attributes"] = dict(fields["attributes"])
    if "execution_context" in fields:
        fields["execution_context"] = decode_data(fields["execution_context"])
    return Run.trusted(fields)


def step_view(step: Entity, resolve_data: ResolveData = "all") -> Step:
    """A step as it is read."""
    return Step.trusted(_resolved(step.fields, resolve_data))


def wait_view(wait: Entity) -> Wait:
    """A wait as it is read."""
    return Wait.trusted(dict(wait.fields))


def hook_view(
    hook: Entity, run: StoredRun, environment: str | None, resolve_data: ResolveData = "all"
) -> Hook:
    """A hook as it is read, with what it mirrors of its run."""
    return Hook.trusted(
        {
            **_resolved(hook.fields, resolve_data),
            "owner_id": "",
            "project_id": "",
            "environment": environment or "",
            "resume_context": _resume_context(run),
        }
    )


def _resume_context(run: StoredRun) -> ResumeContext:
    values: dict[str, Any] = {
        "deployment_id": run.fields["deployment_id"],
        "workflow_name": run.fields["workflow_name"],
        "run_spec_version": run.fields["spec_version"],
    }
    if "encryption_public_key" in run.fields:
        values["encryption_public_key"] = run.fields["encryption_public_key"]
    blob = run.fields.get("execution_context")
    context = {} if blob is None else decode_data(blob)
    # The context is the client's own: only what has the right type is taken over.
    core, trace = context.get("workflowCoreVersion"), context.get("traceCarrier")
    version = context.get("hookResumeInputVersion")
    if isinstance(core, str):
        values["workflow_core_version"] = core
    if isinstance(trace, dict) and all(isinstance(value, str) for value in trace.values()):
        values["trace_carrier"] = trace
    if isinstance(version, int) and not isinstance(version, bool):
        values["hook_resume_input_version"] = version
    return ResumeContext.trusted(values)


def event_view(run_id: str, event: StoredEvent, resolve_data: ResolveData = "all") -> Event:
    """An event as it is read."""
    wire: dict[str, Any] = {
        "eventType": event.event_type,
        "runId": run_id,
        "eventId": event_id(event.slot),
        "createdAt": event.created_at,
        "specVersion": event.spec_version,
        "correlationId": event.correlation_id,
        "occurredAt": event.occurred_at,
        "resumeId": event.resume_id,
        "eventData": _event_data(event, resolve_data),
    }
    return _EVENT.validate_python({key: v for key, v in wire.items() if v is not None})


def _event_data(event: StoredEvent, resolve_data: ResolveData) -> dict[str, Any] | None:
    if event.data is None:
        return None
    data: dict[str, Any] = decode_data(event.data)
    payload_field = _EVENT_PAYLOADS.get(event.event_type)
    if payload_field is None:
        return data
    if resolve_data == "none":
        # Data that was nothing but the payload is left out whole.
        return data or None
    if event.payload is not None:
        data[payload_field] = decode_payload(event.payload)
    return data
