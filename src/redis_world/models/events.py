"""The events of a run's log, as requests and as they are read back (contract, sections 3 and 5).

A request has no `event_id`, `run_id` and `created_at`; a stored event has them. The World keeps
and returns data fields that a model does not define.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field, StrictBool, StrictInt, StringConstraints

from redis_world.models.base import Model, Payload, Timestamp

__all__ = [
    "AttrSetData",
    "AttrSetEvent",
    "AttributeChange",
    "AttributeWriter",
    "BaseEvent",
    "BatchEvent",
    "CreateEvent",
    "Event",
    "EventData",
    "HookConflictData",
    "HookConflictEvent",
    "HookCreatedData",
    "HookCreatedEvent",
    "HookDisposedData",
    "HookDisposedEvent",
    "HookReceivedData",
    "HookReceivedEvent",
    "NoopEvent",
    "RunCancelledData",
    "RunCancelledEvent",
    "RunCompletedData",
    "RunCompletedEvent",
    "RunCreatedData",
    "RunCreatedEvent",
    "RunFailedData",
    "RunFailedEvent",
    "RunStartedData",
    "RunStartedEvent",
    "StepCompletedData",
    "StepCompletedEvent",
    "StepCreatedData",
    "StepCreatedEvent",
    "StepFailedData",
    "StepFailedEvent",
    "StepRetryingData",
    "StepRetryingEvent",
    "StepStartedData",
    "StepStartedEvent",
    "WaitCompletedData",
    "WaitCompletedEvent",
    "WaitCreatedData",
    "WaitCreatedEvent",
]

CorrelationId = Annotated[str, StringConstraints(min_length=1)]


class EventData(Model):
    """Base of all event data. It keeps unknown fields."""

    model_config = ConfigDict(extra="allow")

    payload_field: ClassVar[str | None] = None
    """The one opaque field, stored apart from the rest. Its wire name is the same."""


class BaseEvent(Model):
    """Base of all events."""

    event_type: str
    correlation_id: CorrelationId | None = None
    """Names the step, hook or wait within its run."""
    spec_version: StrictInt | None = Field(default=None, ge=1)
    event_data: EventData | None = None

    run_id: str | None = None
    event_id: str | None = None
    created_at: Timestamp | None = None
    occurred_at: Timestamp | None = None
    resume_id: str | None = None

    requires_data: ClassVar[bool] = True
    """Whether a request without event data is malformed."""

    def model_post_init(self, context: Any, /) -> None:  # noqa: ARG002
        """Count the type as set: the wire format always has it."""
        self.__pydantic_fields_set__.add("event_type")


class RunCreatedData(EventData):
    payload_field = "input"

    deployment_id: str
    workflow_name: str
    input: Payload = None
    execution_context: dict[str, Any] | None = None
    attributes: dict[str, str] | None = None
    allow_reserved_attributes: StrictBool | None = None
    encryption_public_key: str | None = None


class RunCreatedEvent(BaseEvent):
    event_type: Literal["run_created"] = "run_created"
    event_data: RunCreatedData | None = None


class RunStartedData(EventData):
    """With deployment id, workflow name and input it can create a missing run."""

    payload_field = "input"

    deployment_id: str | None = None
    workflow_name: str | None = None
    input: Payload = None
    execution_context: dict[str, Any] | None = None
    attributes: dict[str, str] | None = None
    allow_reserved_attributes: StrictBool | None = None
    encryption_public_key: str | None = None


class RunStartedEvent(BaseEvent):
    requires_data = False

    event_type: Literal["run_started"] = "run_started"
    event_data: RunStartedData | None = None


class RunCompletedData(EventData):
    payload_field = "output"

    output: Payload = None


class RunCompletedEvent(BaseEvent):
    event_type: Literal["run_completed"] = "run_completed"
    event_data: RunCompletedData | None = None


class RunFailedData(EventData):
    payload_field = "error"

    error: Payload = None
    error_code: str | None = None


class RunFailedEvent(BaseEvent):
    event_type: Literal["run_failed"] = "run_failed"
    event_data: RunFailedData | None = None


class RunCancelledData(EventData):
    cancel_reason: str | None = None
    """Kept on the event only; up to 512 UTF-16 units."""


class RunCancelledEvent(BaseEvent):
    requires_data = False

    event_type: Literal["run_cancelled"] = "run_cancelled"
    event_data: RunCancelledData | None = None


class AttributeChange(EventData):
    """One key of an attribute write; the value None removes it."""

    key: str
    value: str | None


class AttributeWriter(EventData):
    """The writer: the workflow's body, or an attempt of a step."""

    type: Literal["workflow", "step"]
    step_id: str | None = None
    attempt: StrictInt | None = None


class AttrSetData(EventData):
    changes: list[AttributeChange]
    writer: AttributeWriter
    allow_reserved_attributes: StrictBool | None = None


class AttrSetEvent(BaseEvent):
    event_type: Literal["attr_set"] = "attr_set"
    event_data: AttrSetData | None = None


class StepCreatedData(EventData):
    payload_field = "input"

    step_name: str
    input: Payload = None


class StepCreatedEvent(BaseEvent):
    event_type: Literal["step_created"] = "step_created"
    correlation_id: CorrelationId
    event_data: StepCreatedData | None = None


class StepStartedData(EventData):
    """With step name and input it is a lazy start, which creates the step."""

    payload_field = "input"

    step_name: str | None = None
    attempt: StrictInt | None = None
    input: Payload = None


class StepStartedEvent(BaseEvent):
    requires_data = False

    event_type: Literal["step_started"] = "step_started"
    correlation_id: CorrelationId
    event_data: StepStartedData | None = None


class StepCompletedData(EventData):
    payload_field = "result"

    result: Payload = None


class StepCompletedEvent(BaseEvent):
    event_type: Literal["step_completed"] = "step_completed"
    correlation_id: CorrelationId
    event_data: StepCompletedData | None = None


class StepFailedData(EventData):
    payload_field = "error"

    error: Payload = None


class StepFailedEvent(BaseEvent):
    event_type: Literal["step_failed"] = "step_failed"
    correlation_id: CorrelationId
    event_data: StepFailedData | None = None


class StepRetryingData(EventData):
    payload_field = "error"

    error: Payload = None
    retry_after: Timestamp | None = None


class StepRetryingEvent(BaseEvent):
    event_type: Literal["step_retrying"] = "step_retrying"
    correlation_id: CorrelationId
    event_data: StepRetryingData | None = None


class HookCreatedData(EventData):
    payload_field = "metadata"

    token: str = Field(repr=False)
    metadata: Payload = None
    is_webhook: StrictBool | None = None
    is_system: StrictBool | None = None
    token_retention_until: Timestamp | None = None


class HookCreatedEvent(BaseEvent):
    event_type: Literal["hook_created"] = "hook_created"
    correlation_id: CorrelationId
    event_data: HookCreatedData | None = None


class HookReceivedData(EventData):
    payload_field = "payload"

    payload: Payload = None
    token: str | None = Field(default=None, repr=False)


class HookReceivedEvent(BaseEvent):
    event_type: Literal["hook_received"] = "hook_received"
    correlation_id: CorrelationId
    event_data: HookReceivedData | None = None


class HookDisposedData(EventData):
    token: str | None = Field(default=None, repr=False)


class HookDisposedEvent(BaseEvent):
    requires_data = False

    event_type: Literal["hook_disposed"] = "hook_disposed"
    correlation_id: CorrelationId
    event_data: HookDisposedData | None = None


class HookConflictData(EventData):
    token: str = Field(repr=False)
    conflicting_run_id: str | None = None


class HookConflictEvent(BaseEvent):
    """The World writes it instead of hook_created if another hook has the token."""

    event_type: Literal["hook_conflict"] = "hook_conflict"
    correlation_id: CorrelationId
    event_data: HookConflictData | None = None


class WaitCreatedData(EventData):
    resume_at: Timestamp


class WaitCreatedEvent(BaseEvent):
    event_type: Literal["wait_created"] = "wait_created"
    correlation_id: CorrelationId
    event_data: WaitCreatedData | None = None


class WaitCompletedData(EventData):
    resume_at: Timestamp | None = None


class WaitCompletedEvent(BaseEvent):
    requires_data = False

    event_type: Literal["wait_completed"] = "wait_completed"
    correlation_id: CorrelationId
    event_data: WaitCompletedData | None = None


class NoopEvent(BaseEvent):
    """A slot without meaning. Other Worlds write it; this one never does."""

    event_type: Literal["noop"] = "noop"


CreateEvent: TypeAlias = (
    RunCreatedEvent
    | RunStartedEvent
    | RunCompletedEvent
    | RunFailedEvent
    | RunCancelledEvent
    | AttrSetEvent
    | StepCreatedEvent
    | StepStartedEvent
    | StepCompletedEvent
    | StepFailedEvent
    | StepRetryingEvent
    | HookCreatedEvent
    | HookReceivedEvent
    | HookDisposedEvent
    | WaitCreatedEvent
    | WaitCompletedEvent
)
"""The sixteen events that a caller can create."""

Event: TypeAlias = Annotated[
    CreateEvent | HookConflictEvent | NoopEvent, Field(discriminator="event_type")
]
"""All events that a log may contain."""


class BatchEvent(Model):
    """An event of a batch, with the time when it occurred.

    Attributes:
        event: a model of this module, or a camelCase mapping in the wire format.
        occurred_at: when it happened, stored beside the server's time.
    """

    event: Any
    occurred_at: Timestamp | None = None
