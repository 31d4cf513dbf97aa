"""What lies beside the runs: their indexes, tokens, the indexes of hooks, and what is pinned."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from redis_world.config import WorldConfig
from redis_world.keys import SCHEMA, Keys
from redis_world.testing.invariants.entities import compare_scores
from redis_world.testing.invariants.fold import Fold
from redis_world.testing.invariants.fold_entities import Folded
from redis_world.testing.invariants.snapshot import Hash, Scores, Snapshot, text

__all__ = ["violations_of_hooks", "violations_of_meta", "violations_of_runs"]


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


def violations_of_hooks(snapshot: Snapshot, keys: Keys, folds: Mapping[str, Fold]) -> list[str]:
    """A live hook has its token's record and is in the indexes; nothing else is."""
    live = [
        (run_id, hook_id, hook)
        for run_id, fold in folds.items()
        for hook_id, hook in fold.entities.hooks.items()
    ] + _of_removed_runs(snapshot)
    by_id: defaultdict[str, Scores] = defaultdict(dict)
    all_hooks: Scores = {}
    for run_id, hook_id, hook in live:
        created_at = text(hook.fields["created_at"])
        by_id[hook_id][run_id] = float(created_at) if created_at.isdigit() else math.nan
        # Padded and in hex, so that the order of the text is that of creation, then of the id.
        all_hooks[f"{created_at:0>15}/{hook_id.encode().hex()}/{run_id}"] = 0.0
    wrong = [
        *_of_tokens(snapshot, keys, live),
        *compare_scores("hooks", all_hooks, snapshot.zset("hooks")),
    ]
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


def _of_tokens(
    snapshot: Snapshot, keys: Keys, live: Iterable[tuple[str, str, Folded]]
) -> Iterable[str]:
    owners: dict[str, Hash] = {}
    dead: defaultdict[str, list[Hash]] = defaultdict(list)
    for run_id, hook_id, hook in live:
        key = _spelled(keys, keys.token(text(hook.fields["token"])))
        owner = {
            "run": run_id.encode(),
            "hook": hook_id.encode(),
            "at": hook.fields["created_at"],
        }
        if hook.is_dead:
            # Its token may be another's by now, or still its own, which nobody minds.
            dead[key].append(owner)
            continue
        if key in owners:
            yield f"{key}: it is the token of two live hooks, {owners[key]} and {owner}"
        owners.setdefault(key, owner)
    stored = {
        f"token:{digest}": snapshot.hash("token", "", digest) for digest in snapshot.names("token")
    }
    for key in sorted({*owners, *stored}):
        if key not in owners and stored[key] in dead[key]:
            continue
        if key not in owners:
            yield f"{key} is the token of no live hook"
        elif stored.get(key, {}) != owners[key]:
            yield f"{key} is {stored.get(key, 'absent')}, its hook is {owners[key]}"


def _spelled(keys: Keys, key: str) -> str:
    return key.removeprefix(keys.base)
