"""Events of the usual form: the model that is made without pydantic is pydantic's."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final, get_args

import pytest

from redis_world.events.usual import usual_event
from redis_world.models import CreateEvent

MODELS: Final = {
    model.model_fields["event_type"].default: model for model in get_args(CreateEvent)
}
MOMENT: Final = datetime(2030, 1, 1, 0, 0, 0, 5000, tzinfo=UTC)
DATA: Final[dict[str, dict[str, Any]]] = {
    "run_created": {"deploymentId": "d", "workflowName": "w", "input": b"in"},
    "run_started": {"deploymentId": "d", "workflowName": "w", "input": {"a": [1, None]}},
    "run_completed": {"output": None},
    "run_failed": {"error": "no \ud800", "errorCode": "E1"},
    "run_cancelled": {"cancelReason": None},
    "step_created": {"stepName": "s", "input": [b"", "", 1.5]},
    "step_started": {"stepName": "s", "attempt": 2**70, "input": b""},
    "step_completed": {"result": b"out"},
    "step_failed": {"error": {"any": ["thing", MOMENT]}},
    "step_retrying": {"error": "", "retryAfter": MOMENT},
    "hook_created": {"token": "t", "metadata": True, "isWebhook": True, "isSystem": None},
    "hook_received": {"payload": b"p", "token": "t"},
    "hook_disposed": {"token": "t"},
    "wait_created": {"resumeAt": MOMENT},
    "wait_completed": {"resumeAt": None},
}
"""Of all types but attr_set, whose data has models in it."""


def wire_of(kind: str, **more: Any) -> dict[str, Any]:
    return {"eventType": kind, "correlationId": "c", "eventData": DATA[kind], **more}


@pytest.mark.parametrize("more", [{}, {"specVersion": 3}], ids=["", "with a version"])
@pytest.mark.parametrize("kind", DATA)
def test_a_usual_event_is_what_pydantic_makes_of_it(kind: str, more: dict[str, Any]) -> None:
    wire = wire_of(kind, **more)
    made = usual_event(MODELS[kind], wire)
    expected = MODELS[kind].model_validate(wire)
    assert made is not None
    assert made == expected
    assert repr(made) == repr(expected)
    assert made.model_fields_set == expected.model_fields_set
    assert made.model_dump() == expected.model_dump()
    assert made.to_wire() == expected.to_wire()
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other == expected
    data, wanted = made.event_data, expected.event_data
    assert data is not None
    assert wanted is not None
    assert data.model_fields_set == wanted.model_fields_set
    assert data.model_extra == wanted.model_extra == {}
    with pytest.raises(ValueError, match="frozen"):
        made.correlation_id = "other"


@pytest.mark.parametrize("kind", ["run_started", "run_cancelled", "step_started", "hook_disposed"])
def test_events_without_data_are_usual(kind: str) -> None:
    wire = {"eventType": kind, "correlationId": "c"}
    made = usual_event(MODELS[kind], wire)
    assert made is not None
    assert made == MODELS[kind].model_validate(wire)
    assert made.event_data is None


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "wire",
    [
        {"eventType": "step_created", "eventData": {"stepName": "s"}},
        {"eventType": "step_created", "correlationId": "", "eventData": {"stepName": "s"}},
        {"eventType": "step_created", "correlationId": "\ud800", "eventData": {"stepName": "s"}},
        {"eventType": "step_created", "correlationId": Text("c"), "eventData": {"stepName": "s"}},
        {"eventType": "step_created", "correlationId": "c", "eventData": {}},
        {"eventType": "step_created", "correlationId": "c", "eventData": {"stepName": 1}},
        {"eventType": "step_created", "correlationId": "c", "eventData": {"stepName": "\u00e4"}},
        {"eventType": "step_created", "correlationId": "c", "eventData": [("stepName", "s")]},
        {"event_type": "step_created", "correlationId": "c", "eventData": {"stepName": "s"}},
        wire_of("step_completed", eventData=None),
        wire_of("step_completed", unknown=1),
        wire_of("step_completed", specVersion=True),
        wire_of("step_completed", specVersion=0),
        wire_of("step_completed", specVersion=None),
        wire_of("step_completed", createdAt=MOMENT),
        wire_of("step_completed", correlation_id="other"),
        wire_of("step_completed", eventData={"result": (1, 2)}),
        wire_of("step_completed", eventData={"result": b"", "unknown": 1}),
        wire_of("step_created", eventData={"stepName": "s", "step_name": "t"}),
        wire_of("step_started", eventData={"attempt": True}),
        wire_of("wait_created", eventData={"resumeAt": MOMENT + timedelta(microseconds=1)}),
        wire_of(
            "wait_created",
            eventData={"resumeAt": MOMENT.astimezone(timezone(timedelta(hours=1)))},
        ),
        wire_of("wait_created", eventData={"resumeAt": None}),
        wire_of("hook_created", eventData={"token": "t", "isSystem": 1}),
    ],
    ids=repr,
)
def test_other_events_are_left_to_pydantic(wire: dict[str, Any]) -> None:
    kind = wire.get("eventType", wire.get("event_type"))
    assert usual_event(MODELS[kind], wire) is None
