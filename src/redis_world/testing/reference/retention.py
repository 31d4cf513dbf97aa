"""What goes when a run has ended: its user data, or the whole of it (contract, section 5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from redis_world.codec import to_duration_ms, to_ms
from redis_world.testing.reference.state import State, StoredRun, StoredStream

__all__ = ["clean", "expire_data", "prune"]

_PAYLOADS: Final = ("input", "output", "error", "metadata")


def expire_data(state: State, run: StoredRun) -> None:
    """Delete the user data of a run that ends; its records stay, the names of streams too."""
    run.fields["expired_at"] = run.fields["completed_at"]
    entities = [*run.steps.values(), *run.hooks.values()]
    for fields in (run.fields, *(entity.fields for entity in entities)):
        for name in _PAYLOADS:
            fields.pop(name, None)
    run.events = [replace(event, payload=None) for event in run.events]
    run.resumes = {name: run.events[event.slot - 1] for name, event in run.resumes.items()}
    for (run_id, name), stream in state.streams.items():
        if run_id == run.fields["run_id"]:
            state.streams[run_id, name] = StoredStream(done=True, written_at=stream.written_at)


def clean(state: State) -> dict[str, int]:
    """Remove the hooks and runs that have had their time; how many of each."""
    now = state.now()
    hooks = 0
    for run in state.runs.values():
        live = run.live_hooks(now)
        hooks += len(run.hooks) - len(live)
        run.hooks = live
    retention = state.config.retention
    removed = 0
    if retention is not None:
        removed = prune(state, to_duration_ms(retention, "retention"), None, dry_run=False)
    return {"expired_hooks": hooks, "removed_runs": removed}


def prune(state: State, older_than: int, statuses: set[str] | None, *, dry_run: bool) -> int:
    """Remove the runs that ended so many ms ago; how many have gone, or would."""
    last = state.now_ms() - older_than
    found = [
        (run_id, run)
        for run_id, run in state.runs.items()
        if not run.is_live
        and to_ms(run.fields["completed_at"]) <= last
        and (statuses is None or run.fields["status"] in statuses)
    ]
    now = state.now()
    gone = [run_id for run_id, run in found if not run.live_hooks(now)]
    if dry_run:
        return len(gone)
    for run_id in gone:
        _remove(state, run_id)
    if gone:
        state.changed.ring()
    return len(gone)


def _remove(state: State, run_id: str) -> None:
    del state.runs[run_id]
    state.run_queues.pop(run_id, None)
    for message in [m for m in state.messages.values() if m.run_id == run_id]:
        del state.messages[message.message_id]
    for key in [key for key in state.streams if key[0] == run_id]:
        del state.streams[key]
