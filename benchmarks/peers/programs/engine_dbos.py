"""dbos: workflows are started and executed in this one process, as its documentation has it."""

from __future__ import annotations

import asyncio
import sys

from dbos import DBOS
from engineering import one_at_a_time_each, serve_engine


@DBOS.step()
async def one_more(number: int) -> int:
    return number + 1


@DBOS.workflow()
async def count(steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await one_more(number)
    return number


async def run(steps: int) -> int:
    handle = await DBOS.start_workflow_async(count, steps)
    done: int = await handle.get_result()
    return done


async def main(url: str) -> None:
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    try:
        await serve_engine(one_at_a_time_each(run))
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
