"""The plan of each type of event."""

from __future__ import annotations

from typing import Final

from redis_world.events.hook_events import HookCreated, HookDisposed, HookReceived
from redis_world.events.plan import Plan
from redis_world.events.run_events import (
    AttrSet,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunStarted,
)
from redis_world.events.step_events import (
    StepCompleted,
    StepCreated,
    StepFailed,
    StepRetrying,
    StepStarted,
)
from redis_world.events.wait_events import WaitCompleted, WaitCreated

__all__ = ["PLANS"]

PLANS: Final[dict[str, Plan]] = {
    plan.script.removeprefix("events/"): plan
    for plan in (
        RunCreated(),
        RunStarted(),
        RunCompleted(),
        RunFailed(),
        RunCancelled(),
        AttrSet(),
        StepCreated(),
        StepStarted(),
        StepCompleted(),
        StepFailed(),
        StepRetrying(),
        HookCreated(),
        HookReceived(),
        HookDisposed(),
        WaitCreated(),
        WaitCompleted(),
    )
}
"""By the type of the event."""
