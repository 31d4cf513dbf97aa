"""A worker for the length of a block, and what it says of its deliveries."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from redis_world import RedisWorld
from redis_world.worker import Worker
from support.queue_tools import TOPIC
from support.sdk import until

__all__ = ["at_work", "deliveries", "told"]


@contextlib.asynccontextmanager
async def at_work(world: RedisWorld, handler: Any, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker for the length of a block; it must end well."""
    handlers = handler if isinstance(handler, Mapping) else {TOPIC: handler}
    working = Worker(world, handlers, **{"shutdown_timeout": 5.0, **options})
    async with asyncio.TaskGroup() as group:
        group.create_task(working.run())
        yield working
        working.stop()


def deliveries(caplog: pytest.LogCaptureFixture, message_id: str) -> list[logging.LogRecord]:
    """The lines of a message's deliveries that have ended."""
    return [
        record
        for record in caplog.records
        if str(getattr(record, "event", "")).startswith("delivery.")
        and getattr(record, "message_id", None) == message_id
    ]


async def told(caplog: pytest.LogCaptureFixture, message_id: str) -> logging.LogRecord:
    """Wait for the line of a message's first delivery."""

    async def look() -> list[logging.LogRecord]:
        lines = deliveries(caplog, message_id)
        return [line for line in lines if line.__dict__["attempt"] == 1]

    record, *_ = await until(look, what="the line of the delivery")
    return record
