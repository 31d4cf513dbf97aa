"""Servers in trouble while all kinds of callers are at work: nothing is lost, nothing done twice.

`make chaos` runs the long form: more callers, more trouble, other seeds, on every server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, get_args
from urllib.parse import urlsplit

import pytest
import redis.asyncio

from redis_world import RedisWorld
from redis_world.errors import (
    NotDurableError,
    RunNotFoundError,
    StepNotFoundError,
    TooEarlyError,
    WorldUnavailableError,
)
from redis_world.queue import Enqueue, Message
from redis_world.testing import (
    ManualClock,
    Server,
    check_invariants,
    cutting_proxy,
)
from redis_world.testing.servers import ServerKind
from redis_world.worker import Worker
from support import events as e
from support.ports import reserved_port
from support.private_servers import private_server
from support.queue_tools import TOPIC, content, outcome, send
from support.trouble import Again, Load, all_chunks
from support.until import until

T = TypeVar("T")

IS_LONG: Final = os.environ.get("REDIS_WORLD_CHAOS") == "long"
KINDS: Final = get_args(ServerKind)
TIMES: Final = 10 if IS_LONG else 1
"""How many times as much trouble there is as in the short form."""

pytestmark = pytest.mark.parametrize("seed", range(3 if IS_LONG else 1))

every_kind = pytest.mark.parametrize("kind", KINDS)
one_kind = pytest.mark.parametrize("kind", KINDS if IS_LONG else KINDS[:1])
"""For what depends on this project alone."""


@contextlib.asynccontextmanager
async def admin(url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of whoever makes the trouble."""
    client = redis.asyncio.Redis.from_url(url, socket_timeout=30)
    try:
        yield client
    finally:
        await client.aclose()


DEBUGS: Final = ("--enable-debug-command", "yes")


async def debug(client: redis.asyncio.Redis, *command: Any) -> Any:
    """Let a server with `DEBUGS` do what only tests need; its digest tells all its data."""
    return await client.execute_command("DEBUG", *command)  # type: ignore[no-untyped-call]


@contextlib.asynccontextmanager
async def load_on(
    url: str,
    seed: int,
    *,
    tolerated: Any = (),
    streams: bool = True,
    own_ids: bool = True,
    loses: bool = False,
    **options: Any,
) -> AsyncIterator[tuple[Load, RedisWorld]]:
    """Callers on three Worlds, and one of these to look."""
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    size = 8 if IS_LONG else 3
    async with contextlib.AsyncExitStack() as stack:
        worlds = [RedisWorld(url, **options) for _ in range(3)]
        for world in worlds:
            stack.push_async_callback(world.aclose)
            # A short `socket_timeout` may be too short for loading all scripts.
            await eventually(partial(can_open, world))
        load = Load(
            worlds,
            seed,
            tolerated=tolerated,
            size=size,
            own_ids=own_ids,
            streams=streams,
            loses=loses,
        )
        yield load, worlds[0]


async def can_open(world: RedisWorld) -> bool:
    try:
        await world.open()
    except WorldUnavailableError:
        return False
    return True


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what a server tells."""
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - no server tells it by itself
            await asyncio.sleep(0.005)


def count_resends(caplog: pytest.LogCaptureFixture) -> int:
    return sum(getattr(record, "event", "") == "redis.resent" for record in caplog.records)


async def count_errors(client: redis.asyncio.Redis, code: str) -> int:
    """How many commands the server has refused with this code."""
    found = (await client.info("errorstats")).get(f"errorstat_{code}", {"count": 0})
    return int(found["count"])


@pytest.fixture(autouse=True)
def _log_resends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "redis_world.connection")


# -- what a server forgets, and whom it throws out -----------------------------------------


@every_kind
async def test_scripts_are_flushed_all_the_time(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    with private_server(kind) as server:
        async with admin(server.url) as client, load_on(server.url, seed) as (load, world):
            async with load.at_work():
                for _ in range(15 * TIMES):
                    await load.progress(chance.randint(1, 30))
                    before = await count_errors(client, "NOSCRIPT")
                    await client.script_flush()

                    async def is_noticed(before: int = before) -> bool:
                        return await count_errors(client, "NOSCRIPT") > before

                    await eventually(is_noticed)
            await load.hold_against(world)


# Contract: 4.no false success
@one_kind
async def test_all_connections_are_killed_again_and_again(
    kind: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    killed = 0
    with private_server(kind) as server:
        async with admin(server.url) as client, load_on(server.url, seed) as (load, world):
            async with load.at_work():
                for _ in range(20 * TIMES):
                    for _ in range(5):
                        await asyncio.sleep(chance.uniform(0, 0.005))
                        for type_ in ("normal", "pubsub"):
                            killed += await client.client_kill_filter(_type=type_, skipme=True)
                    await load.progress(1)

                async def has_subscriber() -> bool:
                    return bool(await client.client_list(_type="pubsub"))

                await eventually(has_subscriber)
            assert killed > 50 * TIMES
            assert count_resends(caplog) > 20
            await load.hold_against(world)


# -- restarts ------------------------------------------------------------------------------


@pytest.fixture
def port() -> Iterator[int]:
    """A port for servers that come one after another."""
    with reserved_port() as port:
        yield port


class Restarts:
    """Servers of one kind in one place, one after another."""

    def __init__(self, kind: str, port: int, *args: str) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._kind = kind
        self._args = ("--port", str(port), *args)
        self._present = contextlib.ExitStack()
        self._pid = 0

    def start(self) -> None:
        self._pid = self._present.enter_context(private_server(self._kind, *self._args)).pid

    def kill(self) -> None:
        """End the server as a power cut does."""
        os.kill(self._pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self._present.close()

    async def restart(self) -> None:
        await asyncio.to_thread(self.kill)
        await asyncio.to_thread(self.start)


def keeping(directory: Path) -> tuple[str, ...]:
    """Arguments for a server that has in a directory whatever it has answered."""
    return ("--dir", str(directory), "--appendonly", "yes", "--appendfsync", "always")


# Contract: 4.no false success
@every_kind
async def test_a_server_that_keeps_its_data_is_killed(
    kind: str, seed: int, port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls made meanwhile are answered afterwards; all that was answered is there."""
    chance = random.Random(seed)
    with contextlib.closing(Restarts(kind, port, *keeping(tmp_path))) as server:
        server.start()
        async with load_on(server.url, seed) as (load, world):
            async with load.at_work():
                for _ in range(3 * TIMES):
                    await load.progress(chance.randint(20, 120))
                    await server.restart()
            assert count_resends(caplog) > 3 * TIMES
            await load.hold_against(world)


@one_kind
async def test_a_server_is_away_for_longer_than_callers_wait(
    kind: str, seed: int, port: int, tmp_path: Path
) -> None:
    """Calls fail then; workers, readers and waiters go on when it is back."""
    chance = random.Random(seed)
    with contextlib.closing(Restarts(kind, port, *keeping(tmp_path))) as server:
        server.start()
        async with load_on(
            server.url, seed, tolerated=(WorldUnavailableError,), retry_timeout=0.1
        ) as (load, world):
            async with load.at_work():
                for _ in range(2 * TIMES):
                    await load.progress(chance.randint(20, 120))
                    await asyncio.to_thread(server.kill)
                    await load.trouble(10)
                    await asyncio.to_thread(server.start)
                runs = load.runs
                await until(lambda: load.runs > runs + 5)
            await load.hold_against(world)


@every_kind
async def test_a_server_comes_back_with_nothing(
    kind: str, seed: int, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(Restarts(kind, port)) as server:
        server.start()
        gone = (RunNotFoundError, StepNotFoundError)
        async with load_on(server.url, seed, tolerated=gone, streams=False) as (load, world):
            old = await e.new_run(world)
            async with load.at_work():
                await load.progress(60)
                await server.restart()
                load.ledger.forget()
                runs = load.runs
                await load.progress(60)
                await until(lambda: load.runs > runs)
            assert "has lost namespace 'world'" in caplog.text
            assert any(isinstance(each, RunNotFoundError) for each in load.failures)
            for call in (world.runs.get(old), world.events.create(old, e.step_created())):
                with pytest.raises(RunNotFoundError):
                    await call
            await load.hold_against(world)


# -- failover ------------------------------------------------------------------------------

REPLICATES: Final = ("--repl-diskless-sync-delay", "0")


class Node:
    """A server with its administrator."""

    def __init__(self, server: Server, client: redis.asyncio.Redis) -> None:
        self.url = server.url
        self.pid = server.pid
        self.client = client

    async def replication(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.client.info("replication")
        return found

    async def follow(self, url: str) -> None:
        """Become a replica, and wait until it is in sync."""
        parts = urlsplit(url)
        await self.client.replicaof(parts.hostname or "", parts.port or 0)

        async def follows() -> bool:
            return bool((await self.replication())["master_link_status"] == "up")

        await eventually(follows)

    async def is_followed(self) -> bool:
        """Whether it counts a replica as one that may have its writes."""
        return bool(await self.client.wait(1, 100))

    async def last_offset(self) -> int:
        """How much it has of a primary that is gone."""

        async def is_alone() -> bool:
            return bool((await self.replication())["master_link_status"] == "down")

        await eventually(is_alone)
        return int((await self.replication())["slave_repl_offset"])

    async def lead(self) -> None:
        await self.client.replicaof("NO", "ONE")

    async def take_over(self, primary: Node) -> None:
        """Change places with the primary, which has no write that its replica has not."""
        await primary.client.client_pause(60_000, all=False)

        async def has_all() -> bool:
            own, other = await self.replication(), await primary.replication()
            return bool(own["slave_repl_offset"] == other["master_repl_offset"])

        await eventually(has_all)
        await self.lead()
        await primary.follow(self.url)
        await primary.client.client_unpause()

    async def runs_more(self, calls: int) -> None:
        """Wait until it has run so many scripts more."""
        goal = await scripts_run(self.client) + calls

        async def has_run() -> bool:
            return await scripts_run(self.client) >= goal

        await eventually(has_run)

    async def count(self, code: str) -> int:
        """How often it has said this error."""
        errors = await self.client.info("errorstats")
        return int(errors.get(f"errorstat_{code}", {"count": 0})["count"])


async def scripts_run(client: redis.asyncio.Redis) -> int:
    return int((await client.info("commandstats"))["cmdstat_evalsha"]["calls"])


class Route:
    """Where clients are led by a proxy that has a loop of its own.

    In theirs it would be held up by a worker that stops: that waits for its thread, whose last
    call goes by the proxy.
    """

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._context = cutting_proxy(url)
        self._proxy = self._do(self._context.__aenter__())
        self.url = self._proxy.url

    def _do(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(30)

    def _call(self, change: Callable[..., None], *args: str) -> None:
        async def call() -> None:
            change(*args)

        self._do(call())

    def lead_to(self, url: str) -> None:
        """Break all connections, and lead new ones there."""
        self._call(self._proxy.retarget, url)

    def interrupt(self) -> None:
        """Break all connections; new ones work."""
        self._call(self._proxy.break_connections)

    def silence(self) -> None:
        """Let nothing pass any more; connections stay."""
        self._call(self._proxy.silence)

    def cut(self) -> None:
        """Break all connections, and let none come."""
        self._call(self._proxy.cut)

    def close(self) -> None:
        try:
            self._do(self._context.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@contextlib.asynccontextmanager
async def nodes(kind: str, count: int) -> AsyncIterator[list[Node]]:
    """Servers that know nothing of one another yet."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            server = stack.enter_context(private_server(kind, *REPLICATES))
            found.append(Node(server, await stack.enter_async_context(admin(server.url))))
        yield found


@every_kind
async def test_a_failover(kind: str, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """There and back; clients meet a read-only server before they are led to the new one."""
    chance = random.Random(seed)
    async with nodes(kind, 2) as found:
        primary, replica = found
        await replica.follow(primary.url)
        with contextlib.closing(Route(primary.url)) as route:
            async with load_on(route.url, seed) as (load, _), load.at_work():
                for _ in range(2 * TIMES):
                    await load.progress(chance.randint(20, 120))
                    refused = await primary.count("READONLY")
                    await replica.take_over(primary)

                    async def is_felt(node: Node = primary, before: int = refused) -> bool:
                        return await node.count("READONLY") > before + 10

                    await eventually(is_felt)
                    route.lead_to(replica.url)
                    primary, replica = replica, primary
        assert count_resends(caplog) > 2 * TIMES
        async with RedisWorld(primary.url) as looker:
            await load.hold_against(looker)


# Contract: 4.no false success
@every_kind
async def test_a_primary_is_killed(kind: str, seed: int) -> None:
    """With durability `replica` nothing that was answered is lost with it.

    Its last writes reach no replica: nobody may have been told that they are stored.
    """
    chance = random.Random(seed)
    async with nodes(kind, 3) as (primary, *replicas):
        with (
            contextlib.closing(Route(primary.url)) as route,
            contextlib.closing(Route(primary.url)) as link,
        ):
            for node in replicas:
                await node.follow(link.url)
            async with (
                load_on(route.url, seed, loses=True, durability="replica") as (load, _),
                load.at_work(),
            ):
                await load.progress(chance.randint(60, 200))
                link.silence()
                for _ in range(3):
                    await primary.runs_more(chance.randint(3, 20))
                    # What is sent again finds itself done, and must wait no less.
                    route.interrupt()
                await primary.runs_more(3)
                os.kill(primary.pid, signal.SIGKILL)
                link.cut()
                offsets = [await node.last_offset() for node in replicas]
                if offsets[0] < offsets[1]:
                    replicas.reverse()
                await replicas[0].lead()
                await replicas[1].follow(replicas[0].url)
                route.lead_to(replicas[0].url)
                await load.progress(60)
        async with RedisWorld(replicas[0].url) as looker:
            await load.hold_against(looker)


@every_kind
async def test_what_another_caller_has_written_is_waited_for(kind: str, seed: int) -> None:
    """A resume that finds itself done by somebody else is answered when a replica has it."""
    async with nodes(kind, 2) as (primary, replica):
        with contextlib.closing(Route(primary.url)) as link:
            await replica.follow(link.url)
            async with (
                RedisWorld(primary.url) as hasty,
                RedisWorld(
                    primary.url, durability="replica", durability_timeout=0.2, retry_timeout=0
                ) as careful,
            ):
                run_id = await e.new_run(hasty)
                await e.write(hasty, run_id, e.hook_created())
                await eventually(primary.is_followed)
                link.silence()
                for world in (hasty, careful):
                    resume = world.events.create(run_id, e.hook_received(), resume_id="r")
                    result = await outcome(resume)
                assert isinstance(result, NotDurableError)


# -- slow servers --------------------------------------------------------------------------


async def run_endless_script(client: redis.asyncio.Redis, seconds: float) -> None:
    """What comes meanwhile waits at first, and is refused as BUSY once the server has noticed."""
    running = asyncio.create_task(outcome(client.eval("while true do end", 0)))
    await asyncio.sleep(seconds)
    while not running.done():
        # It may not have begun, on a machine that is busy.
        await outcome(client.script_kill())
        await asyncio.wait([running], timeout=0.01)


@one_kind
async def test_a_server_that_stops_answering(
    kind: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls are sent again while their originals still wait in the server, or were refused."""
    chance = random.Random(seed)
    with private_server(kind, *DEBUGS, "--busy-reply-threshold", "100") as server:
        async with (
            admin(server.url) as client,
            load_on(server.url, seed, socket_timeout=0.2) as (load, world),
        ):
            async with load.at_work():
                for turn in range(6 * TIMES):
                    await load.progress(chance.randint(10, 40))
                    before, pauses_all = count_resends(caplog), chance.random() < 0.5
                    async with asyncio.timeout(30):
                        # Again, if need be: a loop that is late itself gives the server its time.
                        while count_resends(caplog) == before:
                            if turn % 3 == 0:
                                await client.client_pause(500, all=pauses_all)
                                await asyncio.sleep(0.5)
                            elif turn % 3 == 1:
                                await debug(client, "SLEEP", 0.5)
                            else:
                                await run_endless_script(client, 0.5)
            assert await count_errors(client, "BUSY") > 0
            await load.hold_against(world)


# -- full servers --------------------------------------------------------------------------

NAME: Final = f"{TOPIC}w"


@dataclass(frozen=True)
class Work:
    """A call on a run of this status, which has these events and a stream `out`."""

    call: Callable[[RedisWorld, str], Awaitable[Any]]
    before: tuple[e.Wire, ...] = ()
    status: str = "running"

    async def prepare(self, world: RedisWorld) -> str:
        run_id = await e.new_run(world, self.status)
        for wire in self.before:
            await world.events.create(run_id, wire)
        await world.streams.write(run_id, "out", b"1")
        return run_id


def writes(*wires: e.Wire, status: str = "running", **params: Any) -> Work:
    """Creates the last of these events."""
    *before, last = wires
    return Work(
        lambda world, run_id: world.events.create(run_id, last, **params), (*before,), status
    )


def sends(**payload: Any) -> Work:
    """Sends a message of the run."""
    return Work(lambda world, run_id: world.queue.send(NAME, {"runId": run_id, **payload}))


LATER: Final = datetime.now(UTC) + timedelta(hours=1)
MESSAGE: Final = Enqueue(NAME, {"n": 1})

GROWING: Final[dict[str, Work]] = {
    "run_created": Work(lambda world, _: world.events.create(None, e.run_created())),
    "run_started": writes(e.event("run_started"), status="pending"),
    "run_started, resilient": Work(
        lambda world, _: world.events.create(e.new_run_id(), e.resilient_start())
    ),
    "run_completed": writes(e.hook_created(), e.wait_created(), e.run_ended("completed")),
    "run_failed": writes(e.lazy_start(), e.run_ended("failed")),
    "run_cancelled": writes(e.run_ended("cancelled")),
    "run_cancelled again": writes(e.run_ended("cancelled"), status="cancelled"),
    "attr_set": writes(e.attr_set({"a": "1"}), e.attr_set({"a": None, "b": "2"}, "attr_1")),
    "attr_set of a step": writes(e.attr_set({"a": "1"}, step="step_1")),
    "step_created": writes(e.step_created()),
    "step_created, message": writes(e.step_created(), enqueue=MESSAGE),
    "step_started, lazy": writes(e.lazy_start()),
    "step_completed": writes(e.lazy_start(), e.step_completed()),
    "step_completed, message": writes(e.lazy_start(), e.step_completed(), enqueue=MESSAGE),
    "step_failed": writes(e.lazy_start(), e.step_failed()),
    "step_retrying, later": writes(e.lazy_start(), e.step_retrying(retryAfter=LATER)),
    "hook_created": writes(e.hook_created(metadata=b"m")),
    "hook_conflict": writes(e.hook_created(), e.hook_created("hook_2")),
    "hook_received": writes(e.hook_created(), e.hook_received(), enqueue=MESSAGE),
    "hook_received, resume": writes(e.hook_created(), e.hook_received(), resume_id="r"),
    "hook_disposed": writes(e.hook_created(), e.hook_disposed()),
    "wait_created": writes(e.wait_created()),
    "wait_completed": writes(e.wait_created(), e.wait_completed()),
    "send a wake": sends(),
    "send content": sends(n=1),
    "send a step": sends(stepId="step_1", stepName="s"),
    "write": Work(lambda world, run_id: world.streams.write(run_id, "out", b"2")),
    "write many": Work(lambda world, run_id: world.streams.write_many(run_id, "out", [b"2"] * 9)),
    "first write": Work(lambda world, run_id: world.streams.write(run_id, "new", b"2")),
    "close": Work(lambda world, run_id: world.streams.close(run_id, "out")),
}
"""What a full server refuses."""

EITHER: Final[dict[str, Work]] = {
    "step_started": writes(e.step_created(), e.step_started()),
    "step_retrying": writes(e.lazy_start(), e.step_retrying()),
}
"""What it may refuse: these free something first, after which it lets a script grow."""


@contextlib.asynccontextmanager
async def full(client: redis.asyncio.Redis) -> AsyncIterator[None]:
    """A server that has no room for the length of a block."""
    await client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        await client.config_set("maxmemory", 0)


# Contract: 4.unavailable
@every_kind
async def test_a_full_server_refuses_what_grows(kind: str, seed: int) -> None:
    """At once, and as a whole; there is room again, and it goes on."""
    names = [*GROWING, *EITHER]
    random.Random(seed).shuffle(names)
    with private_server(kind, *DEBUGS) as server:
        async with admin(server.url) as client, RedisWorld(server.url) as world:
            for name in names:
                work = {**GROWING, **EITHER}[name]
                run_id = await work.prepare(world)
                before = await debug(client, "DIGEST")
                async with full(client):
                    calls = await scripts_run(client)
                    result = await outcome(work.call(world, run_id))
                    assert await scripts_run(client) == calls + 1, "it was tried again"
                    assert (await world.runs.get(run_id)).status == work_status(work)
                    assert await all_chunks(world, run_id, "out") == [b"1"]
                if isinstance(result, WorldUnavailableError):
                    assert "memory" in str(result)
                    assert await debug(client, "DIGEST") == before, name
                    await work.call(world, run_id)
                else:
                    assert name in EITHER, (name, result)
                # Its token is the next one's.
                await outcome(world.events.create(run_id, e.run_ended("cancelled")))
            await check_invariants(world)


def work_status(work: Work) -> str:
    ends = [wire["eventType"] for wire in work.before if wire["eventType"].startswith("run_")]
    return ends[-1].removeprefix("run_") if ends else work.status


# Contract: 4.unavailable
@every_kind
async def test_a_full_server_can_be_emptied(kind: str, seed: int) -> None:
    """Everything that is queued is handled; a World that comes new finds its scripts lost."""
    chance = random.Random(seed)
    seen: Counter[object] = Counter()

    async def handle(payload: dict[str, Any], /, **_: Any) -> Again | None:
        seen[payload["n"]] += 1
        return Again(0.01) if payload["n"] == 1 and seen[1] == 1 else None

    with private_server(kind) as server:
        async with admin(server.url) as client, RedisWorld(server.url, max_failures=2) as world:
            run_id = await e.new_run(world)
            await e.write(world, run_id, e.hook_created(), e.step_created())
            for _ in range(2):
                await world.queue.send(NAME, {"runId": run_id, "n": 0})
                for _ in range(2):
                    (message,) = await world.queue.claim(TOPIC)
                    await world.queue.retry(message, delay=0)
            for n in range(1, 30):
                of_step = {"stepId": f"step_{n}", "stepName": "s"} if chance.random() < 0.3 else {}
                key = f"key {n}" if chance.random() < 0.3 else None
                payload = (
                    {"runId": run_id, "n": n, **of_step} if chance.random() < 0.8 else {"n": n}
                )
                await world.queue.send(NAME, payload, idempotency_key=key)
            abandoned = await world.queue.claim(TOPIC, limit=3, lease=0.05)
            given, failed = await world.queue.claim(TOPIC, limit=2)
            await client.script_flush()
            async with full(client), RedisWorld(server.url, max_failures=2) as new:
                assert (await new.runs.get(run_id)).status == "running"
                assert await new.queue.extend(given)
                assert await new.queue.release(given)
                assert await new.queue.retry(failed, delay=0)
                letter = (await new.queue.dead_letters(TOPIC)).data[0]
                assert await new.queue.redrive(letter.message_id)
                assert await new.queue.purge_dead_letters(TOPIC) == 1
                worker = Worker(new, {TOPIC: handle}, sweep_interval=0.1)
                working = asyncio.create_task(worker.run())

                async def is_empty() -> bool:
                    stats = await world.queue.stats(TOPIC)
                    return not (stats.ready or stats.delayed or stats.leased or stats.held)

                await eventually(is_empty)
                worker.stop()
                await working
                assert {*seen} == {*range(30)}
                assert seen[1] > 1
                assert len(abandoned) == 3
                await check_invariants(world)
            await e.write(world, run_id, e.step_completed(), e.run_ended("completed"))
            await check_invariants(world)


# Contract: 4.unavailable
@one_kind
async def test_a_full_server_can_not_be_swept(kind: str, seed: int) -> None:
    """The debts stay, and are paid once there is room."""
    with private_server(kind) as server:
        async with (
            admin(server.url) as client,
            RedisWorld(server.url, sweep_interval=0.001) as world,
        ):
            run_id = await e.new_run(world)
            await e.write(world, run_id, e.step_created())
            other = await e.new_run(world, "pending")
            async with full(client):
                with pytest.raises(WorldUnavailableError, match="memory"):
                    await world.sweep()
                await check_invariants(world)
            await world.sweep()
            messages = await world.queue.claim(TOPIC)
            found = sorted((each.payload["runId"], each.is_step) for each in messages)
            assert found == [(run_id, False), (run_id, True), (other, False)]
            await check_invariants(world)


@every_kind
async def test_a_server_on_the_brink_of_being_full(kind: str, seed: int) -> None:
    """Calls are refused or done, whichever comes; never by halves."""
    chance = random.Random(seed)
    with private_server(kind) as server:
        async with (
            admin(server.url) as client,
            load_on(server.url, seed, tolerated=(WorldUnavailableError,)) as (load, world),
        ):
            for _ in range(2 * TIMES):
                async with load.at_work():
                    for _ in range(15):
                        used = (await client.info("memory"))["used_memory"]
                        await client.config_set("maxmemory", used + chance.randint(-9000, 90_000))
                        await load.progress(chance.randint(1, 20))
                await load.hold_against(world)
            await client.config_set("maxmemory", 0)
            runs = load.runs
            async with load.at_work():
                await until(lambda: load.runs > runs + 3)
            await load.hold_against(world)
            assert len(load.failures) > 10 * TIMES
            assert {"memory" in str(each) for each in load.failures} == {True}


# -- wrong clocks --------------------------------------------------------------------------


@one_kind
async def test_clocks_of_callers_are_wrong(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever anybody asks, the clock of this machine says something else."""
    chance, real, real_ns = random.Random(seed), time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + chance.uniform(-600, 600))
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + chance.randint(-600, 600) * 10**9)
    with private_server(kind) as server:
        async with load_on(server.url, seed) as (load, world):
            async with load.at_work():
                await load.progress(500 * TIMES)
            await load.hold_against(world)


HOUR: Final = timedelta(hours=1)


class SteppingClock:
    """A server's clock that goes on, and at times an hour back."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._latest = clock.now
        self._may_step = True
        self.steps = 0

    async def run(self, chance: random.Random) -> None:
        while True:
            await asyncio.sleep(0.01)
            await self._clock.advance(0.02)
            self._latest = max(self._latest, self._clock.now)
            if self._may_step and chance.random() < 0.3:
                self.steps += 1
                back = self._clock.now - HOUR * chance.choice([0.001, 0.1, 1])
                await self._clock.set(chance.choice([back, self._latest]))
            elif not self._may_step and self._clock.now < self._latest:
                await self._clock.set(self._latest)

    def steady(self) -> None:
        """Go forward only, from the latest time that there was."""
        self._may_step = False


@one_kind
async def test_the_servers_clock_is_set_back_again_and_again(kind: str, seed: int) -> None:
    with private_server(kind) as server:
        library = ManualClock.library()
        async with load_on(server.url, seed, library=library, own_ids=False) as (load, world):
            clock = SteppingClock(await ManualClock(world).set())
            running = asyncio.create_task(clock.run(random.Random(seed)))
            async with load.at_work():
                while clock.steps < 10 * TIMES:
                    await load.progress(20)
                clock.steady()
            running.cancel()
            await asyncio.wait([running])
            await load.hold_against(world)


def numbers(messages: list[Message]) -> list[object]:
    return [message.payload["number"] for message in messages]


async def test_what_is_due_stays_due_at_its_own_time(
    clocked: tuple[RedisWorld, ManualClock], seed: int
) -> None:
    world, clock = clocked
    queue, start = world.queue, clock.now
    for number in (1, 2, 3, 4):
        await send(world, content(number, f"wrun_{number}"), delay=30 if number == 4 else 0)
    leased, failed, extended = await queue.claim(TOPIC, lease=60)
    await queue.retry(failed, error="it failed", delay=5)

    await clock.set(start - HOUR)
    assert await queue.claim(TOPIC) == []
    assert (await world.sweep())["expired_leases"] == 0
    assert await queue.extend(extended, lease=60)
    await send(world, content(5))
    (new,) = await queue.claim(TOPIC)
    assert new.payload["number"] == 5
    assert await queue.retry(new, error="it failed", delay=5)
    for seconds, due in ((4.999, []), (5, [5]), (59.999, []), (60, [3])):
        await clock.set(start - HOUR + timedelta(seconds=seconds))
        messages = await queue.claim(TOPIC)
        assert numbers(messages) == due
        assert [await queue.ack(message) for message in messages] == [True] * len(due)
    for seconds, due in ((4.999, []), (5, [2]), (29.999, []), (30, [4]), (59.999, []), (60, [1])):
        await clock.set(start + timedelta(seconds=seconds))
        messages = await queue.claim(TOPIC)
        assert numbers(messages) == due
        assert [await queue.ack(message) for message in messages] == [True] * len(due)
    assert not await queue.ack(leased), "its lease ended"
    await check_invariants(world)


async def woken_by(world: RedisWorld) -> set[str]:
    """The runs that a sweep sends wakes to."""
    await world.sweep()
    messages = await world.queue.claim(TOPIC)
    for message in messages:
        assert await world.queue.ack(message)
    return {message.payload["runId"] for message in messages}


async def test_runs_go_on_when_the_servers_clock_is_set_back(
    clocked: tuple[RedisWorld, ManualClock], seed: int
) -> None:
    world, clock = clocked
    start = clock.now
    idle, old = await e.new_run(world), await e.new_run(world)
    waits = e.step_retrying(retryAfter=start + timedelta(seconds=5))
    await e.write(world, old, e.lazy_start(), waits, e.hook_created(), e.wait_created())

    await clock.set(start - HOUR)
    with pytest.raises(TooEarlyError) as caught:
        await world.events.create(old, e.step_started())
    assert caught.value.retry_after == 3605
    made = [await e.new_run(world) for _ in range(3)]
    own = e.run_id_at(clock.now)
    await world.events.create(own, e.run_created())
    assert sorted({idle, old, *made}) == [idle, old, *made], "ids of one World rise"
    for run_id in (old, *made):
        await e.write(
            world,
            run_id,
            e.lazy_start("step_2"),
            e.step_retrying("step_2"),
            e.step_started("step_2"),
            e.step_completed("step_2"),
            e.attr_set({"a": "1"}, "attr_1"),
        )
    await e.write(world, old, e.hook_received(), e.hook_disposed(), e.wait_completed())
    listed = {each.run_id for each in (await world.runs.list()).data}
    assert listed == {idle, old, own, *made}
    assert (await e.log(world, old))[-1].created_at == clock.now

    # What needs a message since now gets it in time; what needed it before, at its own time.
    interval = timedelta(seconds=world.config.sweep_interval)
    assert await woken_by(world) == set()
    await clock.set(start - HOUR + interval)
    assert await woken_by(world) == {old, own, *made}
    await clock.set(start + interval - timedelta(milliseconds=1))
    assert idle not in await woken_by(world)
    await clock.set(start + interval)
    assert idle in await woken_by(world)
    await e.write(world, old, e.step_started(), e.step_completed(), e.run_ended("completed"))
    await check_invariants(world)


async def test_random_operations_while_the_servers_clock_goes_back(
    clocked: tuple[RedisWorld, ManualClock], seed: int
) -> None:
    """Each claim gives just what is due then and is nobody's, in order."""
    world, clock = clocked
    chance = random.Random(seed)
    due: dict[str, datetime] = {}
    leased: dict[str, tuple[datetime, Message]] = {}
    latest = clock.now

    async def claim(limit: int, lease: float) -> list[str]:
        for message_id, (end, _) in [*leased.items()]:
            if end <= clock.now:
                del leased[message_id]
                due[message_id] = clock.now
        ready = sorted((at, each) for each, at in due.items() if at <= clock.now)
        expected = [message_id for _, message_id in ready[:limit]]
        messages = await world.queue.claim(TOPIC, limit=limit, lease=lease)
        assert [message.message_id for message in messages] == expected
        for message in messages:
            del due[message.message_id]
            leased[message.message_id] = (clock.now + timedelta(seconds=lease), message)
        return expected

    async def end_one(act: str) -> None:
        message_id = chance.choice([*leased])
        _, message = leased.pop(message_id)
        if act == "ack":
            assert await world.queue.ack(message)
        elif act == "retry":
            assert await world.queue.retry(message, delay=5)
            due[message_id] = clock.now + timedelta(seconds=5)
        else:
            assert await world.queue.extend(message, lease=30)
            leased[message_id] = (clock.now + timedelta(seconds=30), message)

    for _ in range(2000 if IS_LONG else 200):
        match chance.choice(["send", "claim", "claim", "ack", "retry", "extend", "time", "back"]):
            case "send":
                delay = chance.choice([0, 0.001, 30])
                message_id = await send(world, {"any": 1}, delay=delay)
                due[message_id] = clock.now + timedelta(seconds=delay)
            case "claim":
                await claim(chance.randint(1, 4), chance.choice([1, 60]))
            case "time":
                await clock.advance(chance.choice([0.001, 1, 60, 1800]))
                latest = max(latest, clock.now)
            case "back":
                await clock.set(clock.now - HOUR * chance.choice([0.001, 0.1, 1]))
            case act if leased:
                await end_one(act)
    await clock.set(latest + HOUR)
    while await claim(100, 60):
        for _, message in leased.values():
            assert await world.queue.ack(message)
        leased.clear()
    assert not due
    await check_invariants(world)
