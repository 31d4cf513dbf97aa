"""What the queue does in one script, and what it leaves alone (contract, sections 1 and 7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.models import Page
from redis_world.queue import FollowUp
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.queue_tools import NAME, TOPIC, claim_one, claimed_ids, content, send, wake

Clocked = tuple[RedisWorld, ManualClock]
INTERVAL: Final = 15
RESCUES: Final = ("queue/unpark", "queue/pay_wake", "queue/pay_step")


@pytest.fixture
def calls(world: RedisWorld, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts that the World calls from now on."""
    return watch(world, monkeypatch)


def watch(
    world: RedisWorld,
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[str], Awaitable[object]] | None = None,
) -> list[str]:
    """Note every script that is called, after something that happens in front of it."""
    names: list[str] = []
    original = world.connection.call

    async def call(name: str, *args: Any, **options: Any) -> list[Any]:
        if before is not None:
            await before(name)
        names.append(name)
        return await original(name, *args, **options)

    monkeypatch.setattr(world.connection, "call", call)
    return names


# Contract: 7.continuation
@pytest.mark.parametrize("key", [None, "k", "other"])
async def test_an_ack_and_its_continuation_are_one_script(
    world: RedisWorld, calls: list[str], key: str | None
) -> None:
    """Between two of them a crash would lose the continuation, or deliver both messages."""
    await send(world, content(1), idempotency_key="k")
    message = await claim_one(world)
    calls.clear()
    assert await world.queue.ack(message, follow_up=FollowUp(delay=5, idempotency_key=key))
    assert calls == ["queue/ack"]
    stats = await world.queue.stats(TOPIC)
    assert (stats.leased, stats.delayed) == (0, 1)


async def resting_runs(world: RedisWorld, count: int) -> list[str]:
    """Live runs whose messages are all done, and that wait for nothing."""
    ids = [await e.new_run(world) for _ in range(count)]
    for run_id in ids:
        await send(world, wake(run_id))
    for message in await world.queue.claim(TOPIC, limit=100):
        assert await world.queue.ack(message)
    return ids


# Contract: 7.no run is left behind
async def test_each_rescue_is_a_script_of_its_own(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, clock = clocked
    ids = await resting_runs(world, 3)
    calls = watch(world, monkeypatch)
    await clock.advance(INTERVAL)
    assert (await world.sweep())["woken_runs"] == 3
    assert [name for name in calls if name in RESCUES] == ["queue/unpark"] * 3
    assert {message.run_id for message in await world.queue.claim(TOPIC)} == {*ids}


async def _end(world: RedisWorld, run_id: str) -> None:
    await world.events.create(run_id, e.run_ended("completed"))


async def _wake(world: RedisWorld, run_id: str) -> None:
    await send(world, wake(run_id))


async def _hook(world: RedisWorld, run_id: str) -> None:
    await world.events.create(run_id, e.hook_created())


CHANGES: Final = {"it ended": _end, "it was woken": _wake, "it waits for a hook": _hook}


# Contract: 7.no run is left behind
@pytest.mark.parametrize("change", CHANGES)
async def test_a_rescue_looks_again(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Between the sweeper's look and its rescue somebody else may have seen to the run."""
    world, clock = clocked
    (run_id,) = await resting_runs(world, 1)
    changed: list[str] = []

    async def before(name: str) -> None:
        if name in RESCUES and not changed:
            changed.append(name)
            await CHANGES[change](world, run_id)

    watch(world, monkeypatch, before)
    await clock.advance(INTERVAL)
    assert (await world.sweep())["woken_runs"] == 0
    assert changed == ["queue/unpark"]
    assert len(await claimed_ids(world)) == (1 if change == "it was woken" else 0)
    await check_invariants(world)


# Contract: 1.views
async def test_the_queue_changes_no_entity_and_no_log(backend: Backend) -> None:
    """Whatever happens to messages of a run: only events say how the run is."""
    async with backend.world(library=ManualClock.library(), max_failures=2) as world:
        clock = await ManualClock(world).set()
        run_id = await e.new_run(world)
        await e.write(world, run_id, e.lazy_start(), e.hook_created(), e.wait_created())

        async def entities() -> list[Any]:
            pages: list[Page[Any]] = [
                await world.steps.list(run_id),
                await world.hooks.list(run_id),
                await world.waits.list(run_id),
                await world.events.list(run_id),
            ]
            return [await world.runs.get(run_id), *[page.data for page in pages]]

        before = await entities()
        await send(world, content(1, run_id))
        for _ in range(2):
            assert await world.queue.retry(await claim_one(world), error="no", delay=0)
        assert (await world.queue.stats(TOPIC)).dead == 1
        (letter,) = (await world.queue.dead_letters(TOPIC)).data
        await world.queue.redrive(letter.message_id)
        await claim_one(world, lease=1)
        await clock.advance(1)
        await world.sweep()
        assert await world.queue.ack(await claim_one(world), follow_up=FollowUp(delay=3600))
        await clock.advance(timedelta(days=1))
        await world.sweep()
        assert await world.queue.ack(await claim_one(world))
        assert await entities() == before


# Contract: 7.delivery, 5.capabilities
async def test_a_deployment_routes_nothing(backend: Backend) -> None:
    """It is stored and given back: whoever works on the topic gets the messages of all."""
    namespace = backend.namespace()
    async with (
        backend.world(namespace=namespace, deployment_id="dpl_a") as one,
        backend.world(namespace=namespace, deployment_id="dpl_b") as other,
    ):
        run_id = await e.new_run(one, deploymentId="dpl_a")
        await send(one, content(1, run_id), deployment_id="dpl_a")
        await send(one, {"number": 2}, deployment_id="dpl_c")
        await send(one, {"number": 3})
        found = await other.queue.claim(TOPIC)
        told = {message.payload["number"]: message.deployment_id for message in found}
        assert told == {1: "dpl_a", 2: "dpl_c", 3: None}
        assert {message.queue_name for message in found} == {NAME}
        run = (await other.events.create(run_id, e.run_ended("completed"))).run
        assert run is not None
        assert (run.status, run.deployment_id) == ("completed", "dpl_a")
