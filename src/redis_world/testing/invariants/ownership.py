"""Whose each key is, and which keys may expire by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from redis_world.testing.invariants.names import STREAM_KINDS
from redis_world.testing.invariants.snapshot import Snapshot

__all__ = ["violations_of_ownership"]

_BEFORE_THE_RUN: Final = {"run:queue", "run:contents", "run:held", *STREAM_KINDS}
"""What may be there without its run: messages and streams may come first."""


def violations_of_ownership(snapshot: Snapshot) -> list[str]:
    """A run's keys are of a run that exists; only what nobody would delete otherwise expires."""
    return [*_of_owners(snapshot), *_of_expiry(snapshot)]


def _of_owners(snapshot: Snapshot) -> Iterable[str]:
    for name, spelled in snapshot.texts.items():
        is_of_run = name.kind == "run" or name.kind.startswith("run:")
        is_left = snapshot.is_run(name.owner) or snapshot.is_cleaning("run", name.owner)
        if is_of_run and name.kind not in _BEFORE_THE_RUN and not is_left:
            yield f"{spelled} belongs to a missing run"


def _of_expiry(snapshot: Snapshot) -> Iterable[str]:
    for name, spelled in snapshot.texts.items():
        has_run = snapshot.is_run(name.owner)
        is_removed = snapshot.is_cleaning("run", name.owner)
        is_stray = name.kind in STREAM_KINDS and not has_run and not is_removed
        # Those that were there before their run are kept by several scripts.
        is_open = name.kind in STREAM_KINDS and snapshot.is_cleaning("keep", name.owner)
        is_over = name.kind == "run:ops" and has_run and not snapshot.is_live(name.owner)
        expires = name in snapshot.ttls
        # A note for readers that know only a stream's name; without a retention it stays.
        is_note = name.kind == "stream"
        if expires and not (is_stray or is_over or is_removed or is_open or is_note):
            yield f"{spelled} expires in {snapshot.ttls[name]} ms, and must not"
        elif is_stray and not expires:
            yield f"{spelled} belongs to a missing run, and does not expire"
        elif is_over and not expires:
            yield f"{spelled} belongs to an ended run, and does not expire"
