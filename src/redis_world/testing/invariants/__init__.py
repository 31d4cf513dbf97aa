"""The invariants of the keys of a namespace, checked on the raw keys alone.

`names` has the keys, `snapshot` reads them; `logs` and `fold` rebuild every run from its log, and
the other modules compare the stored entities with it.
"""

from __future__ import annotations

from redis_world.testing.invariants.bookkeeping import (
    violations_of_bookkeeping,
    violations_of_wake_sources,
)
from redis_world.testing.invariants.entities import violations_of_entities
from redis_world.testing.invariants.fold import Fold
from redis_world.testing.invariants.indexes import (
    HookPlace,
    hooks_of,
    violations_of_hooks,
    violations_of_meta,
    violations_of_runs,
)
from redis_world.testing.invariants.logs import read_log
from redis_world.testing.invariants.messages import Messages, violations_of_messages
from redis_world.testing.invariants.ownership import violations_of_ownership
from redis_world.testing.invariants.retention import violations_of_retention
from redis_world.testing.invariants.snapshot import Snapshot, read_snapshots
from redis_world.testing.invariants.streams import (
    violations_of_stream_notes,
    violations_of_streams,
)
from redis_world.testing.invariants.tokens import violations_of_tokens
from redis_world.world import RedisWorld

__all__ = ["InvariantViolationError", "check_invariants"]


class InvariantViolationError(AssertionError):
    """The keys of a namespace contradict each other.

    Attributes:
        violations: everything that was found, one sentence each. Keys in them are without the
            prefix of the namespace.
    """

    def __init__(self, violations: list[str], *, base: str) -> None:
        self.violations = violations
        lines = "".join(f"\n- {violation}" for violation in violations)
        super().__init__(f"{len(violations)} violations under {base}{lines}")


async def check_invariants(world: RedisWorld) -> None:
    """Check every key of the World's namespace, without writing anything.

    It checks that logs have no gaps and no duplicates, and that every run, step, hook and wait
    matches its log. It checks that indexes, tokens, streams, messages and their bookkeeping agree,
    and that no key is left over.

    It reads everything into memory, in many round trips, including logs and chunks. Stop all
    writers first, or it finds half of their changes. Use it in tests, or on a quiet namespace.
    `serialize_runs` must have the value that the workers use.

    Raises:
        InvariantViolationError: an invariant does not hold; it has all violations.
        WorldUnavailableError: the server can't be reached.
    """
    connection, config = world.connection, world.config
    snapshots = await read_snapshots(connection)
    violations = [*violations_of_meta(snapshots[0], config)]
    hooks: list[list[HookPlace]] = []
    for keys, snapshot in zip(connection.partitions, snapshots, strict=True):
        messages = Messages(snapshot)
        folds, wrong = _of_runs(snapshot)
        hooks.append(hooks_of(snapshot, folds))
        wrong = [
            *snapshot.wrong,
            *violations_of_ownership(snapshot),
            *wrong,
            *violations_of_runs(snapshot, keys),
            *violations_of_hooks(snapshot, keys, hooks[-1]),
            *violations_of_retention(snapshot, folds),
            *violations_of_streams(snapshot),
            *violations_of_stream_notes(connection.partitions, keys, snapshot),
            *violations_of_messages(snapshot, messages),
            *violations_of_bookkeeping(snapshot, messages, serialized=config.serialize_runs),
            *violations_of_wake_sources(snapshot, messages, folds),
        ]
        places = "" if len(snapshots) == 1 else f"partition {keys.number}: "
        violations += [f"{places}{each}" for each in wrong]
    violations += violations_of_tokens(connection.partitions, snapshots, hooks)
    if violations:
        raise InvariantViolationError(violations, base=connection.keys.base)


def _of_runs(snapshot: Snapshot) -> tuple[dict[str, Fold], list[str]]:
    """What the log of each run makes, and what is wrong with the logs and the runs."""
    folds: dict[str, Fold] = {}
    wrong: list[str] = []
    for run_id in snapshot.run_ids:
        log, problems = read_log(snapshot, run_id)
        fold = Fold(run_id, log)
        wrong += [*problems, *fold.wrong]
        if fold.is_whole:
            folds[run_id] = fold
            wrong += violations_of_entities(snapshot, run_id, fold, log)
    return folds, wrong
