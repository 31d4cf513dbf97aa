"""What tells when runs and hooks go, and what is still to be deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from redis_world.testing.invariants.fold import Fold
from redis_world.testing.invariants.snapshot import Scores, Snapshot, text

__all__ = ["violations_of_retention"]


def violations_of_retention(snapshot: Snapshot, folds: Mapping[str, Fold]) -> list[str]:
    """Every finished run and every hook that outlives its run will go in time."""
    return [
        *_of_finished(snapshot, folds),
        *_of_retained(snapshot, folds),
        *_of_cleaning(snapshot),
    ]


def _of_finished(snapshot: Snapshot, folds: Mapping[str, Fold]) -> Iterable[str]:
    finished = snapshot.zset("finished")
    over = {run_id: fold for run_id, fold in folds.items() if fold.is_over}
    for run_id in sorted({*finished, *over}):
        if run_id not in over:
            yield f"finished: {run_id} is not a run that is over"
        elif run_id not in finished:
            yield f"finished: {run_id} is missing"
        elif finished[run_id] < float(over[run_id].fields["completed_at"]):
            yield f"finished: {run_id} counts from {finished[run_id]:.0f}, before its end"


def _of_retained(snapshot: Snapshot, folds: Mapping[str, Fold]) -> Iterable[str]:
    expected: Scores = {}
    open_ones: set[str] = set()
    for run_id, fold in folds.items():
        for hook_id, hook in fold.entities.hooks.items() if fold.is_over else ():
            until = float(hook.fields.get("token_retention_until", 0))
            member = f"{text(hook.fields['created_at']):0>15}/{hook_id.encode().hex()}/{run_id}"
            # One that is still to be looked at may be missing yet.
            if snapshot.is_cleaning("hooks", run_id):
                open_ones.add(member)
            expected[member] = until
    retained = snapshot.zset("retained")
    for member in sorted({*retained, *expected}):
        run_id = member.rpartition("/")[2]
        if member not in expected and not snapshot.is_cleaning("run", run_id):
            yield f"retained: {member} belongs to no hook that outlives its run"
        elif member not in retained and member not in open_ones:
            yield f"retained: {member} is missing"
        elif member in retained and member in expected and retained[member] != expected[member]:
            yield f"retained: {member} has score {retained[member]:g}, not {expected[member]:g}"


def _of_cleaning(snapshot: Snapshot) -> Iterable[str]:
    for member in snapshot.zset("cleaning"):
        kind, _, run_id = member.partition("/")
        if kind == "run":
            if snapshot.is_run(run_id):
                yield f"cleaning: {member} belongs to an existing run"
        elif kind == "keep":
            if not snapshot.is_run(run_id):
                yield f"cleaning: {member} belongs to no run"
        elif kind not in {"hooks", "log", "streams", "messages"}:
            yield f"cleaning: {member} is nothing that could be cleaned"
        elif not snapshot.is_run(run_id) or snapshot.is_live(run_id):
            yield f"cleaning: {member} belongs to no ended run"
