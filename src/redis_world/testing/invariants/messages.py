"""The messages of a namespace, each in its place, and what each run has of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from redis_world.testing.invariants.names import PLACES, TYPES
from redis_world.testing.invariants.snapshot import Hash, Scores, Snapshot, text

__all__ = ["Messages", "RunMessages", "StoredMessage", "violations_of_messages"]

OUTSTANDING: Final = {"due", "leased", "held"}
REPLAYS: Final = {"wake", "replay"}

_TEXTS: Final = ("run", "kind", "step", "key", "queue", "deployment", "headers", "body")
_NUMBERS: Final = ("attempt", "failures", "lost", "enqueued_at", "due_at")


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message, and the set that it is in; where it is in none, that is ""."""

    topic: str
    id: str
    place: str
    fields: Hash

    @property
    def spelled(self) -> str:
        return f"queue:{self.topic}:message:{self.id}"

    @property
    def is_outstanding(self) -> bool:
        return self.place in OUTSTANDING

    def text(self, name: str) -> str:
        return text(self.fields.get(name, b""))

    def number(self, name: str) -> int:
        value = self.fields.get(name, b"")
        return int(value) if value.isdigit() else 0


@dataclass(slots=True)
class RunMessages:
    """What a run has in truth, whatever its bookkeeping says.

    Attributes:
        leased: ids of its leased replays.
        due: how many of its replays are due.
        held: `<topic>/<id>` of what is held, by due time.
        steps: step -> ids of its outstanding messages.
        topics: id -> topic, of all of them.
        lost: ids of those whose record is gone, and that the run still counts on.
    """

    outstanding: int = 0
    dead: int = 0
    due: int = 0
    leased: list[str] = field(default_factory=list)
    held: Scores = field(default_factory=dict)
    steps: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    topics: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def add(self, message: StoredMessage) -> None:
        self.topics[message.id] = message.topic
        self.outstanding += message.is_outstanding
        self.dead += message.place == "dead"
        if message.text("kind") in REPLAYS:
            self.due += message.place == "due"
            if message.place == "leased":
                self.leased.append(message.id)
        if message.text("kind") == "step" and message.is_outstanding:
            self.steps[message.text("step")].append(message.id)

    def add_lost(self, message_id: str, topic: str, count: str, book: Hash) -> None:
        """Add one whose record is gone: until it is found, the bookkeeping is as it was."""
        self.lost.add(message_id)
        self.topics[message_id] = topic
        self.outstanding += count == "n"
        self.dead += count == "dead"
        if text(book.get("leased", b"")) == message_id:
            self.leased.append(message_id)
        for name, holder in book.items():
            if name.startswith("step:") and text(holder) == message_id:
                self.steps[name.removeprefix("step:")].append(message_id)


class Messages:
    """The messages of all topics."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.places: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        """Topic and id -> the sets that the message is in, with its scores there."""
        for place in PLACES:
            for name in snapshot.of_kind(f"queue:{place}"):
                for message_id, score in snapshot.zset(name.kind, name.owner).items():
                    self.places[name.owner, message_id][place] = score
        self.stored: dict[tuple[str, str], StoredMessage] = {}
        self.by_id: dict[str, StoredMessage] = {}
        self.of_run: defaultdict[str, RunMessages] = defaultdict(RunMessages)
        for name in snapshot.of_kind("queue:message"):
            topic, message_id = name.owner, name.name
            place = next(iter(self.places.get((topic, message_id), [])), "")
            message = StoredMessage(
                topic, message_id, place, snapshot.hash("queue:message", topic, message_id)
            )
            self.stored[topic, message_id] = self.by_id[message_id] = message
            run_id = message.text("run")
            if run_id:
                self.of_run[run_id].add(message)
            if place == "held":
                member = f"{topic}/{message_id}"
                self.of_run[run_id].held[member] = self.places[topic, message_id]["held"]
        self.lost = {
            message_id: count
            for count, _, message_id in (each.partition("/") for each in snapshot.zset("lost"))
        }
        """Messages whose run is sought, since their record is gone -> the count that has them."""
        for name in snapshot.of_kind("run:queue") if self.lost else ():
            book = snapshot.hash("run:queue", name.owner)
            for field_name, topic_name in book.items():
                message_id = field_name.removeprefix("message:")
                if message_id != field_name and message_id in self.lost:
                    self.of_run[name.owner].add_lost(
                        message_id, text(topic_name), self.lost[message_id], book
                    )


def violations_of_messages(snapshot: Snapshot, messages: Messages) -> list[str]:
    """Each message is whole, is in exactly one set, and is there as that set wants it."""
    wrong: list[str] = []
    for topic, message_id in sorted({*messages.places, *messages.stored}):
        places = [*messages.places.get((topic, message_id), [])]
        message = messages.stored.get((topic, message_id))
        if message is None:
            spelled = f"queue:{topic}:message:{message_id}"
            wrong.append(f"{spelled} is not there, and is in {' and '.join(places)}")
        elif len(places) != 1:
            wrong.append(f"{message.spelled} is in {' and '.join(places) or 'no set'}")
        if message is not None:
            score = messages.places.get((topic, message_id), {}).get(message.place)
            wrong += (f"{message.spelled} {problem}" for problem in _of_message(message, score))
    wrong += (
        f"lost: {message_id} is there"
        for message_id in sorted({*messages.lost} & {*messages.by_id})
    )
    # Workers sleep in topics that have had no message yet.
    of_messages = {kind for kind in TYPES if kind.startswith("queue:")} - {"queue:sleepers"}
    topics = {name.owner for name in snapshot.texts if name.kind in of_messages}
    known = {member for members in snapshot.sets.values() for member in members}
    wrong += (f"topics: {topic} is missing" for topic in sorted(topics - known))
    return [*wrong, *_of_declined(snapshot, messages), *_of_keys(snapshot, messages)]


def _of_declined(snapshot: Snapshot, messages: Messages) -> Iterable[str]:
    """What workers have declined is due, and was postponed since the time that is told."""
    for name in snapshot.of_kind("queue:declined"):
        for message_id, since in snapshot.zset(name.kind, name.owner).items():
            message = messages.stored.get((name.owner, message_id))
            spelled = f"queue:{name.owner}:declined: {message_id}"
            if message is None:
                yield f"{spelled} is not there"
            elif message.place != "due":
                yield f"{spelled} is {message.place}, not due"
            elif not message.number("postponed") or since != message.number("postponed_since"):
                yield f"{spelled} was not postponed at {since:.0f}"


def _of_message(message: StoredMessage, score: float | None) -> Iterable[str]:
    fields, place = message.fields, message.place or "in no set"
    yield from (f"has no {name}" for name in (*_TEXTS, *_NUMBERS) if name not in fields)
    for name in _NUMBERS:
        if name in fields and not fields[name].isdigit():
            yield f"has {name} {text(fields[name])!r}"
    name = message.text("queue")
    if not (name.startswith(message.topic) and len(name) > len(message.topic)):
        yield f"has the queue name {name!r}, of another topic"
    run_id, kind = message.text("run"), message.text("kind")
    if (kind == "step") != bool(message.text("step")) or (kind == "other") != (not run_id):
        yield f"is a {kind} of run {run_id!r} and step {message.text('step')!r}"
    elif kind not in {*REPLAYS, "step", "other"}:
        yield f"has the unknown kind {kind!r}"
    if place == "held" and kind not in REPLAYS:
        yield f"is held, and no replay but of the kind {kind!r}"
    if ("receipt" in fields) != (place == "leased"):
        yield f"is {place} and has {'a' if 'receipt' in fields else 'no'} receipt"
    if ("reason" in fields) != (place == "dead"):
        yield f"is {place} and has {'a' if 'reason' in fields else 'no'} reason of its death"
    ends = message.number("failures") + message.number("lost")
    if message.number("attempt") < ends:
        yield f"has ended {ends} times, and was delivered {message.number('attempt')} times"
    timed = {"due": "due_at", "held": "due_at", "dead": "died_at"}.get(place)
    if timed is not None and score != message.number(timed):
        yield f"is {place} at {score:.0f}, its {timed} is {message.text(timed)}"


def _of_keys(snapshot: Snapshot, messages: Messages) -> Iterable[str]:
    """An idempotency key names the outstanding message that has it."""
    holders = set()
    for name in snapshot.of_kind("queue:key"):
        spelled, topic = snapshot.texts[name], name.owner
        holder = text(snapshot.strings.get(name, b""))
        holders.add((topic, holder))
        message = messages.stored.get((topic, holder))
        run, _, key = name.name.partition("/")
        if message is None and holder not in messages.lost:
            yield f"{spelled} names {holder}, which is not there"
        elif message is None:
            continue
        elif (message.text("run"), message.text("key")) != (unquote(run), unquote(key)):
            yield f"{spelled} names {holder}, which has another key"
        elif not message.is_outstanding:
            yield f"{spelled} names {holder}, which is over"
    for place, message in messages.stored.items():
        if message.text("key") and message.is_outstanding and place not in holders:
            yield f"{message.spelled} is outstanding, and its key {message.text('key')!r} is free"
