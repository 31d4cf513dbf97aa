"""Tools for tests: those of this project, and yours.

An embedded World per test, private real servers that leave no files, a clock that tests set, and
a network that tests break.
"""

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

__all__ = [
    "Cluster",
    "CuttingProxy",
    "InvariantViolationError",
    "ManualClock",
    "ReferenceWorld",
    "Server",
    "ServerUnavailableError",
    "available_kinds",
    "check_invariants",
    "cutting_proxy",
    "memory_world",
    "redis_cluster",
    "redis_server",
]
