"""arq; results, which the other queues don't keep either, are off.

Its worker looks for jobs each half second, which is its default and not changed here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker
from queueing import CONCURRENCY, Handle, Send, main


async def work(url: str, handle: Handle) -> None:
    async def job(_: dict[Any, Any], batch: int, number: int, of: int) -> None:
        handle(batch, number, of)

    worker = Worker(
        [func(job, name="job")],
        redis_settings=RedisSettings.from_dsn(url),
        max_jobs=CONCURRENCY,
        keep_result=0,
    )
    await worker.async_run()


@asynccontextmanager
async def produce(url: str) -> AsyncIterator[Send]:
    pool = await create_pool(RedisSettings.from_dsn(url))
    try:

        async def send(batch: int, number: int, of: int) -> None:
            await pool.enqueue_job("job", batch, number, of)

        yield send
    finally:
        await pool.aclose()


if __name__ == "__main__":
    main(work, produce)
