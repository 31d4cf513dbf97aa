"""What one run asks the World for, where that does not depend on chance."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from vercel import workflow as sdk

from redis_world.vercel import VercelWorld
from support.marks import slow
from support.sdk import Calls, Site, flows, idle, value_of
from support.sdk_files import FOLDER


@pytest_asyncio.fixture
async def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VercelWorld]:
    """A World in this process alone, where every call can be seen."""
    monkeypatch.setenv(FOLDER, str(folder))
    site = Site("memory", f"memory://calls-{secrets.token_hex(6)}", "calls")
    async with site.adapter() as adapter:
        yield adapter


async def test_no_step(here: VercelWorld) -> None:
    calls = Calls.watch(here)
    assert await value_of(here, await sdk.start(flows.no_step, 1)) == 2
    await idle(here.world)
    assert calls.summary == (3, 1, 1)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(3, (15, 4, 7)), slow(100, (403, 101, 201))],
)
async def test_sequential_steps(
    here: VercelWorld, count: int, expected: tuple[int, int, int]
) -> None:
    calls = Calls.watch(here)
    assert await value_of(here, await sdk.start(flows.sequential, count)) == count
    await idle(here.world)
    # Long logs are read in one page each: otherwise there were more lists than replays.
    assert calls.summary == expected
    assert not calls.refusals


@pytest.mark.parametrize("count", [10, 50])
async def test_a_fan_out(here: VercelWorld, count: int) -> None:
    calls = Calls.watch(here)
    await value_of(here, await sdk.start(flows.fan_out, count))
    await idle(here.world)
    # One for the start; per step one that asks for it and one when it has ended.
    assert calls.methods["queue"] == 2 * count + 1
    assert calls.events - Counter(run_started=count + 2) == Counter(
        run_created=1,
        step_created=count,
        step_started=count,
        step_completed=count,
        run_completed=1,
    )
    # Replays of a run are one after another, so none repeats what another one does; a wake
    # that the end of the run has overtaken is refused.
    assert set(calls.refusals) <= {"run_started"}
    # Wakes that wait become one: how many, the timing decides; without it there are more.
    assert calls.methods["events_list"] <= count + 1


async def test_a_sleep(here: VercelWorld) -> None:
    calls = Calls.watch(here)
    await value_of(here, await sdk.start(flows.sleeps, 0.5))
    await idle(here.world)
    # Two deliveries: one that goes to sleep, and its continuation, never early. The log is
    # read once more for what has come since, after the wait was ended.
    assert calls.events == Counter(
        run_created=1, run_started=2, wait_created=1, wait_completed=1, run_completed=1
    )
    assert calls.methods["events_list"] == 3
    assert calls.methods["queue"] == 1


async def test_a_hook(here: VercelWorld) -> None:
    calls = Calls.watch(here)
    token = secrets.token_hex(8)
    run = await sdk.start(flows.approved, token)
    await idle(here.world)
    await flows.Approval(by="ann").resume(token)
    assert await value_of(here, run) == "ann"
    await idle(here.world)
    assert calls.events == Counter(
        run_created=1, run_started=2, hook_created=1, hook_received=1, run_completed=1
    )
    assert calls.summary == (6, 2, 2)


async def test_started_runs_wait_for_a_worker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading workflows only registers them: consuming begins with a worker."""
    monkeypatch.setenv(FOLDER, str(folder))
    site = Site("redis", f"memory://calls-{secrets.token_hex(6)}", "calls")
    async with site.adapter() as adapter:
        run = await sdk.start(flows.sequential, 1)
        assert (await adapter.world.queue.stats("__wkf_workflow_")).ready == 1
        assert await run.status() == "pending"
        worker = adapter.worker()
        working = asyncio.create_task(worker.run())
        assert await value_of(adapter, run) == 1
        worker.stop()
        await working
