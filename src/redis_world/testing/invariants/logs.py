"""The log of a run: its entries, and what holds for each of them by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis_world.codec import decode_data
from redis_world.errors import WorldError
from redis_world.keys import RunKeys
from redis_world.rows import PAYLOAD_FIELDS
from redis_world.testing.invariants.snapshot import Hash, Snapshot, text

__all__ = ["Entry", "read_log"]

_REQUIRED: Final = ("type", "at", "spec", "op")
_NUMBERS: Final = ("at", "spec", "occ")
_PAIRS: Final = {("run_created", "run_started"), ("step_created", "step_started")}
"""What one request may write together: a resilient start, a lazy start."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a log.

    Attributes:
        slot: from 1.
        payload: whether it has a payload to show, or the reference to one.
        is_second: whether the request that wrote it wrote the entry in front of it too.
        fields: all of its fields, raw.
    """

    slot: int
    type: str
    correlation_id: str
    at: bytes
    spec: bytes
    op: bytes
    data: Mapping[str, Any]
    payload: bool
    is_second: bool
    fields: Hash

    @property
    def stored_slot(self) -> bytes:
        """The slot as hashes point at it."""
        return b"%d" % self.slot


def read_log(snapshot: Snapshot, run_id: str) -> tuple[list[Entry], list[str]]:
    """The log of a run, and what is wrong with its entries and their payloads."""
    key = RunKeys("", run_id).events
    is_deleted = "expired_at" in snapshot.hash("run", run_id)
    log: list[Entry] = []
    wrong: list[str] = []
    is_dense = True
    for position, (entry_id, fields) in enumerate(snapshot.stream("run:events", run_id), start=1):
        if is_dense and entry_id != f"0-{position}":
            is_dense = False
            wrong.append(f"{key}: entry {entry_id} is where 0-{position} must be")
        slot = int(entry_id.partition("-")[2])
        data, problems = _read_fields(fields)
        wrong += [f"{key}: slot {slot} {problem}" for problem in problems]
        previous = log[-1] if log else None
        log.append(_entry(slot, fields, data, previous, is_deleted=is_deleted))
    if not log:
        wrong.append(f"{key}: the run has no log")
    of_payloads = _of_deletion if is_deleted else _of_payloads
    return log, [*wrong, *_of_ops(key, log), *of_payloads(snapshot, run_id, log)]


def _entry(
    slot: int, fields: Hash, data: Mapping[str, Any], previous: Entry | None, *, is_deleted: bool
) -> Entry:
    type_, op = text(fields.get("type", b"")), fields.get("op", b"")
    correlation_id = text(fields.get("corr", b""))
    is_second = (
        previous is not None
        and op != b""
        and previous.op == op
        and (previous.type, type_) in _PAIRS
        and (type_ == "run_started" or previous.correlation_id == correlation_id)
    )
    return Entry(
        slot=slot,
        type=type_,
        correlation_id=correlation_id,
        at=fields.get("at", b""),
        spec=fields.get("spec", b""),
        op=op,
        data=data,
        payload=not is_deleted and fields.get("payload", b"") != b"",
        is_second=is_second,
        fields=fields,
    )


def _read_fields(fields: Hash) -> tuple[Mapping[str, Any], list[str]]:
    """The data of an entry, and what is wrong with its fields."""
    wrong = [f"has no {name}" for name in _REQUIRED if not fields.get(name)]
    wrong += (
        f"has the {name} {text(fields[name])!r}, which is not a number"
        for name in _NUMBERS
        # What occurred before 1970 did so at a negative time.
        if name in fields
        and not (fields[name].removeprefix(b"-") if name == "occ" else fields[name]).isdigit()
    )
    data: Any = {}
    if fields.get("data"):
        try:
            data = decode_data(fields["data"])
        except WorldError as error:
            wrong.append(f"has data that can't be read: {error}")
    if not isinstance(data, Mapping):
        wrong.append(f"has data that is a {type(data).__name__}")
        data = {}
    return data, wrong


def _of_ops(key: str, log: list[Entry]) -> list[str]:
    """An op stands for one request, which writes one event, or a pair."""
    wrong = []
    writers: dict[bytes, int] = {}
    for entry in log:
        if not entry.op or entry.is_second:
            continue
        if entry.op in writers:
            wrong.append(
                f"{key}: slots {writers[entry.op]} and {entry.slot} have one op, {text(entry.op)}"
            )
        writers.setdefault(entry.op, entry.slot)
    return wrong


def _of_payloads(snapshot: Snapshot, run_id: str, log: list[Entry]) -> list[str]:
    """Small payloads lie in their entries, large ones beside them, where the entry says so."""
    keys = RunKeys("", run_id)
    payloads = snapshot.hash("run:payloads", run_id)
    large = {str(entry.slot) for entry in log if entry.fields.get("payload", b"")[:1] == b">"}
    wrong = []
    for slot in sorted({*payloads, *large}):
        if slot not in large:
            wrong.append(f"{keys.payloads}: {slot} is not a slot of a large payload")
        elif slot not in payloads:
            wrong.append(f"{keys.payloads}: the large payload of slot {slot} is missing")
    for entry in log:
        payload = entry.fields.get("payload")
        if payload is None:
            wrong.append(f"{keys.events}: slot {entry.slot} has no place for a payload")
        elif payload and entry.type not in PAYLOAD_FIELDS:
            wrong.append(
                f"{keys.events}: slot {entry.slot} is a {entry.type}, which has no payload"
            )
        elif payload and entry.type == "step_started" and entry.is_second:
            wrong.append(
                f"{keys.events}: slot {entry.slot} belongs to a lazy start, "
                "whose payload is its input"
            )
    if snapshot.has("run:stripped", run_id):
        wrong.append(f"{keys.stripped}: the run keeps its user data")
    return wrong


def _of_deletion(snapshot: Snapshot, run_id: str, log: list[Entry]) -> list[str]:
    """What is left of the payloads of a run whose user data is deleted."""
    keys = RunKeys("", run_id)
    wrong = []
    if snapshot.has("run:payloads", run_id):
        wrong.append(f"{keys.payloads}: the user data of the run is deleted")
    copies = snapshot.stream("run:stripped", run_id)
    if not snapshot.is_cleaning("log", run_id):
        wrong += [
            f"{keys.events}: slot {entry.slot} keeps its payload"
            for entry in log
            if entry.fields.get("payload")
        ]
        wrong += [f"{keys.stripped}: no sweeper will complete it"] if copies else []
    for (_, copy), entry in zip(copies, log, strict=False):
        if copy != {**entry.fields, "payload": b""}:
            wrong.append(f"{keys.stripped}: slot {entry.slot} is not that of the log")
    return wrong
