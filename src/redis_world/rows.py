"""Replies of the scripts as models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from redis_world.codec import decode_data, decode_payload, from_ms
from redis_world.ids import event_id
from redis_world.models import (
    Event,
    Hook,
    ResolveData,
    ResumeContext,
    Run,
    Step,
    Wait,
)
from redis_world.models.base import assemble, blank

__all__ = [
    "PAYLOAD_FIELDS",
    "RUN_FIELDS",
    "STEP_STATUSES",
    "Own",
    "PostponedName",
    "event_from",
    "hook_from",
    "pairs",
    "queue_counts",
    "run_from",
    "step_from",
    "wait_from",
]

Own = Mapping[bytes, Any]
"""Slot -> payload of the event that was just written: the reply does not repeat it."""

_POSTPONED_NAMES: Final = 20

_EVENT: Final[TypeAdapter[Event]] = TypeAdapter(Event)

PAYLOAD_FIELDS: Final = {
    "run_created": "input",
    "run_completed": "output",
    "run_failed": "error",
    "step_created": "input",
    "step_started": "input",
    "step_completed": "result",
    "step_failed": "error",
    "step_retrying": "error",
    "hook_created": "metadata",
    "hook_received": "payload",
}
"""Event type -> wire name of the one field that is stored as payload, where there is one."""


def pairs(flat: Sequence[bytes] | dict[bytes, bytes]) -> dict[bytes, bytes]:
    """A flat reply, key and value by turns, as a dict; the embedded server's HGETALL is one."""
    if isinstance(flat, dict):
        return flat
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _fields(*names: str, suffix: str = "") -> tuple[tuple[str, bytes], ...]:
    """Names of a model's fields, each with that of its field in the hash."""
    return tuple((name, f"{name}{suffix}".encode()) for name in names)


_OUTCOMES: Final = ("input", "output", "error")
"""The payloads of a run and of a step, in the order in which their slots stand here."""
_METADATA: Final = _fields("metadata", suffix="_slot")
RUN_FIELDS: Final = (
    b"status",
    b"spec_version",
    b"deployment_id",
    b"workflow_name",
    b"created_at",
    b"started_at",
    b"completed_at",
    b"updated_at",
    b"expired_at",
    b"error_code",
    b"encryption_public_key",
    b"execution_context",
    b"input_slot",
    b"output_slot",
    b"error_slot",
)
"""What is answered of a run, in this order (lua/lib/rows.lua)."""
STEP_STATUSES: Final = {b"p": "pending", b"r": "running", b"c": "completed", b"f": "failed"}
"""A step's statuses by the letters of its record."""
_BLANK_RUN: Final = blank(Run)
_BLANK_STEP: Final = blank(Step)
_NAMES_OF_STEP: Final = (
    "run_id",
    "step_id",
    "step_name",
    "status",
    "attempt",
    "created_at",
    "updated_at",
    "spec_version",
)
"""The fields that every step has."""
_HOOK_TIMES: Final = _fields("created_at", "token_retention_until")


def _payloads(
    slots: Iterable[tuple[str, bytes | None]], found: Sequence[bytes], own: Own | None
) -> dict[str, Any]:
    """The payload fields of an entity that are there, of those with their slots."""
    blobs = pairs(found)
    values: dict[str, Any] = {}
    for name, slot in slots:
        if slot is None:
            continue
        if own and slot in own:
            values[name] = own[slot]
        elif blob := blobs.get(slot):
            values[name] = decode_payload(blob)
    return values


def _slots(
    hash_: Mapping[bytes, bytes], fields: Sequence[tuple[str, bytes]]
) -> Iterable[tuple[str, bytes | None]]:
    return ((name, hash_.get(pointer)) for name, pointer in fields)


def _times(hash_: Mapping[bytes, bytes], fields: Sequence[tuple[str, bytes]]) -> dict[str, Any]:
    return {name: from_ms(int(ms)) for name, key in fields if (ms := hash_.get(key)) is not None}


def run_from(
    run_id: str, row: Sequence[Any], resolve_data: ResolveData, own: Own | None = None
) -> Run:
    """A run from `{ fields, payloads, attributes }`."""
    fields, found, attributes = row
    # As RUN_FIELDS names them.
    (
        status,
        spec_version,
        deployment_id,
        workflow_name,
        created_at,
        started_at,
        completed_at,
        updated_at,
        expired_at,
        error_code,
        encryption_public_key,
        execution_context,
        *slots,
    ) = fields
    values: dict[str, Any] = {
        "run_id": run_id,
        "deployment_id": deployment_id.decode(),
        "workflow_name": workflow_name.decode(),
        "spec_version": int(spec_version),
        "status": status.decode(),
        "attributes": {k.decode(): v.decode() for k, v in pairs(attributes).items()},
        "created_at": from_ms(int(created_at)),
        "updated_at": from_ms(int(updated_at)),
    }
    if started_at is not None:
        values["started_at"] = from_ms(int(started_at))
    if completed_at is not None:
        values["completed_at"] = from_ms(int(completed_at))
    if expired_at is not None:
        values["expired_at"] = from_ms(int(expired_at))
    if error_code is not None:
        values["error_code"] = error_code.decode()
    if encryption_public_key is not None:
        values["encryption_public_key"] = encryption_public_key.decode()
    if execution_context is not None:
        values["execution_context"] = decode_data(execution_context)
    if resolve_data == "all":
        values.update(_payloads(zip(_OUTCOMES, slots, strict=True), found, own))
    return assemble(Run, {**_BLANK_RUN, **values}, set(values))


class StepRecord(NamedTuple):
    """The words of a step's record, as they are stored (lua/lib/step_record.lua); `-` for none.

    Attributes:
        first: the slot of the first start.
        started: milliseconds from its creation, as in what follows.
        owed: since when it is owed its message.
    """

    status: bytes
    attempt: bytes
    input_slot: bytes
    first: bytes
    error_slot: bytes
    output_slot: bytes
    spec_version: bytes
    created_at: bytes
    started: bytes
    completed: bytes
    updated: bytes
    retry_after: bytes
    owed: bytes

    @classmethod
    def read(cls, record: bytes) -> StepRecord:
        """Read a record.

        Raises:
            ValueError: words are missing.
        """
        words = record.split(b" ")
        if len(words) != len(cls._fields):
            raise ValueError(f"a step's record has {len(cls._fields)} words, not {len(words)}")
        return cls(*words)


def step_from(
    run_id: str,
    step_id: str,
    row: Sequence[Any],
    resolve_data: ResolveData,
    own: Own | None = None,
) -> Step:
    """A step from `{ record, payloads, name }`."""
    record, found, name = row
    # As StepRecord names them.
    (
        status,
        attempt,
        input_slot,
        _,
        error_slot,
        output_slot,
        spec_version,
        created_at,
        started,
        completed,
        updated,
        retry_after,
        _,
    ) = record.split(b" ")
    begin = int(created_at)
    values = {**_BLANK_STEP}
    values["run_id"] = run_id
    values["step_id"] = step_id
    values["step_name"] = name.decode()
    values["status"] = STEP_STATUSES[status]
    values["attempt"] = int(attempt)
    values["created_at"] = from_ms(begin)
    values["updated_at"] = from_ms(begin + int(updated))
    values["spec_version"] = int(spec_version)
    names = {*_NAMES_OF_STEP}
    if started != b"-":
        names.add("started_at")
        values["started_at"] = from_ms(begin + int(started))
    if completed != b"-":
        names.add("completed_at")
        values["completed_at"] = (
            values["updated_at"] if completed == updated else from_ms(begin + int(completed))
        )
    if retry_after != b"-":
        names.add("retry_after")
        values["retry_after"] = from_ms(begin + int(retry_after))
    if (found or own) and resolve_data == "all":
        blobs = dict(zip(found[::2], found[1::2], strict=True))
        for field, slot in (
            ("input", input_slot),
            ("output", output_slot),
            ("error", error_slot),
        ):
            if own and slot in own:
                names.add(field)
                values[field] = own[slot]
            elif blob := blobs.get(slot):
                names.add(field)
                values[field] = decode_payload(blob)
    return assemble(Step, values, names)


def hook_from(
    row: Sequence[Any],
    context: Sequence[bytes | None],
    environment: str | None,
    resolve_data: ResolveData,
    own: Own | None = None,
) -> Hook:
    """A hook from `{ hash, payloads }` and the fields of its run that it mirrors."""
    hash_ = pairs(row[0])
    return Hook.trusted(
        {
            "run_id": hash_[b"run_id"].decode(),
            "hook_id": hash_[b"hook_id"].decode(),
            "token": hash_[b"token"].decode(),
            "owner_id": "",
            "project_id": "",
            "environment": environment or "",
            "spec_version": int(hash_[b"spec_version"]),
            "is_webhook": hash_[b"is_webhook"] == b"1",
            "is_system": hash_[b"is_system"] == b"1",
            "resume_context": _resume_context(context),
            **_times(hash_, _HOOK_TIMES),
            **(_payloads(_slots(hash_, _METADATA), row[1], own) if resolve_data == "all" else {}),
        },
    )


def _resume_context(context: Sequence[bytes | None]) -> ResumeContext:
    deployment_id, workflow_name, spec_version, public_key, execution_context = context
    assert deployment_id is not None
    assert workflow_name is not None
    assert spec_version is not None
    values: dict[str, Any] = {
        "deployment_id": deployment_id.decode(),
        "workflow_name": workflow_name.decode(),
        "run_spec_version": int(spec_version),
    }
    if public_key is not None:
        values["encryption_public_key"] = public_key.decode()
    fields = decode_data(execution_context) if execution_context is not None else {}
    # Clients write this context as they like: only what has the right type is taken over.
    core, trace = fields.get("workflowCoreVersion"), fields.get("traceCarrier")
    version = fields.get("hookResumeInputVersion")
    if isinstance(core, str):
        values["workflow_core_version"] = core
    if isinstance(trace, dict) and all(isinstance(value, str) for value in trace.values()):
        values["trace_carrier"] = trace
    if isinstance(version, int) and not isinstance(version, bool):
        values["hook_resume_input_version"] = version
    return ResumeContext.trusted(values)


def wait_from(run_id: str, correlation_id: str, state: bytes) -> Wait:
    """A wait from its packed state."""
    status, created_at, updated_at, resume_at, completed_at, spec_version = state.split(b" ")
    values: dict[str, Any] = {
        "wait_id": f"{run_id}-{correlation_id}",
        "run_id": run_id,
        "status": status.decode(),
        "resume_at": from_ms(int(resume_at)),
        "created_at": from_ms(int(created_at)),
        "updated_at": from_ms(int(updated_at)),
        "spec_version": int(spec_version),
    }
    if completed_at != b"-":
        values["completed_at"] = from_ms(int(completed_at))
    return Wait.trusted(values)


def event_from(
    run_id: str,
    slot: int | str | bytes,
    entry: Mapping[bytes, bytes],
    payload: bytes | None,
    resolve_data: ResolveData,
) -> Event:
    """An event from its log entry and its payload, empty or None for none."""
    event_type = entry[b"type"].decode()
    wire: dict[str, Any] = {
        "eventType": event_type,
        "runId": run_id,
        "eventId": event_id(slot),
        "createdAt": from_ms(int(entry[b"at"])),
        "specVersion": int(entry[b"spec"]),
    }
    if correlation_id := entry.get(b"corr"):
        wire["correlationId"] = correlation_id.decode()
    if (occurred_at := entry.get(b"occ")) is not None:
        wire["occurredAt"] = from_ms(int(occurred_at))
    if (resume_id := entry.get(b"resume")) is not None:
        wire["resumeId"] = resume_id.decode()
    data = _event_data(event_type, entry, payload, resolve_data)
    if data is not None:
        wire["eventData"] = data
    return _EVENT.validate_python(wire)


def _event_data(
    event_type: str,
    entry: Mapping[bytes, bytes],
    payload: bytes | None,
    resolve_data: ResolveData,
) -> dict[str, Any] | None:
    if event_type == "hook_conflict":
        return {"token": entry[b"token"].decode(), "conflictingRunId": entry[b"owner"].decode()}
    blob = entry.get(b"data")
    if not blob:
        return None
    data: dict[str, Any] = decode_data(blob)
    field = PAYLOAD_FIELDS.get(event_type)
    if field is None:
        return data
    if resolve_data == "none":
        return data or None
    if payload:
        data[field] = decode_payload(payload)
    return data


class PostponedName(NamedTuple):
    """A workflow or step whose messages all workers have postponed.

    Attributes:
        queue_name: the queue name of the messages; it ends with the workflow.
        step_name: the name of the step; None for a replay.
        age: seconds since the first of them was first postponed.
    """

    queue_name: str
    step_name: str | None
    age: float


def queue_counts(
    replies: Sequence[Sequence[Any]],
) -> tuple[int, int, int, int, int, float, int, float, tuple[PostponedName, ...]]:
    """What a topic's partitions hold together, by what queue/stats says of each.

    Returns:
        How many messages are ready, delayed, leased, held and dead; for how many seconds the
        oldest has been due; how many are postponed, the longest for how many seconds, and what
        they ask for.
    """
    ready, delayed, leased, held, dead, postponed = (
        sum(int(reply[place]) for reply in replies) for place in (2, 3, 4, 5, 6, 8)
    )
    ages = [max(0.0, (int(reply[1]) - float(reply[7])) / 1000) for reply in replies if reply[7]]
    names = _postponed_names(replies)
    longest = names[0].age if names else 0.0
    return (
        ready,
        delayed,
        leased,
        held,
        dead,
        max(ages, default=0.0),
        postponed,
        longest,
        names[:_POSTPONED_NAMES],
    )


def _postponed_names(replies: Sequence[Sequence[Any]]) -> tuple[PostponedName, ...]:
    """Each name once, the longest postponed first."""
    ages: dict[tuple[bytes, bytes], float] = {}
    for reply in replies:
        for since, *name in reply[9]:
            age = max(0.0, (int(reply[1]) - int(since)) / 1000)
            queue_name, step_name = name[0], name[1] or b""
            ages[queue_name, step_name] = max(age, ages.get((queue_name, step_name), 0.0))
    names = [
        PostponedName(queue_name.decode(), step_name.decode() or None, age)
        for (queue_name, step_name), age in ages.items()
    ]
    return tuple(sorted(names, key=lambda name: (-name.age, name.queue_name)))
