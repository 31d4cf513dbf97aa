"""Runs of the Python SDK in a process of its own, to see what they take of their server."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final
from unittest.mock import patch

from crew import at_work
from peers.programs.talking import serve
from ulid import ULID
from vercel.workflow import start

from redis_world.events import Events
from redis_world.models import EventResult
from redis_world.vercel import use_redis_world

PATIENCE: Final = 120.0
PAUSE: Final = 0.02
"""Seconds after which a hook is resumed: its replay has ended by then, as it has in practice."""


class Hooks:
    """Tells when hooks are there, so that nobody has to ask the server for them."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}

    def of(self, token: str) -> asyncio.Event:
        """Is set when the hook is there."""
        return self._waiting.setdefault(token, asyncio.Event())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at what events answer for the length of a `with` block."""
        plain = Events.create

        async def create(events: Events, *args: Any, **options: Any) -> EventResult:
            result = await plain(events, *args, **options)
            if result.hook is not None:
                self.of(result.hook.token).set()
            return result

        with patch.object(Events, "create", create):
            yield


async def main(url: str, workers: int, partitions: int) -> None:
    """Run what each request asks for."""
    adapter = use_redis_world(url, partitions=partitions)
    # After that: its registry belongs to the World which is there when it is made.
    import capacity_flows

    hooks = Hooks()

    async def resume(name: str, count: int) -> None:
        for number in range(count):
            token = f"{name}/{number}"
            await hooks.of(token).wait()
            await asyncio.sleep(PAUSE)
            await capacity_flows.Answer(text="yes").resume(token)

    async def run_once(parts: dict[str, int]) -> str:
        # Of no pattern: the SDK would compress it, and store less than a plan is told of.
        name, text = str(ULID()), secrets.token_bytes(parts["payload"])
        run = await start(capacity_flows.planned, parts, name, text)
        resuming = asyncio.create_task(resume(name, parts["hooks"]))
        if parts["chunks"]:
            found = [len(each) async for each in run.readable_bytes()]
            assert sum(found) == parts["chunks"] * parts["chunk"], found
        # By the World's hint: the SDK's own wait looks once a second.
        ended = await adapter.world.runs.wait_for_terminal(
            run.run_id, timeout=PATIENCE, resolve_data="none"
        )
        if ended.status != "completed":
            raise RuntimeError(f"a run of {parts} is {ended.status}")
        await resuming
        return run.run_id

    async def answer(request: dict[str, Any]) -> dict[str, Any]:
        last = ""
        begun, used = time.perf_counter(), time.process_time()
        done, stored = 0, 0
        if "prune" in request:
            done = await adapter.world.prune(timedelta(0))
        else:
            left = iter(range(request["runs"]))

            async def caller() -> None:
                nonlocal last
                for _ in left:
                    last = await run_once(request["parts"])

            await asyncio.gather(*(caller() for _ in range(request["at_once"])))
        seconds, cpu = time.perf_counter() - begun, time.process_time() - used
        if last:
            output = (await adapter.world.runs.get(last)).output
            assert isinstance(output, bytes)
            stored = len(output)
        return {"seconds": seconds, "cpu": cpu, "done": done, "stored": stored}

    async with at_work(adapter, workers):
        with hooks.watched():
            await serve(answer)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *(int(word) for word in sys.argv[2:])))
