"""The records of messages as they lie in Redis: made, found and changed by hand.

It builds them by itself: what the scripts have wrong it must not have wrong likewise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redis_world.keys import escape

if TYPE_CHECKING:
    from redis_world import RedisWorld

__all__ = [
    "HEAD",
    "STATE",
    "TEXTS",
    "Record",
    "envelope",
    "find_record",
    "head_of",
    "key_of",
    "lose_record",
    "record_of",
    "state",
    "state_of",
    "step_in",
    "stored",
    "take_lease",
]

HEAD: Final = (
    *("kind", "step", "key", "queue", "deployment", "headers", "body"),
    *("sent_at", "topic"),
)
"""The words of an envelope; of the texts behind them, their lengths."""
TEXTS: Final = HEAD[1:7]
STATE: Final = (
    *("attempt", "failures", "lost", "due_at", "receipt", "op", "postponed"),
    *("reason", "died_at"),
)
"""The words of a state; a dead letter alone has the last two."""

Texts = Mapping[str, str | int]
"""Some of `TEXTS`, or the size of one that lies in a field of its own."""
Client: TypeAlias = Any
"""A blocking client, whose types leave open what it answers."""


def envelope(kind: str, topic: str, sent_at: int, texts: Texts) -> bytes:
    """The envelope of a message; an integer for a text is the size of one that lies apart."""
    all_texts = [texts.get(name, "") for name in TEXTS]
    here = [each.encode() for each in all_texts if isinstance(each, str)]
    sizes = [f">{each}" if isinstance(each, int) else len(each.encode()) for each in all_texts]
    head = " ".join(map(str, [kind, *sizes, sent_at, topic]))
    return b"%b\n%b" % (head.encode(), b"".join(here))


def state(due_at: int, **words: str | int) -> str:
    """The state of a message that was never delivered, but for these words."""
    known: dict[str, str | int] = {
        **dict.fromkeys(("attempt", "failures", "lost", "postponed"), 0),
        **dict.fromkeys(("receipt", "op"), "-"),
        "due_at": due_at,
        **words,
    }
    return " ".join(str(known[name]) for name in STATE if name in known)


def head_of(envelope: bytes) -> dict[str, str]:
    """The words of an envelope."""
    words = envelope.partition(b"\n")[0].decode().split(" ")
    return dict(zip(HEAD, words, strict=True))


def step_in(envelope: bytes) -> str:
    """The step that an envelope names, the first of its texts."""
    return envelope.partition(b"\n")[2][: int(head_of(envelope)["step"])].decode()


def state_of(state: bytes) -> dict[str, str]:
    """The words of a state."""
    return dict(zip(STATE, state.decode().split(" "), strict=False))


@dataclass(frozen=True)
class Record:
    """Where a message lies.

    Attributes:
        key: of the bookkeeping of its run, or of its own hash.
    """

    client: Client
    key: str
    id: str

    def field(self, kind: str) -> str:
        return f"{kind}:{self.id}"

    def key_of(self, kind: str) -> str:
        """The hash of a field: large content of messages of runs lies beside the others."""
        if kind in {"headers", "body"} and self.key.endswith(":queue"):
            return self.key.removesuffix(":queue") + ":contents"
        return self.key

    def get(self, kind: str) -> bytes:
        """What a field holds."""
        found: bytes = self.client.hget(self.key_of(kind), self.field(kind))
        return found

    def put(self, kind: str, value: str | bytes) -> None:
        self.client.hset(self.key_of(kind), self.field(kind), value)

    def drop(self, *kinds: str) -> None:
        for kind in kinds:
            self.client.hdel(self.key_of(kind), self.field(kind))

    def delete(self) -> None:
        """All that is stored of it."""
        self.drop("message", "state", "headers", "body", "error", "declined")

    def copy_to(self, key: str) -> None:
        """Its envelope and its state, into another hash."""
        for kind in ("message", "state"):
            self.client.hset(key, self.field(kind), self.get(kind))

    def head(self) -> dict[str, str]:
        """The words of its envelope."""
        return head_of(self.get("message"))

    def state(self) -> dict[str, str]:
        """The words of its state."""
        return state_of(self.get("state"))

    def set_head(self, **words: str | int) -> None:
        """Other words in the envelope; the texts behind them stay."""
        _, end, texts = self.get("message").partition(b"\n")
        head = " ".join(map(str, {**self.head(), **words}.values()))
        self.put("message", head.encode() + end + texts)

    def set_texts(self, **texts: str) -> None:
        """Other texts in the envelope, with their lengths."""
        rest = self.get("message").partition(b"\n")[2]
        head = self.head()
        blobs = []
        for name in TEXTS:
            size = 0 if head[name].startswith(">") else int(head[name])
            blob, rest = rest[:size], rest[size:]
            if name in texts:
                blob = texts[name].encode()
                head[name] = str(len(blob))
            blobs.append(blob)
        self.put("message", " ".join(head.values()).encode() + b"\n" + b"".join(blobs))

    def set_state(self, **words: str | int | None) -> None:
        """Other words in the state; None takes one away."""
        changed = {**self.state(), **words}
        kept = (changed[name] for name in STATE if changed.get(name) is not None)
        self.put("state", " ".join(map(str, kept)))


def record_of(client: Client, base: str, topic: str, member: str) -> Record:
    """The record of what is in a set of a topic, `<message>/<run>`."""
    message_id, _, run_id = member.partition("/")
    if run_id:
        return Record(client, f"{base}run:{escape(run_id)}:queue", message_id)
    return Record(client, f"{base}queue:{topic}:message:{message_id}", message_id)


def find_record(client: Client, message_id: str) -> Record:
    """The record of a message, wherever it is stored."""
    for pattern in (f"*:message:{message_id}", "*:queue"):
        for key in client.scan_iter(pattern, count=1000, _type="HASH"):
            if client.hexists(key, f"message:{message_id}"):
                return Record(client, key.decode(), message_id)
    raise LookupError(message_id)


async def key_of(world: RedisWorld, message_id: str) -> str:
    """The hash that a World stores a message in."""
    for keys in world.connection.partitions:
        (topics,) = await world.connection.execute(("SMEMBERS", keys.topics))
        for topic in (each.decode() for each in topics):
            places = [keys.topic(topic, each) for each in ("due", "leased", "held", "dead")]
            for members in await world.connection.execute(
                *(("ZRANGE", place, 0, -1) for place in places)
            ):
                for member in (each.decode() for each in members):
                    found, _, run_id = member.partition("/")
                    if found == message_id:
                        return keys.book(topic, run_id, message_id)
    raise LookupError(message_id)


async def stored(world: RedisWorld, message_id: str, *names: str) -> list[str | None]:
    """Words of a message's state, and the text of its last failure as `error`.

    All None when it is gone.
    """
    try:
        key = await key_of(world, message_id)
    except LookupError:
        return [None] * len(names)
    ((words, error),) = await world.connection.execute(
        ("HMGET", key, f"state:{message_id}", f"error:{message_id}")
    )
    found = state_of(words)
    if error is not None:
        found["error"] = error.decode()
    return [found.get(name) for name in names]


async def lose_record(world: RedisWorld, message_id: str) -> None:
    """Delete what is stored of a message, and leave it in the sets of its topic."""
    key = await key_of(world, message_id)
    fields = [f"{kind}:{message_id}" for kind in ("message", "state")]
    await world.connection.execute(("HDEL", key, *fields))


async def take_lease(world: RedisWorld, message_id: str) -> None:
    """Have somebody else lease a message that is leased."""
    key, field = await key_of(world, message_id), f"state:{message_id}"
    (words,) = await world.connection.execute(("HGET", key, field))
    found = {**state_of(words), "receipt": "other"}
    await world.connection.execute(("HSET", key, field, " ".join(found.values())))
