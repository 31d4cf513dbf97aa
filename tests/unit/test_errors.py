"""The errors' tree, HTTP statuses and wire names (contract, section 4)."""

# Contract: 4.statuses

from __future__ import annotations

import inspect
from typing import Final

import pytest

import redis_world
from redis_world import errors
from redis_world.errors import (
    AttributeValidationError,
    EntityConflictError,
    EventNotFoundError,
    HookNotFoundError,
    HookResumeConflictError,
    InvalidCursorError,
    InvalidEventError,
    RunExpiredError,
    RunNotFoundError,
    RunNotSupportedError,
    StepNotFoundError,
    StreamClosedError,
    ThrottleError,
    TooEarlyError,
    WaitNotFoundError,
    WorldClosedError,
    WorldError,
    WorldUnavailableError,
)

TABLE: Final[dict[WorldError, tuple[int, str | None]]] = {
    EntityConflictError("text"): (409, "conflict"),
    HookResumeConflictError("text"): (422, None),
    RunNotFoundError("wrun_1"): (404, "WorkflowRunNotFoundError"),
    StepNotFoundError("s"): (404, "WorkflowWorldError"),
    WaitNotFoundError("w"): (404, "WorkflowWorldError"),
    EventNotFoundError("e"): (404, "WorkflowWorldError"),
    HookNotFoundError("h"): (404, None),
    RunExpiredError("text"): (410, "run-expired"),
    TooEarlyError("text", retry_after=3): (425, None),
    RunNotSupportedError("text"): (400, None),
    AttributeValidationError("text"): (400, None),
    InvalidEventError("text"): (400, None),
    InvalidCursorError("text"): (400, None),
    StreamClosedError("text"): (409, None),
    WorldUnavailableError("text"): (503, None),
    WorldClosedError(): (503, None),
    ThrottleError("text"): (429, None),
}
"""Error -> HTTP status, and the wire name where the contract fixes it."""


@pytest.mark.parametrize("error", TABLE, ids=lambda error: type(error).__name__)
def test_statuses_and_codes(error: WorldError) -> None:
    status, code = TABLE[error]
    assert error.status == status
    assert isinstance(error.code, str)
    assert error.code
    assert code is None or error.code == code
    assert type(error).__doc__


def test_all_derive_from_one() -> None:
    classes = [
        found
        for _, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, BaseException)
    ]
    assert len(classes) >= len(TABLE)
    assert all(issubclass(found, WorldError) for found in classes)
    public = {found.__name__ for found in classes if not found.__name__.startswith("_")}
    assert public == set(errors.__all__)
    assert "RedisWorld" in redis_world.__all__


# Contract: 4.conflicts
def test_a_resume_conflict_is_a_conflict() -> None:
    assert isinstance(HookResumeConflictError("text"), EntityConflictError)


# Contract: 4.conflicts
@pytest.mark.parametrize("reason", ["duplicate", "step_terminal", "run_terminal"])
def test_a_conflict_has_its_reason(reason: errors.ConflictReason) -> None:
    error = EntityConflictError("text", reason=reason)
    assert (error.reason, str(error)) == (reason, "text")
    assert EntityConflictError("text").reason == "duplicate"


# Contract: 4.missing
def test_what_is_missing_is_named() -> None:
    """One runtime matches the text of a step."""
    assert str(StepNotFoundError("s 1")) == 'Step "s 1" not found'
    assert str(WaitNotFoundError("w")) == 'Wait "w" not found'
    assert str(EventNotFoundError("e")) == 'Event "e" not found'
    assert "wrun_1" in str(RunNotFoundError("wrun_1"))
    assert "h" in str(HookNotFoundError("h"))


# Contract: 4.too early, 4.statuses
def test_waiting_times_are_given() -> None:
    assert TooEarlyError("text", retry_after=3).retry_after == 3
    assert ThrottleError("text", retry_after=5).retry_after == 5
    assert ThrottleError("text").retry_after is None


# Contract: 4.bad input
def test_bad_input_is_a_value_error() -> None:
    for kind in (InvalidEventError, AttributeValidationError, InvalidCursorError):
        assert issubclass(kind, ValueError)
