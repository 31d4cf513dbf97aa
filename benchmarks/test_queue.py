"""What a message costs: sent, claimed and acknowledged."""

from __future__ import annotations

import asyncio

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conftest import Run
from redis_world import RedisWorld

TOPIC = "__wkf_workflow_"


@pytest.mark.parametrize("batch", [1, 10, 100])
@pytest.mark.benchmark(group="100 messages sent, claimed in batches, acknowledged")
def test_messages(benchmark: BenchmarkFixture, world: RedisWorld, run: Run, batch: int) -> None:
    async def pass_through() -> None:
        await asyncio.gather(
            *(
                world.queue.send(f"{TOPIC}bench", {"runId": f"r{n}", "stepId": "s"})
                for n in range(100)
            )
        )
        done = 0
        while done < 100:
            messages = await world.queue.claim(TOPIC, limit=batch)
            await asyncio.gather(*(world.queue.ack(message) for message in messages))
            done += len(messages)

    benchmark.pedantic(lambda: run(pass_through()), rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group="a claim that finds nothing")
def test_idle_claim(benchmark: BenchmarkFixture, world: RedisWorld, run: Run) -> None:
    benchmark(lambda: run(world.queue.claim(TOPIC)))
