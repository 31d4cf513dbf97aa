"""The arguments of each method, as its requests have them (docs/http.md)."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from redis_world.errors import InvalidInputError
from redis_world.models import ResolveData, SortOrder
from redis_world.models.base import Timestamp
from redis_world.queue import MAX_CLAIM

__all__ = [
    "AckArguments",
    "Arguments",
    "ClaimArguments",
    "CreateArguments",
    "CreateBatchArguments",
    "parse_arguments",
]

MAX_WAIT: Final = 20.0
MAX_TERMINAL_WAIT: Final = 25.0
_MAX_MESSAGES: Final = 256
_MAX_TOPICS: Final = 8


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004 - what pydantic collects
    return value


def _as_list(value: Any) -> Any:
    """A single one where a list may be; an address names a list by repeating the name."""
    return [value] if isinstance(value, str) else value


Number: TypeAlias = Annotated[float, BeforeValidator(_no_truth)]
Seconds: TypeAlias = Annotated[float, BeforeValidator(_no_truth), Field(ge=0, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, BeforeValidator(_no_truth)]
Texts: TypeAlias = Annotated[list[str], BeforeValidator(_as_list)]
Data: TypeAlias = Annotated[dict[str, Any], Field(strict=True)]


class Arguments(BaseModel):
    """Base of all arguments: names in camelCase, none that is unknown."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=False,
        # A value may be a hook's token.
        hide_input_in_errors=True,
    )


def parse_arguments(model: type[Arguments], value: Any) -> Any:
    """Arguments of a request.

    Raises:
        InvalidInputError: they are not what the method takes; the text names the first one.
    """
    if not isinstance(value, dict):
        raise InvalidInputError(f"the arguments must be a map, not a {type(value).__name__}")
    problem = ""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"{place}: {first['msg']}" if place else first["msg"]
    raise InvalidInputError(problem)


class NoArguments(Arguments):
    """Nothing."""


# -- events --------------------------------------------------------------------------------


class EnqueueArguments(Arguments):
    """A message to send."""

    queue_name: str
    payload: Data
    delay: Seconds = 0.0
    idempotency_key: str | None = None
    headers: dict[str, str] | None = None
    deployment_id: str | None = None


class CreateArguments(Arguments):
    """An event to record."""

    run_id: str | None
    event: Data
    resolve_data: ResolveData = "all"
    resolve_delta: ResolveData | None = None
    resume_id: str | None = None
    payload_digest: str | None = None
    occurred_at: Timestamp | None = None
    request_id: str | None = None
    skip_preload: bool = False
    since_cursor: str | None = None
    event_count: Count | None = None
    preload_events: bool = False
    enqueue: EnqueueArguments | None = None
    ack: str | None = None


class CreateBatchArguments(Arguments):
    """Events of one run to record together."""

    run_id: str
    events: list[Data]
    resolve_data: ResolveData = "all"
    request_id: str | None = None
    enqueue: EnqueueArguments | None = None


class EventArguments(Arguments):
    """Which event."""

    run_id: str
    event_id: str
    resolve_data: ResolveData = "all"


class PageArguments(Arguments):
    """Which page of a listing."""

    limit: Count | None = None
    cursor: str | None = None
    sort_order: SortOrder | None = None
    resolve_data: ResolveData = "all"


class OfRunArguments(PageArguments):
    """Which page of what belongs to a run."""

    run_id: str


class CorrelationArguments(OfRunArguments):
    """Which page of the events of one step, hook or wait."""

    correlation_id: str


# -- runs, steps, waits and hooks -----------------------------------------------------------


class RunArguments(Arguments):
    """Which run."""

    run_id: str
    resolve_data: ResolveData = "all"


class RunIdArguments(Arguments):
    """Which run."""

    run_id: str


class RunsArguments(Arguments):
    """Which runs."""

    run_ids: Texts
    resolve_data: ResolveData = "all"


class ListRunsArguments(PageArguments):
    """Which page of which runs."""

    workflow_name: str | None = None
    status: Texts | None = None


class WaitForArguments(RunArguments):
    """For which run to wait, and for how long."""

    timeout: Annotated[Seconds, Field(le=MAX_TERMINAL_WAIT)] = MAX_TERMINAL_WAIT


class CancelArguments(Arguments):
    """Which runs to cancel, and why."""

    run_ids: list[str]
    reason: str | None = None


class StepArguments(Arguments):
    """Which step."""

    run_id: str
    step_id: str
    resolve_data: ResolveData = "all"


class WaitArguments(Arguments):
    """Which wait."""

    run_id: str
    correlation_id: str


class HookArguments(Arguments):
    """Which hook."""

    hook_id: str
    run_id: str | None = None
    resolve_data: ResolveData = "all"


class TokenArguments(Arguments):
    """The hook of which token."""

    token: str
    resolve_data: ResolveData = "all"


class ListHooksArguments(PageArguments):
    """Which page of which hooks."""

    run_id: str | None = None


# -- queue ---------------------------------------------------------------------------------


class SendManyArguments(Arguments):
    """Messages to send, each with its own outcome."""

    messages: Annotated[list[EnqueueArguments], Field(min_length=1, max_length=_MAX_MESSAGES)]


class ClaimArguments(Arguments):
    """What to lease, and how long to wait for it."""

    topics: Annotated[list[str], Field(min_length=1, max_length=_MAX_TOPICS)]
    limit: Annotated[Count, Field(ge=1, le=MAX_CLAIM)] = 10
    lease: Number = 60.0
    wait: Annotated[Seconds, Field(le=MAX_WAIT)] = 0.0
    worker: str | None = None


class HandleArguments(Arguments):
    """Which leased message."""

    handle: str


class FollowUpArguments(Arguments):
    """The continuation of a message."""

    delay: Seconds = 0.0
    idempotency_key: str | None = None


class AckArguments(HandleArguments):
    """Which message is done, and how it continues."""

    follow_up: FollowUpArguments | None = None


class RetryArguments(HandleArguments):
    """Which delivery has failed, why, and when the message is due again."""

    error: str = ""
    delay: Seconds | None = None
    retry_after: Seconds | None = None


class ExtendArguments(HandleArguments):
    """Which lease to extend, and how long it is from now."""

    lease: Number = 60.0


class PostponeArguments(HandleArguments):
    """Which message to return, and when it is due again."""

    delay: Seconds | None = None


class TopicArguments(Arguments):
    """Which topic."""

    topic: str


class LettersArguments(TopicArguments):
    """Which page of the dead letters of a topic."""

    limit: Count | None = None
    cursor: str | None = None


class MessageArguments(Arguments):
    """Which message."""

    message_id: str


# -- streams -------------------------------------------------------------------------------


class StreamArguments(Arguments):
    """Which stream."""

    run_id: str
    name: str


class FindableArguments(StreamArguments):
    """Which stream, and whether `streams.find` is to find its run."""

    findable: bool = False


class WriteArguments(FindableArguments):
    """A chunk, and whose write it is."""

    chunk: Any
    writer: str | None = None
    sequence: Count | None = None


class WriteManyArguments(FindableArguments):
    """Chunks, and whose write it is."""

    chunks: list[Any]
    writer: str | None = None
    sequence: Count | None = None


class ReadArguments(StreamArguments):
    """Which stream, and from where."""

    start_index: Count = 0


class ChunksArguments(StreamArguments):
    """Which page of the chunks of a stream."""

    limit: Count | None = None
    cursor: str | None = None


class StreamNameArguments(Arguments):
    """The name of a stream."""

    name: str
