"""The Python SDK on RedisWorld in a process of its own, for a figure."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import redis.asyncio
from crew import at_work
from peers.programs.talking import serve
from vercel.workflow import start

from redis_world.connection import sender
from redis_world.lua import default_library
from redis_world.vercel import use_redis_world

PATIENCE: Final = 60.0


@contextmanager
def round_trips() -> Iterator[Counter[str]]:
    """Count what goes to the server, by the scripts of one flight; plain commands are `log`."""
    seen: Counter[str] = Counter()
    names = {script.sha.encode(): script.name for script in default_library()}
    round_trip = sender.round_trip

    async def counted(
        client: redis.asyncio.Redis, commands: Sequence[sender.Command], *args: Any
    ) -> list[sender.Reply]:
        flight = {
            names[command[1]] if command[0] == b"EVALSHA" else "log"  # type: ignore[index]
            for command in commands
        }
        seen["+".join(sorted(flight))] += 1
        return await round_trip(client, commands, *args)

    with patch.object(sender, "round_trip", counted):
        yield seen


async def main(url: str, workers: int, partitions: int) -> None:
    """Run the workflow that each request names, as often as it says, all at once."""
    adapter = use_redis_world(url, partitions=partitions)
    # After that: its registry belongs to the World which is there when it is made.
    import figures_flows

    async def run_once(workflow: Any, steps: int) -> None:
        run = await start(workflow, steps)
        # By the World's hint: the SDK's own wait looks once a second.
        ended = await adapter.world.runs.wait_for_terminal(
            run.run_id, timeout=PATIENCE, resolve_data="none"
        )
        if ended.status != "completed" or await run.return_value() != steps:
            raise RuntimeError(f"a run of {steps} steps is {ended.status}")

    async def answer(request: dict[str, Any]) -> dict[str, Any]:
        workflow, steps = getattr(figures_flows, request["workflow"]), request["steps"]
        begun, used = time.perf_counter(), time.process_time()
        with round_trips() as seen:
            runs = (run_once(workflow, steps) for _ in range(request.get("runs", 1)))
            await asyncio.gather(*runs)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - used
        return {"seconds": seconds, "cpu": cpu, "round_trips": dict(seen)}

    async with at_work(adapter, workers):
        await serve(answer)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *(int(word) for word in sys.argv[2:] or ("1", "1"))))
