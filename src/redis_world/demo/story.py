"""What a run's event log tells, event by event: all that the views show comes from here."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from vercel.workflow._internal.serialization import hydrate, hydrate_error

from redis_world.events.log import slot_of
from redis_world.models import Event
from redis_world.runs import TERMINAL

__all__ = ["Entry", "Item", "ItemState", "Story"]

ItemState: TypeAlias = Literal["pending", "running", "retrying", "waiting", "completed", "failed"]


@dataclass(slots=True)
class Item:
    """A step, sleep or hook of the run.

    Attributes:
        kind: which of the three.
        name: the step's name or the hook's token.
        state: how far it is.
        detail: why it is so, where that needs words.
        attempts: of a step, how many have begun.
        started: when, in seconds since the run was created; None before the first attempt.
        ended: likewise; None as long as it goes on.
    """

    kind: Literal["step", "sleep", "hook"]
    name: str
    state: ItemState
    detail: str = ""
    attempts: int = 0
    started: float | None = None
    ended: float | None = None

    def seconds(self, now: float) -> float | None:
        """How long it has taken, the pauses between attempts included."""
        if self.started is None:
            return None
        return max(0.0, (now if self.ended is None else self.ended) - self.started)

    def end(self, state: ItemState, offset: float, detail: str = "") -> None:
        """It is over."""
        self.state, self.ended, self.detail = state, offset, detail


@dataclass(frozen=True, slots=True)
class Entry:
    """One event as it is shown.

    Attributes:
        slot: its place in the log, from 1.
        event_type: what it is.
        subject: what it is about.
        detail: the rest; empty for most.
        offset: seconds since the run was created.
    """

    slot: int
    event_type: str
    subject: str
    detail: str
    offset: float


@dataclass
class Story:
    """A run so far, folded from its events and its stream."""

    run_id: str
    workers: str
    """Who does the work, in words."""
    status: str = "pending"
    items: dict[str, Item] = field(default_factory=dict)
    """By correlation id, in the order of their creation."""
    attributes: dict[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    text: str = ""
    """The stream's text."""

    _begin: datetime | None = None
    _seen: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.status in TERMINAL

    @property
    def dense(self) -> bool:
        """Whether the slots of the log are 1, 2, 3 and so on."""
        return [entry.slot for entry in self.entries] == list(range(1, len(self.entries) + 1))

    def now(self) -> float:
        """Seconds since the run was created, by the server's clock as far as it is known."""
        if not self.entries:
            return 0.0
        newest = self.entries[-1].offset
        # Counted on from the newest event: this machine's clock may go differently.
        return newest if self.ended else newest + time.monotonic() - self._seen

    def add(self, event: Event) -> Entry:
        """Take the next event of the log."""
        assert event.created_at is not None
        if self._begin is None:
            self._begin = event.created_at
        offset = self._offset(event.created_at)
        subject, detail = self._fold(event, offset)
        entry = Entry(slot_of(event), event.event_type, subject, detail, offset)
        self.entries.append(entry)
        self._seen = time.monotonic()
        return entry

    def _offset(self, moment: datetime) -> float:
        assert self._begin is not None
        return (moment - self._begin).total_seconds()

    # -- one method per kind of entity; each returns the subject and the detail ------------

    def _fold(self, event: Event, offset: float) -> tuple[str, str]:
        match event.event_type.partition("_")[0]:
            case "run":
                return self._on_run(event)
            case "step":
                return self._on_step(event, offset)
            case "wait":
                return self._on_wait(event, offset)
            case "hook":
                return self._on_hook(event, offset)
            case "attr":
                return self._on_attributes(event)
            case _:
                return "", ""

    def _on_run(self, event: Any) -> tuple[str, str]:
        kind = event.event_type.removeprefix("run_")
        self.status = {"created": "pending", "started": "running"}.get(kind, kind)
        match kind:
            case "created":
                return _short(event.event_data.workflow_name), ""
            case "failed":
                return "", _error(event.event_data.error)
            case _:
                return "", ""

    def _on_step(self, event: Any, offset: float) -> tuple[str, str]:
        key = event.correlation_id
        if event.event_type == "step_created":
            self.items[key] = Item("step", _short(event.event_data.step_name), "pending")
        step = self.items[key]
        match event.event_type:
            case "step_created":
                return step.name, ""
            case "step_started":
                step.attempts += 1
                step.state, step.detail = "running", ""
                step.started = offset if step.started is None else step.started
                return step.name, f"attempt {step.attempts}"
            case "step_retrying":
                step.state = "retrying"
                step.detail = _error(event.event_data.error)
                return step.name, f"attempt {step.attempts} failed: {step.detail}"
            case "step_failed":
                step.end("failed", offset, _error(event.event_data.error))
                return step.name, step.detail
            case _:
                step.end("completed", offset)
                attempts = "attempt" if step.attempts == 1 else "attempts"
                return step.name, f"{step.seconds(offset):.2f} s, {step.attempts} {attempts}"

    def _on_wait(self, event: Any, offset: float) -> tuple[str, str]:
        key = event.correlation_id
        if event.event_type == "wait_created":
            due = f"until {self._offset(event.event_data.resume_at):.2f} s"
            self.items[key] = Item("sleep", "", "waiting", due, started=offset)
            return "sleep", due
        self.items[key].end("completed", offset)
        return "sleep", f"{self.items[key].seconds(offset):.2f} s"

    def _on_hook(self, event: Any, offset: float) -> tuple[str, str]:
        key = event.correlation_id
        match event.event_type:
            case "hook_conflict":
                return event.event_data.token, "another run has this token"
            case "hook_created":
                self.items[key] = Item("hook", event.event_data.token, "waiting", started=offset)
                return event.event_data.token, ""
            case "hook_received":
                answer = hydrate(event.event_data.payload, what="the answer")
                text = ", ".join(_words(name, value) for name, value in answer.items())
                self.items[key].end("completed", offset, text)
                return self.items[key].name, text
            case _:
                return self.items[key].name, ""

    def _on_attributes(self, event: Any) -> tuple[str, str]:
        changes = event.event_data.changes
        for change in changes:
            if change.value is None:
                self.attributes.pop(change.key, None)
            else:
                self.attributes[change.key] = change.value
        writer = self.items.get(event.event_data.writer.step_id or "")
        text = ", ".join(f"{change.key}={change.value}" for change in changes)
        return text, "" if writer is None else f"by step {writer.name}"


def _short(name: str) -> str:
    """`step//app.orders//charge` is shown as `charge`."""
    return name.rpartition("//")[2]


def _error(payload: bytes) -> str:
    return str(hydrate_error(payload, what="the error"))


def _words(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} {value}"
