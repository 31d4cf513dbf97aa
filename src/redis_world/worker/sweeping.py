"""Sweeping a namespace as long as a process runs, unless another process does it."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from redis_world.errors import WorldUnavailableError
from redis_world.sweeper import elect
from redis_world.world import RedisWorld

__all__ = ["sweep_by_turns"]

logger = logging.getLogger(__name__)

_TERM: Final = 1.25
"""Of the process that sweeps, in intervals: it asks again before its end."""


async def sweep_by_turns(world: RedisWorld, candidate: str, interval: float) -> None:
    """Stand for election again and again, and sweep when elected.

    Args:
        world: the namespace.
        candidate: who stands: an id of the process.
        interval: seconds between two sweeps of the namespace.
    """
    # By chance, so that processes that begin together do not all ask at once.
    wait = interval * random.uniform(0.5, 1.0)  # noqa: S311 - guards nothing
    while True:
        await asyncio.sleep(wait)
        wait = await _sweep_if_elected(world, candidate, interval)


async def _sweep_if_elected(world: RedisWorld, candidate: str, interval: float) -> float:
    """Sweep, unless another process does; returns how long to wait then."""
    outage = world.connection.outage
    try:
        left = await elect(world.connection, candidate, _TERM * interval)
    except WorldUnavailableError:
        # Without the server that counts the votes everybody sweeps what can be reached.
        left = 0.0
    if left:
        return left + interval * random.uniform(0.0, 0.25)  # noqa: S311
    try:
        recovered = await world.sweep()
    except WorldUnavailableError as error:
        outage.failed("sweep", error)
        # Its term ends meanwhile: another process may reach what this one does not.
        return interval * (_TERM + 0.25)
    outage.succeeded("sweep")
    for name, count in recovered.items():
        if count:
            logger.info(
                "sweep: %d %s",
                count,
                name,
                extra={"event": "sweep.recovered", "kind": name, "count": count},
            )
    return interval * random.uniform(0.75, 1.0)  # noqa: S311
