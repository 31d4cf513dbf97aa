"""The messages of a namespace, each in its place, and what each run has of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from redis_world.keys import RunKeys
from redis_world.testing.invariants.names import PLACES, TYPES
from redis_world.testing.invariants.records import (
    APART,
    CONTENTS,
    FIELDS,
    REPLAYS,
    StoredMessage,
    Text,
    spelled,
)
from redis_world.testing.invariants.snapshot import Hash, Scores, Snapshot, text

__all__ = ["Messages", "RunMessages", "violations_of_messages"]

_REASONS: Final = {"max_failures", "max_lost_leases"}


class _Place(NamedTuple):
    """A set that a message is in."""

    topic: str
    name: str
    score: float


@dataclass(slots=True)
class RunMessages:
    """What a run has in truth, whatever its bookkeeping says.

    Attributes:
        leased: ids of its leased replays.
        due: how many of its replays are due.
        held: `<topic>/<id>` of what is held, by due time.
        steps: step -> ids of its outstanding messages.
        ids: of all of its messages.
    """

    outstanding: int = 0
    dead: int = 0
    due: int = 0
    leased: list[str] = field(default_factory=list)
    held: Scores = field(default_factory=dict)
    steps: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    ids: set[str] = field(default_factory=set)

    def add(self, message: StoredMessage, places: Iterable[_Place]) -> None:
        envelope = message.envelope
        self.ids.add(message.id)
        self.outstanding += message.is_outstanding
        self.dead += message.place == "dead"
        if message.is_replay:
            self.due += message.place == "due"
            if message.place == "leased":
                self.leased.append(message.id)
        if message.place == "held":
            self.held.update(
                {
                    f"{each.topic}/{message.id}": each.score
                    for each in places
                    if each.name == "held"
                }
            )
        if envelope.kind == "step" and message.is_outstanding:
            self.steps[envelope.step].append(message.id)


class Messages:
    """The messages of all topics.

    Attributes:
        places: run and id -> the sets that the message is in.
        stored: run and id -> the message.
        by_id: the same by their ids alone, which are of one message each.
        of_run: run -> what it has of them.
        lost: the runs that have lost messages, and are mended later.
        wrong: what is wrong with the form of what is stored.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.places: defaultdict[tuple[str, str], list[_Place]] = defaultdict(list)
        self.stored: dict[tuple[str, str], StoredMessage] = {}
        self.by_id: dict[str, StoredMessage] = {}
        self.of_run: defaultdict[str, RunMessages] = defaultdict(RunMessages)
        self.lost = snapshot.zset("lost").keys()
        self.wrong: list[str] = []
        for place in PLACES:
            for name in snapshot.of_kind(f"queue:{place}"):
                for member, score in snapshot.zset(name.kind, name.owner).items():
                    message_id, slash, run_id = member.partition("/")
                    self.places[run_id, message_id].append(_Place(name.owner, place, score))
                    if not slash:
                        self.wrong.append(
                            f"{snapshot.texts[name]}: {member} has no place for a run"
                        )
        names = [*snapshot.of_kind("run:queue"), *snapshot.of_kind("run:contents")]
        for owner in sorted({name.owner for name in names}):
            book = snapshot.hash("run:queue", owner)
            contents = snapshot.hash("run:contents", owner)
            self._add_all(owner, "", {**book, **contents})
            for hash_, expected in ((book, False), (contents, True)):
                self.wrong += (
                    f"run:{owner}: {field} is in the wrong hash"
                    for field in hash_
                    if (field.partition(":")[0] in CONTENTS) != expected
                )
        for name in snapshot.of_kind("queue:message"):
            stored = snapshot.hash(name.kind, name.owner, name.name)
            self._add_all("", name.owner, stored)
            at = spelled("", name.owner, name.name)
            if f"message:{name.name}" not in stored:
                self.wrong.append(f"{at} has no message:{name.name}")
            known = {f"{kind}:{name.name}" for kind in FIELDS}
            self.wrong += (
                f"{at}: {other} is not a field of this message"
                for other in sorted({*stored} - known)
            )

    def _add_all(self, run_id: str, topic: str, stored: Hash) -> None:
        """Add the messages that a hash has: of a run, or one of none with its topic."""
        records: defaultdict[str, Hash] = defaultdict(dict)
        for name, value in stored.items():
            kind, _, message_id = name.partition(":")
            if kind in FIELDS and message_id != name:
                records[message_id][kind] = value
        for message_id, fields in sorted(records.items()):
            at = spelled(run_id, topic, message_id)
            if "message" not in fields:
                hash_, _, _ = at.rpartition(": ")
                self.wrong += (
                    f"{hash_ or at}: {kind}:{message_id} belongs to no message" for kind in fields
                )
                continue
            message = StoredMessage(run_id, message_id, at, fields)
            self.wrong += (f"{at} {problem}" for problem in message.read())
            if not run_id and message.is_readable and message.envelope.topic != topic:
                self.wrong.append(f"{at} has the topic {message.envelope.topic}")
            if message_id in self.by_id:
                self.wrong.append(f"{at} is {self.by_id[message_id].spelled}, too")
            places = self.places.get((run_id, message_id), [])
            message.place = places[0].name if places else ""
            self.stored[run_id, message_id] = self.by_id[message_id] = message
            if run_id:
                self.of_run[run_id].add(message, places)


def _is_bare(snapshot: Snapshot, run_id: str) -> bool:
    """Whether nothing is shown of the content of a run's messages, as their bookkeeping says."""
    return "bare" in snapshot.hash("run:queue", run_id)


def violations_of_messages(snapshot: Snapshot, messages: Messages) -> list[str]:
    """Each message is whole, is in exactly one set, and is there as that set wants it."""
    wrong = [*messages.wrong]
    for run_id, message_id in sorted({*messages.places, *messages.stored}):
        places = messages.places.get((run_id, message_id), [])
        message = messages.stored.get((run_id, message_id))
        names = " and ".join(place.name for place in places)
        if message is None:
            wrong += _of_no_message(messages, run_id, message_id, places)
        elif len(places) != 1:
            wrong.append(f"{message.spelled} is in {names or 'no set'}")
        if message is not None:
            of_message = [
                *(_of_places(message, places)),
                *(_of_message(message) if message.is_readable else ()),
                *(_of_content(snapshot, message) if message.is_readable else ()),
            ]
            wrong += (f"{message.spelled} {problem}" for problem in of_message)
    if "" in messages.lost:
        wrong.append("lost: what belongs to no run can't be fixed")
    # Workers sleep in topics that have had no message yet.
    of_messages = {kind for kind in TYPES if kind.startswith("queue:")} - {"queue:sleepers"}
    topics = {name.owner for name in snapshot.texts if name.kind in of_messages}
    known = {member for members in snapshot.sets.values() for member in members}
    wrong += (f"topics: {topic} is missing" for topic in sorted(topics - known))
    return [
        *wrong,
        *_of_declined(snapshot, messages),
        *_of_letters(snapshot),
        *_of_keys(snapshot, messages),
    ]


def _of_no_message(
    messages: Messages, run_id: str, message_id: str, places: list[_Place]
) -> Iterable[str]:
    """What is in sets, and is not stored where they say."""
    names = " and ".join(place.name for place in places)
    # Nobody comes by what was held behind a lost message, but who mends its run.
    if run_id in messages.lost and {place.name for place in places} == {"held"}:
        return
    if message_id in messages.by_id:
        other = messages.by_id[message_id].spelled
        yield f"queue:{places[0].topic}:{places[0].name}: {message_id}/{run_id} is {other}"
    else:
        yield f"{spelled(run_id, places[0].topic, message_id)} is not there, and is in {names}"


def _of_places(message: StoredMessage, places: Iterable[_Place]) -> Iterable[str]:
    for topic, name, score in places:
        if topic != message.envelope.topic:
            yield f"is {name} in the topic {topic}, its own is {message.envelope.topic}"
        state = message.state
        times = {"due": state.due_at, "held": state.due_at, "dead": state.died_at}
        if message.is_readable and name in times and score != times[name]:
            told = "died_at" if name == "dead" else "due_at"
            yield f"is {name} at {score:.0f}, its {told} is {times[name]}"


def _of_message(message: StoredMessage) -> Iterable[str]:
    envelope, state, place = message.envelope, message.state, message.place or "in no set"
    run_id, kind, name = message.run, envelope.kind, envelope.queue
    if envelope.surplus:
        yield f"has {abs(envelope.surplus)} bytes too {'many' if envelope.surplus > 0 else 'few'}"
    if not (name.startswith(envelope.topic) and len(name) > len(envelope.topic)):
        yield f"has the queue name {name!r}, of another topic"
    if kind not in {*REPLAYS, "step", "other"}:
        yield f"has the unknown kind {kind!r}"
    elif (kind == "step") != bool(envelope.step) or (kind == "other") != (not run_id):
        yield f"is a {kind} of run {run_id!r} and step {envelope.step!r}"
    if place == "held" and kind not in REPLAYS:
        yield f"is held, and no replay but of the kind {kind!r}"
    if bool(state.receipt) != (place == "leased"):
        yield f"is {place} and has {'a' if state.receipt else 'no'} receipt"
    if bool(state.reason) != (place == "dead"):
        yield f"is {place} and has {'a' if state.reason else 'no'} reason of its death"
    if state.reason and state.reason not in _REASONS:
        yield f"has the unknown reason {state.reason!r}"
    ends = state.failures + state.lost
    if state.attempt < ends:
        yield f"has ended {ends} times, and was delivered {state.attempt} times"
    if message.declined and not state.postponed:
        yield f"was declined by {', '.join(message.declined.workers)}, and never postponed"
    elif message.declined and not all(message.declined.workers):
        yield "was declined by a worker without a name"


def _of_content(snapshot: Snapshot, message: StoredMessage) -> Iterable[str]:
    """Headers and body are where their size puts them; of a bare message there is nothing."""
    may_lack = _is_bare(snapshot, message.run)
    # The janitor deletes the content some time after nobody sees it any more.
    must_lack = may_lack and not any(
        snapshot.is_cleaning(kind, message.run) for kind in ("messages", "run")
    )
    texts: dict[str, Text] = {"headers": message.envelope.headers, "body": message.envelope.body}
    for name, told in texts.items():
        beside = message.fields.get(name)
        if told.is_apart != (told.size > APART):
            yield f"has {name} of {told.size} bytes {'apart' if told.is_apart else 'in place'}"
        if beside is None:
            if told.is_apart and not may_lack:
                yield f"has no {name}"
        elif not told.is_apart:
            yield f"has {name} twice"
        elif len(beside) != told.size:
            yield f"has {name} of {len(beside)} bytes, by its envelope {told.size}"
        # What lies apart goes at once.
        if (may_lack and beside is not None) or (must_lack and told.is_in_place):
            yield f"keeps its {name}"
    if must_lack and "error" in message.fields:
        yield "keeps its error"


def _of_declined(snapshot: Snapshot, messages: Messages) -> Iterable[str]:
    """What workers have declined is due, and was postponed since the time that is told."""
    for name in snapshot.of_kind("queue:declined"):
        for member, since in snapshot.zset(name.kind, name.owner).items():
            message_id, _, run_id = member.partition("/")
            message = messages.stored.get((run_id, message_id))
            at = f"{snapshot.texts[name]}: {member}"
            if message is None:
                yield f"{at} is not there"
            elif message.envelope.topic != name.owner:
                yield f"{at} belongs to the topic {message.envelope.topic}"
            elif message.place != "due":
                yield f"{at} is {message.place}, not due"
            elif message.declined is None or since != message.declined.since:
                yield f"{at} was not postponed at {since:.0f}"


def _of_letters(snapshot: Snapshot) -> Iterable[str]:
    """The dead letters of each topic, by their ids alone, with their runs."""
    kinds = ("queue:dead", "queue:letters")
    for topic in sorted({name.owner for kind in kinds for name in snapshot.of_kind(kind)}):
        parts = [member.partition("/") for member in snapshot.zset("queue:dead", topic)]
        dead = {message_id: run_id for message_id, _, run_id in parts}
        stored = snapshot.hash("queue:letters", topic)
        letters = {message_id: text(run_id) for message_id, run_id in stored.items()}
        for message_id in sorted({*dead, *letters}):
            told, true = letters.get(message_id), dead.get(message_id)
            if told != true:
                where = f"queue:{topic}:letters: {message_id}"
                yield f"{where} belongs to run {told!r}, in truth {true!r}"


class _Key(NamedTuple):
    """An idempotency key that names a message of a run, or of none."""

    spelled: str
    run: str
    topic: str
    key: str
    holder: str


def _keys(snapshot: Snapshot) -> Iterable[_Key]:
    for name in snapshot.of_kind("queue:key"):
        holder = text(snapshot.strings.get(name, b""))
        yield _Key(snapshot.texts[name], "", name.owner, name.name, holder)
    for name in snapshot.of_kind("run:queue"):
        for field_name, named in snapshot.hash(name.kind, name.owner).items():
            kind, _, rest = field_name.partition(":")
            if kind == "key":
                topic, _, key = rest.partition("/")
                at = f"{RunKeys('', name.owner).queue}: {field_name}"
                yield _Key(at, name.owner, topic, key, text(named))


def _of_keys(snapshot: Snapshot, messages: Messages) -> Iterable[str]:
    """An idempotency key names the outstanding message that has it."""
    keys = [*_keys(snapshot)]
    for at, run_id, topic, key, holder in keys:
        message = messages.stored.get((run_id, holder))
        if message is None and run_id in messages.lost:
            continue
        if message is None and holder in messages.by_id:
            yield f"{at} names {holder}, which is {messages.by_id[holder].spelled}"
        elif message is None:
            yield f"{at} names {holder}, which is not there"
        elif (message.envelope.topic, message.envelope.key) != (topic, key):
            yield f"{at} names {holder}, which has another key"
        elif not message.is_outstanding:
            yield f"{at} names {holder}, which is over"
    held = {(run_id, topic, key): holder for _, run_id, topic, key, holder in keys}
    for message in messages.stored.values():
        key = message.envelope.key
        if key and message.is_outstanding:
            holder = held.get((message.run, message.envelope.topic, key), "")
            if not holder:
                yield f"{message.spelled} is outstanding, and its key {key!r} is free"
            elif holder != message.id:
                yield f"{message.spelled} is outstanding, and its key {key!r} belongs to {holder}"
