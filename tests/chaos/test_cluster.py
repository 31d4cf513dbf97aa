"""Redis Cluster: slots move, masters go, and the World goes on.

`make chaos` runs the long form: more rounds, on all servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest
import redis

from redis_world import RedisWorld
from redis_world.errors import ConfigurationError, WorldUnavailableError
from redis_world.queue import Enqueue, Message
from redis_world.testing import Cluster, Server, check_invariants, redis_cluster
from redis_world.testing.servers import ServerKind
from redis_world.worker import Worker
from support import events as e
from support.events import new_run
from support.queue_tools import outcome
from support.until import until

IS_LONG: Final = os.environ.get("REDIS_WORLD_CHAOS") == "long"
KINDS: Final[tuple[ServerKind, ...]] = ("redis7", "redis8", "valkey9") if IS_LONG else ("redis7",)
ROUNDS: Final = 20 if IS_LONG else 1
STEPS: Final = 50
"""In how many the keys that a slot has at first are moved."""
CALLERS: Final = 8 if IS_LONG else 4
PARTITIONS: Final = 16 if IS_LONG else 4
TOPIC: Final = "__wkf_workflow_"
NAME: Final = f"{TOPIC}orders"

pytestmark = pytest.mark.timeout(0 if IS_LONG else 300)
kinds = pytest.mark.parametrize("kind", KINDS)


class Load:
    """Runs that are lived by many callers; what was answered must be there at the end."""

    def __init__(self, world: RedisWorld) -> None:
        self._world = world
        self._stopping = False
        self.finished: set[str] = set()
        """Runs whose end was answered."""
        self.count = 0
        self.is_bereft = False
        """Whether a master has lost its replica."""

    async def one(self) -> None:
        """Live one run: a step with its message, a hook, a stream, the end."""
        world = self._world
        run_id = e.new_run_id()
        step = {"runId": run_id, "stepId": "s", "stepName": "charge"}
        await self._write(run_id, e.run_created())
        await self._write(run_id, e.event("run_started"), skip_preload=True)
        await self._write(run_id, e.step_created("s"), enqueue=Enqueue(NAME, step))
        for message in await world.queue.claim(TOPIC, limit=2):
            await world.queue.ack(message)
        await self._write(run_id, e.step_started("s"))
        await self._write(run_id, e.hook_created("h", f"token of {run_id}"))
        await world.streams.write(run_id, "out", b"chunk")
        await self._write(run_id, e.hook_received("h"), resume_id="r")
        await self._write(run_id, e.step_completed("s"))
        await self._write(run_id, e.event("run_completed", output=b"out"))
        self.finished.add(run_id)
        self.count += 1

    async def _write(self, run_id: str, event: e.Wire, **params: Any) -> None:
        await self._world.events.create(run_id, event, **params)

    async def _caller(self) -> None:
        while not self._stopping:
            try:
                await self.one()
            except WorldUnavailableError:
                # A master without a replica is no place for what must not be lost.
                if not self.is_bereft:
                    raise
                return

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Live runs for the length of a block."""
        callers = [asyncio.create_task(self._caller()) for _ in range(CALLERS)]
        try:
            yield
        finally:
            self._stopping = True
            await asyncio.gather(*callers)

    async def some(self, count: int = 20) -> None:
        """Wait until some more have ended."""
        goal = self.count + count
        await until(lambda: self.count >= goal)

    async def hold(self) -> None:
        """Everything that was answered is there, once."""
        types = [
            *("run_created", "run_started", "step_created", "step_started", "hook_created"),
            *("hook_received", "step_completed", "run_completed"),
        ]
        for run_id in self.finished:
            assert await e.log_types(self._world, run_id) == types
            assert (await self._world.streams.get_info(run_id, "out")).tail_index == 0
        await check_invariants(self._world)


# -- moving slots --------------------------------------------------------------------------


def clients_of(cluster: Cluster) -> list[redis.Redis]:
    return [redis.Redis(node.host, node.port) for node in cluster.masters]


def call(client: redis.Redis, *words: object) -> Any:
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def owner_of(clients: list[redis.Redis], slot: int) -> int:
    """Which of the masters has a slot."""
    ids = [text(call(client, "CLUSTER", "MYID")) for client in clients]
    for row in text(call(clients[0], "CLUSTER", "NODES")).splitlines():
        parts = row.split()
        for span in parts[8:]:
            first, _, last = span.partition("-")
            if not span.startswith("[") and int(first) <= slot <= int(last or first):
                return ids.index(parts[0])
    raise AssertionError(slot)


def move_slot(cluster: Cluster, clients: list[redis.Redis], slot: int, to: int) -> Iterator[None]:
    """Move a slot as the tools of Redis do, a few keys at a time; yields in between.

    It takes about as many steps whatever is in the slot: a call waits for its keys no longer than
    `retry_timeout`, however slow the machine is.
    """
    source = owner_of(clients, slot)
    if source == to:
        return
    ids = [text(call(client, "CLUSTER", "MYID")) for client in clients]
    call(clients[to], "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    call(clients[source], "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
    yield
    target = cluster.masters[to]
    at_once = max(5, call(clients[source], "CLUSTER", "COUNTKEYSINSLOT", slot) // STEPS)
    while keys := call(clients[source], "CLUSTER", "GETKEYSINSLOT", slot, at_once):
        call(clients[source], "MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *keys)
        yield
    for client in (clients[to], clients[source], *clients):
        call(client, "CLUSTER", "SETSLOT", slot, "NODE", ids[to])


@kinds
async def test_slots_move_under_load(kind: ServerKind) -> None:
    """A script that names only some of its keys is never run in the middle of a move."""
    with redis_cluster(kind) as cluster, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(each)) for each in clients_of(cluster)]
        async with RedisWorld(cluster.url, partitions=PARTITIONS) as world:
            load = Load(world)
            slots = [
                int(call(clients[0], "CLUSTER", "KEYSLOT", keys.base))
                for keys in world.connection.partitions
            ]
            async with load.running():
                await load.some()
                for round_number in range(ROUNDS):
                    for number, slot in enumerate(slots):
                        to = (owner_of(clients, slot) + 1 + (number + round_number) % 2) % 3
                        for _ in move_slot(cluster, clients, slot, to):
                            await asyncio.sleep(0.001)
                    await load.some()
            await load.hold()


@kinds
async def test_a_slot_that_does_not_arrive(kind: ServerKind) -> None:
    """The call fails as one that was not answered in time, and works when the move is over."""
    with redis_cluster(kind) as cluster, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(each)) for each in clients_of(cluster)]
        async with RedisWorld(cluster.url, retry_timeout=0.5) as world:
            slot = int(call(clients[0], "CLUSTER", "KEYSLOT", world.connection.keys.base))
            source = owner_of(clients, slot)
            move = move_slot(cluster, clients, slot, (source + 1) % 3)
            next(move)
            with pytest.raises(WorldUnavailableError, match="moves the keys of this call"):
                await new_run(world)
            for _ in move:
                pass
            assert await new_run(world)
            assert len((await world.runs.list()).data) == 1


# -- masters that go -----------------------------------------------------------------------


def end(node: Server) -> None:
    os.kill(node.pid, signal.SIGKILL)


@kinds
async def test_a_master_is_killed_under_load(kind: ServerKind) -> None:
    """Its replica takes over; what was waited for is there, and nobody was told otherwise."""
    with redis_cluster(kind, with_replicas=True) as cluster:
        durable = RedisWorld(
            cluster.url, partitions=PARTITIONS, durability="replica", durability_timeout=3
        )
        async with durable, RedisWorld(cluster.url, partitions=PARTITIONS) as plain:
            load = Load(durable)
            async with load.running():
                await load.some()
                end(cluster.masters[0])
                # What is under way goes on with the replica, which has none itself.
                load.is_bereft = True
            after = Load(plain)
            async with after.running():
                await after.some()
            after.finished |= load.finished
            await after.hold()


@contextlib.contextmanager
def frozen(node: Server) -> Iterator[None]:
    """A node that takes connections and bytes, and answers nothing, for the length of a block."""
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)


SOON: Final = 5.0
"""Seconds; far more than the second that a frozen node may cost, far less than `retry_timeout`."""


async def everywhere(world: RedisWorld) -> dict[int, str]:
    """A run of each partition with a message."""
    runs: dict[int, str] = {}
    while len(runs) < len(world.connection.partitions):
        run_id = e.new_run_id()
        place = world.connection.partitions.of(run_id).number
        if place not in runs:
            runs[place] = run_id
            await world.queue.send(NAME, {"runId": run_id})
    return runs


@pytest.mark.parametrize("place", range(3) if IS_LONG else [1])
@kinds
async def test_a_frozen_master_stops_its_own_partitions_alone(
    kind: ServerKind, place: int
) -> None:
    """Claims of the others go on at once; a sweep does the others, and then tells."""
    # Without replicas, the others go on only like this.
    alone = ("--cluster-require-full-coverage", "no")
    with redis_cluster(kind, args=alone) as cluster, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(each)) for each in clients_of(cluster)]
        world = RedisWorld(cluster.url, partitions=6)
        hasty = RedisWorld(cluster.url, partitions=6, retry_timeout=1, socket_timeout=2)
        async with world, hasty:
            lost = {
                keys.number
                for keys in world.connection.partitions
                if owner_of(clients, int(call(clients[0], "CLUSTER", "KEYSLOT", keys.base)))
                == place
            }
            assert len(lost) == 2
            runs = await everywhere(world)
            healthy = {run_id for number, run_id in runs.items() if number not in lost}
            found: set[str | None] = set()

            async def claim() -> None:
                async with asyncio.timeout(SOON):
                    messages = await world.queue.claim(TOPIC, limit=4)
                async with asyncio.timeout(SOON):
                    for message in messages:
                        assert await world.queue.ack(message)
                found.update(message.run_id for message in messages)

            with frozen(cluster.masters[place]):
                while not healthy <= found:
                    await claim()
                assert found == healthy
                # And those that come meanwhile, again and again.
                for _ in range(3):
                    for run_id in healthy:
                        await world.queue.send(NAME, {"runId": run_id})
                    found.clear()
                    while not healthy <= found:
                        await claim()
                for question in (hasty.sweep(), hasty.queue.stats(TOPIC), hasty.runs.list()):
                    assert isinstance(await outcome(question), WorldUnavailableError)
            found.clear()
            while len(found) < len(lost):
                await claim()
            assert found == {runs[number] for number in lost}
            assert (await hasty.queue.stats(TOPIC)).leased == 0
            assert set(await hasty.sweep()) >= {"woken_runs", "removed_runs"}
            await check_invariants(world)


async def test_an_idle_worker_goes_on_after_a_failover() -> None:
    with redis_cluster(with_replicas=True) as cluster:
        async with RedisWorld(cluster.url, partitions=6) as world:
            found: list[str] = []

            async def handler(message: Message) -> None:
                found.append(message.run_id or "")

            worker = Worker(world, {TOPIC: handler}, lease=1.5)
            working = asyncio.create_task(worker.run())
            runs = await everywhere(world)
            await until(lambda: {*found} == {*runs.values()})
            end(cluster.masters[0])
            # Some beats without a message go by before its replica takes over, and some behind it.
            await asyncio.sleep(2)
            await world.sweep()
            await asyncio.sleep(2)
            found.clear()
            for run_id in runs.values():
                await world.queue.send(NAME, {"runId": run_id})
            await until(lambda: {*found} == {*runs.values()})
            worker.stop()
            await working


async def test_closing_beside_a_frozen_master() -> None:
    with redis_cluster() as cluster:
        world = RedisWorld(cluster.url, partitions=6, retry_timeout=1, socket_timeout=2)
        await world.open()
        await everywhere(world)
        with frozen(cluster.masters[0]):
            claiming = asyncio.create_task(world.queue.claim(TOPIC))
            await asyncio.wait({claiming}, timeout=SOON)
            async with asyncio.timeout(3 * SOON):
                await world.aclose()
            assert claiming.done()


async def test_a_cluster_that_is_not_there() -> None:
    world = RedisWorld("redis+cluster://127.0.0.1:1,127.0.0.1:2", connect_timeout=0.5)
    with pytest.raises(WorldUnavailableError, match=r"127\.0\.0\.1:1 .*, 127\.0\.0\.1:2 "):
        await world.open()
    await world.aclose()


async def test_one_node_of_the_url_is_enough() -> None:
    with redis_cluster() as cluster:
        node = cluster.masters[1]
        url = f"redis+cluster://127.0.0.1:1,{node.host}:{node.port}"
        async with RedisWorld(url, partitions=3) as world:
            await Load(world).one()
            await check_invariants(world)


async def test_a_node_by_itself_says_what_it_is() -> None:
    with redis_cluster() as cluster:
        refusals = []
        for node in cluster.masters:
            # Its record lies on one of them, its partition on another.
            world = RedisWorld(node.url, namespace="orders")
            refusals.append(await outcome(world.open()))
            await world.aclose()
        wrong = [each for each in refusals if isinstance(each, Exception)]
        assert len(wrong) == 3
        assert all(isinstance(each, ConfigurationError) for each in wrong)
        assert all("redis+cluster://" in str(each) for each in wrong)
