"""Waiting for the end of a run (contract, section 6)."""

# Contract: 6.wait_for_terminal

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from redis_world import RedisWorld, hints, runs
from redis_world.connection import Connection
from redis_world.errors import RunNotFoundError, WorldUnavailableError
from redis_world.hints import HintHub, Subscription
from redis_world.lua import ScriptLibrary, script_root
from redis_world.models import Run
from support.backends import Backend, channels
from support.events import event, new_run, new_run_id, run_ended, step_created, write
from support.metering import size_of
from support.until import until

LONG = 100.0
"""A timeout that a test never reaches."""


@pytest.fixture
def only_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters look when they are told to, and not by themselves."""
    monkeypatch.setattr(runs, "_LOOK_SECONDS", LONG)
    monkeypatch.setattr(hints, "_SELDOM_SECONDS", LONG)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Scripts that Worlds call from now on."""
    names: list[str] = []
    original = Connection.call

    async def call(
        self: Connection, name: str, keys: Mapping[str, str | bytes], args: Mapping[str, Any]
    ) -> list[Any]:
        names.append(name)
        return await original(self, name, keys, args)

    monkeypatch.setattr(Connection, "call", call)
    return names


async def until_subscribed(world: RedisWorld, waiters: int = 1) -> None:
    """Until so many wait and the server knows of it."""
    hub = world.connection.hub
    await until(
        lambda: (
            sum(map(len, hub._waiters.values())) >= waiters
            and all(confirmed.is_set() for confirmed in hub._confirmed.values())
        )
    )


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
async def test_a_waiter_is_told_of_the_end(
    status: str, world: RedisWorld, only_hints: None
) -> None:
    run_id = await new_run(world)
    waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
    await until_subscribed(world)
    await write(world, run_id, step_created())
    assert not waiting.done()
    await write(world, run_id, run_ended(status))
    run = await waiting
    assert run.status == status
    assert run.to_wire() == (await world.runs.get(run_id)).to_wire()


async def test_a_run_that_ended_already(world: RedisWorld, reads: list[str]) -> None:
    run_id = await new_run(world, "failed")
    reads.clear()
    run = await world.runs.wait_for_terminal(run_id, timeout=LONG)
    assert run.status == "failed"
    assert run.error == b"err"
    bare = await world.runs.wait_for_terminal(run_id, timeout=0, resolve_data="none")
    assert "error" not in bare.to_wire()
    assert reads == ["runs/get"] * 2


async def test_at_the_timeout_it_is_the_run_as_it_is(world: RedisWorld, backend: Backend) -> None:
    run_id = await new_run(world, "pending")
    for timeout in (0, 0.01):
        run = await world.runs.wait_for_terminal(run_id, timeout=timeout)
        assert run.status == "pending"
    # A failover takes longer than the wait.
    with backend.calm():
        waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=1.0))
        await until_subscribed(world)
        await write(world, run_id, event("run_started"))
        assert (await waiting).status == "running"


async def test_a_missing_run_raises_at_once(world: RedisWorld, only_hints: None) -> None:
    with pytest.raises(RunNotFoundError):
        await world.runs.wait_for_terminal(new_run_id(), timeout=LONG)


async def test_a_run_that_ends_while_the_waiter_subscribes(
    world: RedisWorld, only_hints: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the subscription no hint is heard."""
    run_id = await new_run(world)
    original = HintHub.subscribe

    @contextlib.asynccontextmanager
    async def subscribe(
        self: HintHub, channel: str, **options: bool
    ) -> AsyncGenerator[Subscription, None]:
        await write(world, run_id, run_ended("completed"))
        async with original(self, channel, **options) as subscription:
            yield subscription

    monkeypatch.setattr(HintHub, "subscribe", subscribe)
    assert (await world.runs.wait_for_terminal(run_id, timeout=LONG)).status == "completed"


@pytest.mark.slow
async def test_a_lost_hint_costs_no_more_than_time(backend: Backend) -> None:
    text = (script_root() / "lib" / "finish_run.lua").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "'PUBLISH'" not in line]
    assert len(lines) < len(text.splitlines())
    silent = ScriptLibrary(script_root(), {"lib/finish_run": "\n".join(lines)})
    async with backend.world(library=silent) as world:
        run_id = await new_run(world)
        waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
        await until_subscribed(world)
        await write(world, run_id, run_ended("completed"))
        assert (await waiting).status == "completed"


async def test_a_waiter_looks_rarely(world: RedisWorld, reads: list[str]) -> None:
    """Once a second at most, besides the looks around its subscription and at its end."""
    run_id = await new_run(world)
    reads.clear()
    await world.runs.wait_for_terminal(run_id, timeout=1.5)
    assert reads.count("runs/get") <= 6


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes Worlds are answered from now on, by command."""
    sizes: list[int] = []
    call, execute = Connection.call, Connection.execute

    async def metered_call(
        self: Connection, name: str, keys: Mapping[str, str | bytes], args: Mapping[str, Any]
    ) -> list[Any]:
        reply = await call(self, name, keys, args)
        sizes.append(size_of(reply))
        return reply

    async def metered_execute(self: Connection, *commands: Any) -> list[Any]:
        replies = await execute(self, *commands)
        sizes.extend(map(size_of, replies))
        return replies

    monkeypatch.setattr(Connection, "call", metered_call)
    monkeypatch.setattr(Connection, "execute", metered_execute)
    return sizes


async def test_payloads_are_read_once_at_the_end(world: RedisWorld, answers: list[int]) -> None:
    """What a waiter looks at meanwhile is the status."""
    large = bytes(100_000)
    run_id = await new_run(world, input=large)
    answers.clear()
    waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
    await until_subscribed(world)
    for number in range(5):
        world.connection.hub._hear(b"message", _channel_of(world, run_id))
        await write(world, run_id, step_created(f"s{number}"))
    await world.events.create(run_id, run_ended("completed"), resolve_data="none")
    run = await waiting
    assert (run.input, run.output) == (large, b"out")
    # All that a World reads; what it writes is answered apart.
    assert len(answers) > 5
    assert sum(answers) < 1.1 * len(large)


async def test_a_waiter_that_is_told_looks_seldom(
    world: RedisWorld, backend: Backend, answers: list[int]
) -> None:
    """Its subscription stands: only a hint that was lost is looked for."""
    run_id = await new_run(world)
    # A failover would end the subscription.
    with backend.calm():
        waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=2.5))
        await until_subscribed(world)
        await asyncio.sleep(0.2)
        answers.clear()
        assert (await waiting).status == "running"
    # The last look, at the time-out.
    assert len(answers) == 1


async def test_a_waiter_that_is_not_told_looks_every_second(
    world: RedisWorld, answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Subscription, "is_confirmed", False)
    run_id = await new_run(world)
    waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
    await until_subscribed(world)
    answers.clear()
    await until(lambda: len(answers) >= 2)
    waiting.cancel()


def _channel_of(world: RedisWorld, run_id: str) -> bytes:
    return world.connection.partitions.of(run_id).of_run(run_id).done.encode()


async def test_many_waiters_of_many_runs(world: RedisWorld, only_hints: None) -> None:
    ids = [await new_run(world) for _ in range(3)]
    waiting = {
        run_id: [
            asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
            for _ in range(20)
        ]
        for run_id in ids
    }
    await until_subscribed(world, 60)
    # One that gives up takes nothing away from the others.
    waiting[ids[0]].pop().cancel()
    for number, run_id in enumerate(ids):
        await write(world, run_id, run_ended("completed"))
        for run in await asyncio.gather(*waiting[run_id]):
            assert (run.run_id, run.status) == (run_id, "completed")
        assert not any(task.done() for later in ids[number + 1 :] for task in waiting[later])


def _channels_of(run_id: str, backend: Backend) -> int:
    with contextlib.closing(backend.client()) as client:
        return channels(client, f"*{run_id}*")


async def test_a_waiter_leaves_no_subscription(backend: Backend) -> None:
    async with backend.world() as world:
        run_id = await new_run(world)
        given_up = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
        await until_subscribed(world)
        assert _channels_of(run_id, backend) == 1
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await world.runs.wait_for_terminal(run_id, timeout=0.01)
        await until(lambda: not _channels_of(run_id, backend))


async def test_the_end_comes_from_another_thread(backend: Backend, only_hints: None) -> None:
    namespace = backend.namespace()
    async with backend.world(namespace=namespace) as world:
        run_id = await new_run(world)
        waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
        await until_subscribed(world)

        async def finish() -> None:
            async with backend.world(namespace=namespace) as other:
                await write(other, run_id, run_ended("completed"))

        thread = threading.Thread(target=lambda: asyncio.run(finish()))
        thread.start()
        assert (await waiting).status == "completed"
        thread.join()


_FINISH = """
import asyncio, sys
from redis_world import RedisWorld

async def main(url, namespace, run_id):
    async with RedisWorld(url, namespace=namespace) as world:
        event = {"eventType": "run_completed", "eventData": {"output": b"from afar"}}
        await world.events.create(run_id, event)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_the_end_comes_from_another_process(real_backend: Backend, only_hints: None) -> None:
    namespace = real_backend.namespace()
    async with real_backend.world(namespace=namespace) as world:
        run_id = await new_run(world)
        waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
        await until_subscribed(world)
        command = [sys.executable, "-c", _FINISH, real_backend.url, namespace, run_id]
        await asyncio.to_thread(subprocess.run, command, check=True)
        assert (await waiting).output == b"from afar"


async def test_a_broken_subscription_is_mended(real_backend: Backend) -> None:
    async with real_backend.world() as world:
        run_id = await new_run(world)
        waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
        await until_subscribed(world)
        with contextlib.closing(real_backend.client()) as client:
            client.client_kill_filter(_type="pubsub")
        await write(world, run_id, run_ended("completed"))
        assert (await waiting).status == "completed"


async def test_a_server_is_lost_between_the_end_and_its_reading(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is over: what was read of it before is not its end."""
    async with backend.world() as world:
        run_id = await new_run(world)
        waiting = asyncio.create_task(world.runs.wait_for_terminal(run_id, timeout=LONG))
        await until_subscribed(world)
        read, failures = world.runs.get, 2

        async def lost(run_id: str, **options: Any) -> Run:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise WorldUnavailableError("away")
            return await read(run_id, **options)

        monkeypatch.setattr(world.runs, "get", lost)
        await write(world, run_id, run_ended("completed"))
        assert (await waiting).status == "completed"
        assert failures < 0
