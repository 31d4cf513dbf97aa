"""Says what a run that does not go on is waiting for."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

from redis_world.models import Page, Run
from redis_world.testing.workflows.names import moment, plain_name
from redis_world.world import RedisWorld

__all__ = ["everything", "explain"]

T = TypeVar("T")


async def everything(listing: Callable[..., Awaitable[Page[T]]], run_id: str) -> list[T]:
    """All pages of a listing of a run."""
    found: list[T] = []
    cursor = None
    while True:
        page = await listing(run_id, limit=1000, cursor=cursor)
        found += page.data
        if not page.has_more:
            return found
        cursor = page.cursor


async def explain(world: RedisWorld, run: Run, now: datetime, failure: str | None) -> str:
    """What a run waits for, and what the test can do about it."""
    reasons = [
        *await _sleeps(world, run.run_id, now),
        *await _steps(world, run.run_id, now),
        *await _hooks(world, run.run_id),
    ]
    if failure is not None:
        reasons.append(
            f"the retry of a message that failed with {failure}. A message that fails too often "
            "is in await workflow_app.world.queue.dead_letters(topic)"
        )
    if not reasons:
        reasons.append(
            "nothing that can happen: the workflow awaits something other than a step, a sleep or "
            "a hook"
        )
    name = plain_name(run.workflow_name)
    return f"run {run.run_id} of {name} is {run.status} at {moment(now)}. It waits for:" + "".join(
        f"\n  * {reason}" for reason in reasons
    )


def _advance(until: datetime, now: datetime) -> str:
    # The SDK wakes a run at a whole second from now.
    return f"await workflow_app.advance({max(1, math.ceil((until - now).total_seconds()))})"


async def _sleeps(world: RedisWorld, run_id: str, now: datetime) -> list[str]:
    waits = await everything(world.waits.list, run_id)
    return [
        f"a sleep until {moment(wait.resume_at)}: {_advance(wait.resume_at, now)}"
        for wait in sorted(waits, key=lambda each: each.resume_at)
        if wait.status == "waiting"
    ]


async def _steps(world: RedisWorld, run_id: str, now: datetime) -> list[str]:
    found = []
    for step in await everything(world.steps.list, run_id):
        name = plain_name(step.step_name)
        if step.status == "running":
            found.append(f"step {name}, attempt {step.attempt}, which has not ended")
        elif step.status == "pending" and step.attempt:
            when = (
                "within a second" if step.retry_after is None else f"at {moment(step.retry_after)}"
            )
            until = step.retry_after
            advance = "await workflow_app.advance(1)" if until is None else _advance(until, now)
            found.append(f"attempt {step.attempt + 1} of step {name} {when}: {advance}")
        elif step.status == "pending":
            found.append(f"step {name}, which has not started")
    return found


async def _hooks(world: RedisWorld, run_id: str) -> list[str]:
    return [
        f"hook {hook.token!r}: await workflow_app.resume({hook.token!r}, ...)"
        for hook in await everything(world.hooks.list, run_id)
        if not hook.is_system
    ]
