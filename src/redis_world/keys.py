"""Every key of a partition. `lua/lib/keys.lua` builds those that only a script knows."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from redis_world.text import utf8

__all__ = ["SCHEMA", "Keys", "RunKeys", "escape", "token_hash"]

SCHEMA: Final = 1
"""Version of the key layout; part of every key and pinned in `meta`."""

_UNSAFE = re.compile(rb"[^A-Za-z0-9_.-]")


def escape(text: str) -> str:
    """User text as part of a key: everything but letters, digits and `_.-` becomes %XX."""
    return _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], utf8(text)).decode()


def token_hash(token: str) -> str:
    """Tokens are secrets of any length: the key has their SHA-256."""
    return hashlib.sha256(utf8(token)).hexdigest()


class RunKeys:
    """Keys of one run."""

    __slots__ = ("run",)

    def __init__(self, base: str, run_id: str) -> None:
        self.run = f"{base}run:{escape(run_id)}"

    @property
    def attributes(self) -> str:
        return f"{self.run}:attributes"

    @property
    def events(self) -> str:
        return f"{self.run}:events"

    @property
    def payloads(self) -> str:
        return f"{self.run}:payloads"

    @property
    def claims(self) -> str:
        return f"{self.run}:claims"

    @property
    def steps(self) -> str:
        return f"{self.run}:steps"

    def step(self, step_id: str) -> str:
        return f"{self.run}:step:{escape(step_id)}"

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
    def held(self) -> str:
        return f"{self.run}:held"

    @property
    def done(self) -> str:
        """The channel on which the run's end is hinted."""
        return f"{self.run}:done"


class Keys:
    """Keys of one partition of a namespace.

    All of them begin with one Redis Cluster hash tag, so that every script is of one slot.
    """

    __slots__ = ("base", "meta")

    def __init__(self, namespace: str, partition: int = 0) -> None:
        self.base = f"{{{namespace}/{partition}.0}}:v{SCHEMA}:"
        # Under a tag that does not depend on the partitions: it says how many there are.
        self.meta = f"{{{namespace}}}:v{SCHEMA}:meta"

    def of_run(self, run_id: str) -> RunKeys:
        return RunKeys(self.base, run_id)

    def token(self, token: str) -> str:
        return f"{self.base}token:{token_hash(token)}"

    def hook_runs(self, hook_id: str) -> str:
        return f"{self.base}hook:{escape(hook_id)}"

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
        """Runs and steps with an event that lacks the message it needs."""
        return f"{self.base}owed"

    @property
    def parked(self) -> str:
        """Live runs without an outstanding message."""
        return f"{self.base}parked"

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
        """One of a topic's sets: due, leased, held or dead."""
        return f"{self.base}queue:{topic}:{part}"

    def message(self, topic: str, message_id: str) -> str:
        return f"{self.base}queue:{topic}:message:{message_id}"

    def idempotency(self, topic: str, run_id: str, key: str) -> str:
        return f"{self.base}queue:{topic}:key:{escape(run_id)}/{escape(key)}"

    def queue_channel(self, topic: str) -> str:
        """The channel on which messages of a topic are hinted."""
        return f"{self.base}queue:{topic}"
