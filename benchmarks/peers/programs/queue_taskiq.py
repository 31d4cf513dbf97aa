"""taskiq with taskiq-redis: its broker on a stream, the one that acknowledges."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from queueing import CONCURRENCY, Handle, Send, main
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker


def _queue(url: str, handle: Handle) -> tuple[RedisStreamBroker, Any]:
    # From the first message: else those sent before the worker has made its group were lost.
    broker = RedisStreamBroker(url, consumer_id="0")

    async def job(batch: int, number: int, of: int) -> None:
        handle(batch, number, of)

    return broker, broker.register_task(job, task_name="job")


def _handle_nothing(batch: int, number: int, of: int) -> None:
    raise NotImplementedError


async def work(url: str, handle: Handle) -> None:
    broker, _ = _queue(url, handle)
    await run_receiver_task(broker, max_async_tasks=CONCURRENCY, run_startup=True)


@asynccontextmanager
async def produce(url: str) -> AsyncIterator[Send]:
    broker, job = _queue(url, _handle_nothing)
    await broker.startup()
    try:

        async def send(batch: int, number: int, of: int) -> None:
            await job.kiq(batch, number, of)

        yield send
    finally:
        await broker.shutdown()


if __name__ == "__main__":
    main(work, produce)
