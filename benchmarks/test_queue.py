"""What a message costs: sent, claimed and acknowledged."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Final

import pytest

from conftest import AT_ONCE, CALLERS, SIZES, Bench, nothing, start_runs

EACH: Final = 10
"""Messages of one caller."""
IDLE_CLAIMS: Final = 50

numbers = count(1)


@pytest.fixture
def topic() -> str:
    """One that no other benchmark uses."""
    return f"__bench{next(numbers)}_wkf_workflow_"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.benchmark(group=f"{AT_ONCE} messages sent at a time, by bytes of their payload")
def test_send(bench: Bench, topic: str, size: int) -> None:
    world = bench.world

    async def prepare() -> list[str]:
        return await start_runs(world, AT_ONCE)

    async def send(run_ids: list[str]) -> list[str | None]:
        return await asyncio.gather(
            *(
                world.queue.send(
                    f"{topic}w", {"runId": run_id, "stepId": "s", "data": b"x" * size}
                )
                for run_id in run_ids
            )
        )

    sent = bench.measure(send, prepare)
    assert len({*sent} - {None}) == AT_ONCE
    (message,) = bench.run(world.queue.claim(topic, limit=1))
    assert len(message.payload["data"]) == size


@pytest.mark.parametrize("callers", CALLERS)
@pytest.mark.benchmark(group=f"{EACH} messages of each caller: send, claim, ack")
def test_queue_callers(bench: Bench, topic: str, callers: int) -> None:
    world = bench.world

    async def prepare() -> list[str]:
        return await start_runs(world, callers)

    async def pass_through(run_id: str) -> int:
        done = 0
        for number in range(EACH):
            await world.queue.send(f"{topic}w", {"runId": run_id, "stepId": f"s{number}"})
            for message in await world.queue.claim(topic, limit=1):
                done += await world.queue.ack(message)
        return done

    async def together(run_ids: list[str]) -> int:
        return sum(await asyncio.gather(*(pass_through(run_id) for run_id in run_ids)))

    assert bench.measure(together, prepare) == callers * EACH
    assert bench.run(world.queue.stats(topic)).ready == 0


@pytest.mark.parametrize("batch", [1, 10, 100])
@pytest.mark.benchmark(group="100 messages sent, claimed in batches, acknowledged")
def test_batches(bench: Bench, topic: str, batch: int) -> None:
    world = bench.world

    async def prepare() -> list[str]:
        return await start_runs(world, 100)

    async def pass_through(run_ids: list[str]) -> int:
        await asyncio.gather(
            *(
                world.queue.send(f"{topic}w", {"runId": run_id, "stepId": "s"})
                for run_id in run_ids
            )
        )
        done = 0
        while messages := await world.queue.claim(topic, limit=batch):
            done += sum(await asyncio.gather(*(world.queue.ack(each) for each in messages)))
        return done

    assert bench.measure(pass_through, prepare, rounds=5) == 100


@pytest.mark.benchmark(group=f"{IDLE_CLAIMS} claims that find nothing, one after another")
def test_idle_claims(bench: Bench, topic: str) -> None:
    async def claim(_: None) -> int:
        return sum([len(await bench.world.queue.claim(topic)) for _ in range(IDLE_CLAIMS)])

    assert bench.measure(claim, nothing) == 0
