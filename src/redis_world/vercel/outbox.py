"""What the runtime will ask for next, so that one round trip does for two.

The runtime writes an event and then, in a second call, queues the message that goes with it. A
process that dies between the two leaves a run that nobody ever wakes. So the adapter sends the
message with the event, in one script, and answers the runtime's own `queue()` from memory.

A replay begins with run_started, whose answer may have the log with it, and goes on to list the
log: it is read ahead, too.

Each replay computes anew, from the present, when its sleeps end: one that comes an hour after the
begin of a sleep of two hours asks to be woken after three. So the adapter notes when they end by
the log, and wakes the run at the first of these moments.

The last event of a delivery ends it, in the same script: the worker has nothing left to do then.

What was sent, read ahead and noted is remembered in the context of the caller: a delivery, or the
code that starts a run or resumes a hook.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from vercel.workflow._internal import world as w

from redis_world.messages import Enqueue, Message, run_of, step_of

__all__ = ["Ahead", "ahead", "delivery"]

K = TypeVar("K")

_SLEEP: Final = "wait_"
"""What the keys of messages begin with that wake a run for its sleeps."""
_HOP: Final = ":hop-"
_MEMORY: Final = 1024
"""How much one caller remembers; the runtime asks for a message right after its event."""


@dataclass(slots=True)
class Ahead:
    """What one caller has sent and read ahead, and what it needs to know for it."""

    queue_name: str | None = None
    """The queue that the present delivery came from; None outside of a delivery."""
    is_replay: bool = False
    """Whether the delivery asks for a replay, not for a step."""
    message: Message | None = None
    """The message of the delivery; None where nobody has told."""
    queues: dict[str, str] = field(default_factory=dict)
    """Run -> its queue, for the runs that the caller has looked up of late."""
    sent: dict[tuple[str, str], str] = field(default_factory=dict)
    """Run and step -> the message that the runtime has yet to ask for."""
    waits: dict[str, datetime] = field(default_factory=dict)
    """Sleep -> when it ends, of those in the log that have not ended."""
    log: tuple[str, w.PaginatedResult[w.Event]] | None = None
    """A run and its log, which the runtime has yet to ask for."""

    def learn(self, run: w.WorkflowRun) -> None:
        """Note the queue of a run: who resumes a hook looks up its run first."""
        queue_name = _queue_of(run.workflow_name, run.execution_context)
        if queue_name is not None:
            _put(self.queues, run.run_id, queue_name)

    def message_for(
        self, run_id: str | None, event: w.Event, environment: str | None
    ) -> Enqueue | None:
        """The message that the runtime will send after this event, if it will."""
        if run_id is None:
            return None
        match event:
            case w.RunCreatedEvent():
                return _first_message(run_id, event, environment)
            case w.StepCreatedEvent() if self.queue_name is not None:
                return _step_message(run_id, event, self.queue_name)
            case w.StepCompletedEvent() | w.StepFailedEvent() if self.queue_name is not None:
                return _wake(run_id, self.queue_name)
            # In a replay the runtime itself goes on with what it has received; a step resumes
            # hooks of any run, as everybody else does.
            case w.HookReceivedEvent() if not self.is_replay and run_id in self.queues:
                return _wake(run_id, self.queues[run_id])
            case _:
                return None

    def ended_by(self, run_id: str | None, event: w.Event, *, wakes: bool) -> Message | None:
        """The message of the delivery, if the runtime has nothing more to do for it then.

        Args:
            run_id: the run of the event.
            event: the event.
            wakes: whether the message goes with it that has the run go on. Behind the end of a
                step that is all that is left; behind the end of a run nothing is.
        """
        message = self.message
        if message is None or message.run_id != run_id:
            return None
        match event:
            case w.StepCompletedEvent() | w.StepFailedEvent():
                is_last = wakes and event.correlation_id == step_of(message.payload)
            case w.RunCompletedEvent() | w.RunFailedEvent():
                is_last = self.is_replay
            case _:
                is_last = False
        return message if is_last else None

    def take_log(self, run_id: str) -> w.PaginatedResult[w.Event] | None:
        """A run's log, where it was read ahead, once.

        Whatever is written after it was read wakes the run again.
        """
        kept, self.log = self.log, None
        return kept[1] if kept is not None and kept[0] == run_id else None

    def see(self, event: w.Event) -> None:
        """Note when a sleep ends, or that it has."""
        match event:
            case w.WaitCreatedEvent(correlation_id=str() as wait):
                # As the log has it: what a replay would write again is later.
                self.waits.setdefault(wait, event.event_data.resume_at)
            case w.WaitCompletedEvent(correlation_id=str() as wait):
                self.waits.pop(wait, None)

    def on_time(self, continuation: w.QueueContinuation | None) -> w.QueueContinuation | None:
        """What a replay asks for, at the end of its first sleep.

        Without hops: the runtime makes them for queues that can't hold a message for longer.
        """
        key = "" if continuation is None else continuation.idempotency_key or ""
        if not key.startswith(_SLEEP) or not self.waits:
            return continuation
        left = (min(self.waits.values()) - datetime.now(UTC)).total_seconds()
        return w.QueueContinuation(
            delay_seconds=max(1, math.ceil(left)), idempotency_key=key.partition(_HOP)[0]
        )

    def remember(self, enqueue: Enqueue, message_id: str) -> None:
        """Note that a message was sent ahead."""
        _put(self.sent, _place(enqueue.payload), message_id)

    def take(self, payload: Mapping[str, Any], *, delayed: bool) -> str | None:
        """The message that was sent ahead for this one, once; None for none."""
        if delayed or not run_of(payload):
            return None
        return self.sent.pop(_place(payload), None)


_current: ContextVar[Ahead | None] = ContextVar("redis_world_ahead", default=None)


def ahead() -> Ahead:
    """What the present caller has sent and read ahead."""
    found = _current.get()
    if found is None:
        found = Ahead()
        _current.set(found)
    return found


@contextlib.contextmanager
def delivery(
    queue_name: str, *, is_replay: bool, message: Message | None = None
) -> Iterator[Ahead]:
    """The context of one delivery: all tasks that its handler starts share it."""
    here = Ahead(queue_name, is_replay, message)
    token = _current.set(here)
    try:
        yield here
    finally:
        _current.reset(token)


def _place(payload: Mapping[str, Any]) -> tuple[str, str]:
    return run_of(payload), step_of(payload)


def _put(memory: dict[K, str], key: K, value: str) -> None:
    """Remember something, and forget the oldest: a caller may live for long."""
    memory[key] = value
    if len(memory) > _MEMORY:
        del memory[next(iter(memory))]


def _queue_of(workflow_name: str, context: Mapping[str, Any] | None) -> str | None:
    """The queue of a run; None where its context has no valid namespace."""
    try:
        return w.get_queue_name(workflow_name, (context or {}).get("queueNamespace"))
    except (ValueError, TypeError):
        return None


def _wake(run_id: str, queue_name: str) -> Enqueue:
    payload = w.WorkflowInvokePayload(run_id=run_id, requested_at=datetime.now(UTC))
    return Enqueue(queue_name, payload.model_dump())


def _first_message(
    run_id: str, event: w.RunCreatedEvent, environment: str | None
) -> Enqueue | None:
    data = event.event_data
    queue_name = _queue_of(data.workflow_name, data.execution_context)
    if queue_name is None:
        return None
    payload = w.WorkflowInvokePayload(
        run_id=run_id,
        run_input=w.RunInput(
            input=data.input,
            deployment_id=data.deployment_id,
            workflow_name=data.workflow_name,
            spec_version=event.spec_version,
            execution_context=data.execution_context,
            encryption_public_key=data.encryption_public_key,
            environment=environment,
        ),
    )
    return Enqueue(queue_name, payload.model_dump(), deployment_id=data.deployment_id)


def _step_message(run_id: str, event: w.StepCreatedEvent, queue_name: str) -> Enqueue:
    payload = w.WorkflowInvokePayload(
        run_id=run_id,
        step_id=event.correlation_id,
        step_name=event.event_data.step_name,
        requested_at=datetime.now(UTC),
    )
    return Enqueue(queue_name, payload.model_dump(), idempotency_key=event.correlation_id)
