"""What a sequential step of the SDK costs a real server, by its own count."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from vercel import workflow as sdk

from redis_world.vercel import use_redis_world
from support.backends import Backend
from support.commandstats import Counts
from support.marks import slow
from support.sdk import attach, flows, kept_world, value_of
from support.sdk_files import FOLDER

RUNS = 8
STEPS = 20


@pytest.mark.parametrize(("partitions", "most"), [(1, 7.8), slow(16, 8.5), slow(64, 9.0)])
async def test_scripts_per_step(
    real_backend: Backend,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    most: float,
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
        try:
            await value_of(adapter, await sdk.start(flows.no_step, 1))
            counts = Counts(client)
            runs = [await sdk.start(flows.sequential, STEPS) for _ in range(RUNS)]
            values = await asyncio.gather(*(value_of(adapter, run) for run in runs))
            assert values == [STEPS] * RUNS
            assert counts.scripts() / (RUNS * STEPS) <= most
        finally:
            worker.stop()
            await working
            await adapter.aclose()
