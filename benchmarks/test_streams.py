"""What a chunk costs."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from conftest import AT_ONCE, CALLERS, PAYLOAD, SIZES, Bench, start_run, start_runs

EACH: Final = 10
"""Chunks of one caller."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.benchmark(group=f"{AT_ONCE} chunks written at a time, by bytes, each to its stream")
def test_write(bench: Bench, size: int) -> None:
    world = bench.world
    chunk = b"x" * size

    async def prepare() -> list[str]:
        return await start_runs(world, AT_ONCE)

    async def write(run_ids: list[str]) -> str:
        await asyncio.gather(*(world.streams.write(run_id, "s", chunk) for run_id in run_ids))
        return run_ids[-1]

    run_id = bench.measure(write, prepare)
    page = bench.run(world.streams.get_chunks(run_id, "s"))
    assert [len(each.data) for each in page.data] == [size]


@pytest.mark.parametrize("callers", CALLERS)
@pytest.mark.benchmark(group=f"{EACH} chunks of each caller, each to its stream")
def test_stream_callers(bench: Bench, callers: int) -> None:
    world = bench.world

    async def prepare() -> list[str]:
        return await start_runs(world, callers)

    async def write(run_id: str) -> None:
        for _ in range(EACH):
            await world.streams.write(run_id, "s", PAYLOAD)

    async def together(run_ids: list[str]) -> str:
        await asyncio.gather(*(write(run_id) for run_id in run_ids))
        return run_ids[-1]

    run_id = bench.measure(together, prepare)
    assert bench.run(world.streams.get_info(run_id, "s")).tail_index == EACH - 1


@pytest.mark.parametrize("size", [100, 10_000])
@pytest.mark.benchmark(group="100 chunks written one by one, then read")
def test_write_and_read(bench: Bench, size: int) -> None:
    streams = bench.world.streams
    chunk = b"x" * size

    async def prepare() -> str:
        return await start_run(bench.world)

    async def write_and_read(run_id: str) -> int:
        for _ in range(100):
            await streams.write(run_id, "s", chunk)
        await streams.close(run_id, "s")
        return sum([len(each) async for each in streams.read(run_id, "s")])

    assert bench.measure(write_and_read, prepare, rounds=5) == 100 * size
