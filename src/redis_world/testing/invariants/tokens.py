"""Who holds which token: the record of a token and the hook that it names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from redis_world.keys import Partitions, token_hash
from redis_world.testing.invariants.indexes import HookPlace
from redis_world.testing.invariants.snapshot import Hash, Snapshot, text

__all__ = ["violations_of_tokens"]


def violations_of_tokens(
    partitions: Partitions, snapshots: Sequence[Snapshot], hooks: Sequence[Sequence[HookPlace]]
) -> list[str]:
    """A token has at most one live hook, which its record names; other records are to go.

    Args:
        partitions: of the namespace.
        snapshots: of the partitions.
        hooks: of the partitions.
    """
    owners: dict[str, Hash] = {}
    dead: defaultdict[str, list[Hash]] = defaultdict(list)
    wrong: list[str] = []
    is_apart = len(partitions) > 1
    for run_id, hook_id, hook in (each for some in hooks for each in some):
        token = text(hook.fields["token"])
        hashed = token_hash(token)
        owner = {"run": run_id.encode(), "hook": hook_id.encode()}
        if hook.is_dead:
            # Its token may be another's by now, or still its own, which nobody minds.
            dead[hashed].append(owner)
            continue
        if hashed in owners:
            wrong.append(
                f"token:{hashed}: it is the token of two live hooks, {owners[hashed]} and {owner}"
            )
        if not is_apart:
            owner["at"] = hook.fields["created_at"]
        owners.setdefault(hashed, owner)
    released = {member for snapshot in snapshots for member in snapshot.zset("releases")}
    for number, snapshot in enumerate(snapshots):
        told = _of_partition(snapshot, owners, dead, released, is_apart=is_apart)
        wrong += [f"partition {number}: {each}" if is_apart else each for each in told]
    stored = {digest for snapshot in snapshots for digest in snapshot.names("token")}
    wrong += (
        f"token:{digest} is absent, its hook is {owner}"
        for digest, owner in owners.items()
        if digest not in stored
    )
    return wrong


def _of_partition(
    snapshot: Snapshot,
    owners: Mapping[str, Hash],
    dead: Mapping[str, Sequence[Hash]],
    released: Collection[str],
    *,
    is_apart: bool,
) -> Iterable[str]:
    reserved = snapshot.zset("reservations")
    for digest in sorted(snapshot.names("token")):
        record = snapshot.hash("token", "", digest)
        named = {name: record.get(name, b"") for name in ("run", "hook")}
        if digest in owners:
            # Across partitions its number and time are its own.
            told = named if is_apart else record
            if told != owners[digest]:
                yield f"token:{digest} is {told}, its hook is {owners[digest]}"
        elif (
            named not in dead.get(digest, ())
            and digest not in reserved
            # A hook that is gone has left word where its token is.
            and not any(f"/{digest}/" in member for member in released)
        ):
            yield f"token:{digest} is the token of no live hook"
