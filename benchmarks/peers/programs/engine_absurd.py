"""absurd-sdk: workflows are spawned and executed in this one process.

It tells the end of a workflow only to those who ask again and again. Callers that waited for one
before they spawn the next would measure their pauses, so all are spawned first, and its workers
hold as many at a time as they have clients.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Any

from absurd_sdk import AsyncAbsurd
from engineering import AT_A_TIME, serve_engine

PATIENCE = 300.0


async def count(params: Any, context: Any) -> int:
    number = 0

    async def one_more() -> int:
        return number + 1

    for _ in range(params["steps"]):
        number = await context.step("one_more", one_more)
    return number


async def main(url: str) -> None:
    async with AsyncExitStack() as stack:

        async def client() -> AsyncAbsurd:
            absurd = AsyncAbsurd(url)
            stack.push_async_callback(absurd.close)
            absurd.register_task("count")(count)
            return absurd

        spawner = await client()
        await spawner.create_queue()
        # A client has one connection, on which a commit waits for the one before it.
        workers = [await client() for _ in range(AT_A_TIME)]
        working = [asyncio.create_task(worker.start_worker()) for worker in workers]

        async def engine(workflows: int, steps: int) -> list[int]:
            spawned = [await spawner.spawn("count", {"steps": steps}) for _ in range(workflows)]
            counted: list[int] = []
            for task in spawned:
                ended = await spawner.await_task_result(task["task_id"], timeout=PATIENCE)
                if ended.state != "completed":
                    raise RuntimeError(f"a workflow is {ended.state}: {ended.failure}")
                counted.append(ended.result)
            return counted

        await serve_engine(engine)
        for worker in workers:
            worker.stop_worker()
        await asyncio.gather(*working)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
