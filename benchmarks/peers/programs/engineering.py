"""What the engines have in common: workflows are run, so many at a time, and their end checked.

Each engine has a program with a workflow that counts its steps, one after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from talking import serve

__all__ = ["AT_A_TIME", "Engine", "one_at_a_time_each", "serve_engine"]

AT_A_TIME: Final = 16
TIMEOUT: Final = 300.0

Engine: TypeAlias = Callable[[int, int], Awaitable[list[int]]]
"""Runs so many workflows of so many steps; returns how many steps each has counted."""


async def serve_engine(engine: Engine) -> None:
    """Measure what the benchmark asks for."""

    async def answer(request: dict[str, Any]) -> dict[str, Any]:
        workflows, steps = request["workflows"], request["steps"]
        async with asyncio.timeout(TIMEOUT):
            begun = time.perf_counter()
            counted = await engine(workflows, steps)
            seconds = time.perf_counter() - begun
        if counted != [steps] * workflows:
            raise RuntimeError(f"workflows of {steps} steps have counted {counted}")
        return {"count": workflows * steps, "seconds": seconds, "latencies": []}

    await serve(answer)


def one_at_a_time_each(run: Callable[[int], Awaitable[int]]) -> Engine:
    """An engine of callers that start a workflow and wait for its end before the next one."""

    async def engine(workflows: int, steps: int) -> list[int]:
        left = iter(range(workflows))
        counted: list[int] = []

        async def call() -> None:
            counted.extend([await run(steps) for _ in left])

        await asyncio.gather(*(call() for _ in range(min(AT_A_TIME, workflows))))
        return counted

    return engine
