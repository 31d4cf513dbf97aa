"""What is drawn as a line: latency by callers, and cost by the length of a log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any, Final

from figures_base import control, script_stats
from peers.base import PAYLOAD, event
from redis import Redis

from redis_world import RedisWorld
from redis_world.testing import redis_server

__all__ = ["cost_by_history", "latency_by_callers"]

CALLERS: Final = (1, 4, 16, 64, 256)
HISTORY: Final = (10, 100, 1_000, 10_000, 100_000)
_EVENTS: Final = 6_000
"""Of each number of callers."""
_AT_ONCE: Final = 512
_STARTS: Final = 100
"""Of one round; a log grows by as many meanwhile."""
_ROUNDS: Final = 5
_LONG: Final = 1_000
"""From this length on all rounds are on one log, which hardly grows by them."""
_BEFORE: Final = 3
"""Events of a run of `_new_run`."""
_STARTED: Final = event("step_started", "s")


def latency_by_callers() -> dict[int, dict[str, float]]:
    """Callers -> p50, p90 and p99 of one event in ms, and events per second, on Redis 7."""
    with redis_server("redis7") as server:
        return asyncio.run(_latency_by_callers(server.url))


async def _latency_by_callers(url: str) -> dict[int, dict[str, float]]:
    found = {}
    async with RedisWorld(url, namespace="bench") as world:
        for callers in CALLERS:
            waits: list[float] = []
            run_ids = [await _new_run(world) for _ in range(callers)]

            async def write(run_id: str, count: int, waits: list[float]) -> None:
                for _ in range(count):
                    began = time.perf_counter()
                    await world.events.create(run_id, _STARTED, resolve_data="none")
                    waits.append(time.perf_counter() - began)

            count = max(10, _EVENTS // callers)
            await asyncio.gather(*(write(run_id, 10, []) for run_id in run_ids))
            began = time.perf_counter()
            await asyncio.gather(*(write(run_id, count, waits) for run_id in run_ids))
            cuts = [cut * 1000 for cut in quantiles(waits, n=100)]
            rate = len(waits) / (time.perf_counter() - began)
            found[callers] = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "rate": rate}
    return found


def cost_by_history() -> dict[int, dict[str, float]]:
    """Entries of a log -> microseconds of a Redis 7 for one more event, over some rounds."""
    with redis_server("redis7") as server, control(server) as client:
        return asyncio.run(_cost_by_history(server.url, client))


async def _cost_by_history(url: str, client: Redis) -> dict[int, dict[str, float]]:
    found = {}
    async with RedisWorld(url, namespace="bench") as world:
        # What is slow at first is not the log.
        await _start(world, await _new_run(world), _STARTS)
        for history in HISTORY:
            costs: list[float] = []
            run_id = ""
            for _ in range(_ROUNDS):
                if not run_id or history < _LONG:
                    run_id = await _new_run(world)
                    await _start(world, run_id, history - _BEFORE)
                before = script_stats(client)
                for _ in range(_STARTS):
                    await world.events.create(run_id, _STARTED, resolve_data="none")
                costs.append(script_stats(client).since(before).each)
            found[history] = {
                "median": median(costs), "lowest": min(costs), "highest": max(costs)
            }  # fmt: skip
    return found


async def _new_run(world: RedisWorld) -> str:
    """A run that is under way, with a step that may be started again and again."""
    created = await world.events.create(
        None, event("run_created", deploymentId="", workflowName="bench", input=PAYLOAD)
    )
    assert created.run is not None
    run_id = created.run.run_id
    step = event("step_created", "s", stepName="s", input=PAYLOAD)
    for each in (event("run_started"), step):
        await world.events.create(run_id, each, skip_preload=True)
    return run_id


async def _start(world: RedisWorld, run_id: str, count: int) -> None:
    for first in range(0, count, _AT_ONCE):
        starts: Sequence[Any] = [
            world.events.create(run_id, _STARTED, resolve_data="none")
            for _ in range(min(_AT_ONCE, count - first))
        ]
        await asyncio.gather(*starts)
