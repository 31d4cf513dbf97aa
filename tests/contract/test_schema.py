"""Namespaces of other releases: what is stored stays readable, and two work side by side."""

# Contract: 1.views

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from redis_world import RedisWorld
from redis_world.errors import ConfigurationError
from redis_world.lua import ScriptLibrary, script_root
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import CLUSTER, Backend
from support.dumps import load, read
from support.exercise import exercise
from support.queue_tools import content

DUMPS: Final = sorted((Path(__file__).parents[1] / "data").glob("v3*.json"))
"""Namespaces as earlier commits have left them."""
TOPIC: Final = "__wkf_workflow_"

not_on_a_cluster = pytest.mark.without(
    CLUSTER, why="the dump has one partition, and a tag of its own"
)


@pytest_asyncio.fixture(params=DUMPS, ids=lambda path: path.stem)
async def old(request: pytest.FixtureRequest, backend: Backend) -> AsyncIterator[RedisWorld]:
    """A World on a namespace that another release has made."""
    namespace = backend.namespace()
    with contextlib.closing(backend.client()) as client:
        load(client, read(request.param), namespace)
    async with backend.world(namespace=namespace, library=ManualClock.library()) as world:
        # It is looked at when it was made: what was due later has not become due since.
        newest = (await world.runs.list(limit=1, sort_order="desc")).data[0].created_at
        await ManualClock(world).set(newest + timedelta(seconds=1))
        yield world


@not_on_a_cluster
async def test_it_is_as_it_was(old: RedisWorld) -> None:
    await check_invariants(old)
    runs = {run.status: run for run in (await old.runs.list(limit=100)).data}
    assert {*runs} == {*e.RUN_STATES}
    done, live = runs["completed"], runs["running"]
    assert (done.input, done.output) == (e.ALL_BYTES, b"out")
    assert done.attributes == {"color": "red"}
    step = await old.steps.get(done.run_id, "s1")
    assert (step.status, step.attempt, step.output) == ("completed", 2, b"res")
    assert [chunk async for chunk in old.streams.read(done.run_id, "out")] == [b"1", b"2"]
    hook = await old.hooks.get_by_token("t1")
    assert (hook.run_id, hook.hook_id) == (live.run_id, "h1")
    waits = (await old.waits.list(live.run_id)).data
    assert [wait.status for wait in waits] == ["waiting", "completed"]
    types = await e.log_types(old, live.run_id)
    assert types[-1] == "hook_received"
    assert len(types) == 12


@not_on_a_cluster
async def test_it_goes_on(old: RedisWorld) -> None:
    """Runs are finished, messages are delivered, and what is over goes."""
    (live,) = (await old.runs.list(status="running")).data
    again = await old.events.create(live.run_id, e.hook_received("h1"), resume_id="r1")
    assert again.event is not None
    await e.write(old, live.run_id, e.step_started("made"), e.step_completed("made"))
    await e.write(old, live.run_id, e.step_completed("begun"), e.wait_completed("w1"))
    sent = await old.queue.send(f"{TOPIC}orders", content(3, live.run_id))
    stats = await old.queue.stats(TOPIC)
    assert (stats.leased, stats.delayed) == (1, 1)
    claimed = await old.queue.claim(TOPIC, limit=100)
    # The replays of its run wait for the one that is leased.
    assert len(claimed) == 2
    for message in claimed:
        assert await old.queue.ack(message)
    await e.write(old, live.run_id, e.run_ended("completed"))
    await check_invariants(old)
    assert await old.prune(0) == 4
    assert sent is not None
    stats = await old.queue.stats(TOPIC)
    assert (stats.ready, stats.leased, stats.held, stats.delayed) == (0, 0, 0, 0)
    await check_invariants(old)


@pytest.mark.large
async def test_two_releases_side_by_side(backend: Backend) -> None:
    """Scripts are known by their text: each World sends its own."""
    namespace = backend.namespace()
    clock = (script_root() / "lib" / "clock.lua").read_text(encoding="utf-8")
    other = ScriptLibrary(script_root(), {"lib/clock": f"{clock}-- as another release has it\n"})
    async with (
        backend.world(namespace=namespace, partitions=1) as one,
        backend.world(namespace=namespace, partitions=1, library=other) as two,
    ):
        run_id = await exercise(one)
        for turn, world in enumerate((two, one, two)):
            await e.write(world, run_id, e.step_created(f"x{turn}"))
        await e.write(one, run_id, e.step_started("x0"))
        await e.write(two, run_id, e.step_completed("x0"))
        await two.queue.send(f"{TOPIC}orders", content(1, run_id))
        while messages := await one.queue.claim(TOPIC):
            for message in messages:
                await two.queue.ack(message)
        await check_invariants(one)


@pytest.mark.parametrize(
    ("schema", "told"),
    [("2", "has schema 2"), ("99", "has schema 99"), ("0", "has no valid record")],
)
async def test_another_layout_is_refused(backend: Backend, schema: str, told: str) -> None:
    """Before anything is written."""
    namespace = backend.namespace()
    with contextlib.closing(backend.client()) as client:
        client.hset(f"{{{namespace}}}:v1:meta", mapping={"schema": schema, "partitions": "1"})
        before = backend.dump()
        world = backend.world(namespace=namespace, partitions=1)
        with pytest.raises(ConfigurationError, match=told):
            await world.open()
        await world.aclose()
        assert backend.dump() == before
