"""Bad input, and what errors look like (contract, sections 4 and 5).

Bad input is judged before any state: it is refused alike whether or not there is a run, and
leaves every key of the server as it was.
"""

# Contract: 4.bad input

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from redis_world import RedisWorld, errors
from redis_world.errors import (
    AttributeValidationError,
    InvalidEventError,
    InvalidInputError,
    WorldError,
)
from redis_world.models import HookConflictData, HookConflictEvent, NoopEvent, RunFailedEvent
from support import events as e
from support.backends import Backend

INVALID: dict[str, Any] = {
    "no mapping": ["run_started"],
    "nothing": {},
    "no type": {"eventData": {}},
    "an unknown type": e.event("step_exploded", "step_1"),
    "a type that is no text": {"eventType": ["run_started"]},
    "hook_conflict": e.event("hook_conflict", "hook_1", token="t", conflictingRunId="r"),
    "hook_conflict as a model": HookConflictEvent(
        correlation_id="hook_1", event_data=HookConflictData(token="t")
    ),
    "noop": e.event("noop"),
    "noop as a model": NoopEvent(),
    "data that is no mapping": {"eventType": "run_completed", "eventData": [1]},
    "a spec version that is no number": {**e.event("run_started"), "specVersion": "7"},
    "a spec version below 1": {**e.event("run_started"), "specVersion": 0},
    "run_created without data": e.event("run_created"),
    "run_created without deployment": e.event("run_created", workflowName="w", input=b""),
    "run_created without workflow": e.event("run_created", deploymentId="d", input=b""),
    "run_created, deployment no text": e.run_created(deploymentId=1),
    "run_created, context no mapping": e.run_created(executionContext=[1]),
    "run_completed without data": e.event("run_completed"),
    "run_failed without data": e.event("run_failed"),
    "run_failed as a model without data": RunFailedEvent(),
    "run_failed, code no text": e.event("run_failed", error=b"", errorCode=1),
    "run_cancelled, reason no text": e.event("run_cancelled", cancelReason=1),
    "run_cancelled, reason of 513 units": e.event("run_cancelled", cancelReason="x" * 513),
    "run_cancelled, reason of 514 units": e.event(
        "run_cancelled", cancelReason="\U0001f600" * 257
    ),
    "step_created without id": e.event("step_created", stepName="s", input=b""),
    "step_created with an empty id": e.step_created(""),
    "step_created without data": e.event("step_created", "step_1"),
    "step_created without name": e.event("step_created", "step_1", input=b""),
    "step_started without id": e.event("step_started"),
    "step_started, lazy, without id": e.event("step_started", stepName="s", input=b""),
    "step_completed without id": e.event("step_completed", result=b""),
    "step_completed without data": e.event("step_completed", "step_1"),
    "step_failed without id": e.event("step_failed", error=b""),
    "step_failed without data": e.event("step_failed", "step_1"),
    "step_retrying without id": e.event("step_retrying", error=b""),
    "step_retrying without data": e.event("step_retrying", "step_1"),
    "step_retrying, no date": e.step_retrying(retryAfter="soon"),
    "step_retrying, a naive date": e.step_retrying(retryAfter=datetime(2030, 1, 1)),
    "hook_created without id": e.event("hook_created", token="t"),
    "hook_created without data": e.event("hook_created", "hook_1"),
    "hook_created without token": e.event("hook_created", "hook_1", metadata=b""),
    "hook_created, webhook no boolean": e.hook_created(isWebhook="yes"),
    "hook_created, kept beyond the limit": e.hook_created(
        tokenRetentionUntil=datetime(2200, 1, 1, tzinfo=UTC)
    ),
    "hook_received without id": e.event("hook_received", payload=b""),
    "hook_received without data": e.event("hook_received", "hook_1"),
    "hook_disposed without id": e.event("hook_disposed"),
    "wait_created without id": e.event("wait_created", resumeAt=datetime(2030, 1, 1, tzinfo=UTC)),
    "wait_created without data": e.event("wait_created", "wait_1"),
    "wait_created without time": e.event("wait_created", "wait_1", note=1),
    "wait_completed without id": e.event("wait_completed"),
    "attr_set without data": e.event("attr_set"),
    "a payload without a stored form": e.step_completed(result=object()),
    "data without a stored form": e.step_created(more=object()),
}


# Contract: 4.bad input, 5.events of the World's own
@pytest.mark.large
@pytest.mark.parametrize("case", INVALID)
async def test_a_malformed_event_stores_nothing(
    world: RedisWorld, backend: Backend, case: str
) -> None:
    runs = [e.new_run_id(), *[await e.new_run(world, status) for status in e.RUN_STATES]]
    await e.write(world, runs[2], e.lazy_start(), e.hook_created(), e.wait_created())
    before = backend.dump()
    for run_id in runs:
        with pytest.raises(InvalidEventError) as raised:
            await world.events.create(run_id, INVALID[case])
        assert raised.value.status == 400
    assert backend.dump() == before


PARAMETERS: dict[str, dict[str, Any]] = {
    "occurred_at without a zone": {"occurred_at": datetime(2030, 1, 1)},
    "occurred_at that is no date": {"occurred_at": 5},
    "an event_count below 0": {"event_count": -1},
    "an event_count that is no number": {"event_count": "3"},
    "an event_count that is a boolean": {"event_count": True},
    "an unknown resolve_data": {"resolve_data": "some"},
    "a cursor of another listing": {"since_cursor": "runs:x"},
}


@pytest.mark.parametrize("case", PARAMETERS)
async def test_a_bad_parameter_stores_nothing(
    world: RedisWorld, backend: Backend, case: str
) -> None:
    runs = [e.new_run_id(), await e.new_run(world)]
    before = backend.dump()
    for run_id in runs:
        with pytest.raises(InvalidInputError) as raised:
            await world.events.create(run_id, e.step_created(), **PARAMETERS[case])
        assert raised.value.status == 400
    assert backend.dump() == before


@pytest.mark.parametrize("run_id", [None, ""])
async def test_only_a_creation_needs_no_run_id(
    world: RedisWorld, backend: Backend, run_id: str | None
) -> None:
    before = backend.dump()
    for wire in (e.resilient_start(), e.step_created(), e.run_ended("failed")):
        with pytest.raises(InvalidEventError):
            await world.events.create(run_id, wire)
    assert backend.dump() == before


async def test_a_payload_above_the_limit_stores_nothing(backend: Backend) -> None:
    async with backend.world(max_payload_bytes=1000) as world:
        run_id = await e.new_run(world)
        before = backend.dump()
        for wire in (
            e.step_created(input=bytes(1001)),
            e.lazy_start(input=bytes(1001)),
            e.run_ended("completed") | {"eventData": {"output": bytes(1001)}},
        ):
            with pytest.raises(InvalidEventError, match="1000"):
                await world.events.create(run_id, wire)
        assert backend.dump() == before
        result = await world.events.create(run_id, e.step_created(input=bytes(1000)))
        assert result.step is not None
        assert result.step.input == bytes(1000)


async def test_bad_attributes_are_told_from_other_bad_input(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    bad = e.attr_set({"": "v"})
    assert isinstance(await e.attempt(world, run_id, bad), AttributeValidationError)
    assert not issubclass(AttributeValidationError, InvalidEventError)
    assert not issubclass(InvalidEventError, AttributeValidationError)


WIRE_FORMS: dict[str, tuple[int, str | None]] = {
    "EntityConflictError": (409, "conflict"),
    "HookResumeConflictError": (422, None),
    "RunNotFoundError": (404, "WorkflowRunNotFoundError"),
    "StepNotFoundError": (404, "WorkflowWorldError"),
    "WaitNotFoundError": (404, "WorkflowWorldError"),
    "EventNotFoundError": (404, "WorkflowWorldError"),
    "HookNotFoundError": (404, None),
    "RunExpiredError": (410, "run-expired"),
    "TooEarlyError": (425, None),
    "RunNotSupportedError": (400, None),
    "AttributeValidationError": (400, None),
    "InvalidEventError": (400, None),
    "InvalidCursorError": (400, None),
    "StreamClosedError": (409, None),
    "WorldUnavailableError": (503, None),
    "ThrottleError": (429, None),
}


# Contract: 4.statuses
@pytest.mark.parametrize("name", WIRE_FORMS)
def test_errors_carry_their_status_and_code(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, WorldError)
    status, code = WIRE_FORMS[name]
    assert kind.status == status
    assert kind.code
    assert code is None or kind.code == code


# Contract: 4.conflicts
def test_a_resume_conflict_is_an_entity_conflict() -> None:
    assert issubclass(errors.HookResumeConflictError, errors.EntityConflictError)
