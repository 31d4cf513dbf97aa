"""What a run still waits for, so that a sweep can see to it (contract, section 7).

A debt is an event without the message that it needs: its writer sends the message right behind,
or is gone. Each debt, and each run without a message, has a time at which a sweep looks next.
"""

from __future__ import annotations

from redis_world.codec import to_duration_ms
from redis_world.testing.reference.state import (
    TERMINAL,
    RunQueue,
    State,
    StoredMessage,
)
from redis_world.testing.reference.write import Outcome, Write

__all__ = [
    "interval_ms",
    "owe_for_dead",
    "owe_for_event",
    "owe_open_step",
    "queue_of",
    "restart_idle",
    "restart_looks",
    "step_is_open",
    "tidy",
]


def interval_ms(state: State) -> int:
    """How long the writer of an event has time to send the message."""
    return to_duration_ms(state.config.sweep_interval, "sweep_interval")


def queue_of(state: State, run_id: str) -> RunQueue:
    """What is remembered with the messages of a run, from now on if not before."""
    return state.run_queues.setdefault(run_id, RunQueue())


def step_is_open(state: State, run_id: str, step_id: str) -> bool:
    """Whether there is such a step, not terminal, in a live run."""
    run = state.runs.get(run_id)
    step = None if run is None else run.steps.get(step_id)
    return state.is_live(run_id) and step is not None and step.fields["status"] not in TERMINAL


def owe_for_event(
    state: State, write: Write, outcome: Outcome, message: StoredMessage | None
) -> None:
    """An event that was recorded without a message that does for it leaves a debt.

    `message` is the new one that it brought along, if any.
    """
    if not outcome.is_new:
        return
    begins_now = message is not None and message.is_replay and message.due_at <= state.now_ms()
    match write.event.event_type:
        case "run_created" | "step_completed" | "step_failed" | "hook_received":
            if not begins_now:
                _owe_replay(state, write.run_id)
        case "step_created":
            owe_open_step(state, write.run_id, write.correlation_id)
        case _:
            pass


def owe_for_dead(state: State, message: StoredMessage) -> None:
    """What was to come of a message that died is still owed, once its letter is gone."""
    if message.kind == "step":
        owe_open_step(state, message.run_id, message.step_id)
    elif message.is_replay:
        _owe_replay(state, message.run_id)


def owe_open_step(state: State, run_id: str, step_id: str) -> None:
    """A step that may still change is owed its message, unless that is outstanding."""
    has_message = any(
        message.kind == "step" and message.step_id == step_id
        for message in outstanding_of(state, run_id)
    )
    if step_is_open(state, run_id, step_id) and not has_message:
        debts = queue_of(state, run_id).step_debts
        debts.setdefault(step_id, state.now_ms() + interval_ms(state))


def _owe_replay(state: State, run_id: str) -> None:
    """A live run is owed a replay, unless an undelivered wake of it is due."""
    queue = queue_of(state, run_id)
    if state.is_live(run_id) and queue.wake is None and queue.debt is None:
        queue.debt = state.now_ms() + interval_ms(state)


def restart_looks(state: State, letter: StoredMessage) -> None:
    """A dead letter of a run is gone, for which the sweeper left the run alone.

    Whoever removed it has the same time as the writer of an event to send a message.
    """
    look = state.now_ms() + interval_ms(state)
    queue = queue_of(state, letter.run_id)
    queue.debt = None if queue.debt is None else look
    if letter.step_id in queue.step_debts:
        queue.step_debts[letter.step_id] = look
    restart_idle(state, letter.run_id)


def restart_idle(state: State, run_id: str) -> None:
    """What kept the sweeper from waking an idle run, such as a hook, is gone."""
    queue = queue_of(state, run_id)
    if queue.idle is not None:
        queue.idle = state.now_ms() + interval_ms(state)


def tidy(state: State, run_id: str) -> None:
    """Note whether a run is idle, and forget one that has ended, or never was."""
    if not run_id:
        return
    queue = queue_of(state, run_id)
    if outstanding_of(state, run_id):
        queue.idle = None
    elif state.is_live(run_id):
        if queue.idle is None:
            queue.idle = state.now_ms() + interval_ms(state)
    elif not any(message.run_id == run_id for message in state.messages.values()):
        del state.run_queues[run_id]


def outstanding_of(state: State, run_id: str) -> list[StoredMessage]:
    """The messages of a run that will be delivered."""
    return [
        message
        for message in state.messages.values()
        if message.run_id == run_id and message.is_outstanding
    ]
