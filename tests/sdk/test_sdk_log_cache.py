"""Replays with the logs of earlier ones, and without: the same runs, fewer bytes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from vercel import workflow as sdk

from redis_world import rows
from redis_world.events import log as log_module
from redis_world.vercel import VercelWorld, use_redis_world
from redis_world.vercel.adapter import _sdk_event
from redis_world.vercel.log_cache import DEFAULT_BYTES, LogCache
from support.backends import Backend
from support.marks import slow
from support.sdk import attach, flows, hook_of, kept_world, value_of
from support.sdk_files import FOLDER


@contextlib.asynccontextmanager
async def site(
    url: str, namespace: str, log_cache: int = DEFAULT_BYTES
) -> AsyncIterator[VercelWorld]:
    with kept_world():
        adapter = attach(use_redis_world(url, namespace=namespace))
        worker = adapter.worker(shutdown_timeout=5.0, log_cache=log_cache)
        working = asyncio.create_task(worker.run())
        try:
            yield adapter
        finally:
            worker.stop()
            await working
            await adapter.aclose()


@pytest.fixture(autouse=True)
def _folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(folder))


@pytest.mark.parametrize("steps", [30, slow(300)])
async def test_a_step_reads_what_is_new(
    real_backend: Backend, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    converted = 0
    event_from = rows.event_from

    def counted(*args: Any) -> Any:
        nonlocal converted
        converted += 1
        return event_from(*args)

    monkeypatch.setattr(log_module, "event_from", counted)
    with contextlib.closing(real_backend.client()) as client:

        def sent() -> int:
            stats: Any = client.info("stats")
            return int(stats["total_net_output_bytes"])

        async with site(real_backend.url, real_backend.namespace()) as adapter:
            before = sent()
            assert await value_of(adapter, await sdk.start(flows.sequential, steps)) == steps
            assert (sent() - before) / steps <= 12_000
            assert converted / steps <= 4
            # The run is over, and nobody will replay it.
            assert adapter.logs.weight == 0


async def test_the_runtime_changes_no_event(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the same objects in each replay."""
    seen: dict[str, list[Any]] = {}
    put = LogCache.put

    def noted(cache: LogCache, run_id: str, log: Any) -> None:
        seen[run_id] = list(log.events)
        put(cache, run_id, log)

    monkeypatch.setattr(LogCache, "put", noted)
    async with site(backend.url, backend.namespace()) as adapter:
        token = secrets.token_hex(8)
        waiting = await sdk.start(flows.approved, token)
        runs: list[sdk.Run[Any]] = [
            waiting,
            await sdk.start(flows.sequential, 5),
            await sdk.start(flows.fan_out_and_in, 5),
            await sdk.start(flows.sleeps, 0.2),
            await sdk.start(flows.retried),
            await sdk.start(flows.labelled),
        ]
        await hook_of(token)
        await flows.Approval(by="ann").resume(token)
        await asyncio.gather(*(value_of(adapter, run) for run in runs))
        for run in runs:
            stored = (await adapter.world.events.list(run.run_id)).data
            fresh = [_sdk_event(event) for event in stored]
            assert seen[run.run_id] == fresh[: len(seen[run.run_id])]


@pytest.mark.parametrize("log_cache", [0, 20_000])
async def test_without_room_it_reads_everything(backend: Backend, log_cache: int) -> None:
    async with site(backend.url, backend.namespace(), log_cache) as adapter:
        assert await value_of(adapter, await sdk.start(flows.sequential, 10)) == 10
        assert adapter.logs.weight <= log_cache
