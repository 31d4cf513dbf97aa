"""What lies beside the runs: their indexes, tokens, the indexes of hooks, and what is pinned."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from redis_world.config import WorldConfig
from redis_world.keys import SCHEMA, Keys
from redis_world.testing.invariants.entities import compare_scores
from redis_world.testing.invariants.fold import Fold
from redis_world.testing.invariants.fold_entities import Folded
from redis_world.testing.invariants.snapshot import Scores, Snapshot, text

__all__ = [
    "HookPlace",
    "hooks_of",
    "violations_of_hooks",
    "violations_of_meta",
    "violations_of_runs",
]

HookPlace: TypeAlias = tuple[str, str, Folded]
"""Run, id and fields of a hook."""


def violations_of_meta(snapshot: Snapshot, config: WorldConfig) -> list[str]:
    """What is pinned is what this World was opened with."""
    meta = snapshot.hash("meta")
    expected = {"schema": SCHEMA, "partitions": config.partitions}
    return [
        f"meta: {name} is {text(meta.get(name, b'absent'))}, and must be {value}"
        for name, value in expected.items()
        if meta.get(name) != str(value).encode()
    ]


def violations_of_runs(snapshot: Snapshot, keys: Keys) -> list[str]:
    """Each run is in the index of all runs, of its status, and of its workflow and status."""
    runs: Scores = {}
    by_status: defaultdict[str, Scores] = defaultdict(dict)
    by_workflow: defaultdict[tuple[str, str], Scores] = defaultdict(dict)
    for run_id in snapshot.run_ids:
        fields = snapshot.hash("run", run_id)
        status, workflow = (text(fields.get(name, b"")) for name in ("status", "workflow_name"))
        runs[run_id] = by_status[status][run_id] = by_workflow[workflow, status][run_id] = 0.0
    wrong = [*compare_scores("runs", runs, snapshot.zset("runs"))]
    for status in sorted({*by_status, *snapshot.names("runs:status")}):
        key = _spelled(keys, keys.runs_of_status(status))
        wrong += compare_scores(key, by_status[status], snapshot.zset("runs:status", "", status))
    stored = {(name.owner, name.name) for name in snapshot.of_kind("runs:workflow")}
    for workflow, status in sorted({*by_workflow, *stored}):
        key = _spelled(keys, keys.runs_of_workflow(workflow, status))
        index = snapshot.zset("runs:workflow", workflow, status)
        wrong += compare_scores(key, by_workflow[workflow, status], index)
    return wrong


def hooks_of(snapshot: Snapshot, folds: Mapping[str, Fold]) -> list[HookPlace]:
    """The hooks of a partition, with their runs and ids."""
    return [
        *(
            (run_id, hook_id, hook)
            for run_id, fold in folds.items()
            for hook_id, hook in fold.entities.hooks.items()
        ),
        *_of_removed_runs(snapshot),
    ]


def violations_of_hooks(snapshot: Snapshot, keys: Keys, hooks: Iterable[HookPlace]) -> list[str]:
    """A hook is in the indexes; nothing else is."""
    by_id: defaultdict[str, Scores] = defaultdict(dict)
    all_hooks: Scores = {}
    for run_id, hook_id, hook in hooks:
        created_at = text(hook.fields["created_at"])
        by_id[hook_id][run_id] = float(created_at) if created_at.isdigit() else math.nan
        # Padded and in hex, so that the order of the text is that of creation, then of the id.
        all_hooks[f"{created_at:0>15}/{hook_id.encode().hex()}/{run_id}"] = 0.0
    wrong = [*compare_scores("hooks", all_hooks, snapshot.zset("hooks"))]
    for hook_id in sorted({*by_id, *snapshot.names("hook")}):
        key = _spelled(keys, keys.hook_runs(hook_id))
        wrong += compare_scores(key, by_id[hook_id], snapshot.zset("hook", "", hook_id))
    return wrong


def _of_removed_runs(snapshot: Snapshot) -> list[tuple[str, str, Folded]]:
    """The hooks of runs that are gone, whose parts are still being deleted."""
    return [
        (name.owner, name.name, Folded(0, snapshot.hashes[name], is_dead=True))
        for name in snapshot.of_kind("run:hook")
        if not snapshot.is_run(name.owner) and snapshot.is_cleaning("run", name.owner)
    ]


def _spelled(keys: Keys, key: str) -> str:
    return key.removeprefix(keys.base)
