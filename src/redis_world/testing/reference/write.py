"""One event on its way into a log, and the checks that most events begin with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from redis_world.errors import (
    EntityConflictError,
    InvalidEventError,
    RunNotFoundError,
    RunNotSupportedError,
)
from redis_world.models import CreateEvent
from redis_world.testing.reference.state import State, StoredEvent, StoredRun

__all__ = [
    "NEWEST_SPEC_VERSION",
    "Outcome",
    "Write",
    "refuse_at_ceiling",
    "refuse_on_ended",
    "the_run",
]

OLDEST_SPEC_VERSION: Final = 2
NEWEST_SPEC_VERSION: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """An event that is valid by itself, with all that came with it."""

    state: State
    run_id: str
    event: CreateEvent
    at: datetime
    """The present: creation time of the event."""
    data: bytes | None
    """The event data less the payload, encoded; None when there is none."""
    payload: bytes | None
    occurred_at: datetime | None
    resume_id: str | None
    payload_digest: str | None
    made_id: bool
    """Whether the run id was made by this World just now."""

    @property
    def spec_version(self) -> int:
        version = self.event.spec_version
        return NEWEST_SPEC_VERSION if version is None else version

    @property
    def correlation_id(self) -> str:
        return self.event.correlation_id or ""

    def append(self, run: StoredRun, **changes: Any) -> StoredEvent:
        """Put the event, with some fields changed, at the end of the run's log."""
        event = StoredEvent(
            slot=len(run.events) + 1,
            event_type=self.event.event_type,
            created_at=self.at,
            spec_version=self.spec_version,
            correlation_id=self.event.correlation_id,
            occurred_at=self.occurred_at,
            data=self.data,
            payload=self.payload,
        )
        event = replace(event, **changes)
        # Behind the end of a run whose user data is deleted no payload is kept any more.
        run.events.append(replace(event, payload=None) if run.has_expired else event)
        return event


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an accepted event did: the event, and the entity that the answer shows."""

    event: StoredEvent | None
    """None where nothing had to be recorded."""
    is_new: bool = True
    """False for an event that was in the log already."""
    shows: str = ""
    """`run`, `step`, `hook` or `wait`; empty for none."""
    step_created: bool | None = None

    @property
    def slot(self) -> int:
        """The slot of the event; 0 for none."""
        return 0 if self.event is None else self.event.slot


def the_run(write: Write) -> StoredRun:
    """The run of the event: it exists, and is of a version that this World reads."""
    run = write.state.runs.get(write.run_id)
    if run is None:
        raise RunNotFoundError(write.run_id)
    version = run.fields["spec_version"]
    if not OLDEST_SPEC_VERSION <= version <= NEWEST_SPEC_VERSION:
        raise RunNotSupportedError(f"run {write.run_id} has spec version {version}")
    return run


def refuse_on_ended(write: Write, run: StoredRun) -> None:
    """Nothing begins in a run that has ended."""
    if not run.is_live:
        raise EntityConflictError(
            f"run {write.run_id} is {run.fields['status']}", reason="run_terminal"
        )


def refuse_at_ceiling(write: Write, run: StoredRun) -> None:
    """Past the event ceiling nothing begins; whatever ends something is let through."""
    ceiling = write.state.config.max_events_per_run
    if ceiling is not None and len(run.events) >= ceiling:
        raise InvalidEventError(
            f"the log of run {write.run_id} has {len(run.events)} events; the ceiling is {ceiling}"
        )
