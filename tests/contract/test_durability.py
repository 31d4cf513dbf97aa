"""What a write waits for: a replica, or the disk."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import redis

from redis_world import RedisWorld
from redis_world.errors import (
    ConfigurationError,
    EntityConflictError,
    NotDurableError,
    WorldUnavailableError,
)
from redis_world.lua import default_library
from redis_world.queue import FollowUp
from redis_world.testing import Server, memory_world
from redis_world.testing.servers import ServerKind
from support import events as e
from support.backends import Backend
from support.exercise import exercise, exercise_partitions
from support.monitor import monitor
from support.private_servers import private_server
from support.until import until

TOPIC = "__wkf_workflow_"
NAME = f"{TOPIC}orders"


@pytest.fixture(params=get_args(ServerKind))
def primary(request: pytest.FixtureRequest) -> Iterator[Server]:
    # A replica that comes is served at once.
    with private_server(request.param, "--repl-diskless-sync-delay", "0") as server:
        yield server


@contextlib.contextmanager
def replica_of(primary: Server) -> Iterator[redis.Redis]:
    """A replica in sync with its primary."""
    with (
        private_server(primary.kind, "--replicaof", "127.0.0.1", str(primary.port)) as server,
        contextlib.closing(redis.Redis.from_url(server.url)) as client,
    ):
        deadline = time.monotonic() + 30
        while client.info("replication")["master_link_status"] != "up":
            assert time.monotonic() < deadline, "the replica does not find its primary"
            time.sleep(0.01)
        yield client


async def everything(world: RedisWorld) -> str:
    run_id = await exercise(world)
    await world.events.create(run_id, e.step_created("last"))
    await world.queue.send(NAME, {"n": 1})
    await world.streams.write(run_id, "last", b"1")
    return run_id


# Contract: 4.no false success
async def test_a_write_waits_for_a_replica(primary: Server) -> None:
    with contextlib.closing(redis.Redis.from_url(primary.url)) as client:
        async with RedisWorld(primary.url, durability="replica", durability_timeout=0.05) as world:
            run_id = e.new_run_id()
            with pytest.raises(
                NotDurableError,
                match=r"a replica did not confirm the write within 0\.05 s: it is stored",
            ):
                await world.events.create(run_id, e.run_created())
            # As it says: it is there, and the same call finds it.
            with pytest.raises(
                NotDurableError, match=r"its answer, \w+, rests on may yet be lost"
            ):
                await world.events.create(run_id, e.run_created())
            assert (await world.runs.get(run_id)).status == "pending", "reads wait for nothing"
            # What was refused is not said to be stored: nothing is.
            with pytest.raises(NotDurableError, match="rests on") as refused:
                await world.events.create(run_id, e.step_started("nowhere"))
            assert "it is stored" not in str(refused.value)
            assert await e.log_types(world, run_id) == ["run_created"]
            with pytest.raises(NotDurableError):
                await world.queue.send(NAME, {"n": 1})
            (message,) = await world.queue.claim(TOPIC)
            with pytest.raises(NotDurableError):
                await world.queue.ack(message)
            assert (await world.queue.stats(TOPIC)).leased == 0
        with replica_of(primary) as replica:
            async with RedisWorld(primary.url, durability="replica") as world:
                with pytest.raises(EntityConflictError):
                    await world.events.create(run_id, e.run_created())
                run_id = await everything(world)
                keys = world.connection.partitions.of(run_id).of_run(run_id)
                # Whatever was answered is on the replica: nothing has to be waited for.
                assert replica.xlen(keys.events) == client.xlen(keys.events)
                assert replica.xlen(keys.stream("last")) == 1


# Contract: 4.unavailable
async def test_a_primary_that_waits_for_its_replicas(primary: Server) -> None:
    """It refuses writes while it has too few of them: after a failover, for example."""
    with contextlib.closing(redis.Redis.from_url(primary.url)) as client:
        async with (
            RedisWorld(primary.url, retry_timeout=0) as hasty,
            RedisWorld(primary.url) as patient,
        ):
            run_id = await e.new_run(patient)
            client.config_set("min-replicas-to-write", 1)
            with pytest.raises(WorldUnavailableError, match="replicas"):
                await hasty.events.create(run_id, e.step_created("a"))
            call = asyncio.create_task(patient.events.create(run_id, e.step_created("b")))
            await until(lambda: "errorstat_NOREPLICAS" in client.info("errorstats"))
            with replica_of(primary):
                await call
            assert (await e.log_types(patient, run_id)).count("step_created") == 1


# Contract: 4.no false success
async def test_a_wait_that_a_failover_ends(primary: Server) -> None:
    """The old primary has the write, its successor may not: it is sent there, not given up."""
    with (
        contextlib.closing(redis.Redis.from_url(primary.url)) as client,
        replica_of(primary) as replica,
    ):
        async with RedisWorld(
            primary.url, durability="replica", durability_timeout=60, socket_timeout=61
        ) as world:
            run_id = await e.new_run(world)
            replica.replicaof("NO", "ONE")
            await until(lambda: client.info("replication")["connected_slaves"] == 0)
            call = asyncio.create_task(world.events.create(run_id, e.step_created("a")))
            await until(lambda: client.info("clients")["blocked_clients"] == 1)
            # This one has no way to its successor: the old primary is made one again.
            client.replicaof("127.0.0.1", 1)
            client.replicaof("NO", "ONE")
            replica.replicaof("127.0.0.1", primary.port)
            result = await call
            assert result.event is not None
            assert (await e.log_types(world, run_id)).count("step_created") == 1


# Contract: 4.no false success
@pytest.mark.parametrize("kind", ["redis8", "valkey9"])
async def test_a_write_waits_for_the_disk(kind: str) -> None:
    with private_server(kind, "--appendonly", "yes", "--appendfsync", "always") as server:
        async with RedisWorld(server.url, durability="disk") as world:
            await everything(world)


# Contract: 4.no false success
async def test_a_disk_that_does_not_keep_up() -> None:
    with (
        private_server("redis8", "--appendonly", "yes", "--appendfsync", "no") as server,
        contextlib.closing(redis.Redis.from_url(server.url)) as client,
    ):
        async with RedisWorld(server.url, durability="disk", durability_timeout=0.01) as world:
            errors = 0
            for number in range(20):
                try:
                    await world.queue.send(NAME, {"n": number})
                except NotDurableError:
                    errors += 1
            assert errors
            assert (await world.queue.stats(TOPIC)).ready == 20
            client.config_set("appendfsync", "always")
            await world.queue.send(NAME, {"n": 20})


@pytest.mark.parametrize("kind", get_args(ServerKind))
async def test_a_server_that_has_no_such_file(kind: str) -> None:
    with private_server(kind) as server:
        world = RedisWorld(server.url, durability="disk")
        with pytest.raises(ConfigurationError, match="appendonly yes"):
            await world.open()
        await world.aclose()


async def test_it_costs_no_round_trip_of_its_own(primary: Server) -> None:
    with replica_of(primary):
        async with RedisWorld(primary.url, durability="replica") as world:
            run_id = await e.new_run(world)
            with monitor(primary.url) as seen:
                await world.events.create(run_id, e.step_created("a"))
                assert seen.commands() == ["EVALSHA", "HSET", "WAIT"]
                await world.steps.get(run_id, "a")
                assert seen.commands() == ["EVALSHA"], "a read waits for nothing"


async def test_what_is_not_waited_for_is_harmless_to_lose(real_backend: Backend) -> None:
    """Scripts without the mark may write anything; of the marked ones most write nothing."""
    leases = {"queue/claim", "queue/extend", "queue/release", "queue/expire"}
    # What they delete, nobody reads any more; if that is lost, the next sweep deletes it again.
    cleaners = {"runs/clean", "hooks/expire"}
    # Another worker is elected; the next sweep is recorded.
    sweeps = {"worlds/elect", "worlds/swept"}
    # Which workers sleep: what a message wakes costs time, if it is lost.
    sleepers = {"queue/peek", "queue/wake"}
    harmless = leases | cleaners | sweeps | sleepers
    unwaited = {script.name for script in default_library() if not script.waited}
    assert harmless < unwaited
    with contextlib.closing(real_backend.client()) as client:
        async with real_backend.world() as world:
            called: set[str] = set()
            original = world.connection.call_then

            async def call_then(name: str, keys: Any, args: Any, commands: Any) -> Any:
                if name in unwaited - harmless:
                    called.add(name)
                    script = default_library()[name]
                    # The server itself refuses a write there.
                    client.eval_ro(script.source, *script.arrange(keys, args))  # type: ignore[arg-type]
                return await original(name, keys, args, commands)

            world.connection.call_then = call_then  # type: ignore[method-assign]
            await exercise(world)
        async with real_backend.world(partitions=4) as world:
            original = world.connection.call_then
            world.connection.call_then = call_then  # type: ignore[method-assign]
            await exercise_partitions(world)
    assert called == unwaited - harmless


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"durability": "disc"}, "durability"),
        ({"durability": "replica", "durability_timeout": 10}, "less than socket_timeout"),
        ({"durability": "replica", "durability_timeout": 0}, "durability_timeout"),
        ({"durability": "replica"}, "keeps nothing"),
        ({"durability": "disk"}, "keeps nothing"),
    ],
)
def test_what_can_not_be(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        memory_world(**options)


# Contract: 4.no false success
async def test_a_continuation_is_waited_for_with_its_ack(primary: Server) -> None:
    async with RedisWorld(primary.url) as world:
        await world.queue.send(NAME, {"n": 1})
    async with RedisWorld(primary.url, durability="replica", durability_timeout=0.05) as world:
        (message,) = await world.queue.claim(TOPIC)
        with pytest.raises(WorldUnavailableError):
            await world.queue.ack(message, follow_up=FollowUp(delay=1))
        assert (await world.queue.stats(TOPIC)).delayed == 1
