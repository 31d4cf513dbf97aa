"""What a message, an event, a read and a page cost as everything else grows tenfold.

Counted in commands of a real server, those that scripts call with them. docs/operations.md has
the same as a table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest
import redis

from redis_world import RedisWorld
from support.backends import Backend
from support.commandstats import Counts
from support.events import (
    attr_set,
    hook_created,
    new_run,
    run_ended,
    step_created,
    wait_created,
    write,
)
from support.queue_tools import TOPIC, claim_one, send, step

FEW, MANY = 4, 40
Grow = Callable[[RedisWorld, str, int], Awaitable[None]]
Act = Callable[[RedisWorld, str], Awaitable[object]]


async def idle_workers(world: RedisWorld, _: str, count: int) -> None:
    for number in range(count):
        await world.queue.claim_batch(TOPIC, worker=f"w{number}", look=60)


async def topics(world: RedisWorld, _: str, count: int) -> None:
    for number in range(count):
        await world.queue.send(f"__t{number}_wkf_workflow_x", {"n": number})


async def runs_alive(world: RedisWorld, _: str, count: int) -> None:
    for _number in range(count):
        await new_run(world)


async def runs_kept(world: RedisWorld, _: str, count: int) -> None:
    for _number in range(count):
        await world.events.create(await new_run(world), run_ended("completed"))


async def steps(world: RedisWorld, run_id: str, count: int) -> None:
    await write(world, run_id, *(step_created(f"s{number}") for number in range(count)))


async def hooks(world: RedisWorld, run_id: str, count: int) -> None:
    await write(world, run_id, *(hook_created(f"h{n}", f"{run_id} {n}") for n in range(count)))


async def waits(world: RedisWorld, run_id: str, count: int) -> None:
    await write(world, run_id, *(wait_created(f"w{number}") for number in range(count)))


async def streams(world: RedisWorld, run_id: str, count: int) -> None:
    for number in range(count):
        await world.streams.write(run_id, f"out{number}", b"x")


async def attributes(world: RedisWorld, run_id: str, count: int) -> None:
    values = {f"a{number}": "x" for number in range(count)}
    await world.events.create(run_id, attr_set(values, "attr"))


async def messages_waiting(world: RedisWorld, _: str, count: int) -> None:
    for number in range(count):
        await send(world, step(f"old{number}", "wrun_old"), delay=3600)


async def messages_of_the_run(world: RedisWorld, run_id: str, count: int) -> None:
    for number in range(count):
        await send(world, step(f"old{number}", run_id), delay=3600)


async def dead_letters(world: RedisWorld, _: str, count: int) -> None:
    for number in range(count):
        await send(world, step(f"dead{number}", "wrun_dead"))
        await world.queue.retry(await claim_one(world), error="no")


GROWS: Final[dict[str, Grow]] = {
    "idle workers": idle_workers,
    "topics": topics,
    "runs alive": runs_alive,
    "finished runs kept": runs_kept,
    "steps of the run": steps,
    "hooks of the run": hooks,
    "waits of the run": waits,
    "streams of the run": streams,
    "attributes of the run": attributes,
    "messages of the run": messages_of_the_run,
    "delayed messages": messages_waiting,
    "dead letters": dead_letters,
}


async def a_message(world: RedisWorld, run_id: str) -> None:
    await send(world, step("new", run_id))
    assert await world.queue.ack(await claim_one(world))


async def an_event(world: RedisWorld, run_id: str) -> None:
    await world.events.create(run_id, step_created("new"))


async def a_read(world: RedisWorld, run_id: str) -> None:
    await world.runs.get(run_id)
    await world.steps.get(run_id, "first")


async def a_page(world: RedisWorld, run_id: str) -> None:
    await world.runs.list(limit=3)
    await world.steps.list(run_id, limit=1)
    await world.events.list(run_id, limit=3)


ACTS: Final[dict[str, Act]] = {
    "a message": a_message,
    "an event": an_event,
    "a read": a_read,
    "a page": a_page,
}


async def costs_of_all(world: RedisWorld, server: redis.Redis, run_id: str) -> dict[str, Any]:
    costs = {}
    for name, act in ACTS.items():
        counts = Counts(server)
        await act(world, run_id)
        costs[name] = counts.commands()
    return costs


async def first_run(world: RedisWorld) -> str:
    """A run with a step, and two runs beside it."""
    run_id = await new_run(world)
    await runs_alive(world, run_id, 2)
    await world.events.create(run_id, step_created("first"))
    return run_id


@pytest.fixture
def server(real_backend: Backend) -> Iterator[redis.Redis]:
    with contextlib.closing(real_backend.client()) as client:
        yield client


@pytest.mark.parametrize("name", GROWS)
async def test_it_costs_the_same_commands(
    real_backend: Backend, server: redis.Redis, name: str
) -> None:
    costs = []
    for count in (FEW, MANY):
        async with real_backend.world(max_failures=1) as world:
            run_id = await first_run(world)
            await GROWS[name](world, run_id, count)
            costs.append(await costs_of_all(world, server, run_id))
    assert costs[1] == costs[0]


async def test_namespaces_do_not_meet(real_backend: Backend, server: redis.Redis) -> None:
    async with real_backend.world() as world:
        before = await costs_of_all(world, server, await first_run(world))
    for _ in range(MANY):
        async with real_backend.world() as world:
            await new_run(world)
    async with real_backend.world() as world:
        assert await costs_of_all(world, server, await first_run(world)) == before
