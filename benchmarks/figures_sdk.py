"""The Python SDK on RedisWorld in a process of its own, for a figure: one workflow at a time."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, Final

from peers.programs.talking import serve
from vercel.workflow import start

from redis_world.vercel import use_redis_world

PATIENCE: Final = 60.0
CONCURRENCY: Final = 64


async def main(url: str) -> None:
    """Run the workflow that each request names."""
    adapter = use_redis_world(url)
    # After that: its registry belongs to the World which is there when it is made.
    import figures_flows

    async def answer(request: dict[str, Any]) -> dict[str, Any]:
        workflow, steps = getattr(figures_flows, request["workflow"]), request["steps"]
        begun = time.perf_counter()
        run = await start(workflow, steps)
        # By the World's hint: the SDK's own wait looks once a second.
        ended = await adapter.world.runs.wait_for_terminal(
            run.run_id, timeout=PATIENCE, resolve_data="none"
        )
        seconds = time.perf_counter() - begun
        if ended.status != "completed" or await run.return_value() != steps:
            raise RuntimeError(f"{request} is {ended.status}")
        return {"seconds": seconds}

    worker = adapter.worker(concurrency=CONCURRENCY)
    working = asyncio.create_task(worker.run())
    try:
        await serve(answer)
    finally:
        worker.stop()
        await working
        await adapter.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
