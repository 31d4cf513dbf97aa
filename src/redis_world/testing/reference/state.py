"""All that a `ReferenceWorld` knows, in plain dicts and lists.

Entities are the fields of their models, as far as they are set. Payloads are kept encoded, so
that nobody can change by hand what was stored. Times of the queue and of streams are whole
milliseconds, those of entities and events are datetimes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from redis_world.codec import from_ms, to_ms
from redis_world.config import WorldConfig
from redis_world.ids import IdFactory

__all__ = [
    "TERMINAL",
    "Bell",
    "Entity",
    "Fields",
    "RunQueue",
    "State",
    "StoredEvent",
    "StoredMessage",
    "StoredRun",
    "StoredStream",
    "retained_until",
]

TERMINAL: Final = ("completed", "failed", "cancelled")
"""The statuses of runs and steps that nothing leads out of."""

ORPHAN_MS: Final = 60 * 60 * 1000
"""How long a stream without a run lives after its last write."""

Fields: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class StoredEvent:
    """An event of a log; its slot is its place in the list, from 1."""

    slot: int
    event_type: str
    created_at: datetime
    spec_version: int
    correlation_id: str | None
    occurred_at: datetime | None = None
    data: bytes | None = None
    """The event data without the payload; None when the event had none."""
    payload: bytes | None = None
    resume_id: str | None = None
    payload_digest: str | None = None


@dataclass(slots=True)
class Entity:
    """A step, hook or wait."""

    slot: int
    """Of the event that created it: listings go by it."""
    fields: Fields


@dataclass(slots=True)
class StoredRun:
    """A run, its log, and what follows from it."""

    fields: Fields
    events: list[StoredEvent] = field(default_factory=list)
    steps: dict[str, Entity] = field(default_factory=dict)
    hooks: dict[str, Entity] = field(default_factory=dict)
    """The live ones; of a run that has ended, those that were to outlive it."""
    waits: dict[str, Entity] = field(default_factory=dict)
    decided_hooks: set[str] = field(default_factory=set)
    """Hooks that were created or met a conflict: neither happens a second time."""
    attribute_writes: set[str] = field(default_factory=set)
    """Correlation ids of the attribute writes of the workflow's body."""
    resumes: dict[str, StoredEvent] = field(default_factory=dict)
    """Resume id -> the hook_received that it stands for."""

    @property
    def is_live(self) -> bool:
        return self.fields["status"] not in TERMINAL

    @property
    def has_expired(self) -> bool:
        """Whether its user data is deleted."""
        return "expired_at" in self.fields

    def live_hooks(self, now: datetime) -> dict[str, Entity]:
        """The hooks that may be read: all of a live run, those that are retained of another."""
        if self.is_live:
            return self.hooks
        return {
            hook_id: hook
            for hook_id, hook in self.hooks.items()
            if (until := retained_until(hook)) is not None and until > now
        }


def retained_until(hook: Entity) -> datetime | None:
    """Until when a hook outlives its run, if it does."""
    until: datetime | None = hook.fields.get("token_retention_until")
    return until


@dataclass(slots=True)
class StoredMessage:
    """A message until it is acked or purged."""

    message_id: str
    topic: str
    run_id: str
    """Empty where it is no run's."""
    kind: Literal["wake", "replay", "step", "other"]
    step_id: str
    key: str
    queue_name: str
    deployment_id: str
    headers: bytes
    body: bytes
    enqueued_at: int
    due_at: int
    place: Literal["due", "leased", "held", "dead"] = "due"
    attempt: int = 0
    failures: int = 0
    lost_leases: int = 0
    receipt: str = ""
    lease_ends_at: int = 0
    postponed: int = 0
    postponed_since: int | None = None
    declined_by: tuple[str, ...] = ()
    """Workers that have postponed it."""
    is_offered: bool = False
    """Whether it is due, and others may have it before its time."""
    step_name: str = ""
    """Of the step that it asked for when it was postponed."""
    last_error: str | None = None
    reason: str = ""
    died_at: int = 0

    @property
    def is_replay(self) -> bool:
        return self.kind in ("wake", "replay")

    @property
    def is_outstanding(self) -> bool:
        return self.place != "dead"


@dataclass(slots=True)
class RunQueue:
    """What is remembered with the messages of a run, which may come before the run."""

    wake: str | None = None
    """The plain wake that is due and was never delivered: further ones are this one."""
    queue_name: str | None = None
    """The last one used."""
    debt: int | None = None
    """An event of the run waits for a replay that nobody has sent: when a sweep looks next."""
    step_debts: dict[str, int] = field(default_factory=dict)
    """Steps that wait for a message that nobody has sent: when a sweep looks next."""
    idle: int | None = None
    """A live run has no outstanding message: when a sweep looks next."""
    idle_wakes: int = 0
    """How often in a row it was woken for being idle while its log did not grow."""
    woken_at: int = 0
    """When it was last woken for being idle, and how long its log was then."""
    length_when_woken: int | None = None


@dataclass(slots=True)
class StoredStream:
    """A stream of chunks."""

    chunks: list[bytes] = field(default_factory=list)
    done: bool = False
    written_at: int = 0
    writers: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The last write of each writer that a caller named: its number and its request."""


class Bell:
    """Wakes everybody who waits for a change, within one event loop."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ring(self) -> None:
        """Something has changed."""
        self._next.set()
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """What the next change sets: ask for it first, look then, and wait last."""
        return self._next


class State:
    """The World's whole memory."""

    def __init__(self, config: WorldConfig, clock: Callable[[], datetime] | None) -> None:
        self.config = config
        self.ids = IdFactory()
        self.runs: dict[str, StoredRun] = {}
        self.run_queues: dict[str, RunQueue] = {}
        self.messages: dict[str, StoredMessage] = {}
        self.topics: set[str] = set()
        self.streams: dict[tuple[str, str], StoredStream] = {}
        self.stream_runs: dict[str, tuple[str, int | None]] = {}
        """Name of a stream -> the run that was noted for it, and until when; None for ever."""
        self.changed = Bell()
        self._clock = clock

    def now_ms(self) -> int:
        """The present time, cut to milliseconds."""
        return to_ms(datetime.now(UTC) if self._clock is None else self._clock())

    def now(self) -> datetime:
        return from_ms(self.now_ms())

    def is_live(self, run_id: str) -> bool:
        """Whether there is such a run, and it has not ended."""
        run = self.runs.get(run_id)
        return run is not None and run.is_live

    def hooks(self) -> Iterator[Entity]:
        """The live hooks of all runs."""
        now = self.now()
        for run in self.runs.values():
            yield from run.live_hooks(now).values()

    def forget_orphan_streams(self) -> None:
        """Drop the streams that no run has come for within an hour of their last write."""
        oldest = self.now_ms() - ORPHAN_MS
        for (run_id, name), stream in list(self.streams.items()):
            if run_id not in self.runs and stream.written_at <= oldest:
                del self.streams[run_id, name]
