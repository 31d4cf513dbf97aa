"""Tools for tests: those of this project, and yours.

An embedded World per test, private real servers that leave no files, a clock that tests set, and
a network that tests break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_world.testing.clock import ManualClock
from redis_world.testing.clusters import Cluster, redis_cluster
from redis_world.testing.invariants import InvariantViolationError, check_invariants
from redis_world.testing.memory import memory_world
from redis_world.testing.proxy import CuttingProxy, cutting_proxy
from redis_world.testing.reference import ReferenceWorld
from redis_world.testing.servers import (
    Server,
    ServerUnavailableError,
    available_kinds,
    redis_server,
)

if TYPE_CHECKING:
    from redis_world.testing.workflows import WorkflowApp

__all__ = [
    "Cluster",
    "CuttingProxy",
    "InvariantViolationError",
    "ManualClock",
    "ReferenceWorld",
    "Server",
    "ServerUnavailableError",
    "WorkflowApp",
    "available_kinds",
    "check_invariants",
    "cutting_proxy",
    "memory_world",
    "redis_cluster",
    "redis_server",
]


def __getattr__(name: str) -> object:
    """Load what needs the Python SDK when it is asked for: the SDK may be missing, and is slow."""
    if name == "WorkflowApp":
        from redis_world.testing.workflows import WorkflowApp

        return WorkflowApp
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
