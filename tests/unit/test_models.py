from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from redis_world import models
from redis_world.models import (
    BaseEvent,
    CreateEvent,
    Event,
    Hook,
    Run,
    RunCompletedData,
    RunCreatedEvent,
    Step,
    StepCreatedData,
    StepCreatedEvent,
    StepStartedData,
    Wait,
)

WIRE_EVENTS: Final[dict[str, dict[str, Any]]] = {
    "run_created": {"deploymentId": "d", "workflowName": "w", "input": b"\x00"},
    "run_started": {"deploymentId": "d", "workflowName": "w", "input": None},
    "run_completed": {"output": b"\x00"},
    "run_failed": {"error": b"\x00", "errorCode": "E1"},
    "run_cancelled": {"cancelReason": "no"},
    "attr_set": {
        "changes": [{"key": "k", "value": None}],
        "writer": {"type": "step", "stepId": "s", "attempt": 1},
    },
    "step_created": {"stepName": "s", "input": ""},
    "step_started": {"stepName": "s", "attempt": 2, "input": b""},
    "step_completed": {"result": b"\x00"},
    "step_failed": {"error": {"any": ["thing"]}},
    "step_retrying": {"error": b"", "retryAfter": datetime(2030, 1, 1, tzinfo=UTC)},
    "hook_created": {"token": "t", "metadata": b"", "isWebhook": True, "isSystem": False},
    "hook_received": {"payload": b"\x00", "token": "t"},
    "hook_disposed": {"token": "t"},
    "hook_conflict": {"token": "t", "conflictingRunId": "wrun_1"},
    "wait_created": {"resumeAt": datetime(2030, 1, 1, tzinfo=UTC)},
    "wait_completed": {"resumeAt": datetime(2030, 1, 1, tzinfo=UTC)},
    "noop": {},
}
_EVENT: Final[TypeAdapter[Event]] = TypeAdapter(Event)


def wire_event(kind: str, **more: Any) -> dict[str, Any]:
    wire: dict[str, Any] = {
        "eventType": kind,
        "runId": "wrun_1",
        "eventId": "evnt_1",
        "correlationId": "c",
        "createdAt": datetime(2030, 1, 1, tzinfo=UTC),
        "specVersion": 7,
        "eventData": {**WIRE_EVENTS[kind], **more},
    }
    if kind == "noop":
        del wire["eventData"]
    return wire


def test_every_event_has_a_sample() -> None:
    kinds = {model.model_fields["event_type"].default for model in get_args(CreateEvent)}
    assert len(kinds) == 16
    assert kinds | {"hook_conflict", "noop"} == set(WIRE_EVENTS)


# Contract: 3.event
@pytest.mark.parametrize("kind", WIRE_EVENTS)
def test_an_event_goes_over_the_wire_unchanged(kind: str) -> None:
    wire = wire_event(kind)
    event = _EVENT.validate_python(wire)
    assert event.event_type == kind
    assert event.to_wire() == wire
    assert type(event).from_wire(wire) == event


# Contract: 3.event data
@pytest.mark.parametrize("kind", sorted(set(WIRE_EVENTS) - {"noop"}))
def test_unknown_keys_of_event_data_are_kept(kind: str) -> None:
    unknown = {"ownerMessageId": "msg_1", "snake_case": [3, 1, 2], "deep": {"b": b"\x00"}}
    wire = wire_event(kind, **unknown)
    assert _EVENT.validate_python(wire).to_wire() == wire


# Contract: 3.payloads
def test_absent_and_none_are_two_things() -> None:
    assert RunCompletedData().to_wire() == {}
    assert RunCompletedData(output=None).to_wire() == {"output": None}
    assert RunCompletedData(output=b"").to_wire() == {"output": b""}
    assert StepCreatedData.from_wire({"stepName": "s"}).to_wire() == {"stepName": "s"}


def test_python_writes_snake_case() -> None:
    data = StepCreatedData(step_name="s", input=b"in")
    event = StepCreatedEvent(correlation_id="c", event_data=data)
    assert event.to_wire() == {
        "eventType": "step_created",
        "correlationId": "c",
        "eventData": {"stepName": "s", "input": b"in"},
    }


def test_models_are_frozen() -> None:
    event = StepCreatedEvent(correlation_id="c")
    with pytest.raises(ValidationError, match="frozen"):
        event.correlation_id = "d"  # type: ignore[misc]


RUN: Final = {
    "runId": "wrun_1",
    "deploymentId": "d",
    "workflowName": "w",
    "specVersion": 7,
    "status": "pending",
    "createdAt": datetime(2030, 1, 1, tzinfo=UTC),
    "updatedAt": datetime(2030, 1, 1, tzinfo=UTC),
}
ENTITIES: Final[list[tuple[type[models.Model], dict[str, Any]]]] = [
    (Run, RUN),
    (
        Step,
        {
            "runId": "wrun_1",
            "stepId": "s",
            "stepName": "s",
            "status": "running",
            "attempt": 1,
            "createdAt": datetime(2030, 1, 1, tzinfo=UTC),
            "updatedAt": datetime(2030, 1, 1, tzinfo=UTC),
            "specVersion": 7,
        },
    ),
    (
        Hook,
        {
            "runId": "wrun_1",
            "hookId": "h",
            "token": "t",
            "createdAt": datetime(2030, 1, 1, tzinfo=UTC),
            "specVersion": 7,
        },
    ),
    (
        Wait,
        {
            "waitId": "wrun_1-w",
            "runId": "wrun_1",
            "status": "waiting",
            "resumeAt": datetime(2030, 1, 1, tzinfo=UTC),
            "createdAt": datetime(2030, 1, 1, tzinfo=UTC),
            "updatedAt": datetime(2030, 1, 1, tzinfo=UTC),
            "specVersion": 7,
        },
    ),
]


# Contract: 3.payloads
@pytest.mark.parametrize(
    ("model", "wire"), ENTITIES, ids=lambda each: getattr(each, "__name__", "")
)
def test_entities_without_payloads_are_entities(
    model: type[models.Model], wire: dict[str, Any]
) -> None:
    """Logs may be purged."""
    assert model.from_wire(wire).to_wire() == wire


# Contract: 3.hook
def test_defaults_of_a_hook() -> None:
    hook = Hook.model_validate(ENTITIES[2][1])
    assert (hook.owner_id, hook.project_id, hook.environment) == ("", "", "")
    assert (hook.is_webhook, hook.is_system) == (False, False)


# Contract: 3.run
@pytest.mark.parametrize("status", ["", "done", "waiting", None])
def test_a_run_has_one_of_five_statuses(status: object) -> None:
    with pytest.raises(ValidationError):
        Run.from_wire({**RUN, "status": status})


# Contract: 3.dates
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (datetime(2030, 1, 1, 0, 0, 0, 1999, tzinfo=UTC), "2030-01-01T00:00:00.001000+00:00"),
        (
            datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            "2030-01-01T00:00:00+00:00",
        ),
        ("2030-01-01T00:00:00.0019Z", "2030-01-01T00:00:00.001000+00:00"),
        ("2030-01-01T02:00:00+02:00", "2030-01-01T00:00:00+00:00"),
    ],
)
def test_dates_are_cut_to_milliseconds_of_utc(value: object, expected: str) -> None:
    run = Run.from_wire({**RUN, "createdAt": value})
    assert run.created_at.isoformat() == expected


# Contract: 3.dates
@pytest.mark.parametrize("value", [datetime(2030, 1, 1), "2030-01-01", "soon", 0, None, True])
def test_what_is_no_date(value: object) -> None:
    with pytest.raises(ValidationError):
        Run.from_wire({**RUN, "createdAt": value})


@pytest.mark.parametrize(
    "wire",
    [
        {"eventType": "step_created", "eventData": {"stepName": "s"}},
        {"eventType": "step_created", "correlationId": "", "eventData": {"stepName": "s"}},
        {"eventType": "step_created", "correlationId": "c", "eventData": {}},
        {"eventType": "step_created", "correlationId": 1, "eventData": {"stepName": "s"}},
        {"eventType": "step_created", "correlationId": "\ud800", "eventData": {"stepName": "s"}},
        {"eventType": "hook_created", "correlationId": "c", "eventData": {}},
        {"eventType": "wait_created", "correlationId": "c", "eventData": {"resumeAt": "soon"}},
        {"eventType": "attr_set", "eventData": {"changes": [], "writer": {"type": "nobody"}}},
        {"eventType": "run_created", "eventData": {"deploymentId": "d"}},
        {"eventType": "run_started", "specVersion": "7"},
        {"eventType": "run_started", "specVersion": 0},
        {"eventType": "run_started", "specVersion": True},
        {"eventType": "nothing"},
        {},
    ],
    ids=repr,
)
def test_malformed_events_are_refused(wire: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _EVENT.validate_python(wire)


def test_numbers_of_events_are_exact() -> None:
    data = StepStartedData.from_wire({"attempt": 2**53 + 1})
    assert data.attempt == 2**53 + 1


def test_every_public_name_is_there() -> None:
    for name in ("Event", "EventResult", "Page", "Run", "Step", "Hook", "Wait", "RunCreatedEvent"):
        assert hasattr(models, name)
    assert issubclass(RunCreatedEvent, BaseEvent)
