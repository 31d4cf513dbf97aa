"""What a run costs: a whole one, and each event by itself."""

from __future__ import annotations

import asyncio

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conftest import Run
from redis_world import RedisWorld

PAYLOAD = b"x" * 256


async def start_run(world: RedisWorld) -> str:
    result = await world.events.create(
        None,
        {
            "eventType": "run_created",
            "eventData": {"deploymentId": "", "workflowName": "bench", "input": PAYLOAD},
        },
        resolve_data="none",
    )
    assert result.run is not None
    run_id = result.run.run_id
    await world.events.create(run_id, {"eventType": "run_started"}, skip_preload=True)
    return run_id


async def run_of_ten_steps(world: RedisWorld) -> None:
    """33 events."""
    run_id = await start_run(world)
    for number in range(10):
        name = f"step_{number}"
        for event_type, data in (
            ("step_created", {"stepName": "s", "input": PAYLOAD}),
            ("step_started", None),
            ("step_completed", {"result": PAYLOAD}),
        ):
            event = {"eventType": event_type, "correlationId": name}
            if data is not None:
                event["eventData"] = data
            await world.events.create(run_id, event, resolve_data="none")
    await world.events.create(
        run_id,
        {"eventType": "run_completed", "eventData": {"output": PAYLOAD}},
        resolve_data="none",
    )


@pytest.mark.parametrize("callers", [1, 16, 64])
@pytest.mark.benchmark(group="runs of ten steps, all callers at once")
def test_run(benchmark: BenchmarkFixture, world: RedisWorld, run: Run, callers: int) -> None:
    async def together() -> None:
        await asyncio.gather(*(run_of_ten_steps(world) for _ in range(callers)))

    benchmark.pedantic(lambda: run(together()), rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("history", [0, 1000])
@pytest.mark.benchmark(group="100 bare starts of a step, by length of the log")
def test_step_started(
    benchmark: BenchmarkFixture, world: RedisWorld, run: Run, history: int
) -> None:
    async def prepare() -> str:
        run_id = await start_run(world)
        await world.events.create(
            run_id,
            {
                "eventType": "step_created",
                "correlationId": "s",
                "eventData": {"stepName": "s", "input": PAYLOAD},
            },
        )
        started = {"eventType": "step_started", "correlationId": "s"}
        for _ in range(history):
            await world.events.create(run_id, started, resolve_data="none")
        return run_id

    run_id = run(prepare())

    async def starts() -> None:
        for _ in range(100):
            await world.events.create(
                run_id, {"eventType": "step_started", "correlationId": "s"}, resolve_data="none"
            )

    benchmark.pedantic(lambda: run(starts()), rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("events", [33, 1000])
@pytest.mark.benchmark(group="reading a whole log")
def test_events_list(
    benchmark: BenchmarkFixture, world: RedisWorld, run: Run, events: int
) -> None:
    async def prepare() -> str:
        run_id = await start_run(world)
        for number in range(events - 2):
            await world.events.create(
                run_id,
                {
                    "eventType": "step_created",
                    "correlationId": f"s{number}",
                    "eventData": {"stepName": "s", "input": PAYLOAD},
                },
                resolve_data="none",
            )
        return run_id

    run_id = run(prepare())
    page = benchmark(lambda: run(world.events.list(run_id)))
    assert len(page.data) == events
