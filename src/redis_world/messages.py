"""What a message is: its queue name, run and kind, and how it travels (contract, section 7)."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from redis_world.codec import (
    Duration,
    decode_data,
    encode_data,
    from_ms,
    plain_data,
    to_duration_ms,
    to_ms,
)
from redis_world.errors import InvalidInputError, WorldError
from redis_world.handles import Handle, no_handle, pack_handle, unpack_handle
from redis_world.ids import MAX_SLOT
from redis_world.text import utf8
from redis_world.values import shown, text, whole

__all__ = [
    "DeadLetter",
    "Ending",
    "Enqueue",
    "FollowUp",
    "Message",
    "Record",
    "StrandedRun",
    "backoff",
    "check_lease",
    "check_payload",
    "check_topic",
    "dead_letter_from",
    "default_queue_name",
    "encode_body",
    "kind_of",
    "message_args",
    "message_from",
    "missing_message",
    "owner_of",
    "pack_outbox",
    "postpone_delay",
    "read_record",
    "run_of",
    "step_name_of",
    "step_of",
    "tell_dropped",
    "topic_of",
]

logger = logging.getLogger(__name__)

_QUEUE_NAME: Final = re.compile(r"(__(?:[a-z][a-z0-9]*_)?wkf_(?:workflow|step)_).+", re.DOTALL)
_TOPIC: Final = re.compile(r"__(?:[a-z][a-z0-9]*_)?wkf_(?:workflow|step)_")
_STEP_QUEUE: Final = re.compile(r"__(?:[a-z][a-z0-9]*_)?wkf_step_")
_LAST_WITH_STEP_QUEUES: Final = 3
"""The newest spec version of the clients that have a queue for the steps of each name."""
_WAKE_KEYS: Final = frozenset({"runId", "requestedAt", "traceCarrier", "hookResumeTiming"})
"""A message of these keys alone says no more than "look at the run"."""

_ENVELOPE_BYTES: Final = 64 * 1024
_LEAST_NAME_BYTES: Final = 256

_BACKOFF_SECONDS: Final = 5.0
_BACKOFF_FLAT: Final = 3
"""How many failures wait the same short time."""
_BACKOFF_CAP_SECONDS: Final = 300.0

_POSTPONE_CAP_SECONDS: Final = 30.0

_MESSAGE_FIELDS: Final = 11
"""What `message_args` gives, and the scripts expect."""
_OUTBOX_FIELDS: Final = _MESSAGE_FIELDS + 4
"""Those of a message, then topic, run, message and receipt of a delivery."""
_STATE_WORDS: Final = 7
"""What is stored of what changes of a message; of a dead letter two more."""


def topic_of(queue_name: str) -> str:
    """The topic of a queue name: all of it up to the workflow's id.

    Raises:
        InvalidInputError: it is not `__wkf_workflow_<id>` or `__<namespace>_wkf_workflow_<id>`,
            or one of these with `step` in the place of `workflow`.
    """
    match = _QUEUE_NAME.fullmatch(queue_name) if isinstance(queue_name, str) else None
    if match is None:
        raise InvalidInputError(
            "queue_name must be __wkf_workflow_<id>, __wkf_step_<name>, or one of these with a "
            "namespace of lower-case letters and digits, as in __<namespace>_wkf_workflow_<id>, "
            f"not {shown(queue_name)}"
        )
    return match[1]


def check_topic(topic: str) -> str:
    """Check a topic.

    Raises:
        InvalidInputError: it is not `__wkf_workflow_` or `__<namespace>_wkf_workflow_`, or one of
            these with `step` in the place of `workflow`.
    """
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        raise InvalidInputError(
            "topic must be __wkf_workflow_, __wkf_step_, or one of these with a namespace, as in "
            f"__<namespace>_wkf_workflow_, not {shown(topic)}"
        )
    return str.__str__(topic)


def default_queue_name(
    run_id: str, workflow_name: str, execution_context: Mapping[str, Any]
) -> str:
    """The queue of a run that never had a message: its workflow's, as clients name it.

    Clients of a namespace tell it in the run's execution context, as `queueNamespace`.
    """
    namespace = execution_context.get("queueNamespace")
    topic = f"__{namespace}_wkf_workflow_"
    if not isinstance(namespace, str) or not _TOPIC.fullmatch(topic):
        topic = "__wkf_workflow_"
    # There has to be something behind the topic, and a workflow may be called nothing.
    return topic + (workflow_name or run_id)


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures: 5 after each of the first three, then doubling.

    The limit is 300 seconds. A random extra of up to a tenth keeps messages that failed together
    from coming back together.
    """
    doublings = max(0, failures - _BACKOFF_FLAT)
    seconds = min(_BACKOFF_CAP_SECONDS, _BACKOFF_SECONDS * 2.0 ** min(doublings, 16))
    return seconds * random.uniform(1.0, 1.1)  # noqa: S311 - spreads load, guards nothing


def postpone_delay(postponed: int) -> float:
    """Seconds until a message is due again, by how often it was postponed: 1, doubling to 30."""
    return min(_POSTPONE_CAP_SECONDS, 2.0 ** min(postponed, 16))


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The continuation of a message: one script sends it and acks its predecessor.

    Attributes:
        delay: how long until it is due.
        idempotency_key: its key; None: the key of its predecessor.
    """

    delay: Duration = 0.0
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Enqueue:
    """A message that is sent with an event: Redis stores both, or neither.

    Attributes:
        queue_name: as in `queue.send`, like the other fields.
        payload: its `runId`, if there is one, must be the run of the event.
    """

    queue_name: str
    payload: Mapping[str, Any] = field(repr=False)
    delay: Duration = 0.0
    idempotency_key: str | None = None
    headers: Mapping[str, str] | None = None
    deployment_id: str | None = None


@dataclass(slots=True, eq=False)
class Ending:
    """How far an event is that ends the delivery of a message; see `ack` of `events.create`.

    Attributes:
        is_under_way: the event has been sent, and not been answered.
        is_over: the delivery has ended with the event.
    """

    is_under_way: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A leased message.

    Attributes:
        payload: the message as sent; after the deletion of the run's user data only the run id,
            the step id and the step name.
        attempt: deliveries so far, including this one and lost ones; 1 at the first. Released and
            postponed deliveries do not count.
        failures: deliveries that ended in an error.
        receipt: proves the lease; invalid once the lease has ended.
        postponed: how often the message was postponed.
        postponed_since: when it was first postponed; None for never.
        ending: for the worker that keeps the lease, whether an event ends the delivery.
        is_whole: whether it is the message as it was claimed. One from a handle has of the payload
            only the run id, the step id and the step name, and no headers and no deployment.
        owner: the run that stores it, "" for a message of no run; None for that of the payload.
    """

    message_id: str
    queue_name: str
    payload: dict[str, Any] = field(repr=False)
    headers: dict[str, str] | None
    deployment_id: str | None
    idempotency_key: str | None
    attempt: int
    failures: int
    receipt: str = field(repr=False)
    enqueued_at: datetime
    due_at: datetime
    partition: int = field(default=0, repr=False)
    """The partition that stores it."""
    postponed: int = 0
    postponed_since: datetime | None = None
    ending: Ending = field(default_factory=Ending, repr=False, compare=False)
    is_whole: bool = field(default=True, repr=False, compare=False)
    owner: str | None = field(default=None, repr=False, compare=False)

    @property
    def handle(self) -> str:
        """Letters, digits, `-` and `_` by which any process can end or keep the lease.

        It is not secret, and as good as the receipt: invalid once the lease has ended.
        """
        return pack_handle(
            Handle(
                self.partition,
                self.queue_name,
                self.message_id,
                self.receipt,
                owner_of(self),
                step_of(self.payload),
                step_name_of(self.payload),
                self.idempotency_key or "",
                self.attempt,
                self.failures,
                self.postponed,
                to_ms(self.enqueued_at),
                to_ms(self.due_at),
            )
        )

    @classmethod
    def from_handle(cls, handle: str) -> Message:
        """The leased message of a handle, for `ack`, `retry`, `extend`, `release` and `postpone`.

        Raises:
            InvalidInputError: it is not a handle.
        """
        found = unpack_handle(handle)
        try:
            topic_of(found.queue_name)
            enqueued_at, due_at = from_ms(found.enqueued_at), from_ms(found.due_at)
        except (InvalidInputError, OverflowError):
            raise no_handle(handle) from None
        return cls(
            message_id=found.message_id,
            queue_name=found.queue_name,
            payload=_names(found.queue_name, found.run_id, found.step_id, found.step_name),
            headers=None,
            deployment_id=None,
            idempotency_key=found.key or None,
            attempt=found.attempt,
            failures=found.failures,
            receipt=found.receipt,
            enqueued_at=enqueued_at,
            due_at=due_at,
            partition=found.partition,
            postponed=found.postponed,
            is_whole=False,
            owner=found.run_id,
        )

    @property
    def topic(self) -> str:
        """The topic that the message was claimed from."""
        return topic_of(self.queue_name)

    @property
    def run_id(self) -> str | None:
        """The run that the message belongs to; None for a message without a run."""
        return run_of(self.payload) or None

    @property
    def is_step(self) -> bool:
        """Whether the message runs a step. If not, it starts a replay."""
        return step_of(self.payload) != ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed, or lost its lease, too often. It is not delivered again.

    Attributes:
        payload: None if it can't be read: `last_error` then has the reason. After the deletion of
            the run's user data only the run id, the step id and the step name.
        reason: `max_failures` or `max_lost_leases`.
        last_error: the error of its last failed delivery; None if no delivery failed, or if the
            run's user data was deleted.
        attempt: number of deliveries.
        failures: deliveries that ended in an error.
        lost_leases: deliveries whose lease expired.
        died_at: when it became a dead letter.
    """

    message_id: str
    queue_name: str
    payload: dict[str, Any] | None = field(repr=False)
    headers: dict[str, str] | None
    deployment_id: str | None
    idempotency_key: str | None
    reason: str
    last_error: str | None
    attempt: int
    failures: int
    lost_leases: int
    enqueued_at: datetime
    died_at: datetime


def run_of(payload: Mapping[str, Any]) -> str:
    """The run of a message, or "": a health check has none, even if it names one."""
    run_id = payload.get("runId")
    if run_id is None and isinstance(payload.get("stepId"), str):
        # As an older generation of clients sends its steps.
        run_id = payload.get("workflowRunId")
    if "__healthCheck" in payload or not isinstance(run_id, str):
        return ""
    return run_id


def owner_of(message: Message) -> str:
    """The run that stores a message, or "": whatever its handler has done to the payload."""
    return run_of(message.payload) if message.owner is None else message.owner


def step_of(payload: Mapping[str, Any]) -> str:
    """The step that a message asks for, or ""."""
    step_id = payload.get("stepId")
    return step_id if run_of(payload) and isinstance(step_id, str) else ""


def step_name_of(payload: Mapping[str, Any]) -> str:
    """The name of the step that a message asks for, or ""."""
    name = payload.get("stepName")
    return name if step_of(payload) and isinstance(name, str) else ""


def kind_of(payload: Mapping[str, Any], key: str, delay: int) -> str:
    """The kind of a message, which decides how it is delivered."""
    if not run_of(payload):
        return "other"
    if step_of(payload):
        return "step"
    if set(payload) <= _WAKE_KEYS and not key and not delay:
        return "wake"
    return "replay"


def _names(queue_name: str, run_id: str, step_id: str, step_name: str) -> dict[str, str]:
    """The part of a payload that tells what a message is for."""
    names = {
        "workflowRunId" if _STEP_QUEUE.match(queue_name) else "runId": run_id,
        "stepId": step_id,
        "stepName": step_name,
    }
    return {name: value for name, value in names.items() if value}


class StrandedRun(NamedTuple):
    """A run that may need a message: what its message is made of.

    Attributes:
        queue_name: the last queue of its replays; "" for none.
        execution_context: of the run.
        started_at: in milliseconds; None before its start.
    """

    run_id: str
    queue_name: str
    workflow_name: str
    execution_context: Mapping[str, Any]
    spec_version: int
    deployment_id: str
    started_at: int | None


def missing_message(
    run: StrandedRun, requested_at: datetime, step_id: str = "", step_name: str = ""
) -> Enqueue:
    """The message that a run needs, or a step of it, as its clients would send it."""
    queue_name = run.queue_name or default_queue_name(
        run.run_id, run.workflow_name, run.execution_context
    )
    payload: dict[str, Any] = {"runId": run.run_id, "requestedAt": requested_at}
    if step_id and run.spec_version <= _LAST_WITH_STEP_QUEUES:
        queue_name = queue_name.partition("wkf_")[0] + "wkf_step_" + step_name
        payload = {
            "workflowName": run.workflow_name,
            "workflowRunId": run.run_id,
            "workflowStartedAt": run.started_at,
            "stepId": step_id,
            "requestedAt": requested_at,
        }
    elif step_id:
        payload |= {"stepId": step_id, "stepName": step_name}
    return Enqueue(
        queue_name,
        payload,
        idempotency_key=step_id or None,
        deployment_id=run.deployment_id or None,
    )


def check_payload(payload: Mapping[str, Any], limit: int, what: str = "payload") -> dict[str, Any]:
    """A payload, or headers, as a dict of plain values.

    Raises:
        InvalidInputError: it is no mapping, or has a value that can't be stored.
    """
    if not isinstance(payload, Mapping):
        raise InvalidInputError(f"{what} must be a mapping, not {shown(payload)}")
    plain: dict[str, Any] = plain_data(payload, what, limit)
    return plain


def encode_body(payload: Mapping[str, Any], limit: int) -> bytes:
    """A payload as it is stored.

    Raises:
        InvalidInputError: it is no mapping, has a value that can't be stored, or is too large.
    """
    body = encode_data(payload, "payload")
    # It may carry a payload of the largest size, as the first message of a run does.
    if len(body) > limit + _ENVELOPE_BYTES:
        raise InvalidInputError(
            f"payload has {len(body)} bytes; the limit is {limit}, plus {_ENVELOPE_BYTES} for its "
            "envelope"
        )
    return body


def message_args(enqueue: Enqueue, message_id: str, limit: int) -> dict[str, Any]:
    """A message as named arguments of a script.

    Raises:
        InvalidInputError: the name, the delay or the payload is not valid.
    """
    if not isinstance(enqueue, Enqueue):
        raise InvalidInputError(f"enqueue must be an Enqueue, not {shown(enqueue)}")
    name_limit = max(limit, _LEAST_NAME_BYTES)
    delay = to_duration_ms(enqueue.delay, "delay")
    key = _optional(enqueue.idempotency_key, "idempotency_key", name_limit)
    queue_name = text(enqueue.queue_name, "queue_name", name_limit)
    payload = check_payload(enqueue.payload, limit + _ENVELOPE_BYTES)
    headers = b""
    if enqueue.headers is not None:
        found = check_payload(enqueue.headers, name_limit, "headers")
        for name, value in found.items():
            if type(name) is not str or type(value) is not str:
                raise InvalidInputError(
                    f"headers must map strings to strings, not {shown(name)} to {shown(value)}"
                )
        headers = encode_data(found, "headers", name_limit) if found else b""
    return {
        "topic": topic_of(queue_name),
        "message_id": message_id,
        "run_id": text(run_of(payload), "runId of payload", name_limit),
        "kind": kind_of(payload, key, delay),
        "step_id": text(step_of(payload), "stepId of payload", name_limit),
        "idempotency": key,
        "queue_name": queue_name,
        "deployment_id": _optional(enqueue.deployment_id, "deployment_id", name_limit),
        "headers": headers,
        "body": encode_body(payload, limit),
        "delay": str(delay),
    }


def check_lease(message: Message, limit: int, partitions: int) -> None:
    """Check what the scripts are told of a leased message.

    Raises:
        InvalidInputError: some of it can't be right.
    """
    whole(message.partition, "partition of message", 0, partitions - 1)
    for name in ("queue_name", "message_id", "receipt"):
        text(getattr(message, name), f"{name} of message", limit)
    if not isinstance(message.payload, Mapping):
        raise InvalidInputError(
            f"payload of message must be a mapping, not {shown(message.payload)}"
        )
    text(owner_of(message), "owner of message", limit)
    whole(message.failures, "failures of message", 0, MAX_SLOT)
    whole(message.postponed, "postponed of message", 0, MAX_SLOT)


def _optional(value: str | None, what: str, limit: int) -> str:
    return "" if value is None else text(value, what, limit)


def pack_outbox(message: Mapping[str, Any] | None, ended: Message | None) -> bytes:
    """What an event brings along for the queue, as one argument; empty for nothing.

    It is a line of lengths in bytes, then the texts (lua/lib/outbox.lua).

    Args:
        message: the arguments of `message_args` of the message that it sends, in their order.
        ended: the message whose delivery it ends.
    """
    if message is None and ended is None:
        return b""
    fields = [""] * _MESSAGE_FIELDS if message is None else [*message.values()]
    if ended is not None:
        fields += [ended.topic, owner_of(ended), ended.message_id, ended.receipt]
    encoded = [utf8(value) if isinstance(value, str) else value for value in fields]
    lengths = [str(len(value)) for value in encoded] + [""] * (_OUTBOX_FIELDS - len(encoded))
    return b"%s \n%s" % (" ".join(lengths).encode(), b"".join(encoded))


_ENVELOPE: Final = re.compile(
    rb"([a-z]+) (\d+) (\d+) (\d+) (\d+) (>?)(\d+) (>?)(\d+) (\d+) (\S+)\n"
)
"""Kind, bytes of step, key, queue name, deployment, headers and body, when it was sent, topic."""


class Record(NamedTuple):
    """A message as it is stored: its envelope and its state.

    Attributes:
        headers: as stored; None if they are large and lie in a field of their own.
        body: likewise; empty when the content of the run's messages is not shown.
        size: the bytes of headers and body.
        reason: why it is a dead letter, or "".
    """

    kind: str
    step: str
    key: str
    queue_name: str
    deployment: str
    headers: bytes | None
    body: bytes | None
    size: int
    enqueued_at: int
    attempt: int
    failures: int
    lost: int
    due_at: int
    receipt: str
    postponed: int
    reason: str
    died_at: int

    def large_fields(self, message_id: str) -> list[str]:
        """The fields of the book that have the rest of the content."""
        fields = [f"headers:{message_id}"] if self.headers is None else []
        return [*fields, f"body:{message_id}"] if self.body is None else fields

    def with_content(self, found: Sequence[bytes]) -> Record:
        """The record with the values of its large fields; empty where they are not given."""
        values = iter(found)
        headers = next(values, b"") if self.headers is None else self.headers
        body = next(values, b"") if self.body is None else self.body
        return self._replace(headers=headers, body=body)


def read_record(envelope: bytes, state: bytes) -> Record:
    """A message from the two fields that it is stored in.

    Raises:
        WorldError: they are not what a World has written.
    """
    try:
        return _record_of(envelope, state)
    except ValueError:
        raise WorldError("the record of a message can't be read") from None


def _record_of(envelope: bytes, state: bytes) -> Record:
    match = _ENVELOPE.match(envelope)
    words = state.split(b" ")
    if match is None or len(words) not in (_STATE_WORDS, _STATE_WORDS + 2):
        raise ValueError
    kind, *lengths, sent_at, _topic = match.groups()
    step, key, queue, deployment, large_headers, headers, large_body, body = lengths
    place = match.end()
    texts: list[bytes] = []
    for size in map(int, [step, key, queue, deployment, b"0" if large_headers else headers]):
        texts.append(envelope[place : place + size])
        place += size
    attempt, failures, lost, due_at, receipt, _op, postponed, *death = words
    return Record(
        kind=kind.decode(),
        step=texts[0].decode(),
        key=texts[1].decode(),
        queue_name=texts[2].decode(),
        deployment=texts[3].decode(),
        headers=None if large_headers else texts[4],
        body=None if large_body else envelope[place:],
        size=int(headers) + int(body),
        enqueued_at=int(sent_at),
        attempt=int(attempt),
        failures=int(failures),
        lost=int(lost),
        due_at=int(due_at),
        receipt="" if receipt == b"-" else receipt.decode(),
        postponed=int(postponed),
        reason=death[0].decode() if death else "",
        died_at=int(death[1]) if death else 0,
    )


def _readable(blob: bytes) -> Any:
    """What was stored, or None: a letter may be dead because nobody can read it."""
    try:
        return decode_data(blob)
    except WorldError:
        return None


def _content(
    record: Record, run_id: str, step_name: bytes, read: Callable[[bytes], Any]
) -> tuple[Any, dict[str, str] | None]:
    """Payload and headers of a message.

    Of a run whose user data is deleted, the payload is what is kept: enough for the runtime to see
    that the run has ended.
    """
    if record.body:
        return read(record.body), read(record.headers) if record.headers else None
    names = _names(record.queue_name, run_id, record.step, step_name.decode())
    # The name of a step may be empty.
    return names | {"stepName": step_name.decode()} if record.step else names, None


def dead_letter_from(row: Sequence[Any]) -> DeadLetter:
    """A dead letter from its place, run, record, last error and the name of its step."""
    place, run_id, record, last_error, step_name = row
    payload, headers = _content(record, run_id.decode(), step_name, _readable)
    return DeadLetter(
        message_id=place.decode().partition(":")[2],
        queue_name=record.queue_name,
        payload=payload,
        headers=headers,
        deployment_id=record.deployment or None,
        idempotency_key=record.key or None,
        reason=record.reason,
        last_error=last_error.decode("utf-8", "replace") if last_error else None,
        attempt=record.attempt,
        failures=record.failures,
        lost_leases=record.lost,
        enqueued_at=from_ms(record.enqueued_at),
        died_at=from_ms(record.died_at),
    )


def message_from(
    message_id: str, run_id: str, record: Record, since: bytes, step_name: bytes, partition: int
) -> Message:
    """A leased message from its record, since when it was postponed and the name of its step."""
    payload, headers = _content(record, run_id, step_name, decode_data)
    return Message(
        message_id=message_id,
        queue_name=record.queue_name,
        payload=payload,
        headers=headers,
        deployment_id=record.deployment or None,
        idempotency_key=record.key or None,
        attempt=record.attempt,
        failures=record.failures,
        receipt=record.receipt,
        enqueued_at=from_ms(record.enqueued_at),
        due_at=from_ms(record.due_at),
        partition=partition,
        postponed=record.postponed,
        postponed_since=from_ms(since) if since else None,
        owner=run_id,
    )


def tell_dropped(topic: str, members: Sequence[bytes]) -> None:
    """Log which messages have gone without a trace: evicted, or deleted by hand.

    Args:
        topic: theirs; "" where it is not known.
        members: as the sets of the topic have them.
    """
    for member in members:
        message_id, _, run_id = member.decode().partition("/")
        logger.error(
            "lost message %s of %s: its record is gone from the server",
            message_id,
            f"run {run_id}" if run_id else f"topic {topic}",
            extra={
                "event": "message.lost",
                "message_id": message_id,
                "run_id": run_id or None,
                "topic": topic or None,
            },
        )
