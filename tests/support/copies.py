"""Copies of one memory, as after a snapshot: `python copies.py ids`, or `hook URL NAMESPACE`.

In a process of its own, which has no other thread: a copy lacks all but the one that makes it, and
would wait for the others.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from redis_world import RedisWorld, ids
from support.events import event, log_types, new_run, write


def in_a_copy(use: Callable[[], bytes]) -> bytes:
    """Run something in a copy of this process that does not know that it is one.

    As after a snapshot of the memory: none of Python's own preparations for a fork is made.
    """
    reader, writer = os.pipe()
    child = ctypes.PyDLL(None).fork()
    if child == 0:  # pragma: no cover - it leaves no coverage behind
        try:
            os.write(writer, use())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return found


def make_ids() -> None:
    """No id of three copies and their original is made twice."""
    factory = ids.IdFactory()
    now = 1_700_000_000_000
    factory.run_id(now)

    def make() -> bytes:
        own = [ids.new_request_id() for _ in range(50)]
        # In the millisecond of the copy, where the clock stood still or went back.
        own += [factory.run_id(now) for _ in range(50)]
        own += [factory.message_id(now - 1000) for _ in range(50)]
        return " ".join(own).encode()

    made = [each for _ in range(3) for each in in_a_copy(make).split()] + make().split()
    assert len({*made}) == len(made) == 4 * 150


def resume_a_hook(url: str, namespace: str) -> None:
    """What the later one does is stored, too, not taken for a repetition of the other's."""
    world = RedisWorld(url, namespace=namespace)
    loop = asyncio.new_event_loop()

    async def begin() -> str:
        run_id = await new_run(world)
        await write(world, run_id, event("hook_created", "h", token="t"))
        await world.streams.write(run_id, "out", b"first")
        return run_id

    async def go_on(name: bytes) -> None:
        # The connections of the copy are the other one's.
        world.connection._states.clear()
        await write(world, run_id, event("hook_received", "h", payload=name))
        await world.streams.write(run_id, "out", name)
        await world.streams.write(run_id, "out", name)

    def use() -> bytes:
        loop.run_until_complete(go_on(b"copy"))
        return b"done"

    async def look() -> tuple[list[str], list[bytes]]:
        await world.streams.close(run_id, "out")
        chunks = [chunk async for chunk in world.streams.read(run_id, "out")]
        found = await log_types(world, run_id), chunks
        await world.aclose()
        return found

    run_id = loop.run_until_complete(begin())
    kept = [*world.connection._states.values()]
    assert in_a_copy(use) == b"done"
    loop.run_until_complete(go_on(b"original"))
    types, chunks = loop.run_until_complete(look())
    assert types.count("hook_received") == 2
    assert chunks == [b"first", b"copy", b"copy", b"original", b"original"]
    for state in kept:
        loop.run_until_complete(state.aclose())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


if __name__ == "__main__":
    if sys.argv[1] == "ids":
        make_ids()
    else:
        resume_a_hook(*sys.argv[2:])
