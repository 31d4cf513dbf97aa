"""`world.queue`: messages that wake runs (contract, section 7)."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from redis_world.codec import (
    Duration,
    decode_data,
    encode_data,
    from_ms,
    to_duration_ms,
)
from redis_world.connection import Connection
from redis_world.errors import InvalidEventError, InvalidInputError
from redis_world.ids import IdFactory, new_request_id
from redis_world.rows import pairs

__all__ = ["FollowUp", "Message", "Queue", "QueueStats", "backoff", "topic_of"]

_QUEUE_NAME: Final = re.compile(r"(__(?:[a-z][a-z0-9]*_)?wkf_workflow_).+", re.DOTALL)
_TOPIC: Final = re.compile(r"__(?:[a-z][a-z0-9]*_)?wkf_workflow_")
_WAKE_KEYS: Final = frozenset({"runId", "requestedAt", "traceCarrier", "hookResumeTiming"})
"""A message of these keys alone says no more than "look at the run"."""

MAX_CLAIM: Final = 1000
DEFAULT_LEASE: Final = 60.0

_BACKOFF_SECONDS: Final = 5.0
_BACKOFF_FLAT: Final = 3
"""How many failures wait the same short time."""
_BACKOFF_CAP_SECONDS: Final = 300.0


def topic_of(queue_name: str) -> str:
    """The topic of a queue name: all of it up to the workflow's id.

    Raises:
        InvalidInputError: it is not `__wkf_workflow_<id>` or `__<namespace>_wkf_workflow_<id>`.
    """
    match = _QUEUE_NAME.fullmatch(queue_name) if isinstance(queue_name, str) else None
    if match is None:
        raise InvalidInputError(
            f"{queue_name!r} is no queue name: they are __wkf_workflow_<id> or "
            "__<namespace>_wkf_workflow_<id>, the namespace lower-case letters and digits"
        )
    return match[1]


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures: 5 for the first ones, then doubling, capped.

    A tenth of it is chance, so that what failed together does not come back together.
    """
    doublings = max(0, failures - _BACKOFF_FLAT)
    seconds = min(_BACKOFF_CAP_SECONDS, _BACKOFF_SECONDS * 2.0 ** min(doublings, 16))
    return seconds * random.uniform(1.0, 1.1)  # noqa: S311 - spreads load, guards nothing


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The continuation of a message: sent, with the ack of its predecessor, in one step.

    Attributes:
        delay: until it is due.
        idempotency_key: its key; without one it takes over its predecessor's.
    """

    delay: Duration = 0.0
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A leased message.

    Attributes:
        attempt: deliveries so far, this one and lost ones included; 1 at the first.
        failures: deliveries that ended in an error.
        receipt: what proves the lease; of no use once it ended.
    """

    message_id: str
    queue_name: str
    payload: dict[str, Any]
    headers: dict[str, str] | None
    deployment_id: str | None
    idempotency_key: str | None
    attempt: int
    failures: int
    receipt: str = field(repr=False)
    enqueued_at: datetime
    due_at: datetime

    @property
    def topic(self) -> str:
        """The topic that the message was claimed from."""
        return topic_of(self.queue_name)

    @property
    def run_id(self) -> str | None:
        """The run that it is about, if any."""
        return _run_of(self.payload) or None

    @property
    def is_step(self) -> bool:
        """Whether it asks for a step, not for a replay."""
        return _step_of(self.payload) != ""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim brought, and when to come again.

    Attributes:
        more: whether there was more to look at than one claim may.
        wait: seconds until the next message or lease is due; None when there is none.
    """

    messages: list[Message]
    more: bool
    wait: float | None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many messages of a topic are where.

    Attributes:
        held: due replays that wait for the leased one of their run.
        oldest_due_age: seconds for which the oldest due message has been waiting; 0 for none.
    """

    ready: int
    delayed: int
    leased: int
    held: int
    dead: int
    oldest_due_age: float


def _run_of(payload: Mapping[str, Any]) -> str:
    """The run of a message, or "": a health check is nobody's, whatever it names."""
    run_id = payload.get("runId")
    if "__healthCheck" in payload or not isinstance(run_id, str):
        return ""
    return run_id


def _step_of(payload: Mapping[str, Any]) -> str:
    step_id = payload.get("stepId")
    return step_id if _run_of(payload) and isinstance(step_id, str) else ""


def _kind_of(payload: Mapping[str, Any], key: str, delay: int) -> str:
    if not _run_of(payload):
        return "other"
    if _step_of(payload):
        return "step"
    if set(payload) <= _WAKE_KEYS and not key and not delay:
        return "wake"
    return "replay"


class Queue:
    """Sends and delivers messages, at least once each."""

    def __init__(self, connection: Connection, ids: IdFactory) -> None:
        self._connection = connection
        self._ids = ids

    async def send(
        self,
        queue_name: str,
        payload: Mapping[str, Any],
        *,
        delay: Duration = 0.0,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        deployment_id: str | None = None,
    ) -> str | None:
        """Send a message.

        Where an outstanding message stands for this one already, nothing is stored and its id
        is the answer: one of the same key, the one message of the same step, or a plain wake
        of the same run that was not yet delivered.

        Args:
            queue_name: `__wkf_workflow_<id>` or `__<namespace>_wkf_workflow_<id>`.
            payload: JSON values, bytes and datetimes; it travels as it is.
            delay: until it is due, by the server's clock.
            idempotency_key: names the message among those of its run.
            headers: given back with the message.
            deployment_id: given back with the message.

        Returns:
            The id of the message that stands for this one; None when its step is terminal, so
            that nothing is left to deliver and nothing was stored.

        Raises:
            InvalidInputError: the name, the delay or the payload is not valid.
        """
        topic = topic_of(queue_name)
        delay_ms = to_duration_ms(delay, "delay")
        key = idempotency_key or ""
        keys = self._connection.keys
        body = self._encode_body(payload)
        await self._connection.open()
        reply = await self._connection.call(
            "queue/send",
            {"due": keys.topic(topic, "due")},
            {
                "base": keys.base,
                "topic": topic,
                "message_id": self._ids.message_id(self._connection.server_time()),
                "run_id": _run_of(payload),
                "kind": _kind_of(payload, key, delay_ms),
                "step_id": _step_of(payload),
                "idempotency": key,
                "queue_name": queue_name,
                "deployment_id": deployment_id or "",
                "headers": encode_data(dict(headers), "headers") if headers else b"",
                "body": body,
                "delay": str(delay_ms),
            },
        )
        return None if reply[0] == b"DONE" else reply[1].decode()

    async def claim(
        self, topic: str, *, limit: int = 10, lease: Duration = DEFAULT_LEASE
    ) -> list[Message]:
        """Lease messages that are due, oldest first.

        Args:
            topic: the prefix of the queue names, `__wkf_workflow_`.
            limit: 1 to 1,000.
            lease: how long nobody else gets them.
        """
        return (await self.claim_batch(topic, limit=limit, lease=lease)).messages

    async def claim_batch(
        self, topic: str, *, limit: int = 10, lease: Duration = DEFAULT_LEASE
    ) -> Claim:
        """Lease messages as `claim` does, and tell when to come again."""
        if not 1 <= limit <= MAX_CLAIM:
            raise InvalidInputError(f"a claim takes 1 to {MAX_CLAIM} messages, not {limit!r}")
        config = self._connection.config
        receipt = new_request_id()
        reply = await self._connection.call(
            "queue/claim",
            self._sets(topic, "due", "leased", "held"),
            {
                "base": self._connection.keys.base,
                "topic": topic,
                "receipt": receipt,
                "limit": str(limit),
                "lease": str(_positive_ms(lease, "lease")),
                "serialize": "1" if config.serialize_runs else "",
                "max_lost": str(config.max_lost_leases),
            },
        )
        now, upcoming = int(reply[1]), reply[2]
        return Claim(
            messages=[_message(row) for row in reply[4]],
            more=reply[3] == b"1",
            wait=None if not upcoming else max(0.0, (float(upcoming) - now) / 1000),
        )

    async def ack(self, message: Message, *, follow_up: FollowUp | None = None) -> bool:
        """End a leased message; with a continuation, in one step.

        The continuation has an id of its own and attempt 1; the queue name, headers, deployment
        and payload, less `runInput`, are its predecessor's.

        Returns:
            False when the lease was lost: then nothing has changed.
        """
        args: dict[str, Any] = dict.fromkeys(
            ("follow_up_id", "kind", "idempotency", "delay", "body"), ""
        )
        if follow_up is not None:
            delay_ms = to_duration_ms(follow_up.delay, "delay")
            key = follow_up.idempotency_key or message.idempotency_key or ""
            payload = {k: v for k, v in message.payload.items() if k != "runInput"}
            args = {
                "follow_up_id": self._ids.message_id(self._connection.server_time()),
                "kind": _kind_of(payload, key, delay_ms),
                "idempotency": key,
                "delay": str(delay_ms),
                "body": self._encode_body(payload),
            }
        return await self._on_lease("queue/ack", message, ("leased",), args)

    async def retry(
        self, message: Message, *, error: str = "", delay: Duration | None = None
    ) -> bool:
        """Free a leased message after a failed attempt.

        Args:
            message: the leased message.
            error: what went wrong, kept with the message.
            delay: until it is due again; None: `backoff` of its failures.

        Returns:
            False when the lease was lost: then nothing has changed.
        """
        seconds = backoff(message.failures + 1) if delay is None else delay
        return await self._on_lease(
            "queue/retry",
            message,
            ("leased", "due"),
            {
                "delay": str(to_duration_ms(seconds, "delay")),
                "last_error": error.encode("utf-8", "replace")[:4096],
                "max_failures": str(self._connection.config.max_failures),
            },
        )

    async def give_back(self, message: Message) -> bool:
        """Return a leased message untouched: due at once, and the attempt does not count.

        Returns:
            False when the lease was lost: then nothing has changed.
        """
        return await self._on_lease("queue/give_back", message, ("leased", "due"), {})

    async def extend(self, message: Message, *, lease: Duration = DEFAULT_LEASE) -> bool:
        """Make a lease end this long from now.

        Returns:
            False when the lease was lost: then nothing has changed.
        """
        keys, args = self.extension(message, lease)
        reply = await self._connection.call("queue/extend", keys, args)
        return bool(reply[0] == b"OK")

    def extension(
        self, message: Message, lease: Duration
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Keys and arguments of the script that extends a lease, for callers in a thread."""
        keys = self._connection.keys
        topic = message.topic
        return (
            {
                "leased": keys.topic(topic, "leased"),
                "message": keys.message(topic, message.message_id),
            },
            {
                "message_id": message.message_id,
                "receipt": message.receipt,
                "lease": str(_positive_ms(lease, "lease")),
            },
        )

    async def stats(self, topic: str) -> QueueStats:
        """Count the messages of a topic."""
        reply = await self._connection.call(
            "queue/stats", self._sets(topic, "due", "leased", "held", "dead"), {}
        )
        now, oldest = int(reply[1]), reply[7]
        ready, delayed, leased, held, dead = map(int, reply[2:7])
        age = max(0.0, (now - float(oldest)) / 1000) if oldest else 0.0
        return QueueStats(ready, delayed, leased, held, dead, age)

    async def topics(self) -> list[str]:
        """The topics that messages were ever sent to, sorted."""
        (names,) = await self._connection.execute(("SMEMBERS", self._connection.keys.topics))
        return sorted(name.decode() for name in names)

    async def expire(self, topic: str) -> int:
        """Free the leases of workers that are gone; how many there were."""
        total = 0
        while True:
            reply = await self._connection.call(
                "queue/expire",
                self._sets(topic, "leased"),
                {
                    "base": self._connection.keys.base,
                    "topic": topic,
                    "max_lost": str(self._connection.config.max_lost_leases),
                },
            )
            total += int(reply[1])
            if int(reply[1]) == 0:
                return total

    # -- inside ----------------------------------------------------------------------------

    def _sets(self, topic: str, *parts: str) -> dict[str, str]:
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
            raise InvalidInputError(
                f"{topic!r} is no topic: they are __wkf_workflow_ or __<namespace>_wkf_workflow_"
            )
        return {part: self._connection.keys.topic(topic, part) for part in parts}

    async def _on_lease(
        self, script: str, message: Message, sets: Sequence[str], args: Mapping[str, Any]
    ) -> bool:
        topic = message.topic
        keys = self._connection.keys
        reply = await self._connection.call(
            script,
            {
                "message": keys.message(topic, message.message_id),
                **{part: keys.topic(topic, part) for part in sets},
            },
            {
                "base": keys.base,
                "topic": topic,
                "message_id": message.message_id,
                "receipt": message.receipt,
                **args,
            },
        )
        return bool(reply[0] != b"LEASE_LOST")

    def _encode_body(self, payload: Mapping[str, Any]) -> bytes:
        if not isinstance(payload, Mapping):
            raise InvalidInputError(f"a payload is a mapping, not {type(payload).__name__}")
        body = encode_data(dict(payload), "the payload")
        limit = self._connection.config.max_payload_bytes
        if len(body) > limit:
            raise InvalidEventError(f"the payload has {len(body)} bytes; the limit is {limit}")
        return body


def _positive_ms(duration: Duration, what: str) -> int:
    milliseconds = to_duration_ms(duration, what)
    if milliseconds == 0:
        raise InvalidInputError(f"{what} must be more than nothing")
    return milliseconds


def _message(row: Sequence[Any]) -> Message:
    fields = pairs(row[1])
    return Message(
        message_id=row[0].decode(),
        queue_name=fields[b"queue"].decode(),
        payload=decode_data(fields[b"body"]),
        headers=decode_data(fields[b"headers"]) if fields[b"headers"] else None,
        deployment_id=fields[b"deployment"].decode() or None,
        idempotency_key=fields[b"key"].decode() or None,
        attempt=int(fields[b"attempt"]),
        failures=int(fields[b"failures"]),
        receipt=fields[b"receipt"].decode(),
        enqueued_at=from_ms(fields[b"enqueued_at"]),
        due_at=from_ms(fields[b"due_at"]),
    )
