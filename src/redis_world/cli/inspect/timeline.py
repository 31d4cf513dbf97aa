"""What a run's steps, sleeps and hooks did, and when: folded from its event log.

The log has what the entities no longer have: when each attempt began and ended, and the sleeps
and hooks that went with the end of their run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from redis_world.models import Event

__all__ = ["Attempt", "Item", "Kind", "Outcome", "Timeline"]

Kind: TypeAlias = Literal["step", "sleep", "hook"]
Outcome: TypeAlias = Literal["running", "completed", "failed", "retried", "lost"]


@dataclass(slots=True)
class Attempt:
    """One attempt of a step.

    Attributes:
        began: when it was started.
        ended: None while it goes on.
        outcome: `lost` when the step was started again without a word of this one.
    """

    began: datetime
    ended: datetime | None = None
    outcome: Outcome = "running"

    def end(self, moment: datetime, outcome: Outcome) -> None:
        """It is over."""
        if self.ended is None:
            self.ended, self.outcome = moment, outcome

    def to_wire(self) -> dict[str, Any]:
        """With the wire's names."""
        return {"startedAt": self.began, "completedAt": self.ended, "outcome": self.outcome}


@dataclass(slots=True)
class Item:
    """A step, sleep or hook of a run.

    Attributes:
        kind: which of the three.
        correlation_id: names it within its run.
        name: the step's name, the hook's token; empty for a sleep.
        state: of a step its status; else `waiting`, `completed`, `received`, `disposed`, or
            `conflict` where another run had the token; at the end of the run `gone`, or
            `retained` where its token stays taken.
        created: when.
        ended: None while it goes on.
        attempts: of a step.
        resume_at: of a sleep: when it is over.
        received: of a hook: how often it was resumed.
        retained_until: of a hook: until when it may outlive its run.
    """

    kind: Kind
    correlation_id: str
    name: str
    state: str
    created: datetime
    ended: datetime | None = None
    attempts: list[Attempt] = field(default_factory=list)
    resume_at: datetime | None = None
    received: int = 0
    retained_until: datetime | None = None

    @property
    def began(self) -> datetime:
        """When work on it began: for a step with its first attempt."""
        return self.attempts[0].began if self.attempts else self.created

    def end(self, moment: datetime, state: str) -> None:
        """It is over; its first end counts."""
        if self.ended is None:
            self.ended, self.state = moment, state

    def seconds(self, now: datetime) -> float | None:
        """How long it has taken, pauses between attempts included; None before it began."""
        if self.kind == "step" and not self.attempts:
            return None
        return ((self.ended or now) - self.began).total_seconds()

    def to_wire(self) -> dict[str, Any]:
        """With the wire's names."""
        wire: dict[str, Any] = {
            "kind": self.kind,
            "correlationId": self.correlation_id,
            "name": self.name,
            "state": self.state,
            "createdAt": self.created,
            "completedAt": self.ended,
        }
        match self.kind:
            case "step":
                wire["attempts"] = [attempt.to_wire() for attempt in self.attempts]
            case "sleep":
                wire["resumeAt"] = self.resume_at
            case "hook":
                wire["received"] = self.received
        return wire


class Timeline:
    """The items of a run in the order of their creation.

    Args:
        events: its log, from the first event on; payloads are not needed.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._items: dict[tuple[Kind, str], Item] = {}
        self.events = 0
        """How many there were."""
        self.last: datetime | None = None
        """When the newest event was."""
        for event in events:
            self._add(event)

    @property
    def items(self) -> list[Item]:
        """The steps, sleeps and hooks."""
        return list(self._items.values())

    def _add(self, event: Any) -> None:
        moment = event.created_at
        assert moment is not None
        self.events += 1
        self.last = moment
        kind, _, what = event.event_type.partition("_")
        match kind:
            case "step":
                self._on_step(event, what, moment)
            case "wait":
                self._on_wait(event, what, moment)
            case "hook":
                self._on_hook(event, what, moment)
            case "run" if what in ("completed", "failed", "cancelled"):
                self._on_end(moment)

    def _item(self, kind: Kind, event: Any, moment: datetime, *, name: str, state: str) -> Item:
        key = (kind, event.correlation_id)
        if key not in self._items:
            self._items[key] = Item(kind, event.correlation_id, name, state, moment)
        return self._items[key]

    def _on_step(self, event: Any, what: str, moment: datetime) -> None:
        name = getattr(event.event_data, "step_name", None) or ""
        step = self._item("step", event, moment, name=name, state="pending")
        last = step.attempts[-1] if step.attempts else None
        match what:
            case "started":
                if last is not None:
                    last.end(moment, "lost")
                step.attempts.append(Attempt(moment))
                step.state = "running"
            case "retrying":
                if last is not None:
                    last.end(moment, "retried")
                step.state = "pending"
            case "completed" | "failed":
                if last is not None:
                    last.end(moment, "completed" if what == "completed" else "failed")
                step.end(moment, what)

    def _on_wait(self, event: Any, what: str, moment: datetime) -> None:
        sleep = self._item("sleep", event, moment, name="", state="waiting")
        if what == "completed":
            sleep.end(moment, "completed")
        elif event.event_data is not None:
            sleep.resume_at = event.event_data.resume_at

    def _on_hook(self, event: Any, what: str, moment: datetime) -> None:
        token = getattr(event.event_data, "token", None) or ""
        hook = self._item("hook", event, moment, name=token, state="waiting")
        match what:
            case "created" if event.event_data is not None:
                hook.retained_until = event.event_data.token_retention_until
            case "conflict":
                hook.end(moment, "conflict")
            case "received":
                hook.received += 1
                hook.state = "received"
            case "disposed":
                hook.end(moment, "received" if hook.received else "disposed")

    def _on_end(self, moment: datetime) -> None:
        for item in self._items.values():
            if item.kind != "step":
                is_retained = item.retained_until is not None and item.retained_until > moment
                state = "retained" if is_retained else "gone"
                item.end(moment, "received" if item.received else state)
