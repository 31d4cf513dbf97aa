"""One clock, the server's: Worlds whose processes' clocks differ agree."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
import pytest_asyncio

from redis_world import RedisWorld
from redis_world.errors import EntityConflictError, InvalidEventError, TooEarlyError
from redis_world.ids import run_id_time
from support.backends import Backend
from support.events import (
    attempt,
    event,
    hook_created,
    new_run,
    run_created,
    run_ended,
    run_id_at,
    step_completed,
    step_created,
    step_retrying,
    step_started,
    wait_completed,
    wait_created,
    write,
)

TOPIC: Final = "__wkf_workflow_"
SKEW: Final = 600.0
NEAR: Final = timedelta(seconds=60)
"""Far less than the skew, far more than any test takes."""


@dataclass
class Skew:
    """How far this process's clock is off, in seconds."""

    seconds: float = 0.0


@pytest.fixture
def skew(monkeypatch: pytest.MonkeyPatch) -> Skew:
    """Moves `time.time`, which is what a process knows of the date; real servers don't see it."""
    found, real = Skew(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + found.seconds)
    return found


class Machine:
    """A World in a process whose clock is wrong."""

    def __init__(self, world: RedisWorld, skew: Skew, seconds: float) -> None:
        self.world = world
        self._skew = skew
        self._seconds = seconds

    @contextlib.contextmanager
    def at_work(self) -> Iterator[RedisWorld]:
        """Its clock is this process's for the length of a block."""
        before, self._skew.seconds = self._skew.seconds, self._seconds
        try:
            yield self.world
        finally:
            self._skew.seconds = before


@pytest_asyncio.fixture
async def machines(real_backend: Backend, skew: Skew) -> AsyncIterator[list[Machine]]:
    """One right, one ten minutes ahead, one ten minutes behind."""
    namespace = real_backend.namespace()
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for seconds in (0.0, SKEW, -SKEW):
            world = real_backend.world(
                namespace=namespace, hook_retention_limit=timedelta(hours=1)
            )
            machine = Machine(world, skew, seconds)
            with machine.at_work():
                await stack.enter_async_context(world)
            found.append(machine)
        yield found


def server_now(backend: Backend) -> datetime:
    with contextlib.closing(backend.client()) as client:
        seconds, micro = client.time()
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=micro)


def id_time(run_id: str) -> datetime:
    return datetime.fromtimestamp(run_id_time(run_id) / 1000, UTC)


# Contract: 3.times
async def test_times_come_from_the_server(machines: list[Machine], real_backend: Backend) -> None:
    for machine in machines:
        begin = server_now(real_backend)
        with machine.at_work() as world:
            run_id = await new_run(world)
            await write(
                world,
                run_id,
                step_created(),
                step_started(),
                step_completed(),
                hook_created(),
                wait_created(),
                wait_completed(),
            )
            wait = await world.waits.get(run_id, "wait_1")
            hook = await world.hooks.get("hook_1")
            await write(world, run_id, run_ended("completed"))
            run = await world.runs.get(run_id)
            step = await world.steps.get(run_id, "step_1")
            log = (await world.events.list(run_id)).data
        end = server_now(real_backend)
        for moment in (
            *(run.created_at, run.started_at, run.completed_at, run.updated_at),
            *(step.created_at, step.started_at, step.completed_at, step.updated_at),
            *(wait.created_at, wait.completed_at, hook.created_at),
            *(each.created_at for each in log),
        ):
            assert moment is not None
            assert begin - timedelta(milliseconds=1) <= moment <= end


# Contract: 2.run ids
async def test_run_ids_tell_the_servers_time(machines: list[Machine]) -> None:
    """Runs are listed by their ids: those of a machine that is ahead must not come first."""
    ids = []
    for machine in (machines[1], machines[0], machines[2], machines[1]):
        with machine.at_work() as world:
            run = await world.runs.get(await new_run(world))
        assert abs(id_time(run.run_id) - run.created_at) < NEAR
        ids.append(run.run_id)


# Contract: 2.run ids
async def test_run_ids_tell_the_servers_time_when_the_clock_jumps(
    machines: list[Machine], skew: Skew
) -> None:
    """A clock that is set while the World is open."""
    world = machines[0].world
    for seconds in (SKEW, -SKEW):
        skew.seconds = seconds
        run = await world.runs.get(await new_run(world))
        assert abs(id_time(run.run_id) - run.created_at) < NEAR


# Contract: 2.run ids
async def test_the_age_of_a_clients_run_id_is_judged_by_the_server(
    machines: list[Machine], real_backend: Backend
) -> None:
    now = server_now(real_backend)
    for machine in machines:
        with machine.at_work() as world:
            for age in (timedelta(hours=23, minutes=58), -timedelta(minutes=4)):
                made = await world.events.create(run_id_at(now - age), run_created())
                assert made.run is not None
            for age in (timedelta(hours=24, minutes=2), -timedelta(minutes=6)):
                with pytest.raises(InvalidEventError):
                    await world.events.create(run_id_at(now - age), run_created())


# Contract: 5.step_started
async def test_retry_after_is_judged_by_the_server(
    machines: list[Machine], real_backend: Backend
) -> None:
    run_id = await new_run(machines[0].world)
    for machine in machines:
        now = server_now(real_backend)
        with machine.at_work() as world:
            await write(world, run_id, step_created(f"s{machine._seconds}"))
            step_id = f"s{machine._seconds}"
            late = step_retrying(step_id, retryAfter=now + timedelta(minutes=5))
            await write(world, run_id, step_started(step_id), late)
            with pytest.raises(TooEarlyError) as caught:
                await world.events.create(run_id, step_started(step_id))
            assert 200 < caught.value.retry_after <= 300
            # Due on the server, though not yet on a machine that is behind.
            await write(world, run_id, step_retrying(step_id, retryAfter=now))
            await write(world, run_id, step_started(step_id))


# Contract: 7.delay, 7.lease
async def test_delays_and_leases_are_judged_by_the_server(
    machines: list[Machine], real_backend: Backend
) -> None:
    for sender in machines:
        with sender.at_work() as world:
            now = server_now(real_backend)
            await world.queue.send(TOPIC + "w", {"n": 1}, delay=300)
            await world.queue.send(TOPIC + "w", {"n": 2})
        for claimer in machines:
            with claimer.at_work() as world:
                messages = await world.queue.claim(TOPIC, lease=300)
                for message in messages:
                    assert message.payload == {"n": 2}
                    assert abs(message.due_at - now) < NEAR
                if claimer is machines[0]:
                    (held,) = messages
                else:
                    # Neither was the delayed one early, nor is the lease over.
                    assert not messages
                    assert (await world.sweep())["expired_leases"] == 0
                stats = await world.queue.stats(TOPIC)
                assert stats.delayed == 1 + machines.index(sender)
                assert stats.oldest_due_age < NEAR.total_seconds()
        assert await machines[1].world.queue.ack(held)


# Contract: 5.hook retention
async def test_the_limit_of_a_hooks_retention_is_judged_by_the_server(
    machines: list[Machine], real_backend: Backend, skew: Skew
) -> None:
    for machine in machines:
        with machine.at_work() as world:
            run_id = await new_run(world)
            now = server_now(real_backend)
            near, far = now + timedelta(minutes=55), now + timedelta(minutes=65)
            fits = await attempt(world, run_id, hook_created("h1", "t1", tokenRetentionUntil=near))
            assert not isinstance(fits, Exception)
            with pytest.raises(InvalidEventError):
                await write(world, run_id, hook_created("h2", "t2", tokenRetentionUntil=far))
            await write(world, run_id, run_ended("completed"))


# Contract: 3.times
async def test_machines_that_disagree_about_the_time_share_a_run(machines: list[Machine]) -> None:
    """One run, each event from another machine: times never go back."""
    with machines[1].at_work() as world:
        run_id = await new_run(world)
    steps = [step_created(), step_started(), step_retrying(), step_started(), step_completed()]
    for number, wire in enumerate(steps):
        with machines[number % 3].at_work() as world:
            await write(world, run_id, wire)
    with machines[2].at_work() as world:
        again = await attempt(world, run_id, step_started())
        assert isinstance(again, EntityConflictError)
        await write(world, run_id, event("run_completed", output=b""))
    times = [each.created_at for each in (await world.events.list(run_id)).data]
    assert all(moment is not None for moment in times)
    assert times == sorted(moment for moment in times if moment is not None)
