"""`world.sweep()` of the reference: no run is left behind (contract, section 7)."""

from __future__ import annotations

from typing import Final

from redis_world.codec import decode_data, from_ms
from redis_world.messages import StrandedRun, missing_message
from redis_world.testing.reference.debts import (
    interval_ms,
    outstanding_of,
    queue_of,
    step_is_open,
    tidy,
)
from redis_world.testing.reference.delivery import expire, message_of, push
from redis_world.testing.reference.state import State

__all__ = ["sweep"]

_HOUR_MS: Final = 60 * 60 * 1000
"""How long the sweeper leaves alone what somebody else has to see to."""


def sweep(state: State) -> dict[str, int]:
    """Free expired leases, pay old debts, wake idle runs; how many of each there were."""
    expired = sum(expire(state, topic) for topic in sorted(state.topics))
    now = state.now_ms()
    steps, debtors, idle = [], [], []
    for run_id, queue in state.run_queues.items():
        steps += [(look, run_id, step_id) for step_id, look in queue.step_debts.items()]
        debtors += [(queue.debt, run_id)] if queue.debt is not None else []
        idle += [(queue.idle, run_id)] if queue.idle is not None else []
    queued = sum(_pay_step(state, *which) for look, *which in sorted(steps) if look <= now)
    woken = sum(_pay_run(state, run_id) for look, run_id in sorted(debtors) if look <= now)
    woken += sum(_wake_idle(state, run_id) for look, run_id in sorted(idle) if look <= now)
    return {"expired_leases": expired, "queued_steps": queued, "woken_runs": woken}


def _pay_step(state: State, run_id: str, step_id: str) -> bool:
    """Send the message of a step that nobody has sent; whether it was needed."""
    debts = queue_of(state, run_id).step_debts
    if not step_is_open(state, run_id, step_id):
        del debts[step_id]
        tidy(state, run_id)
        return False
    if _has_dead_letters(state, run_id):
        debts[step_id] = state.now_ms() + interval_ms(state)
        return False
    name = state.runs[run_id].steps[step_id].fields["step_name"]
    _send(state, run_id, step_id, name)
    if not any(message.step_id == step_id for message in outstanding_of(state, run_id)):
        # A message of another kind holds its key, and stands for no step.
        debts[step_id] = state.now_ms() + interval_ms(state)
        return False
    debts.pop(step_id, None)
    return True


def _pay_run(state: State, run_id: str) -> bool:
    """Wake a run that waits for a replay that nobody has sent; whether it was needed."""
    queue = queue_of(state, run_id)
    now = state.now_ms()
    if not state.is_live(run_id):
        queue.debt = None
        tidy(state, run_id)
        return False
    if _has_dead_letters(state, run_id):
        queue.debt = now + _HOUR_MS
        return False
    if any(
        message.is_replay and (message.place != "due" or message.due_at <= now)
        for message in outstanding_of(state, run_id)
    ):
        queue.debt = now + interval_ms(state)
        return False
    _send(state, run_id)
    return True


def _wake_idle(state: State, run_id: str) -> bool:
    """Wake a live run that has no message, unless it waits for a hook or for an operator."""
    queue, run = queue_of(state, run_id), state.runs[run_id]
    if outstanding_of(state, run_id):
        return False
    now = state.now_ms()
    if run.hooks or _has_dead_letters(state, run_id):
        queue.idle = now + _HOUR_MS
        return False
    if queue.length_when_woken != len(run.events):
        queue.idle_wakes = 0
    elif (wait := queue.woken_at + _pause_ms(state, queue.idle_wakes) - now) > 0:
        queue.idle = now + wait
        return False
    queue.idle_wakes += 1
    queue.woken_at = now
    queue.length_when_woken = len(run.events)
    _send(state, run_id)
    return True


def _pause_ms(state: State, fruitless: int) -> int:
    """How long a run rests that was woken so often in vain: doubling, up to an hour."""
    return min(interval_ms(state) * int(2**fruitless), _HOUR_MS)


def _has_dead_letters(state: State, run_id: str) -> bool:
    """Whether the run is an operator's: it waits for redrive or purge."""
    return any(m.run_id == run_id and m.place == "dead" for m in state.messages.values())


def _send(state: State, run_id: str, step_id: str = "", step_name: str = "") -> None:
    run = state.runs[run_id].fields
    blob = run.get("execution_context")
    stranded = StrandedRun(
        run_id,
        queue_of(state, run_id).queue_name or "",
        run["workflow_name"],
        decode_data(blob) if blob else {},
        run["spec_version"],
        run["deployment_id"],
        run.get("started_at"),
    )
    enqueue = missing_message(stranded, from_ms(state.now_ms()), step_id, step_name)
    push(state, message_of(state, enqueue))
