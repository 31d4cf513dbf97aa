"""Every key of a partition. `lua/lib/keys.lua` builds those that only a script knows."""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Iterator
from itertools import count
from typing import Final

from redis_world.text import utf8

__all__ = [
    "ROOT",
    "SCHEMA",
    "Keys",
    "Partitions",
    "RunKeys",
    "crc16",
    "escape",
    "meta_key",
    "pattern_of",
    "tag",
    "token_hash",
]

SCHEMA: Final = 3
"""Version of the layout of keys and records, which is pinned in `meta`."""
ROOT: Final = "v1"
"""A part of every key, behind the hash tag: what is pinned of other versions is found by it."""

_SLOTS: Final = 16_384
"""Of Redis Cluster."""
_UNSAFE = re.compile(rb"[^A-Za-z0-9_.-]")
_SAFE = re.compile(r"[A-Za-z0-9_.-]*")


def escape(text: str) -> str:
    """User text as part of a key: everything but letters, digits and `_.-` becomes %XX."""
    if isinstance(text, str) and (
        # Most ids have nothing else; to tell that takes a quarter of what the pattern does.
        (text.isascii() and text.replace("_", "0").isalnum()) or _SAFE.fullmatch(text)
    ):
        return text
    return _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], utf8(text)).decode()


def token_hash(token: str) -> str:
    """Tokens are secrets of any length: the key has their SHA-256."""
    return hashlib.sha256(utf8(token)).hexdigest()


class RunKeys:
    """Keys of one run."""

    __slots__ = ("events", "payloads", "run")

    def __init__(self, base: str, run_id: str) -> None:
        self.run = run = f"{base}run:{escape(run_id)}"
        self.events = f"{run}:events"
        self.payloads = f"{run}:payloads"

    @property
    def attributes(self) -> str:
        return f"{self.run}:attributes"

    @property
    def stripped(self) -> str:
        """The log without its payloads, while these are deleted."""
        return f"{self.run}:stripped"

    @property
    def old(self) -> str:
        """The log that `stripped` has just taken the place of; gone when its script ends."""
        return f"{self.run}:old"

    @property
    def claims(self) -> str:
        return f"{self.run}:claims"

    @property
    def hooks(self) -> str:
        return f"{self.run}:hooks"

    def hook(self, hook_id: str) -> str:
        return f"{self.run}:hook:{escape(hook_id)}"

    @property
    def waits(self) -> str:
        return f"{self.run}:waits"

    @property
    def wait_states(self) -> str:
        return f"{self.run}:wait_states"

    @property
    def streams(self) -> str:
        return f"{self.run}:streams"

    def stream(self, name: str) -> str:
        return f"{self.run}:stream:{escape(name)}"

    def writers(self, name: str) -> str:
        return f"{self.stream(name)}:writers"

    @property
    def ops(self) -> str:
        """What requests that can't find themselves otherwise have written."""
        return f"{self.run}:ops"

    @property
    def queue(self) -> str:
        return f"{self.run}:queue"

    @property
    def contents(self) -> str:
        """Large headers and bodies of the messages."""
        return f"{self.run}:contents"

    @property
    def held(self) -> str:
        return f"{self.run}:held"

    @property
    def done(self) -> str:
        """The channel on which the run's end is hinted."""
        return f"{self.run}:done"


def crc16(text: str) -> int:
    """The checksum by which Redis Cluster spreads keys, here also runs over partitions."""
    return binascii.crc_hqx(utf8(text), 0)


def tag(namespace: str, number: int, partitions: int) -> str:
    """The hash tag of a partition: one whose slot lies in its own share of all slots.

    Checksums of neighbouring numbers lie close together: tags without the second number would
    leave most of a cluster's nodes idle.
    """
    first = _SLOTS * number // partitions
    end = _SLOTS * (number + 1) // partitions
    for choice in count():
        found = f"{namespace}/{number}.{choice}"
        if first <= crc16(found) % _SLOTS < end:
            return found
    raise AssertionError


def meta_key(namespace: str) -> str:
    """What is pinned of a namespace, under a tag that does not depend on its partitions."""
    return f"{{{namespace}}}:{ROOT}:meta"


def pattern_of(namespace: str) -> str:
    """Of all keys of a namespace, for SCAN."""
    # `{namespace}:` begins what is of all partitions, `{namespace/` what is of one.
    return f"{{{namespace}[}}/]*"


class Partitions:
    """Keys of a namespace: a run, with all that is its own, lies in one of its partitions."""

    __slots__ = ("_all",)

    def __init__(self, namespace: str, number: int) -> None:
        self._all = [Keys(namespace, each, number) for each in range(number)]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Keys]:
        return iter(self._all)

    def __getitem__(self, number: int) -> Keys:
        return self._all[number]

    def of(self, name: str) -> Keys:
        """The partition of a run, by its id; likewise of a token, or of a stream's name."""
        return self._all[crc16(name) % len(self._all) if len(self._all) > 1 else 0]


class Keys:
    """Keys of one partition of a namespace.

    All of them begin with one Redis Cluster hash tag, so that every script is of one slot.
    """

    __slots__ = ("base", "meta", "number")

    def __init__(self, namespace: str, number: int = 0, partitions: int = 1) -> None:
        self.meta = meta_key(namespace)
        self.number = number
        """Which of the partitions it is, from 0."""
        self.base = f"{{{tag(namespace, number, partitions)}}}:{ROOT}:"

    def of_run(self, run_id: str) -> RunKeys:
        return RunKeys(self.base, run_id)

    def token(self, token: str) -> str:
        return self.token_of_hash(token_hash(token))

    def token_of_hash(self, hashed: str) -> str:
        return f"{self.base}token:{hashed}"

    def hook_runs(self, hook_id: str) -> str:
        return f"{self.base}hook:{escape(hook_id)}"

    def stream_run(self, name: str) -> str:
        """The note which run writes streams of a name."""
        return f"{self.base}stream:{escape(name)}"

    @property
    def all_hooks(self) -> str:
        return f"{self.base}hooks"

    @property
    def runs(self) -> str:
        return f"{self.base}runs"

    def runs_of_status(self, status: str) -> str:
        return f"{self.base}runs:status:{status}"

    def runs_of_workflow(self, workflow_name: str, status: str) -> str:
        return f"{self.base}runs:workflow:{escape(workflow_name)}:{status}"

    @property
    def owed(self) -> str:
        """Runs with an event that lacks the message it needs."""
        return f"{self.base}owed"

    @property
    def parked(self) -> str:
        """Live runs without an outstanding message."""
        return f"{self.base}parked"

    @property
    def lost(self) -> str:
        """Runs of messages whose record is gone."""
        return f"{self.base}lost"

    @property
    def token_numbers(self) -> str:
        """Counts reservations of tokens, with several partitions."""
        return f"{self.base}tokens:numbers"

    @property
    def reservations(self) -> str:
        """Tokens that were reserved, and whose hook nobody has looked for yet."""
        return f"{self.base}reservations"

    @property
    def releases(self) -> str:
        """Tokens of other partitions whose hook here is gone."""
        return f"{self.base}releases"

    @property
    def finished(self) -> str:
        """Runs that are over, by the time from which their age counts."""
        return f"{self.base}finished"

    @property
    def retained(self) -> str:
        """Hooks that have outlived their run, by the time until which they do."""
        return f"{self.base}retained"

    @property
    def cleaning(self) -> str:
        """What is too large to be deleted in one script."""
        return f"{self.base}cleaning"

    @property
    def topics(self) -> str:
        return f"{self.base}topics"

    def topic(self, topic: str, part: str) -> str:
        """A part of a topic: due, declined, leased, held, dead, letters or sleepers."""
        return f"{self.base}queue:{topic}:{part}"

    def message(self, topic: str, message_id: str) -> str:
        """The book of a message of no run."""
        return f"{self.base}queue:{topic}:message:{message_id}"

    def book(self, topic: str, run_id: str, message_id: str) -> str:
        """The hash that stores a message: that of its run, or its own if it has no run."""
        return self.of_run(run_id).queue if run_id else self.message(topic, message_id)

    def contents(self, topic: str, run_id: str, message_id: str) -> str:
        """Where the large headers and the large body of a message are stored."""
        return self.of_run(run_id).contents if run_id else self.message(topic, message_id)

    def idempotency(self, topic: str, key: str) -> str:
        """The idempotency key of a message of no run: those of runs are fields of their books."""
        return f"{self.base}queue:{topic}:key:{escape(key)}"

    def queue_channel(self, topic: str) -> str:
        """A channel that every worker of a topic listens to: `doctor` counts them by it."""
        return f"{self.base}queue:{topic}"

    def worker_channel(self, topic: str, worker: str) -> str:
        """The channel on which a message wakes one worker."""
        return f"{self.base}queue:{topic}:worker:{worker}"
