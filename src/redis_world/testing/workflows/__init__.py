"""Tests of workflows of the Python SDK, on a clock that the test moves.

Needs `vercel-workflow`: `pip install 'redis-world[vercel]'`.
"""

try:
    import vercel.workflow  # noqa: F401 - what says best what is missing
except ModuleNotFoundError as missing:  # pragma: no cover - without the extra there is no SDK
    raise ModuleNotFoundError(
        "redis_world.testing.workflows needs the Python SDK: pip install 'redis-world[vercel]'",
        name=missing.name,
    ) from None

from redis_world.testing.workflows.app import WorkflowApp
from redis_world.testing.workflows.errors import (
    RunNotFinishedError,
    StillRunningError,
    UnknownWorkflowError,
    WorkflowAppError,
)
from redis_world.testing.workflows.run import AppRun, AppStep

__all__ = [
    "AppRun",
    "AppStep",
    "RunNotFinishedError",
    "StillRunningError",
    "UnknownWorkflowError",
    "WorkflowApp",
    "WorkflowAppError",
]
