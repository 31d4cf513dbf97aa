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
from redis_world.testing.invariants.records import FIELDS
from redis_world.testing.invariants.snapshot import Hash, Scores, Snapshot, text

__all__ = ["violations_of_bookkeeping", "violations_of_wake_sources"]

_OWED: Final = re.compile(r"(\d*) (\d+)")
"""The field `owed` of a run: since when it is owed a wake, how many steps their message."""

_COUNT: Final = re.compile(rb"0|[1-9][0-9]*")
_ANY: Final = re.compile(rb".+", re.DOTALL)
_FIELDS: Final[Mapping[str, re.Pattern[bytes]]] = {
    **dict.fromkeys(("n", "dead", "held"), _COUNT),
    **dict.fromkeys(("rewakes", "rewoken_at", "rewoken_length"), _COUNT),
    **dict.fromkeys(("wake", "leased", "queue", "topic"), _ANY),
    "bare": re.compile(rb"1"),
}
"""Fields of a run's bookkeeping that are of no single message."""


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
        held = snapshot.zset("run:held", run_id)
        keys = RunKeys("", run_id)
        is_lost = run_id in messages.lost
        of_book = [
            *_of_fields(snapshot, book),
            *_of_bareness(snapshot, run_id, book, real),
            *_of_steps(book, real, is_lost=is_lost),
            *_of_wake(run_id, book, messages),
        ]
        if serialized:
            of_book += _of_leased(book, real, is_lost=is_lost)
        # What is mended later counts what it has lost, and holds it.
        if not is_lost:
            of_book += _of_counts(book, real, held)
            if held != real.held:
                wrong.append(f"{keys.held} has {held}, held are in truth {real.held}")
            if book and not snapshot.is_live(run_id) and not real.outstanding and not real.dead:
                wrong.append(
                    f"{keys.queue} belongs to no live run, and has neither messages nor letters"
                )
        wrong += (f"{keys.queue}: {problem}" for problem in of_book)
    return wrong


def _of_fields(snapshot: Snapshot, book: Hash) -> Iterable[str]:
    """Every field is known, and holds what it can hold; those of messages are told elsewhere."""
    for name, value in book.items():
        kind, colon, rest = name.partition(":")
        if colon and rest and kind in {*FIELDS, "step", "key"}:
            continue
        if name not in _FIELDS:
            yield f"{name} is not a field of a World"
        elif not _FIELDS[name].fullmatch(value):
            yield f"{name} is {text(value)!r}, which this World never writes"
    topics = {member for members in snapshot.sets.values() for member in members}
    if "topic" in book and text(book["topic"]) not in topics:
        yield f"topic is {text(book['topic'])}, which is not in topics"
    queue = text(book.get("queue", b""))
    if queue and not any(queue.startswith(topic) and queue != topic for topic in topics):
        yield f"queue is {queue!r}, of no topic that was ever sent to"


def _of_bareness(snapshot: Snapshot, run_id: str, book: Hash, real: RunMessages) -> Iterable[str]:
    """The content of messages is hidden where the user data of the run is, or the run goes."""
    is_hidden = snapshot.has_no_user_data(run_id) or snapshot.is_cleaning("run", run_id)
    if "bare" in book and not is_hidden:
        yield "bare is there, and the run keeps its user data"
    elif real.ids and is_hidden and "bare" not in book:
        yield "bare is absent, and nothing of its messages may be shown"


def _of_counts(book: Hash, real: RunMessages, held: Scores) -> Iterable[str]:
    for name, count in (("n", real.outstanding), ("dead", real.dead), ("held", len(held))):
        if book.get(name, b"0") != b"%d" % count:
            yield f"{name} is {text(book.get(name, b'absent'))}, in truth {count}"


def _of_leased(book: Hash, real: RunMessages, *, is_lost: bool) -> Iterable[str]:
    named = [text(book["leased"])] if "leased" in book else []
    if is_lost:
        named = [message_id for message_id in named if message_id in real.ids]
    if named != real.leased:
        yield f"leased is {named}, in truth {real.leased}"
    if real.held and not real.leased and not real.due and not is_lost:
        yield f"{len(real.held)} replays are held, and nothing will free them"


def _of_steps(book: Hash, real: RunMessages, *, is_lost: bool) -> Iterable[str]:
    named = {
        name.removeprefix("step:"): [text(message_id)]
        for name, message_id in book.items()
        if name.startswith("step:") and not (is_lost and text(message_id) not in real.ids)
    }
    for step in sorted({*named, *real.steps}):
        if named.get(step) != real.steps.get(step):
            yield f"step:{step} is {named.get(step)}, in truth {real.steps.get(step)}"


def _of_wake(run_id: str, book: Hash, messages: Messages) -> Iterable[str]:
    """The wake that absorbs others is one that will be delivered now and never was."""
    if "wake" not in book:
        return
    wake = text(book["wake"])
    message = messages.stored.get((run_id, wake))
    if message is None and run_id in messages.lost:
        return
    if message is None or message.envelope.kind != "wake":
        yield f"wake is {wake}, which is not a wake of the run"
    elif message.place not in {"due", "held"} or any(
        (message.state.attempt, message.state.failures, message.state.lost)
    ):
        yield f"wake is {wake}, which was delivered"
    elif message.state.due_at != message.envelope.sent_at:
        yield f"wake is {wake}, which was delayed"


def violations_of_wake_sources(
    snapshot: Snapshot, messages: Messages, folds: Mapping[str, Fold]
) -> list[str]:
    """Every live run, and every step of one that is not over, will be seen to.

    A live run has an outstanding message or is parked, a step a message or a debt; what has dead
    letters waits for its operator. One that has lost messages is seen to when it is mended.
    """
    parked = snapshot.zset("parked")
    live = {run_id for run_id in snapshot.run_ids if snapshot.is_live(run_id)}
    idle = {run_id for run_id in live if not messages.of_run[run_id].outstanding}
    missing = idle - {*parked} - {*messages.lost}
    surplus = {*parked} - idle - (live & {*messages.lost})
    wrong = [f"parked: {run_id} is missing" for run_id in sorted(missing)]
    wrong += (f"parked: {run_id} must not be in it" for run_id in sorted(surplus))
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
            if is_open and not is_seen_to and run_id not in messages.lost:
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
