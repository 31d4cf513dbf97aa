"""Answers of the World: pages, and what creating an event gives back."""

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
        data: the items, in the order that was asked for.
        cursor: where the next page begins; not None whenever there is data, so that the last
            page's cursor later finds what came after.
        has_more: whether there is more now.
    """

    data: list[T]
    cursor: str | None = None
    has_more: bool = False


class EventResult(Model):
    """What an event did: the event as stored, and the entity it changed.

    Attributes:
        event: None only for a run_started of a run that runs already.
        step_created: True when a lazy start created its step.
        events: log entries that were asked for: the preload of run_started, or those after
            `since_cursor` or beyond `event_count`.
        cursor: where a further `events.list` goes on.
        has_more: whether `events` was cut short.
        max_events: the event ceiling of the run; in every result that carries a run.
        message_id: the message that stands for the one that was brought along; None where
            there was none, or its step is over.
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


class BatchItemResult(Model):
    """What became of one event of a batch: what its own creation would have brought.

    Attributes:
        status: 200, or the HTTP status of the error that refused it.
        event: the event as stored, when it was accepted; likewise the entity that it changed.
        max_events: the event ceiling of the run, where the result carries one.
        error: the wire code of the error, as `conflict`; None when it was accepted.
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
    """What became of the events of a batch, in their order.

    Attributes:
        message_id: the message that stands for the one that was brought along; None where there
            was none, or no event was accepted.
    """

    results: list[BatchItemResult]
    message_id: str | None = None


class CancelOutcome(Model):
    """What became of one run that was to be cancelled.

    Attributes:
        outcome: `cancelled`; `already_cancelled`, which wrote nothing; `not_cancellable`: it has
            ended otherwise; `not_found`; or `failed`.
        status: the status of a run that is not cancellable.
        code: the wire code of the error that it failed with.
        retryable: whether it may succeed when it is tried again.
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
    """What became of runs that were to be cancelled, in their order, and how many of each."""

    summary: CancelSummary
    results: list[CancelOutcome]


class StreamInfo(Model):
    """How far a stream has been written: `tail_index` is -1 when it is empty."""

    tail_index: int
    done: bool


class StreamChunk(Model):
    """One chunk of a stream with its index, from 0."""

    index: int
    data: bytes


class StreamChunksPage(Page[StreamChunk]):
    """A page of chunks; `done` says that the stream is closed.

    Unlike other pages the last one has no cursor.
    """

    done: bool = False
