"""Answers of the World: pages, and the results of events."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from redis_world.models.base import Model
from redis_world.models.entities import Hook, Run, RunStatus, Step, Wait
from redis_world.models.events import Event

__all__ = [
    "BatchItemResult",
    "BatchResult",
    "CancelManyResult",
    "CancelOutcome",
    "CancelSummary",
    "EventResult",
    "Page",
    "StreamChunk",
    "StreamChunksPage",
    "StreamInfo",
]

T = TypeVar("T")


class Page(Model, Generic[T]):
    """A part of a listing.

    Attributes:
        data: the items, in the requested order.
        cursor: where the next page starts. It is not None whenever there is data: the cursor of
            the last page finds items that are added later.
        has_more: whether there is more now.
    """

    data: list[T]
    cursor: str | None = None
    has_more: bool = False


class EventResult(Model):
    """The result of an event: the stored event, and the entity that it changed.

    Attributes:
        event: the stored event. For a run_started of a running run, the one that started it.
        step_created: True if a lazy start created its step.
        events: requested log entries: the preload of run_started, or the events after
            `since_cursor` or `event_count`.
        cursor: where another `events.list` continues.
        has_more: whether `events` was cut short.
        max_events: the event ceiling of the run; in every result with a run.
        message_id: the id of the message of `enqueue`, or of the outstanding message that covers
            it; None if there was none, or if its step has ended.
        acked: whether the event has ended the delivery of `ack`; False if its lease was lost. None
            without `ack`.
    """

    event: Event | None = None
    run: Run | None = None
    step: Step | None = None
    hook: Hook | None = None
    wait: Wait | None = None
    step_created: bool | None = None
    events: list[Event] | None = None
    cursor: str | None = None
    has_more: bool | None = None
    max_events: int | None = None
    message_id: str | None = None
    acked: bool | None = None


class BatchItemResult(Model):
    """The outcome of one event of a batch, as its own `create` would have it.

    Attributes:
        status: 200, or the HTTP status of the error.
        event: the stored event, if it was accepted; so is the entity that it changed.
        max_events: the event ceiling of the run, where the result has one.
        error: the wire code of the error, such as `conflict`; None if it was accepted.
        message: the text of the error.
    """

    status: int
    event: Event | None = None
    run: Run | None = None
    step: Step | None = None
    wait: Wait | None = None
    max_events: int | None = None
    error: str | None = None
    message: str | None = None


class BatchResult(Model):
    """The outcomes of the events of a batch, in their order.

    Attributes:
        message_id: the id of the message of `enqueue`, or of the outstanding message that covers
            it; None if there was none, or if no event was accepted.
    """

    results: list[BatchItemResult]
    message_id: str | None = None


class CancelOutcome(Model):
    """The outcome of the cancellation of one run.

    Attributes:
        outcome: `cancelled`; `already_cancelled`: nothing was written; `not_cancellable`: the run
            completed or failed before; `not_found`; or `failed`.
        status: the status of a run that is not cancellable.
        code: the wire code of the error.
        retryable: whether another try may succeed.
    """

    run_id: str
    outcome: Literal["cancelled", "already_cancelled", "not_cancellable", "not_found", "failed"]
    status: RunStatus | None = None
    code: str | None = None
    retryable: bool | None = None


class CancelSummary(Model):
    """How many runs had which outcome."""

    requested: int
    cancelled: int
    already_cancelled: int
    not_cancellable: int
    not_found: int
    failed: int


class CancelManyResult(Model):
    """The outcomes of the cancellation of several runs, in their order, and their counts."""

    summary: CancelSummary
    results: list[CancelOutcome]


class StreamInfo(Model):
    """The length of a stream. `tail_index` is -1 if it is empty; `done`: it is closed."""

    tail_index: int
    done: bool


class StreamChunk(Model):
    """One chunk of a stream with its index, from 0."""

    index: int
    data: bytes


class StreamChunksPage(Page[StreamChunk]):
    """A page of chunks. `done`: the stream is closed.

    Unlike with other pages, the last page has no cursor.
    """

    done: bool = False
