"""Every error that a World raises, with its HTTP status and wire code (contract, section 4)."""

from __future__ import annotations

from typing import ClassVar, Final, Literal, Self

__all__ = [
    "AttributeValidationError",
    "ConfigurationError",
    "EntityConflictError",
    "EventNotFoundError",
    "HookNotFoundError",
    "HookResumeConflictError",
    "InvalidCursorError",
    "InvalidEventError",
    "InvalidInputError",
    "MessageNotFoundError",
    "NotDurableError",
    "RunExpiredError",
    "RunNotFoundError",
    "RunNotSupportedError",
    "ScriptError",
    "StepNotFoundError",
    "StreamClosedError",
    "ThrottleError",
    "TooEarlyError",
    "WaitNotFoundError",
    "WorldClosedError",
    "WorldError",
    "WorldUnavailableError",
]

_SHOWN_ID: Final = 512
"""How much of an id a text shows; ids may be as long as payloads."""


def shown_id(text: str) -> str:
    """An id as a text shows it."""
    return text if len(text) <= _SHOWN_ID else f"{text[:_SHOWN_ID]}..."


ConflictReason = Literal["duplicate", "step_terminal", "run_terminal"]


class WorldError(Exception):
    """Base of all errors of a World.

    Attributes:
        status: the HTTP status that stands for the error on the wire.
        code: the wire name of the error.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "WorkflowWorldError"


class ConfigurationError(WorldError, ValueError):
    """The World can't be opened as it is configured; the text says what to do."""

    code = "configuration"


class ScriptError(WorldError):
    """A Lua script is missing, malformed or was called with wrong names: a bug, not a state."""

    code = "script"


class EntityConflictError(WorldError):
    """The entity is not in the state that this event needs; a rival has won.

    Never raised for contention, timeouts or "not there yet": runtimes take it as done.

    Attributes:
        reason: `duplicate` (the entity or event exists), `step_terminal` or `run_terminal`.
    """

    status = 409
    code = "conflict"

    def __init__(self, message: str, *, reason: ConflictReason = "duplicate") -> None:
        super().__init__(message)
        self.reason: ConflictReason = reason


class HookResumeConflictError(EntityConflictError):
    """A resume id that already stands for another hook or another payload."""

    status = 422


class _NotFoundError(WorldError):
    status = 404
    entity: ClassVar[str] = "Entity"

    def __init__(self, entity_id: str) -> None:
        super().__init__(f'{self.entity} "{shown_id(entity_id)}" not found')
        self.entity_id = entity_id


class RunNotFoundError(_NotFoundError):
    """No such run."""

    code = "WorkflowRunNotFoundError"
    entity = "Workflow run"


class StepNotFoundError(_NotFoundError):
    """No such step in the run. One runtime matches the text `Step "<id>" not found`."""

    entity = "Step"


class WaitNotFoundError(_NotFoundError):
    """No such wait in the run."""

    entity = "Wait"


class EventNotFoundError(_NotFoundError):
    """No such event in the run."""

    entity = "Event"


class HookNotFoundError(_NotFoundError):
    """No live hook of this id or token. A token is a secret: neither text nor attributes have it.

    Attributes:
        entity_id: the hook's id; empty after a look-up by token.
    """

    code = "HookNotFoundError"
    entity = "Hook"

    @classmethod
    def of_token(cls) -> Self:
        """No live hook has the token that was looked up."""
        error = cls("")
        error.args = ("no live hook has this token",)
        return error


class MessageNotFoundError(_NotFoundError):
    """No such dead letter."""

    entity = "Message"


class RunExpiredError(WorldError):
    """The run is terminal: nothing is left to do for it."""

    status = 410
    code = "run-expired"


class TooEarlyError(WorldError):
    """A step was started before its `retry_after`.

    Attributes:
        retry_after: whole seconds to wait, at least 1.
    """

    status = 425
    code = "TooEarlyError"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RunNotSupportedError(WorldError):
    """The run's spec version is not one that this World can read."""

    status = 400
    code = "RunNotSupportedError"


class InvalidInputError(WorldError, ValueError):
    """Bad input, judged before any state; nothing was stored."""

    status = 400
    code = "invalid-input"


class AttributeValidationError(InvalidInputError):
    """Attributes break a limit of the contract (section 5, Attributes)."""

    code = "AttributeValidationError"


class InvalidEventError(InvalidInputError):
    """The event is malformed, can't be created by callers, or passes the event ceiling."""

    code = "InvalidEventError"


class InvalidCursorError(InvalidInputError):
    """The cursor was not made by this listing."""

    code = "InvalidCursorError"


class StreamClosedError(WorldError):
    """A write to a stream that is closed; nothing was stored."""

    status = 409
    code = "StreamClosedError"


class WorldUnavailableError(WorldError):
    """Redis is down, full, read-only or loading, or a reply was lost.

    In the last case nobody knows whether the call was carried out. The same call may succeed
    later.
    """

    status = 503
    code = "unavailable"


class WorldClosedError(WorldError):
    """The World was closed: by `aclose`, or at the end of its `async with`, in any thread.

    It stays closed until `async with` opens it again. Calls, readers of streams and waiters that
    were left behind end with this error.
    """

    status = 503
    code = "closed"

    def __init__(self, message: str = "the World is closed") -> None:
        super().__init__(f"{message}: open it again with `async with`, or make another one")


class NotDurableError(WorldUnavailableError):
    """The server has run the call, but what the World's `durability` asks for did not come.

    It is stored, and may be lost with the server: the same call made again finds it there, and an
    event is refused as a duplicate. Where the answer is not success, such as a refusal, the text
    names it instead: what it rests on may be lost. Made again once the durability is there, the
    call gets it.
    """

    code = "not-durable"


class ThrottleError(WorldError):
    """Back-pressure. Part of the contract; this World never raises it.

    Attributes:
        retry_after: seconds to wait, or None when nobody knows.
    """

    status = 429
    code = "throttled"

    def __init__(self, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
