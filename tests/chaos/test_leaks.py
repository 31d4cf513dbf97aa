"""What is over leaves nothing: connections, tasks, keys.

`make chaos` runs the long form: 20,000 runs, 10,000 stream reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Final

import redis

from redis_world import RedisWorld
from redis_world.queue import Enqueue
from redis_world.testing import check_invariants
from support import events as e
from support.backends import Backend
from support.until import until

IS_LONG = os.environ.get("REDIS_WORLD_CHAOS") == "long"
READS: Final = 10_000 if IS_LONG else 400
RUNS: Final = 20_000 if IS_LONG else 400
GROWTH: Final = 300_000
"""Bytes by which a server's own tables may grow; 400 runs that stay take 20 times as many."""
AT_ONCE: Final = 100
TOPIC: Final = "__wkf_workflow_"
KEPT: Final = 4
"""Tasks while nobody asks anything: the test's, the subscriber's and the two it waits for."""


def connections(client: redis.Redis) -> int:
    return len(client.client_list())


async def test_stream_reads_leave_no_connection_and_no_task(real_backend: Backend) -> None:
    """Those that come to an end, that are given up, and that are cancelled."""
    with contextlib.closing(real_backend.client()) as client:
        async with real_backend.world() as world:
            run_id = e.new_run_id()
            await world.streams.write_many(run_id, "done", [b"1", b"2"])
            await world.streams.close(run_id, "done")
            await world.streams.write(run_id, "open", b"1")

            async def to_the_end() -> None:
                assert [c async for c in world.streams.read(run_id, "done")] == [b"1", b"2"]

            async def given_up() -> None:
                reader = world.streams.read(run_id, "open")
                assert await anext(reader) == b"1"
                await reader.aclose()

            async def cancelled() -> None:
                reader = world.streams.read(run_id, "open", start_index=1)
                task = asyncio.ensure_future(anext(reader))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                await reader.aclose()

            async def read_all(count: int) -> None:
                for _ in range(0, count, AT_ONCE):
                    await asyncio.gather(
                        *(
                            (to_the_end, given_up, cancelled)[number % 3]()
                            for number in range(AT_ONCE)
                        )
                    )

            # The first ones open what is kept open for all.
            await read_all(AT_ONCE)
            open_connections = connections(client)
            await read_all(READS)
            await until(lambda: len(asyncio.all_tasks()) <= KEPT)
            assert connections(client) <= max(open_connections, world.config.max_connections)
            assert world.connection.hub._waiters == {}
            await until(lambda: client.pubsub_channels() == [])
        await until(lambda: connections(client) == 1)


async def one_life(world: RedisWorld, number: int) -> str:
    """A run from its start to its end, with something of everything, and no message left."""
    run_id = await e.new_run(world)
    queue_name = f"{TOPIC}orders"
    await e.write(
        world,
        run_id,
        e.hook_created("hook", f"token {number}"),
        e.wait_created("wait"),
        e.wait_completed("wait"),
    )
    step = {"runId": run_id, "stepId": "s", "stepName": "charge"}
    await world.events.create(run_id, e.step_created("s"), enqueue=Enqueue(queue_name, step))
    await e.write(world, run_id, e.step_started("s"), e.step_retrying("s"), e.step_started("s"))
    wake = Enqueue(queue_name, {"runId": run_id})
    await world.events.create(run_id, e.step_completed("s"), enqueue=wake)
    await world.events.create(run_id, e.hook_received("hook"), enqueue=wake)
    await world.streams.write(run_id, "out", b"chunk")
    await world.streams.close(run_id, "out")
    await e.write(world, run_id, e.event("run_completed", output=b"out"))
    return run_id


async def drain(world: RedisWorld) -> None:
    while messages := await world.queue.claim(TOPIC, limit=1000):
        await asyncio.gather(*(world.queue.ack(message) for message in messages))


async def test_finished_runs_leave_what_they_are_and_nothing_else(backend: Backend) -> None:
    """No hook, wait, message, debt or index entry outlives its run."""
    runs = 200 if IS_LONG else 20
    async with backend.world() as world:
        for number in range(runs):
            await one_life(world, number)
        await drain(world)
        await world.sweep()
        await check_invariants(world)
        keys = [key.decode() for key in backend.dump()]
    base = world.connection.keys.base
    shared = {
        world.connection.keys.meta,
        *(f"{base}{name}" for name in ("runs", "finished", "topics", "runs:status:completed")),
        *(key for key in keys if key.startswith(f"{base}runs:workflow:")),
    }
    of_runs = [key for key in keys if key not in shared]
    assert all(key.startswith(f"{base}run:") for key in of_runs)
    kinds = {
        key.removeprefix(f"{base}run:").partition(":")[2].partition(":")[0] for key in of_runs
    }
    assert kinds == {
        *("", "events", "claims", "ops"),
        *("streams", "stream"),
    }


async def test_runs_that_are_gone_leave_nothing(real_backend: Backend) -> None:
    """Key count and memory are as they were, however many runs there have been."""
    with contextlib.closing(real_backend.client()) as client:
        async with real_backend.world() as world:

            async def live_and_go(count: int) -> None:
                for first in range(0, count, AT_ONCE):
                    numbers = range(first, min(first + AT_ONCE, count))
                    await asyncio.gather(*(one_life(world, number) for number in numbers))
                    await drain(world)
                assert await world.prune(0) == count
                await world.sweep()
                # Large values are freed by another thread of the server.
                await until(lambda: not client.info("memory")["lazyfree_pending_objects"])

            # The first ones make what is kept: connections, scripts, the names of topics.
            await live_and_go(AT_ONCE)
            keys, memory = client.dbsize(), used_memory(client)
            await live_and_go(RUNS)
            await check_invariants(world)
            assert client.dbsize() == keys == len(("meta", "topics"))
            await until(lambda: used_memory(client) < memory + GROWTH)


def used_memory(client: redis.Redis) -> int:
    """Bytes of data, without the buffers of connections."""
    info = client.info("memory")
    return int(info["used_memory_dataset"])
