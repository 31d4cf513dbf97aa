"""The Python SDK on RedisWorld: workflows are started and executed in this one process."""

from __future__ import annotations

import asyncio
import sys

from engineering import AT_A_TIME, one_at_a_time_each, serve_engine
from vercel.workflow import start

from redis_world.vercel import use_redis_world

PATIENCE = 300.0


async def main(url: str) -> None:
    adapter = use_redis_world(url)
    # After that: its registry belongs to the World which is there when it is made.
    from engine_vercel_flows import count

    async def run(steps: int) -> int:
        begun = await start(count, steps)
        # By the World's hint: the SDK's own wait looks once a second, longer than a run takes.
        ended = await adapter.world.runs.wait_for_terminal(
            begun.run_id, timeout=PATIENCE, resolve_data="none"
        )
        if ended.status != "completed":
            raise RuntimeError(f"a workflow is {ended.status}")
        return await begun.return_value()

    worker = adapter.worker(concurrency=2 * AT_A_TIME)
    working = asyncio.create_task(worker.run())
    try:
        await serve_engine(one_at_a_time_each(run))
    finally:
        worker.stop()
        await working
        await adapter.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
