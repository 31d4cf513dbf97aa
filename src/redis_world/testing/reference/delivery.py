"""The rules of the queue: what is sent, leased, ended, and given up (contract, section 7).

A message is in exactly one place: due, leased, held or dead.
"""

from __future__ import annotations

from redis_world.messages import Enqueue, Message, message_args
from redis_world.testing.reference.debts import (
    outstanding_of,
    owe_for_dead,
    owe_open_step,
    queue_of,
    tidy,
)
from redis_world.testing.reference.request import check_text
from redis_world.testing.reference.state import TERMINAL, State, StoredMessage

__all__ = [
    "acknowledge",
    "bury",
    "claim",
    "expire",
    "free",
    "leased",
    "message_of",
    "outstanding_of",
    "postpone",
    "push",
]


def message_of(state: State, enqueue: Enqueue) -> StoredMessage:
    """A message that is about to be sent.

    Raises:
        InvalidInputError: the name, the delay or the payload is not valid.
    """
    now = state.now_ms()
    message_id = state.ids.message_id(now)
    args = message_args(enqueue, message_id, state.config.max_payload_bytes)
    check_text(*(args[name] for name in ("run_id", "step_id", "idempotency", "queue_name")))
    check_text(args["deployment_id"])
    return StoredMessage(
        message_id=message_id,
        topic=args["topic"],
        run_id=args["run_id"],
        kind=args["kind"],
        step_id=args["step_id"],
        key=args["idempotency"],
        queue_name=args["queue_name"],
        deployment_id=args["deployment_id"],
        headers=args["headers"],
        body=args["body"],
        enqueued_at=now,
        due_at=now + int(args["delay"]),
    )


def push(state: State, message: StoredMessage) -> str | None:
    """Send a message.

    Returns:
        The id of the message that stands for it: its own, or that of an outstanding one. None
        when its step is terminal: then nothing is stored.
    """
    standing = _standing_for(state, message)
    if standing is not None:
        return standing.message_id
    if message.kind == "step" and _step_has_ended(state, message):
        return None
    state.messages[message.message_id] = message
    state.topics.add(message.topic)
    if message.run_id:
        queue = queue_of(state, message.run_id)
        if not message.topic.endswith("_wkf_step_"):
            queue.queue_name = message.queue_name
        if message.kind == "step":
            queue.step_debts.pop(message.step_id, None)
        if message.kind == "wake":
            queue.wake = message.message_id
        # A replay that is due now begins after all that was recorded so far.
        if message.is_replay and message.due_at == message.enqueued_at:
            queue.debt = None
        tidy(state, message.run_id)
    return message.message_id


def _standing_for(state: State, message: StoredMessage) -> StoredMessage | None:
    """The outstanding message that stands for this one already, if any."""
    if message.key:
        for other in state.messages.values():
            same_key = (other.topic, other.run_id, other.key) == (
                message.topic,
                message.run_id,
                message.key,
            )
            if same_key and other.is_outstanding:
                return other
    if message.kind == "step":
        for other in outstanding_of(state, message.run_id):
            if other.kind == "step" and other.step_id == message.step_id:
                return other
    if message.kind == "wake":
        wake = state.messages.get(queue_of(state, message.run_id).wake or "")
        if wake is not None and _envelope(state, wake) == _envelope(state, message):
            return wake
    return None


def _envelope(state: State, message: StoredMessage) -> tuple[str, str, bytes]:
    """What must be equal for one wake to stand for another: all that a worker would be shown."""
    run = state.runs.get(message.run_id)
    headers = b"" if run is not None and run.has_expired else message.headers
    return message.queue_name, message.deployment_id, headers


def _step_has_ended(state: State, message: StoredMessage) -> bool:
    run = state.runs.get(message.run_id)
    step = None if run is None else run.steps.get(message.step_id)
    return step is not None and step.fields["status"] in TERMINAL


def claim(
    state: State, topic: str, *, receipt: str, limit: int, lease_ms: int
) -> list[StoredMessage]:
    """Lease messages that are due, by due time and id; a run has one leased replay at most.

    Behind them, what other workers have postponed and this one has not, the newest first.
    """
    expire(state, topic)
    now = state.now_ms()
    claimed: list[StoredMessage] = []
    due = _in_order(state, topic, "due")
    for message in due:
        if message.due_at > now or len(claimed) == limit:
            break
        if _must_wait(state, message):
            message.place, message.is_offered = "held", False
            continue
        _lease(state, message, receipt, now + lease_ms)
        claimed.append(message)
    worker = receipt.partition("/")[0]
    offered = [m for m in due if m.place == "due" and m.is_offered]
    for message in sorted(offered, key=lambda m: (m.postponed_since, m.message_id), reverse=True):
        if len(claimed) == limit:
            break
        if worker not in message.declined_by and not _must_wait(state, message):
            _lease(state, message, receipt, now + lease_ms)
            claimed.append(message)
    return sorted(claimed, key=lambda message: (message.due_at, message.message_id))


def _must_wait(state: State, message: StoredMessage) -> bool:
    """Whether a replay of its run is leased."""
    return message.is_replay and state.config.serialize_runs and _leases_replay(state, message)


def _lease(state: State, message: StoredMessage, receipt: str, until: int) -> None:
    message.place, message.is_offered = "leased", False
    message.attempt += 1
    message.receipt = receipt
    message.lease_ends_at = until
    if message.is_replay:
        queue = queue_of(state, message.run_id)
        queue.debt = None
        # From its delivery on a wake absorbs no more: what is sent now, it may not see.
        if queue.wake == message.message_id:
            queue.wake = None


def _in_order(state: State, topic: str, place: str) -> list[StoredMessage]:
    found = [m for m in state.messages.values() if (m.topic, m.place) == (topic, place)]
    return sorted(found, key=lambda message: (message.due_at, message.message_id))


def _leases_replay(state: State, message: StoredMessage) -> bool:
    return any(
        other.is_replay and other.place == "leased"
        for other in outstanding_of(state, message.run_id)
    )


def expire(state: State, topic: str) -> int:
    """Free the leases that have ended without an answer; how many there were."""
    now = state.now_ms()
    expired = [
        message
        for message in state.messages.values()
        if (message.topic, message.place) == (topic, "leased") and message.lease_ends_at <= now
    ]
    for message in expired:
        message.lost_leases += 1
        if message.lost_leases >= state.config.max_lost_leases:
            bury(state, message, "max_lost_leases")
        else:
            free(state, message, due_at=now)
    return len(expired)


def free(state: State, message: StoredMessage, *, due_at: int) -> None:
    """End a lease: the message is to be delivered again."""
    message.place = "due"
    message.receipt = ""
    message.due_at = due_at
    _release_held(state, message)


def postpone(state: State, message: StoredMessage, *, due_at: int, step_name: str) -> None:
    """End a lease that this worker has no use for: others may have the message before its time."""
    worker = message.receipt.partition("/")[0]
    message.attempt -= 1
    message.postponed += 1
    if message.postponed_since is None:
        message.postponed_since = state.now_ms()
    if worker not in message.declined_by:
        message.declined_by = (*message.declined_by, worker)
    message.step_name = step_name
    message.is_offered = True
    free(state, message, due_at=due_at)


def bury(state: State, message: StoredMessage, reason: str) -> None:
    """End a lease, and try nothing more for the message."""
    message.place = "dead"
    message.receipt = ""
    message.reason = reason
    message.died_at = state.now_ms()
    if message.run_id:
        owe_for_dead(state, message)
    _release_held(state, message)
    tidy(state, message.run_id)


def leased(state: State, message: Message) -> StoredMessage | None:
    """A message as it is stored, if this lease of it has not ended."""
    stored = state.messages.get(message.message_id)
    if stored is None or stored.place != "leased" or stored.receipt != message.receipt:
        return None
    return stored


def acknowledge(
    state: State, message: StoredMessage, follow_up: StoredMessage | None
) -> str | None:
    """End a message, and send what follows it in the same step; what `push` returns of that."""
    # Gone before the next one comes, or that would be taken for it, and be lost.
    del state.messages[message.message_id]
    sent = None if follow_up is None else push(state, follow_up)
    if message.kind == "step":
        owe_open_step(state, message.run_id, message.step_id)
    _release_held(state, message)
    tidy(state, message.run_id)
    return sent


def _release_held(state: State, message: StoredMessage) -> None:
    """The leased replay of a run has ended, in whatever way: its first held one is due again."""
    if not message.is_replay:
        return
    held = [m for m in outstanding_of(state, message.run_id) if m.place == "held"]
    if held:
        min(held, key=lambda m: (m.due_at, m.topic, m.message_id)).place = "due"
