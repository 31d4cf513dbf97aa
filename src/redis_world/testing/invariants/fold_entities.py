"""How an event changes a step, a hook or a wait.

Each of these functions applies one event; where it could not follow those in front of it, it
changes nothing and returns what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from redis_world.codec import to_ms
from redis_world.keys import token_hash
from redis_world.testing.invariants.logs import Entry
from redis_world.testing.invariants.snapshot import Hash, text

__all__ = ["ENDED", "Entities", "Folded", "fold_hook", "fold_step", "fold_wait", "unknown_type"]

ENDED: Final = {b"completed", b"failed", b"cancelled"}


@dataclass(slots=True)
class Folded:
    """A step, hook or wait.

    Attributes:
        slot: of its creation.
        fields: its hash.
        op: the request that created it.
        is_lazy: whether it is a step that a replay has begun by itself, without a message.
        is_dead: whether it is a hook that nobody may read any more, and that is not deleted yet.
    """

    slot: int
    fields: Hash
    op: bytes = b""
    is_lazy: bool = False
    is_dead: bool = False

    def point(self, name: str, entry: Entry) -> None:
        """Let a field point at an event."""
        self.fields[name] = entry.stored_slot


@dataclass(slots=True)
class Entities:
    """What a run has besides itself.

    Attributes:
        hooks: the live ones; of a run that is over all that it had then.
        waits: those of a live run.
        claims: what may happen once -> slot where it did.
        ops: op -> slot, of the events that can't be found in another way.
    """

    run_id: str
    steps: dict[str, Folded] = field(default_factory=dict)
    hooks: dict[str, Folded] = field(default_factory=dict)
    waits: dict[str, Folded] = field(default_factory=dict)
    claims: Hash = field(default_factory=dict)
    ops: Hash = field(default_factory=dict)

    def claim(self, name: str, entry: Entry) -> bool:
        """Claim what may happen once; False when it has happened."""
        if name in self.claims:
            return False
        self.claims[name] = entry.stored_slot
        return True

    def remember(self, entry: Entry) -> None:
        self.ops[text(entry.op)] = entry.stored_slot


def fold_step(entities: Entities, entry: Entry, *, run_is_over: bool) -> str | None:
    step = entities.steps.get(entry.correlation_id)
    if entry.type == "step_created":
        if step is not None:
            return "creates a step a second time"
        entities.steps[entry.correlation_id] = _new_step(entry)
        return None
    if step is None:
        return "comes before the creation of its step"
    if step.fields["status"] in ENDED:
        return "comes after the end of its step"
    if run_is_over and step.fields["status"] != b"running":
        return "is the outcome of a step that was not running when its run had ended"
    match entry.type:
        case "step_started":
            if not entry.is_second and (step.fields["attempt"], "error_slot" in step.fields) == (
                b"0",
                False,
            ):
                step.point("first", entry)
            elif not entry.is_second:
                entities.remember(entry)
            _start(step, entry)
        case "step_retrying":
            _retry(step, entry)
            entities.remember(entry)
        case "step_completed" | "step_failed":
            _end(step, entry)
        case _:
            return unknown_type(entry)
    step.fields["updated_at"] = entry.at
    return None


def _new_step(entry: Entry) -> Folded:
    fields = {
        "step_name": entry.data["stepName"].encode(),
        "status": b"pending",
        "attempt": b"0",
        "spec_version": entry.spec,
        "created_at": entry.at,
        "updated_at": entry.at,
        "input_slot": entry.stored_slot if entry.payload else b"-" + entry.stored_slot,
    }
    return Folded(entry.slot, fields, entry.op)


def _start(step: Folded, entry: Entry) -> None:
    step.is_lazy = step.is_lazy or entry.is_second or _is_born_running(step, entry)
    step.fields["status"] = b"running"
    step.fields["attempt"] = b"%d" % (int(step.fields["attempt"]) + 1)
    step.fields.setdefault("started_at", entry.at)
    step.fields.pop("retry_after", None)


def _is_born_running(step: Folded, entry: Entry) -> bool:
    """Whether one batch has created the step and started it: its events are `<op>/<place>`."""
    batch = step.op.rpartition(b"/")[0]
    return batch != b"" and batch == entry.op.rpartition(b"/")[0]


def _retry(step: Folded, entry: Entry) -> None:
    step.fields["status"] = b"pending"
    step.fields.pop("retry_after", None)
    if entry.data.get("retryAfter") is not None:
        step.fields["retry_after"] = _ms(entry.data["retryAfter"])
    step.point("error_slot", entry)


def _end(step: Folded, entry: Entry) -> None:
    step.fields["status"] = entry.type.removeprefix("step_").encode()
    step.fields["completed_at"] = entry.at
    step.point("output_slot" if entry.type == "step_completed" else "error_slot", entry)


def fold_hook(entities: Entities, entry: Entry) -> str | None:
    hook_id = entry.correlation_id
    if entry.type in {"hook_created", "hook_conflict"}:
        if not entities.claim(f"hook:{hook_id}", entry):
            return "creates a hook a second time"
        if entry.type == "hook_created":
            entities.hooks[hook_id] = _new_hook(entities.run_id, entry)
        elif not {"token", "owner"} <= {*entry.fields}:
            return "does not tell the token and its owner"
        return None
    if entry.type not in {"hook_received", "hook_disposed"}:
        return unknown_type(entry)
    if hook_id not in entities.hooks or entities.hooks[hook_id].is_dead:
        return "belongs to no live hook"
    if entry.type == "hook_disposed":
        entities.claim(f"gone:{hook_id}", entry)
        del entities.hooks[hook_id]
    elif "resume" not in entry.fields:
        entities.remember(entry)
    elif not entities.claim(f"resume:{text(entry.fields['resume'])}", entry):
        return "repeats a resume id"
    return None


def _new_hook(run_id: str, entry: Entry) -> Folded:
    data = entry.data
    fields = {
        "run_id": run_id.encode(),
        "hook_id": entry.correlation_id.encode(),
        "token": data["token"].encode(),
        "token_hash": token_hash(data["token"]).encode(),
        "created_at": entry.at,
        "spec_version": entry.spec,
        "is_webhook": b"1" if data.get("isWebhook") else b"0",
        "is_system": b"1" if data.get("isSystem") else b"0",
    }
    if data.get("tokenRetentionUntil") is not None:
        fields["token_retention_until"] = _ms(data["tokenRetentionUntil"])
    if entry.payload:
        fields["metadata_slot"] = entry.stored_slot
    return Folded(entry.slot, fields)


def fold_wait(entities: Entities, entry: Entry) -> str | None:
    wait = entities.waits.get(entry.correlation_id)
    if entry.type == "wait_created":
        if wait is not None:
            return "creates a wait a second time"
        entities.waits[entry.correlation_id] = _new_wait(entry)
    elif entry.type == "wait_completed":
        if wait is None:
            return "comes before the creation of its wait"
        if wait.fields["status"] == b"completed":
            return "completes a wait a second time"
        wait.fields |= {"status": b"completed", "updated_at": entry.at, "completed_at": entry.at}
    else:
        return unknown_type(entry)
    entities.remember(entry)
    return None


def _new_wait(entry: Entry) -> Folded:
    # In the order in which the fields of a wait are packed.
    fields = {
        "status": b"waiting",
        "created_at": entry.at,
        "updated_at": entry.at,
        "resume_at": _ms(entry.data["resumeAt"]),
        "completed_at": b"-",
        "spec_version": entry.spec,
    }
    return Folded(entry.slot, fields)


def unknown_type(entry: Entry) -> str:
    return f"has the type {entry.type!r}, which this World never writes"


def _ms(moment: object) -> bytes:
    if not isinstance(moment, datetime):
        raise TypeError(f"{moment!r} is not a time")
    return b"%d" % to_ms(moment)
