"""What each run's bookkeeping says of its messages, and what keeps a live run from resting."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from redis_world.keys import RunKeys
from redis_world.testing.invariants.entities import step_of
from redis_world.testing.invariants.fold import Fold
from redis_world.testing.invariants.fold_entities import ENDED
from redis_world.testing.invariants.messages import Messages, RunMessages
from redis_world.testing.invariants.snapshot import Hash, Snapshot, text

__all__ = ["violations_of_bookkeeping", "violations_of_wake_sources"]

_OWED: Final = re.compile(r"(\d*) (\d+)")
"""The field `owed` of a run: since when it is owed a wake, how many steps their message."""


def violations_of_bookkeeping(
    snapshot: Snapshot, messages: Messages, *, serialized: bool
) -> list[str]:
    """Counts, the leased replay, the wake, held replays and steps are as the messages are.

    `serialized`: whether a run has at most one leased replay.
    """
    kept = {name.owner for kind in ("run:queue", "run:held") for name in snapshot.of_kind(kind)}
    wrong: list[str] = []
    for run_id in sorted({*kept, *messages.of_run} - {""}):
        real = messages.of_run.get(run_id, RunMessages())
        book = snapshot.hash("run:queue", run_id)
        keys = RunKeys("", run_id)
        wrong += (f"{keys.queue}: {p}" for p in _of_counts(book, real))
        if serialized:
            wrong += (f"{keys.queue}: {p}" for p in _of_leased(book, real))
        wrong += (f"{keys.queue}: {p}" for p in _of_steps(book, real))
        wrong += (f"{keys.queue}: {p}" for p in _of_wake(run_id, book, messages))
        wrong += (f"{keys.queue}: {p}" for p in _of_topics(book, real))
        held = {
            member: score
            for member, score in snapshot.zset("run:held", run_id).items()
            if member.rpartition("/")[2] not in real.lost
        }
        if held != real.held:
            wrong.append(f"{keys.held} has {held}, held are in truth {real.held}")
        if book and not snapshot.is_live(run_id) and not real.outstanding and not real.dead:
            wrong.append(
                f"{keys.queue} belongs to no live run, and has neither messages nor letters"
            )
    return wrong


def _of_counts(book: Hash, real: RunMessages) -> Iterable[str]:
    for name, count in (("n", real.outstanding), ("dead", real.dead)):
        if book.get(name, b"0") != b"%d" % count:
            yield f"{name} is {text(book.get(name, b'absent'))}, in truth {count}"


def _of_leased(book: Hash, real: RunMessages) -> Iterable[str]:
    named = [text(book["leased"])] if "leased" in book else []
    if named != real.leased:
        yield f"leased is {named}, in truth {real.leased}"
    if real.held and not real.leased and not real.due:
        yield f"{len(real.held)} replays are held, and nothing will free them"


def _of_steps(book: Hash, real: RunMessages) -> Iterable[str]:
    named = {
        name.removeprefix("step:"): [text(message_id)]
        for name, message_id in book.items()
        if name.startswith("step:")
    }
    for step in sorted({*named, *real.steps}):
        if named.get(step) != real.steps.get(step):
            yield f"step:{step} is {named.get(step)}, in truth {real.steps.get(step)}"


def _of_topics(book: Hash, real: RunMessages) -> Iterable[str]:
    named = {
        name.removeprefix("message:"): text(topic)
        for name, topic in book.items()
        if name.startswith("message:")
    }
    for message_id in sorted({*named, *real.topics}):
        if named.get(message_id) != real.topics.get(message_id):
            told, true = named.get(message_id), real.topics.get(message_id)
            yield f"message:{message_id} is {told}, in truth {true}"


def _of_wake(run_id: str, book: Hash, messages: Messages) -> Iterable[str]:
    """The wake that absorbs others is one that will be delivered now and never was."""
    if "wake" not in book:
        return
    wake = text(book["wake"])
    message = messages.by_id.get(wake)
    if wake in messages.lost:
        return
    if message is None or (message.text("kind"), message.text("run")) != ("wake", run_id):
        yield f"wake is {wake}, which is not a wake of the run"
    elif message.place not in {"due", "held"} or any(
        message.number(name) for name in ("attempt", "failures", "lost")
    ):
        yield f"wake is {wake}, which was delivered"
    elif message.text("due_at") != message.text("enqueued_at"):
        yield f"wake is {wake}, which was delayed"


def violations_of_wake_sources(
    snapshot: Snapshot, messages: Messages, folds: Mapping[str, Fold]
) -> list[str]:
    """Every live run, and every step of one that is not over, will be seen to.

    A live run has an outstanding message or is parked, a step a message or a debt; what has dead
    letters waits for its operator.
    """
    parked = snapshot.zset("parked")
    live = {run_id for run_id in snapshot.run_ids if snapshot.is_live(run_id)}
    idle = {run_id for run_id in live if not messages.of_run[run_id].outstanding}
    wrong = [f"parked: {run_id} is missing" for run_id in sorted(idle - {*parked})]
    wrong += (f"parked: {run_id} must not be in it" for run_id in sorted({*parked} - idle))
    owed = {run_id: _owed(snapshot.hash("run", run_id)) for run_id in snapshot.run_ids}
    wrong += _of_owed(snapshot, live, owed)
    for run_id in sorted(live):
        real = messages.of_run[run_id]
        key = RunKeys("", run_id).run
        if real.outstanding + real.dead and not snapshot.hash("run", run_id).get("queued"):
            wrong.append(f"{key}: queued is absent, and it has messages")
        steps = folds[run_id].entities.steps if run_id in folds else {}
        for step_id, step in steps.items():
            # A step that was started lazily is the matter of the replay that runs it.
            is_open = step.fields["status"] not in ENDED and not step.is_lazy
            is_seen_to = real.steps.get(step_id) or real.dead or step_id in owed[run_id].steps
            if is_open and not is_seen_to:
                wrong.append(f"{key}: step:{step_id} is not over, and has no message")
    return wrong


class _Owed(NamedTuple):
    """What a run is owed: since when a wake, if it is, and the messages of which steps."""

    field: str
    wake: float | None
    step_count: int
    steps: dict[str, float]


def _owed(run: Hash) -> _Owed:
    field = text(run.get("owed", b""))
    match = _OWED.fullmatch(field)
    wake, count = match.groups() if match else ("", 0)
    steps: dict[str, float] = {}
    for name, record in run.items():
        if name.startswith("step:"):
            # What is no record is told elsewhere.
            with contextlib.suppress(KeyError, ValueError):
                if (since := step_of(record).get("owed")) is not None:
                    steps[name.removeprefix("step:")] = float(since)
    return _Owed(field, float(wake) if wake else None, int(count), steps)


def _of_owed(
    snapshot: Snapshot, live: Collection[str], owed: Mapping[str, _Owed]
) -> Iterable[str]:
    """A live run tells what it is owed, and the index has it, by no later a time."""
    index = snapshot.zset("owed")
    for run_id in sorted({*index} - {*live}):
        yield f"owed: {run_id} is not a live run"
    for run_id in sorted(owed):
        of_run = owed[run_id]
        key = RunKeys("", run_id).run
        if run_id not in live:
            if of_run.field:
                yield f"{key}: owed: {of_run.field!r}, but the run is over"
            continue
        if of_run.field and not _OWED.fullmatch(of_run.field):
            yield f"{key}: owed: {of_run.field!r}, which this World never writes"
        if of_run.step_count != len(of_run.steps):
            steps = ", ".join(sorted(of_run.steps))
            yield f"{key}: owed: {of_run.field!r}, but the steps without a message are {steps!r}"
        times = [*of_run.steps.values(), *([] if of_run.wake is None else [of_run.wake])]
        if bool(times) != (run_id in index):
            yield f"owed: {run_id} {'is missing' if times else 'must not be in it'}"
        elif times and index[run_id] > min(times):
            yield f"owed: {run_id} has score {index[run_id]:.0f}, later than {min(times):.0f}"
