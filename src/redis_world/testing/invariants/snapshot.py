"""Every key of a namespace, read once and sorted by what it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis_world.connection import Command, Connection
from redis_world.keys import ROOT, Keys, pattern_of
from redis_world.testing.invariants.names import TYPES, KeyName, parse_key

__all__ = ["Hash", "RawEntry", "Scores", "Snapshot", "read_snapshots", "text"]

Hash = dict[str, bytes]
Scores = dict[str, float]
RawEntry = tuple[str, Hash]
"""Id and fields of an entry of a stream."""

_NAMES_AT_ONCE: Final = 1000
_VALUES_AT_ONCE: Final = 200
"""Keys of one round trip; logs and streams may be large."""

_ONLY_FIELDS: Final = {"run:payloads"}
"""Hashes whose values no rule looks at; they are most of the bytes."""

_READERS: Final[Mapping[str, Command]] = {
    "hash": ("HGETALL",),
    "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    "set": ("SMEMBERS",),
    "stream": ("XRANGE", "-", "+"),
    "string": ("GET",),
}


@dataclass
class Snapshot:
    """The keys of one partition, by type and name.

    Attributes:
        ttls: milliseconds to live, of the keys that are going to expire.
        now: the time of the scripts when the reading began, in ms.
        wrong: what is not a key of a World, or has another type than it must.
    """

    now: int = 0

    hashes: dict[KeyName, Hash] = field(default_factory=dict)
    zsets: dict[KeyName, Scores] = field(default_factory=dict)
    sets: dict[KeyName, set[str]] = field(default_factory=dict)
    streams: dict[KeyName, list[RawEntry]] = field(default_factory=dict)
    strings: dict[KeyName, bytes] = field(default_factory=dict)
    ttls: dict[KeyName, int] = field(default_factory=dict)
    texts: dict[KeyName, str] = field(default_factory=dict)
    """How each key is spelled behind the partition's prefix."""
    wrong: list[str] = field(default_factory=list)
    _named: defaultdict[tuple[str, str], list[str]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def hash(self, kind: str, owner: str = "", name: str = "") -> Hash:
        """A hash; empty when there is none, as the other readers are."""
        return self.hashes.get(KeyName(kind, owner, name), {})

    def zset(self, kind: str, owner: str = "", name: str = "") -> Scores:
        return self.zsets.get(KeyName(kind, owner, name), {})

    def stream(self, kind: str, owner: str = "", name: str = "") -> list[RawEntry]:
        return self.streams.get(KeyName(kind, owner, name), [])

    def has(self, kind: str, owner: str = "", name: str = "") -> bool:
        return KeyName(kind, owner, name) in self.texts

    def names(self, kind: str, owner: str = "") -> list[str]:
        """The names of an owner's keys of this kind."""
        return self._named.get((kind, owner), [])

    def of_kind(self, kind: str) -> list[KeyName]:
        return [name for name in self.texts if name.kind == kind]

    @property
    def run_ids(self) -> list[str]:
        """The runs that exist."""
        return [name.owner for name in self.of_kind("run")]

    def is_run(self, run_id: str) -> bool:
        return self.has("run", run_id)

    def is_live(self, run_id: str) -> bool:
        return self.hash("run", run_id).get("status") in {b"pending", b"running"}

    def has_no_user_data(self, run_id: str) -> bool:
        """Whether the user data of a run is deleted, or about to be: nothing of it is shown."""
        return "expired_at" in self.hash("run", run_id)

    def is_cleaning(self, kind: str, run_id: str) -> bool:
        """Whether parts of a run are to be deleted yet: its hooks, its streams, or all of it."""
        return f"{kind}/{run_id}" in self.zset("cleaning")

    def add(self, name: KeyName, spelled: str, type_: str, ttl: int, value: Any) -> None:
        """Take a key in, as the server gave it."""
        self.texts[name] = spelled
        if ttl >= 0:
            self.ttls[name] = ttl
        if type_ != TYPES[name.kind]:
            self.wrong.append(f"{spelled} is a {type_} and must be a {TYPES[name.kind]}")
            return
        self._named[name.kind, name.owner].append(name.name)
        match type_:
            case "hash" if name.kind in _ONLY_FIELDS:
                self.hashes[name] = dict.fromkeys(map(text, value), b"")
            case "hash":
                self.hashes[name] = _hash(value)
            case "zset":
                self.zsets[name] = _scores(value)
            case "set":
                self.sets[name] = {text(member) for member in value}
            case "stream":
                self.streams[name] = [(text(id_), _hash(fields)) for id_, fields in value]
            case _:
                self.strings[name] = value


def text(blob: bytes) -> str:
    """Text as it was sent; of what is none, something that can be shown."""
    return blob.decode(errors="backslashreplace")


def _hash(reply: Any) -> Hash:
    # By the protocol that is spoken, a reply of pairs is flat or has them.
    if isinstance(reply, Mapping):
        return {text(key): value for key, value in reply.items()}
    return {text(key): value for key, value in zip(reply[::2], reply[1::2], strict=True)}


def _scores(reply: Sequence[Any]) -> Scores:
    if reply and isinstance(reply[0], list | tuple):
        return {text(member): float(score) for member, score in reply}
    return {
        text(member): float(score) for member, score in zip(reply[::2], reply[1::2], strict=True)
    }


async def read_snapshots(connection: Connection) -> list[Snapshot]:
    """Read every key of the connection's namespace; a snapshot for each partition."""
    namespace = connection.config.namespace
    bases = {keys.base: keys.number for keys in connection.partitions}
    snapshots = [Snapshot(now=await _now(connection, keys)) for keys in connection.partitions]
    known: dict[bytes, tuple[Snapshot, KeyName, str]] = {}
    meta = connection.keys.meta
    for key in sorted({key async for key in connection.scan(pattern_of(namespace))}):
        spelled = text(key)
        base, end, rest = spelled.partition(f":{ROOT}:")
        number = bases.get(base + end)
        if spelled == meta:
            known[key] = snapshots[0], KeyName("meta"), spelled
        elif rest == "clock":
            continue
        elif number is None or (name := parse_key(rest)) is None:
            snapshots[0].wrong.append(f"{spelled} is not a key of a World")
        else:
            known[key] = snapshots[number], name, rest
    for part in _chunks([*known], _NAMES_AT_ONCE):
        found = await connection.execute(*((c, key) for key in part for c in ("TYPE", "PTTL")))
        types = {key: text(found[2 * i]) for i, key in enumerate(part)}
        ttls = {key: int(found[2 * i + 1]) for i, key in enumerate(part)}
        # A key may have expired since the scan.
        there = [key for key in part if types[key] != "none"]
        for some in _chunks(there, _VALUES_AT_ONCE):
            values = await connection.execute(
                *(_reader(key, known[key][1], types[key]) for key in some)
            )
            for key, value in zip(some, values, strict=True):
                snapshot, name, spelled = known[key]
                snapshot.add(name, spelled, types[key], ttls[key], value)
    return snapshots


async def _now(connection: Connection, keys: Keys) -> int:
    """The time that the scripts of a partition see, in ms."""
    reply = await connection.call(
        "queue/peek",
        {"due": keys.topic("-", "due"), "leased": keys.topic("-", "leased")},
        {"base": keys.base, "topic": "-", "limit": "0", "worker": "", "spot": "0", "look": ""},
    )
    return int(reply[2])


def _reader(key: bytes, name: KeyName, type_: str) -> Command:
    if type_ == "hash" and name.kind in _ONLY_FIELDS:
        return ("HKEYS", key)
    if type_ not in _READERS:
        return ("TYPE", key)
    command, *rest = _READERS[type_]
    return (command, key, *rest)


def _chunks(keys: Sequence[bytes], size: int) -> list[Sequence[bytes]]:
    return [keys[i : i + size] for i in range(0, len(keys), size)]
