"""Every error that a World raises, with its HTTP status and wire code (contract, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
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
    "NamespaceNotFoundError",
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
        status: the HTTP status of the error.
        code: the wire name of the error.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "WorkflowWorldError"


class ConfigurationError(WorldError, ValueError):
    """The World can't be opened with this configuration. The text tells what to change."""

    code = "configuration"


class NamespaceNotFoundError(ConfigurationError):
    """The namespace does not exist, and the World was told not to create it (`partitions=None`).

    Attributes:
        namespace: its name.
        existing: namespaces that the server has, those with a similar name first.
    """

    status = 404
    code = "namespace-not-found"

    def __init__(self, message: str, *, namespace: str = "", existing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.namespace = namespace
        self.existing = tuple(existing)


class ScriptError(WorldError):
    """A Lua script is missing, malformed or was called with wrong names. This is a bug."""

    code = "script"


class EntityConflictError(WorldError):
    """The entity is not in the state that this event needs, because another caller was first.

    Never raised for contention, timeouts or "not there yet": runtimes treat it as done.

    Attributes:
        reason: `duplicate` (the entity or event exists), `step_terminal` or `run_terminal`.
    """

    status = 409
    code = "conflict"

    def __init__(self, message: str, *, reason: ConflictReason = "duplicate") -> None:
        super().__init__(message)
        self.reason: ConflictReason = reason


class HookResumeConflictError(EntityConflictError):
    """The resume id was already used for another hook or another payload."""

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
    """No live hook has this id or token. Text and attributes leave the token out: it is a secret.

    Attributes:
        entity_id: the hook's id; empty after a look-up by token.
    """

    code = "HookNotFoundError"
    entity = "Hook"

    @classmethod
    def of_token(cls) -> Self:
        """The error of a look-up by token, without the token."""
        error = cls("")
        error.args = ("no live hook has this token",)
        return error


class MessageNotFoundError(_NotFoundError):
    """No such dead letter."""

    entity = "Message"


class RunExpiredError(WorldError):
    """The run has ended: there is nothing left to do for it."""

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
    """This World can't read the run's spec version."""

    status = 400
    code = "RunNotSupportedError"


class InvalidInputError(WorldError, ValueError):
    """Bad input. It is checked before any state; nothing was stored."""

    status = 400
    code = "invalid-input"


class AttributeValidationError(InvalidInputError):
    """Attributes break a limit of the contract (section 5, Attributes)."""

    code = "AttributeValidationError"


class InvalidEventError(InvalidInputError):
    """The event is malformed, is not for callers to create, or exceeds the event ceiling."""

    code = "InvalidEventError"


class InvalidCursorError(InvalidInputError):
    """The cursor does not come from this listing."""

    code = "InvalidCursorError"


class StreamClosedError(WorldError):
    """The stream is closed; the write stored nothing."""

    status = 409
    code = "StreamClosedError"


class WorldUnavailableError(WorldError):
    """Redis is down, full, read-only or loading, or a reply was lost.

    After a lost reply the call may or may not have run. The same call may succeed later.
    """

    status = 503
    code = "unavailable"


class WorldClosedError(WorldError):
    """`aclose` or the end of `async with` closed the World, in any thread.

    It stays closed until `async with` opens it again. Calls, stream readers and waiters that still
    run end with this error.
    """

    status = 503
    code = "closed"

    def __init__(self, message: str = "the World is closed") -> None:
        super().__init__(f"{message}: open it again with `async with`, or make another one")


class NotDurableError(WorldUnavailableError):
    """The server ran the call, but did not reach the World's `durability` in time.

    The write is stored but could still be lost with the server. The same call finds it stored: an
    event is then refused as a duplicate. If the server refused the call, the text names the
    refusal: the state that caused it could still be lost. Repeat the call once the server reaches
    the durability again.
    """

    code = "not-durable"


class ThrottleError(WorldError):
    """Back-pressure. Part of the contract; this World never raises it.

    Attributes:
        retry_after: seconds to wait; None if unknown.
    """

    status = 429
    code = "throttled"

    def __init__(self, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
