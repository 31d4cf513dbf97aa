"""streaq; results, which the other queues don't keep either, are off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from queueing import CONCURRENCY, Handle, Send, main
from streaq import Worker


def _queue(url: str, handle: Handle) -> tuple[Worker[Any], Any]:
    worker: Worker[Any] = Worker(redis_url=url, concurrency=CONCURRENCY)

    async def job(batch: int, number: int, of: int) -> None:
        handle(batch, number, of)

    return worker, worker.task(ttl=0, silent=True)(job)


def _handle_nothing(batch: int, number: int, of: int) -> None:
    raise NotImplementedError


async def work(url: str, handle: Handle) -> None:
    worker, _ = _queue(url, handle)
    await worker.run_async()


@asynccontextmanager
async def produce(url: str) -> AsyncIterator[Send]:
    worker, job = _queue(url, _handle_nothing)
    async with worker:

        async def send(batch: int, number: int, of: int) -> None:
            await job.enqueue(batch, number, of)

        yield send


if __name__ == "__main__":
    main(work, produce)
