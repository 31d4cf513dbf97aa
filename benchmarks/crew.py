"""Workers of the Python SDK that are measured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redis_world.vercel import VercelWorld

__all__ = ["at_work"]

CONCURRENCY: Final = 64
"""Of each worker."""


@asynccontextmanager
async def at_work(adapter: VercelWorld, workers: int) -> AsyncIterator[None]:
    """Have so many workers run for the length of a block, at whose end the adapter is closed."""
    crew = [adapter.worker(concurrency=CONCURRENCY) for _ in range(workers)]
    working = [asyncio.create_task(worker.run()) for worker in crew]
    try:
        yield
    finally:
        for worker in crew:
            worker.stop()
        await asyncio.gather(*working)
        await adapter.aclose()
