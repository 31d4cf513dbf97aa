"""The chunk streams of runs, and the notes which run writes streams of a name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from redis_world.keys import Keys, Partitions, RunKeys
from redis_world.testing.invariants.names import STREAM_KINDS
from redis_world.testing.invariants.snapshot import Hash, RawEntry, Snapshot, text

__all__ = ["violations_of_stream_notes", "violations_of_streams"]

_LAST_WRITE: Final = re.compile(rb"([0-9]+) ([0-9]+)(?: [0-9a-f]+)?")
"""Sequence and index of a writer's last write."""


def violations_of_streams(snapshot: Snapshot) -> list[str]:
    """The streams of a run, their entries, writers and names."""
    runs = {name.owner for kind in STREAM_KINDS for name in snapshot.of_kind(kind)}
    wrong: list[str] = []
    for run_id in sorted(runs):
        wrong += _of_run(snapshot, run_id)
    return wrong


def violations_of_stream_notes(
    partitions: Partitions, keys: Keys, snapshot: Snapshot
) -> list[str]:
    """A note lies in the partition of its name: readers look for it nowhere else."""
    return [
        f"{keys.stream_run(name).removeprefix(keys.base)} is in another partition than its name "
        "belongs to"
        for name in sorted(snapshot.names("stream"))
        if partitions.of(name) is not keys
    ]


def _of_run(snapshot: Snapshot, run_id: str) -> Iterable[str]:
    keys = RunKeys("", run_id)
    named = snapshot.zset("run:streams", run_id)
    stored = {*snapshot.names("run:stream", run_id), *snapshot.names("run:writers", run_id)}
    for name in sorted(stored):
        key = keys.stream(name)
        if name not in named:
            yield f"{keys.streams}: {name} is missing"
        elif named[name] != 0:
            yield f"{keys.streams}: {name} has score {named[name]:g}, not 0"
        for kind, what in (("run:stream", key), ("run:writers", keys.writers(name))):
            if not snapshot.has(kind, run_id, name):
                yield f"{what} is missing"
        entries = snapshot.stream("run:stream", run_id, name)
        chunks, end, wrong = _read(key, entries)
        yield from wrong
        writers = snapshot.hash("run:writers", run_id, name)
        yield from _of_writers(keys.writers(name), writers, chunks, end)
    # Where there is no run, each stream expires by itself, and its name with the last of them.
    if "expired_at" in snapshot.hash("run", run_id):
        for name in sorted(stored):
            if not snapshot.is_cleaning("streams", run_id):
                yield f"{keys.stream(name)} is there, and the data of its run has expired"
    elif snapshot.is_run(run_id) and not snapshot.is_cleaning("keep", run_id):
        for name in sorted({*named} - stored):
            yield f"{keys.streams}: {name} is there, and {keys.stream(name)} is not"


def _read(key: str, entries: list[RawEntry]) -> tuple[int, bytes | None, list[str]]:
    """How many chunks a stream has, its end, and what is wrong with its entries."""
    chunks, end = 0, None
    wrong: list[str] = []
    is_dense = True
    for position, (entry_id, fields) in enumerate(entries, start=1):
        if is_dense and entry_id != f"0-{position}":
            is_dense = False
            wrong.append(f"{key}: entry {entry_id} is where 0-{position} must be")
        if {*fields} == {"chunk"}:
            chunks += 1
            if end is not None:
                wrong.append(f"{key}: entry {entry_id} comes after the end")
        elif {*fields} == {"end"}:
            if end is not None:
                wrong.append(f"{key}: entry {entry_id} is a second end")
            end = fields["end"]
        else:
            wrong.append(f"{key}: entry {entry_id} is neither a chunk nor the end: {[*fields]}")
    return chunks, end, wrong


def _of_writers(key: str, writers: Hash, chunks: int, end: bytes | None) -> Iterable[str]:
    if writers.get("end") != end:
        told, real = (
            "not there" if value is None else text(value) for value in (writers.get("end"), end)
        )
        yield f"{key}: the end is {told}, in the stream {real}"
    last = -1
    for writer, write in writers.items():
        if writer == "end":
            continue
        match = _LAST_WRITE.fullmatch(write)
        if match is None:
            yield f"{key}: the last write of {writer} is {text(write)!r}"
            continue
        sequence, index = map(int, match.groups())
        if sequence < 1 or index >= chunks:
            yield f"{key}: the last write of {writer} is {sequence} at {index}, of {chunks} chunks"
        last = max(last, index)
    if last < chunks - 1:
        yield f"{key}: no writer has written the last of {chunks} chunks"
