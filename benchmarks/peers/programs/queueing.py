"""What the queues have in common: jobs are sent from here, and handled in another process.

Each queue has a program that gives `main` its two halves. The program is the producer; it starts
itself again, with the word `worker` in front of its URL, for the one worker process.

Both compare their readings of `time.monotonic`, which on one machine is one clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

from talking import serve

__all__ = ["CONCURRENCY", "Handle", "Send", "main"]

CONCURRENCY: Final = 64
"""Jobs that the worker handles at a time, and producers that send at a time."""
IDLE_JOBS: Final = 20
"""How many jobs an idle worker gets, one at a time, for their latencies."""
MAX_PAUSE: Final = 0.5
"""Seconds until the next one, at most. By chance, or a worker that looks at fixed times would
find all of them at the same age."""
TIMEOUT: Final = 300.0
START_TIMEOUT: Final = 60.0

Send: TypeAlias = Callable[[int, int, int], Awaitable[object]]
"""Sends a job: the number of its batch, its number in there, and how many jobs that has."""
Handle: TypeAlias = Callable[[int, int, int], None]
"""What the worker does with a job."""
Work: TypeAlias = Callable[[str, Handle], Awaitable[object]]
Produce: TypeAlias = Callable[[str], AbstractAsyncContextManager[Send]]


def main(work: Work, produce: Produce) -> None:
    """Be the producer, or its worker.

    Args:
        work: handles what comes to the server of this URL, until it is ended.
        produce: gives what sends to it.
    """
    if sys.argv[1] == "worker":
        asyncio.run(_work(work, sys.argv[2]))
    else:
        asyncio.run(_produce(produce, sys.argv[1]))


# -- the worker ----------------------------------------------------------------------------


async def _work(work: Work, url: str) -> None:
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    seen: defaultdict[int, set[int]] = defaultdict(set)

    def handle(batch: int, number: int, of: int) -> None:
        at = time.monotonic()
        handled = seen[batch]
        handled.add(number)
        if len(handled) == of:
            # Numbers, not deliveries: these queues may deliver a job twice.
            print(json.dumps([batch, at]), file=output, flush=True)

    # A producer that was killed leaves nothing behind but this.
    threading.Thread(target=_end_with_producer, daemon=True).start()
    await work(url, handle)


def _end_with_producer() -> None:
    sys.stdin.read()
    os._exit(0)


# -- the producer --------------------------------------------------------------------------


class _Producer:
    def __init__(self, send: Send, worker: asyncio.subprocess.Process) -> None:
        self._send = send
        self._worker = worker
        self._batch = 0

    async def batch(self, jobs: int) -> tuple[float, float]:
        """Send so many jobs; returns when the first was sent and the last was handled."""
        self._batch += 1
        batch, left = self._batch, iter(range(jobs))

        async def call() -> None:
            for number in left:
                await self._send(batch, number, jobs)

        begun = time.monotonic()
        await asyncio.gather(*(call() for _ in range(min(CONCURRENCY, jobs))))
        return begun, await self._handled(batch)

    async def _handled(self, batch: int) -> float:
        assert self._worker.stdout is not None
        while line := await self._worker.stdout.readline():
            number, at = json.loads(line)
            if number == batch:
                return float(at)
        raise RuntimeError("the worker has ended")

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT):
            begun, ended = await self.batch(request["jobs"])
            latencies = []
            for _ in range(IDLE_JOBS):
                await asyncio.sleep(random.uniform(0.0, MAX_PAUSE))
                sent, handled = await self.batch(1)
                latencies.append(handled - sent)
        return {"count": request["jobs"], "seconds": ended - begun, "latencies": latencies}


async def _produce(produce: Produce, url: str) -> None:
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-u", sys.argv[0], "worker", url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with produce(url) as send:
            producer = _Producer(send, worker)
            async with asyncio.timeout(START_TIMEOUT):
                await producer.batch(1)
            await serve(producer.answer)
    finally:
        worker.kill()
        await worker.wait()
