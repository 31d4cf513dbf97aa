"""A run, its steps, hooks and waits against what its log makes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from redis_world.codec import decode_data
from redis_world.errors import WorldError
from redis_world.keys import RunKeys
from redis_world.rows import STEP_STATUSES, StepRecord
from redis_world.testing.invariants.fold import Fold
from redis_world.testing.invariants.fold_entities import Folded
from redis_world.testing.invariants.logs import Entry
from redis_world.testing.invariants.snapshot import Hash, Scores, Snapshot, text

__all__ = ["compare_scores", "step_of", "violations_of_entities"]

_ABSENT: Final = "absent"
_BESIDE: Final = {"execution_context", "length", "owed", "queued", "steps"}
"""Fields of a run that are no matter of what its log says of it alone."""


def violations_of_entities(
    snapshot: Snapshot, run_id: str, fold: Fold, log: Collection[Entry]
) -> list[str]:
    """What is stored otherwise than the log of its run says."""
    keys = RunKeys("", run_id)
    entities = fold.entities
    waits = {name: _packed(wait) for name, wait in entities.waits.items()}
    is_cleaning = snapshot.is_cleaning("hooks", run_id)
    stored_hooks = snapshot.names("run:hook", run_id)
    fold.settle_hooks(stored_hooks, snapshot.now, is_cleaning=is_cleaning)
    return [
        *_of_run(keys.run, snapshot.hash("run", run_id), fold, log),
        *_compare(keys.attributes, fold.attributes, snapshot.hash("run:attributes", run_id)),
        *_of_steps(keys.run, snapshot.hash("run", run_id), entities.steps, fold),
        *compare_scores(keys.hooks, _slots(entities.hooks), snapshot.zset("run:hooks", run_id)),
        *_of_hooks(snapshot, run_id, entities.hooks, fold),
        *compare_scores(keys.waits, _slots(entities.waits), snapshot.zset("run:waits", run_id)),
        *_compare(keys.wait_states, waits, snapshot.hash("run:wait_states", run_id)),
        *_compare(keys.claims, entities.claims, _without_fences(snapshot, run_id)),
        *_of_ops(keys.ops, snapshot.hash("run:ops", run_id), fold, log),
    ]


def _of_run(key: str, stored: Hash, fold: Fold, log: Collection[Entry]) -> Iterable[str]:
    """The run's hash; its execution context is a copy of the one in the log, newly encoded."""
    rest = {
        name: value
        for name, value in stored.items()
        if name not in _BESIDE and not name.startswith(("step:", "steps:", "name:"))
    }
    yield from _compare(key, fold.fields, rest)
    length, last = text(stored.get("length", b"absent")), max(entry.slot for entry in log)
    if length != str(last):
        yield f"{key}: length is {length}, and the last slot of the log {last}"
    context: Any = None
    if "execution_context" in stored:
        try:
            context = decode_data(stored["execution_context"])
        except WorldError as error:
            yield f"{key}: its execution_context can't be read: {error}"
            return
    # By repr too: a NaN equals nothing.
    if context != fold.execution_context and repr(context) != repr(fold.execution_context):
        yield f"{key}: execution_context is {context}, by the log {fold.execution_context}"


def _of_steps(key: str, stored: Hash, folded: Mapping[str, Folded], fold: Fold) -> Iterable[str]:
    """The steps in the run's hash: how many, in which order, and name and record of each."""
    count, expected = text(stored.get("steps", b"0")), str(len(folded))
    if count != expected:
        yield f"{key}: steps is {count}, by the log {expected}"
    in_order = sorted(folded, key=lambda step_id: folded[step_id].slot)
    order = {f"steps:{place}": step_id.encode() for place, step_id in enumerate(in_order, 1)}
    yield from _compare(key, order, _beginning(stored, "steps:"))
    names = {f"name:{step_id}": step.fields["step_name"] for step_id, step in folded.items()}
    yield from _compare(key, names, _beginning(stored, "name:"))
    records = _beginning(stored, "step:")
    for name in sorted({*records} - {f"step:{step_id}" for step_id in folded}):
        yield f"{key}: {name} belongs to no step of the log"
    for step_id in sorted(folded):
        name = f"step:{step_id}"
        if name not in records:
            yield f"{key}: {name} is missing"
            continue
        try:
            fields = step_of(records[name])
        except (KeyError, ValueError):
            yield f"{key}: {name} is {text(records[name])!r}, which is not a record of a step"
            continue
        # Since when it is owed its message is no matter of the log.
        fields.pop("owed", None)
        by_log = {k: v for k, v in folded[step_id].fields.items() if k != "step_name"}
        if "expired_at" in fold.fields:
            fields, by_log = _without_signs(fields), _without_signs(by_log)
        yield from _compare(f"{key}: {name}", by_log, fields)


def _beginning(stored: Hash, prefix: str) -> Hash:
    return {name: value for name, value in stored.items() if name.startswith(prefix)}


def step_of(record: bytes) -> Hash:
    """The fields of a step's record, with times for distances; what it lacks is absent.

    Raises:
        KeyError, ValueError: no World writes such a record.
    """
    step = StepRecord.read(record)
    fields = {
        "status": STEP_STATUSES[step.status].encode(),
        "attempt": step.attempt,
        "input_slot": step.input_slot,
        "spec_version": step.spec_version,
        "created_at": step.created_at,
    }
    slots = {name: getattr(step, name) for name in ("first", "error_slot", "output_slot")}
    distances = {
        "started_at": step.started,
        "completed_at": step.completed,
        "updated_at": step.updated,
        "retry_after": step.retry_after,
        "owed": step.owed,
    }
    return {
        **fields,
        **{name: value for name, value in slots.items() if value != b"-"},
        **{
            name: b"%d" % (int(step.created_at) + int(distance))
            for name, distance in distances.items()
            if distance != b"-"
        },
    }


def _of_hooks(
    snapshot: Snapshot, run_id: str, folded: Mapping[str, Folded], fold: Fold
) -> Iterable[str]:
    """The hashes of the hooks of a run."""
    for name in sorted({*folded, *snapshot.names("run:hook", run_id)}):
        key = RunKeys("", run_id).hook(name)
        stored = snapshot.hash("run:hook", run_id, name)
        if name not in folded:
            yield f"{key} belongs to no hook that is live by the log"
        elif not stored:
            yield f"{key} is missing"
        else:
            # Where the record of its token lies is no matter of its log.
            stored = {name: value for name, value in stored.items() if name != "token_partition"}
            if "expired_at" in fold.fields:
                stored.pop("metadata_slot", None)
            yield from _compare(key, folded[name].fields, stored)


def _without_fences(snapshot: Snapshot, run_id: str) -> Hash:
    """The claims of a run, without the hooks that were kept from coming too late."""
    claims = snapshot.hash("run:claims", run_id)
    return {name: slot for name, slot in claims.items() if not name.startswith("revoked:")}


def _without_signs(step: Hash) -> Hash:
    """A step of a run whose payloads are deleted, as it is by the log, which has none either."""
    # A minus says that there never was a payload at this slot.
    return {
        name: value.removeprefix(b"-") if name.endswith("_slot") else value
        for name, value in step.items()
    }


def _of_ops(key: str, stored: Hash, fold: Fold, log: Collection[Entry]) -> Iterable[str]:
    """What requests have left to find themselves by, while their run lives and for a while."""
    entries = {b"%d" % entry.slot: entry for entry in log}
    for op, note in stored.items():
        # What a batch has refused: nothing was written for it.
        if op.startswith("batch:"):
            continue
        # Behind the slot there may be what the answer needs.
        slot = note.partition(b" ")[0]
        if slot not in entries:
            yield f"{key}: {op} names {text(slot)}, which is not a slot of the log"
        elif text(entries[slot].op) != op:
            yield f"{key}: {op} names slot {text(slot)}, which another request wrote"
    if not fold.is_over:
        for op, slot in fold.entities.ops.items():
            if op not in stored:
                yield f"{key}: {op}, which wrote slot {text(slot)}, is not there"


def _slots(folded: Mapping[str, Folded]) -> Scores:
    return {name: float(each.slot) for name, each in folded.items()}


def _packed(wait: Folded) -> bytes:
    return b" ".join(wait.fields.values())


def _compare(key: str, expected: Hash, stored: Hash) -> Iterable[str]:
    for name in sorted({*expected, *stored}):
        value = stored.get(name)
        if value != expected.get(name):
            yield f"{key}: {name} is {_shown(value)}, by the log {_shown(expected.get(name))}"


def _shown(value: bytes | None) -> str:
    return _ABSENT if value is None else repr(text(value))


def compare_scores(key: str, expected: Scores, stored: Scores) -> Iterable[str]:
    """What a sorted set has too much, or not, or under another score."""
    for member in sorted({*expected, *stored}):
        if member not in stored:
            yield f"{key}: {member} is missing"
        elif member not in expected:
            yield f"{key}: {member} must not be in it"
        elif stored[member] != expected[member]:
            yield f"{key}: {member} has score {stored[member]:g}, not {expected[member]:g}"
