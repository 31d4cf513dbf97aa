"""Each event of a run that is under way."""

from __future__ import annotations

from typing import Final

from support import events as e

__all__ = ["EVENTS"]

EVENTS: Final[dict[str, tuple[list[e.Wire], e.Wire]]] = {
    "run_completed": ([], e.run_ended("completed")),
    "run_failed": ([], e.run_ended("failed")),
    "run_cancelled": ([], e.run_ended("cancelled")),
    "attr_set": ([], e.attr_set({"k": "v"})),
    "step_created": ([], e.step_created()),
    "step_started": ([e.step_created()], e.step_started()),
    "lazy start": ([], e.lazy_start()),
    "step_completed": ([e.step_created()], e.step_completed()),
    "step_failed": ([e.step_created()], e.step_failed()),
    "step_retrying": ([e.step_created()], e.step_retrying()),
    "hook_created": ([], e.hook_created()),
    "hook_conflict": ([e.hook_created("other")], e.hook_created()),
    "hook_received": ([e.hook_created()], e.hook_received()),
    "hook_disposed": ([e.hook_created()], e.hook_disposed()),
    "wait_created": ([], e.wait_created()),
    "wait_completed": ([e.wait_created()], e.wait_completed()),
}
"""Name -> what has to be there before it, and the event."""
