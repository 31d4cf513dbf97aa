"""What a chunk costs."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conftest import Run
from redis_world import RedisWorld
from redis_world.ids import IdFactory

ids = IdFactory()


@pytest.mark.parametrize("size", [100, 10_000])
@pytest.mark.benchmark(group="100 chunks written one by one, then read")
def test_chunks(benchmark: BenchmarkFixture, world: RedisWorld, run: Run, size: int) -> None:
    chunk = b"x" * size

    async def write_and_read() -> None:
        run_id = ids.run_id(world.connection.server_time())
        for _ in range(100):
            await world.streams.write(run_id, "s", chunk)
        await world.streams.close(run_id, "s")
        assert sum([1 async for _ in world.streams.read(run_id, "s")]) == 100

    benchmark.pedantic(lambda: run(write_and_read()), rounds=5, warmup_rounds=1)
