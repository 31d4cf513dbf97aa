"""A client process of a figure: writes runs of ten steps, by as many callers as it is told."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from figures_base import CALLERS, together
from peers.programs.talking import serve
from peers.storage import one_by_one

from redis_world import RedisWorld


async def main(url: str) -> None:
    """Write as many runs as each request names."""
    async with RedisWorld(url, namespace="figures") as world:

        async def answer(request: dict[str, Any]) -> dict[str, Any]:
            busy = time.process_time()
            callers = request.get("callers", CALLERS)
            work = range(request["runs"])
            seconds = await together(work, lambda _: one_by_one(world), callers)
            return {"seconds": seconds, "busy": time.process_time() - busy}

        await serve(answer)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
