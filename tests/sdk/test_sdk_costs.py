"""What a sequential step of the SDK costs a real server, by its own count."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from vercel import workflow as sdk

from redis_world.connection import Connection
from redis_world.vercel import use_redis_world
from support.backends import Backend
from support.commandstats import Counts
from support.marks import slow
from support.sdk import attach, flows, kept_world, value_of
from support.sdk_files import FOLDER

RUNS = 8
STEPS = 20


ROUNDS = 5
"""Beside other load fewer messages share a claim: what counts is the least of some rounds."""


class Cost(NamedTuple):
    """What a step calls on average.

    Attributes:
        others: scripts that are no claims.
        commands: scripts, what is called inside of them, and plain ones.
    """

    scripts: float
    others: float
    commands: float


def is_within(cost: Cost, most: Cost) -> bool:
    return all(one <= other for one, other in zip(cost, most, strict=True))


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each script was called, while it counts."""
    found = Counter[str]()
    run = Connection.run

    async def counting(connection: Connection, name: str, *more: Any) -> list[Any]:
        found[name] += 1
        return await run(connection, name, *more)

    monkeypatch.setattr(Connection, "run", counting)
    return found


@pytest.mark.parametrize(
    ("partitions", "most"),
    [
        (1, Cost(7.0, 6.35, 62)),
        slow(16, Cost(8.4, 6.35, 80)),
        slow(64, Cost(8.7, 6.35, 82)),
    ],
)
async def test_what_a_step_costs(
    real_backend: Backend,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    claims: Counter[str],
    partitions: int,
    most: Cost,
) -> None:
    """Of what messages cause: looks and sweeps come by the clock."""
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.setattr("redis_world.worker.running.look_seconds", lambda _: 3600.0)
    with kept_world(), contextlib.closing(real_backend.client()) as client:
        namespace = real_backend.namespace()
        url = real_backend.url
        adapter = attach(use_redis_world(url, namespace=namespace, partitions=partitions))
        worker = adapter.worker(shutdown_timeout=5.0, sweep_interval=3600)
        working = asyncio.create_task(worker.run())

        async def measure() -> Cost:
            counts = Counts(client)
            claims.clear()
            runs = [await sdk.start(flows.sequential, STEPS) for _ in range(RUNS)]
            values = await asyncio.gather(*(value_of(adapter, run) for run in runs))
            assert values == [STEPS] * RUNS
            scripts, commands = counts.scripts(), counts.commands().total()
            others = scripts - claims["queue/claim"]
            return Cost(*(each / (RUNS * STEPS) for each in (scripts, others, commands)))

        try:
            await value_of(adapter, await sdk.start(flows.no_step, 1))
            costs = [await measure()]
            while not is_within(costs[-1], most) and len(costs) < ROUNDS:
                costs.append(await measure())
            assert is_within(costs[-1], most), costs
        finally:
            worker.stop()
            await working
            await adapter.aclose()
