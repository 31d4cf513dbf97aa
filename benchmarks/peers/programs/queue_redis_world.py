"""redis-world's own queue and worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from queueing import CONCURRENCY, Handle, Send, main

from redis_world import RedisWorld
from redis_world.worker import Worker

TOPIC = "__wkf_workflow_"


async def work(url: str, handle: Handle) -> None:
    async def handler(
        payload: dict[str, Any], /, *, attempt: int, queue_name: str, message_id: str
    ) -> None:
        del attempt, queue_name, message_id
        handle(payload["batch"], payload["number"], payload["of"])

    async with RedisWorld(url) as world, asyncio.TaskGroup() as group:
        for _ in range(int(os.environ.get("BENCH_WORKERS", "1"))):
            worker = Worker(world, {TOPIC: handler}, concurrency=CONCURRENCY)
            group.create_task(worker.run())


@asynccontextmanager
async def produce(url: str) -> AsyncIterator[Send]:
    async with RedisWorld(url) as world:

        async def send(batch: int, number: int, of: int) -> None:
            payload = {"batch": batch, "number": number, "of": of}
            await world.queue.send(f"{TOPIC}bench", payload)

        yield send


if __name__ == "__main__":
    main(work, produce)
