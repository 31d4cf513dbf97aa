"""What is drawn as a line: latency by callers, and cost by the length of a log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import quantiles
from typing import Any, Final

from peers.base import PAYLOAD

from redis_world import RedisWorld
from redis_world.testing import redis_server

__all__ = ["cost_by_history", "latency_by_callers"]

CALLERS: Final = (1, 4, 16, 64, 256)
HISTORY: Final = (0, 100, 1_000, 10_000, 100_000)
_EVENTS: Final = 6_000
"""Of each number of callers."""
_AT_ONCE: Final = 512
_STARTS: Final = 500
_STARTED: Final = {"eventType": "step_started", "correlationId": "s"}


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


def cost_by_history() -> dict[int, float]:
    """Entries of a log -> microseconds of a Redis 7 for one more event."""
    with redis_server("redis7") as server:
        return asyncio.run(_cost_by_history(server.url))


async def _cost_by_history(url: str) -> dict[int, float]:
    found = {}
    async with RedisWorld(url, namespace="bench") as world:
        run_id = await _new_run(world)
        length = 0
        for history in HISTORY:
            await _start(world, run_id, history - length)
            await world.connection.execute(("CONFIG", "RESETSTAT"))
            for _ in range(_STARTS):
                await world.events.create(run_id, _STARTED, resolve_data="none")
            (stats,) = await world.connection.execute(("INFO", "commandstats"))
            found[history] = _microseconds(stats, "evalsha")
            length = history + _STARTS
    return found


async def _new_run(world: RedisWorld) -> str:
    """A run that is under way, with a step that may be started again and again."""
    created = await world.events.create(
        None,
        {
            "eventType": "run_created",
            "eventData": {"deploymentId": "", "workflowName": "bench", "input": PAYLOAD},
        },
    )
    assert created.run is not None
    run_id = created.run.run_id
    step = {"stepName": "s", "input": PAYLOAD}
    for event in (
        {"eventType": "run_started"},
        {"eventType": "step_created", "correlationId": "s", "eventData": step},
    ):
        await world.events.create(run_id, event, skip_preload=True)
    return run_id


async def _start(world: RedisWorld, run_id: str, count: int) -> None:
    for first in range(0, count, _AT_ONCE):
        starts: Sequence[Any] = [
            world.events.create(run_id, _STARTED, resolve_data="none")
            for _ in range(min(_AT_ONCE, count - first))
        ]
        await asyncio.gather(*starts)


def _microseconds(stats: bytes, command: str) -> float:
    """`usec_per_call` of INFO commandstats."""
    for line in stats.decode().splitlines():
        name, _, fields = line.partition(":")
        if name == f"cmdstat_{command}":
            return float(dict(field.split("=") for field in fields.split(","))["usec_per_call"])
    raise ValueError(f"no {command} among the server's commands")
