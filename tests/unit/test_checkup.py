"""Each check of `redis_world.checkup`, on a server that is well and on one that is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis
import redis.asyncio
import redis.exceptions

from redis_world import RedisWorld, checkup
from redis_world.checkup import LEVELS, Finding, check_up, worst
from redis_world.checkup.contents import Old, Topic, check_dead, check_sweeps
from redis_world.checkup.facts import RIGHTS, Facts, Reading
from redis_world.checkup.finding import amount, duration, size
from redis_world.checkup.safety import check_persistence, check_replicas
from redis_world.checkup.server import MIN_VERSIONS, check_clock, check_version
from redis_world.config import WorldConfig
from redis_world.connection import server as connection_server
from redis_world.errors import ConfigurationError
from redis_world.testing import (
    ManualClock,
    Server,
)
from redis_world.testing.ports import free_port
from support import events as e
from support.backends import KINDS, Backend
from support.private_servers import ONE, private_cluster, private_server
from support.queue_tools import (
    TOPIC,
    claim_one,
    content,
    health_check,
    send,
    start_run,
    step,
    wake,
)
from support.until import until

SAFE: Final = ("--appendonly", "yes", "--maxmemory", "100mb")
"""Settings of a server that there is nothing to say against."""
QUIET: Final = {"ok", "info"}

JUMP: Final = 0.05
"""Seconds; half of the smallest jump that a checkup tells."""


@pytest.fixture(params=KINDS[1:])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a server is judged by tests of its own."""
    monkeypatch.setattr(checkup, "_CLOCK_SECONDS", 0.01)


def command(client: redis.Redis, *words: str | int) -> Any:
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def running(kind: str, *args: str) -> Iterator[tuple[Server, redis.Redis]]:
    """A private server, and a client for its faults."""
    with (
        private_server(kind, *args) as server,
        contextlib.closing(redis.Redis.from_url(server.url)) as client,
    ):
        yield server, client


def wall_clock() -> float:
    """Seconds that the clock of this machine is ahead of the one that nobody sets."""
    return time.time() - time.monotonic()


async def checked(url: str, config: WorldConfig, library: Any) -> list[Finding]:
    """The findings of a checkup during which the machine's clock did not jump.

    That of a virtual machine is set after a pause, which a checkup rightly tells.
    """
    while True:
        before = wall_clock()
        found = await check_up(url, config=config, library=library)
        if abs(wall_clock() - before) < JUMP:
            return found


async def look(
    url: str, *, library: Any = None, namespace: str = "world", **options: Any
) -> dict[str, Finding]:
    """The findings by name; those that a healthy server has are one per name."""
    config = WorldConfig.create(namespace=namespace, **options)
    found = await checked(url, config, library)
    names = [each.name for each in found]
    assert len(set(names)) == len(names)
    return dict(zip(names, found, strict=True))


async def inside(world: RedisWorld, backend: Backend) -> dict[str, Finding]:
    """The findings of a World's namespace, by the clock of its scripts."""
    library = ManualClock.library()
    found = await checked(backend.url, world.config, library)
    return {each.name: each for each in found}


def levels(found: dict[str, Finding]) -> dict[str, str]:
    return {name: each.level for name, each in found.items() if each.level not in QUIET}


def with_user(server: Server, client: redis.Redis, *rights: str, name: str = "worker") -> str:
    """The URL of a new user."""
    command(client, "ACL", "SETUSER", name, "on", ">pass-word", *rights)
    return f"redis://{name}:pass-word@{server.host}:{server.port}/0"


# -- a server that is well -----------------------------------------------------------------


async def test_a_healthy_server(kind: str) -> None:
    with running(kind, *SAFE) as (server, client):
        async with RedisWorld(server.url) as world:
            run_id = await start_run(world)
            await send(world, wake(run_id))
        dump, changes = dict(client.info("keyspace")), client.info("persistence")
        found = await look(server.url)
        assert levels(found) == {}
        assert [*found] == [
            "connection", "version", "scripts", "writes", "notifications", "eviction", "memory",
            "persistence", "replicas", "clock", "namespace", "queue", "postponed",
            "dead letters", "leases", "sweeps",
        ]  # fmt: skip
        assert found["connection"].figures["server"] == f"127.0.0.1:{server.port}"
        assert float(found["connection"].figures["round_trip_ms"] or 0) > 0
        assert found["version"].figures["version"] == server.version
        assert found["queue"].figures["ready"] == 1
        # The server counts its changes.
        after = client.info("persistence")
        assert after["rdb_changes_since_last_save"] == changes["rdb_changes_since_last_save"]
        assert dict(client.info("keyspace")) == dump


async def test_a_namespace_that_does_not_exist_is_not_made(backend: Backend) -> None:
    found = await look(backend.url, namespace=backend.namespace())
    assert found["namespace"].level == "info"
    assert "does not exist. The server has no namespaces" in found["namespace"].text
    assert "queue" not in found
    assert backend.dump() == {}


async def test_the_embedded_store() -> None:
    found = await look("memory://checkup")
    assert levels(found) == {}
    assert found["version"].level == "info"
    assert "embedded" in found["version"].text
    assert {"memory", "eviction", "persistence", "replicas"}.isdisjoint(found)


async def test_a_ready_client(real_backend: Backend) -> None:
    async with redis.asyncio.Redis.from_url(real_backend.url) as client:
        found = await check_up(client=client, config=WorldConfig())
        assert found[0].level == "ok"
        # It stays its owner's, open.
        assert await client.ping()
    with pytest.raises(ConfigurationError):
        await check_up(config=WorldConfig())


# -- a server that can't be reached --------------------------------------------------------


async def the_only(url: str, **options: Any) -> Finding:
    (finding,) = (await look(url, **options)).values()
    assert (finding.name, finding.level) == ("connection", "error")
    assert finding.advice
    assert "pass-word" not in finding.text + finding.advice
    return finding


async def test_nobody_is_there() -> None:
    finding = await the_only("redis://user:pass-word@127.0.0.1:1/0")
    assert "127.0.0.1:1" in finding.text
    assert "--url" in finding.advice


async def test_an_option_of_the_url_that_does_not_exist() -> None:
    finding = await the_only("redis://127.0.0.1:1/0?zork=1")
    assert "zork" in finding.text
    assert "fix the URL" in finding.advice


async def test_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        finding = await the_only(f"redis://127.0.0.1:{port}/0", socket_timeout=0.2)
    assert "did not answer in time" in finding.text


@pytest.mark.parametrize("login", ["", ":wrong@", "nobody:wrong@"])
async def test_a_wrong_password(login: str) -> None:
    with running(ONE, "--requirepass", "pass-word") as (server, _):
        finding = await the_only(server.url.replace("//", f"//{login}"))
    assert ("refuses the user or password" if login else "requires a password") in finding.text
    assert "redis://user:password@" in finding.advice


async def test_a_server_that_runs_a_script_for_too_long() -> None:
    with running(ONE, "--busy-reply-threshold", "10") as (server, client):
        other = redis.Redis.from_url(server.url)
        endless = asyncio.create_task(
            asyncio.to_thread(command, other, "EVAL", "while true do end", 0)
        )
        try:
            await until(lambda: is_busy(client))
            finding = await the_only(server.url)
        finally:
            command(client, "SCRIPT", "KILL")
        with pytest.raises(redis.exceptions.ResponseError):
            await endless
        other.close()
    assert "can't do this now: BUSY" in finding.text


def is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.exceptions.ResponseError as error:
        return "BUSY" in str(error)
    return False


async def test_a_server_that_is_lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: Any) -> None:
        raise redis.exceptions.ConnectionError("gone")

    monkeypatch.setattr(checkup, "ask_server", lost)
    first, last = await check_up("memory://lost", config=WorldConfig())
    assert (first.level, last.level) == ("ok", "error")
    assert "gone" in last.text


async def test_a_bug_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(checkup, "ask_server", broken)
    with pytest.raises(KeyError):
        await check_up("memory://broken", config=WorldConfig())


# -- what it is ----------------------------------------------------------------------------


def test_the_versions_are_those_of_the_world() -> None:
    assert MIN_VERSIONS is connection_server.MIN_VERSIONS


def facts(replies: dict[str, Any] | None = None, **options: Any) -> Facts:
    return Facts(WorldConfig.create(**options), "default", replies=replies or {})


@pytest.mark.parametrize(
    ("info", "level", "text"),
    [
        ({"redis_version": "6.2.9"}, "error", "Redis 6.2.9 is too old"),
        ({"redis_version": "7.0.0"}, "ok", "Redis 7.0.0"),
        ({"redis_version": "10.1.0"}, "ok", "Redis 10.1.0"),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.9"}, "error", "Valkey 7.2.9 is too"),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1"}, "ok", "Valkey 8.0.1"),
        ({}, "unknown", "has no answer"),
    ],
)
def test_versions(info: dict[str, str], level: str, text: str) -> None:
    finding = check_version(facts({"INFO server": info}))
    assert finding.level == level
    assert text in finding.text


def test_the_version_is_known_without_info() -> None:
    hello = [b"server", b"redis", b"version", b"6.0.1", b"proto", 2]
    denied = redis.exceptions.NoPermissionError("no")
    finding = check_version(facts({"INFO server": denied, "HELLO": hello}))
    assert "Redis 6.0.1 is too old" in finding.text


async def test_a_node_of_a_cluster(kind: str) -> None:
    # The port that it would choose itself is 10,000 above its own, which may be too high.
    bus = str(free_port())
    args = ("--cluster-enabled", "yes", "--cluster-port", bus, "--maxmemory", "100mb")
    with running(kind, *args) as (server, client):
        found = await look(server.url)
        assert found["cluster"].level == "info"
        # No node has the slots as yet.
        assert found["scripts"].level == found["writes"].level == "error"
        assert "slots" in found["scripts"].advice
        command(client, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await until(lambda: b"cluster_state:ok" in raw_cluster_info(client))
        found = await look(server.url)
        assert found["cluster"].level == "info"
        assert levels(found) == {"persistence": "warning"}


def raw_cluster_info(client: redis.Redis) -> bytes:
    reply = command(client, "CLUSTER", "INFO")
    return reply if isinstance(reply, bytes) else repr(reply).replace("': '", ":").encode()


# -- rights --------------------------------------------------------------------------------


async def test_the_rights_that_it_advises_are_enough(kind: str) -> None:
    with running(kind, *SAFE) as (server, client):
        found = await look(with_user(server, client, "+ping"), namespace="orders")
        assert levels(found) == {
            "scripts": "error", "writes": "error", "notifications": "warning",
            "eviction": "unknown", "memory": "unknown", "persistence": "unknown",
            "replicas": "unknown",
            "clock": "unknown", "namespace": "error",
        }  # fmt: skip
        assert found["version"].level == "ok"
        assert found["clock"].advice == "`ACL SETUSER worker +time`"
        advice = found["scripts"].advice.strip("`").split()
        command(client, *advice)
        url = f"redis://worker:pass-word@{server.host}:{server.port}/0"
        assert levels(await look(url, namespace="orders")) == {}
        async with RedisWorld(url, namespace="orders") as world:
            await send(world, wake(await start_run(world)))
            await world.queue.ack(await claim_one(world))
            await world.sweep()
        assert levels(await look(url, namespace="orders")) == {}


@pytest.mark.parametrize(
    ("denied", "unknown"),
    [
        (["-info"], {"memory", "replicas"}),
        (["-config"], set()),
        (["-info", "-config"], {"eviction", "memory", "persistence", "replicas"}),
        (["-hello"], set()),
        (["-ping"], set()),
    ],
    # The order of a set differs from one process to the next.
    ids=lambda value: " ".join(sorted(value)) or "nothing",
)
async def test_it_goes_on_without_a_command(
    kind: str, denied: list[str], unknown: set[str]
) -> None:
    with running(kind, *SAFE) as (server, client):
        url = with_user(server, client, "+@all", "~*", "&*", *denied)
        found = await look(url)
    assert levels(found) == dict.fromkeys(unknown, "unknown")
    for name in unknown:
        assert "user worker may not run INFO" in found[name].text
        assert found[name].advice == "`ACL SETUSER worker +info`"


async def test_snapshots_are_unknown_without_config(kind: str) -> None:
    with running(kind) as (server, client):
        found = await look(with_user(server, client, "+@all", "-config", "~*", "&*"))
    finding = found["persistence"]
    assert finding.level == "unknown"
    assert finding.advice == "`ACL SETUSER worker +config|get`"


async def test_without_time_no_script_runs(kind: str) -> None:
    with running(kind, *SAFE) as (server, client):
        async with RedisWorld(server.url) as world:
            await send(world, wake())
        found = await look(with_user(server, client, "+@all", "-time", "~*", "&*"))
    assert levels(found) == {"scripts": "error", "clock": "unknown", "queue": "unknown"}
    assert "+time" in found["scripts"].advice


@pytest.mark.parametrize("right", ["-eval -evalsha -script", "-script", "-zcount", "-evalsha"])
async def test_scripts_that_may_not_run(kind: str, right: str) -> None:
    with running(kind, *SAFE) as (server, client):
        found = await look(with_user(server, client, "+@all", *right.split(), "~*", "&*"))
    assert levels(found) == {"scripts": "error"}
    assert RIGHTS in found["scripts"].advice


async def test_other_keys_only(kind: str) -> None:
    with running(kind, *SAFE) as (server, client):
        found = await look(with_user(server, client, "+@all", "~other:*", "&*"))
    assert levels(found) == dict.fromkeys(["scripts", "writes", "namespace"], "error")
    assert "~{world}:* ~{world/*" in found["namespace"].advice


async def test_no_right_to_channels(kind: str) -> None:
    with running(kind, *SAFE) as (server, client):
        found = await look(with_user(server, client, "+@all", "~*", "resetchannels"))
    assert levels(found) == {"notifications": "warning"}
    assert "&{world/*" in found["notifications"].advice


async def test_a_read_only_user(kind: str) -> None:
    with running(kind, *SAFE) as (server, client):
        found = await look(with_user(server, client, "+@all", "-@write", "~*", "&*"))
    assert levels(found) == {"writes": "error"}


@pytest.mark.parametrize("right", ["-smembers", "-zcard -zrange"])
async def test_indexes_that_can_not_be_read(right: str) -> None:
    with running(ONE, *SAFE) as (server, client):
        async with RedisWorld(server.url) as world:
            await send(world, wake(await start_run(world)))
        found = await look(with_user(server, client, "+@all", *right.split(), "~*", "&*"))
    assert found["queue"].level == "unknown"


async def test_ages_that_can_not_be_read() -> None:
    with running(ONE, *SAFE) as (server, client):
        async with RedisWorld(server.url) as world:
            await send(world, wake(await start_run(world)))
        user = ["+@all", "-zcount", "~*", "&*"]
        found = await look(with_user(server, client, *user))
    # The script counts too, so nothing behind it is looked at.
    assert levels(found) == {"scripts": "error", "queue": "unknown"}


# -- memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "limit", "level"),
    [
        ("noeviction", "100mb", None),
        ("noeviction", "0", None),
        ("allkeys-lru", "100mb", "error"),
        ("allkeys-random", "0", "warning"),
        ("volatile-ttl", "100mb", "warning"),
        ("volatile-lru", "0", "warning"),
    ],
)
@pytest.mark.parametrize("denied", ["-info", "-config"])
async def test_eviction(
    kind: str, policy: str, limit: str, level: str | None, denied: str
) -> None:
    args = ("--maxmemory-policy", policy, "--appendonly", "yes", "--maxmemory", limit)
    with running(kind, *args) as (server, client):
        found = await look(with_user(server, client, "+@all", denied, "~*", "&*"))
    finding = found["eviction"]
    assert finding.level == (level or "ok")
    assert ("noeviction" in finding.advice) == (level is not None)
    assert finding.figures == {"maxmemory_policy": policy}


@pytest.mark.parametrize(
    ("share", "level"), [(0.5, "ok"), (0.87, "warning"), (0.975, "error"), (1.5, "error")]
)
async def test_memory(kind: str, share: float, level: str) -> None:
    with running(kind, *SAFE) as (server, client):
        # So much that a few buffers do not matter.
        client.setrange("ballast", 40_000_000, b"x")
        await look(server.url)
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] / share))
        found = await look(server.url)
    assert found["memory"].level == level
    assert abs(float(found["memory"].figures["used_memory"] or 0) - 40e6) < 10e6
    # A server that is full says so itself.
    assert found["writes"].level == ("error" if share > 1 else "ok")
    assert ("raise maxmemory" in found["writes"].advice) == (share > 1)


async def test_no_maxmemory(kind: str) -> None:
    with running(kind) as (server, _):
        found = await look(server.url)
    assert found["memory"].level == "info"
    assert "maxmemory" in found["memory"].advice


# -- what a crash leaves -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "level", "text"),
    [
        ("--appendonly no", "warning", "loses every run"),
        ("--save 3600 1", "warning", "all writes since the last"),
        ("--appendonly yes --appendfsync everysec", "ok", "a second or two"),
        ("--appendonly yes --appendfsync always", "ok", "at once"),
        ("--appendonly yes --appendfsync no", "warning", "half a minute"),
    ],
)
async def test_persistence(kind: str, args: str, level: str, text: str) -> None:
    # `--save 3600 1` is one option of two words.
    words = args.split(" ", 1) if args.startswith("--save") else args.split()
    with running(kind, *words) as (server, _):
        found = await look(server.url)
    assert found["persistence"].level == level
    assert text in found["persistence"].text


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ONE])
async def test_a_snapshot_that_fails(kind: str) -> None:
    with running(kind, "--save", "3600 1", "--maxmemory", "100mb") as (server, client):
        folder = Path(str(client.config_get("dir")["dir"]))
        (folder / "dump.rdb").mkdir()
        client.set("key", "value")
        client.bgsave()
        await until(lambda: client.info("persistence")["rdb_last_bgsave_status"] != "ok")
        found = await look(server.url)
    assert levels(found) == {"persistence": "error", "writes": "error"}
    assert "server's log" in found["persistence"].advice
    # Redis and Valkey then refuse every write.
    assert "disk" in found["writes"].advice


@pytest.mark.parametrize(
    ("status", "level"),
    [
        ({"aof_last_write_status": "err"}, "error"),
        ({"rdb_last_bgsave_status": "err"}, "warning"),
        ({"aof_last_bgrewrite_status": "err"}, "warning"),
        ({}, "ok"),
    ],
)
def test_an_append_only_file_that_fails(status: dict[str, str], level: str) -> None:
    finding = check_persistence(facts({"INFO persistence": {"aof_enabled": 1, **status}}))
    assert finding.level == level
    assert bool(finding.advice) == (level != "ok")


async def test_replicas(kind: str) -> None:
    with running(kind, *SAFE) as (primary, client):
        assert (await look(primary.url))["replicas"].level == "info"
        where = f"{primary.host} {primary.port}"
        with running(kind, "--replicaof", where, "--repl-diskless-sync-delay", "0") as (second, _):
            await until(lambda: is_online(client))
            found = await look(primary.url, durability="replica")
            assert levels(found) == {}
            assert found["replicas"].level == found["durability"].level == "ok"
            assert found["replicas"].figures["replicas"] == 1
            found = await look(second.url)
            assert levels(found)["replicas"] == levels(found)["writes"] == "error"
            assert f"{primary.host}:{primary.port}" in found["replicas"].advice
            assert "primary" in found["writes"].advice


def is_online(client: redis.Redis) -> bool:
    replica: dict[str, Any] = client.info("replication").get("slave0") or {}
    return replica.get("state") == "online"


@pytest.mark.parametrize(
    ("replica", "level"),
    [
        ({"state": "online", "lag": 1}, "ok"),
        ({"state": "online", "lag": 30}, "warning"),
        ({"state": "wait_bgsave", "lag": 0}, "warning"),
    ],
)
def test_replicas_that_are_behind(replica: dict[str, Any], level: str) -> None:
    info = {"role": "master", "connected_slaves": 1, "slave0": replica}
    assert check_replicas(facts({"INFO replication": info})).level == level


def test_a_replica_is_known_without_info() -> None:
    finding = check_replicas(facts({"HELLO": [b"role", b"replica"]}))
    assert finding.level == "error"


async def test_a_primary_that_wants_replicas(kind: str) -> None:
    with running(kind, *SAFE, "--min-replicas-to-write", "1") as (server, _):
        found = await look(server.url)
    assert levels(found) == {"writes": "error"}
    assert "min-replicas-to-write" in found["writes"].advice


async def test_durability_without_a_replica(kind: str) -> None:
    with running(kind, *SAFE) as (server, client):
        found = await look(server.url, durability="replica")
        assert levels(found) == {"durability": "error"}
        assert "start a replica" in found["durability"].advice
        user = with_user(server, client, "+@all", "-wait", "~*", "&*")
        found = await look(user, durability="replica")
        assert found["durability"].advice == "`ACL SETUSER worker +wait`"


async def test_durability_on_disk(kind: str) -> None:
    with running(kind, *SAFE) as (server, client):
        found = await look(server.url, durability="disk")
        # Redis 7.0 has no WAITAOF.
        assert levels(found) == ({"durability": "error"} if kind == "redis7" else {})
        client.config_set("appendonly", "no")
        found = await look(server.url, durability="disk")
    assert levels(found) == {"persistence": "warning", "durability": "error"}
    assert "appendonly yes" in found["durability"].advice


# -- the clock -----------------------------------------------------------------------------

NOW: Final = 1_800_000_000.0


@pytest.mark.parametrize(
    ("offset", "level"),
    [(0, "ok"), (0.9, "ok"), (-1.1, "info"), (59, "info"), (61, "warning"), (-90_000, "warning")],
)
def test_a_clock_that_differs(offset: float, level: str) -> None:
    first = Reading(NOW + offset, NOW, 1.0, 0.001)
    last = Reading(NOW + offset + 0.3, NOW + 0.3, 1.3, 0.001)
    finding = check_clock(facts(), first, last)
    assert finding.level == level
    assert finding.figures == {"offset_ms": round(offset * 1000), "step_ms": 0}
    assert ("behind" in finding.text) == (offset < -1)


@pytest.mark.parametrize(
    ("step", "took", "level"),
    [(0.05, 0.001, "ok"), (0.5, 0.001, "warning"), (-0.5, 0.001, "warning"), (0.5, 1.0, "ok")],
)
def test_a_clock_that_steps(step: float, took: float, level: str) -> None:
    """A slow round trip says less."""
    first = Reading(NOW, NOW, 1.0, took)
    last = Reading(NOW + 0.3 + step, NOW + 0.3, 1.3, took)
    finding = check_clock(facts(), first, last)
    assert finding.level == level
    assert ("back" in finding.text) == (level != "ok" and step < 0)


# -- the namespace -------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["schema", "partitions"])
async def test_a_namespace_that_was_made_otherwise(backend: Backend, field: str) -> None:
    async with backend.world() as world:
        await send(world, wake())
        meta = world.connection.keys.meta
        namespace = world.config.namespace
    with contextlib.closing(backend.client()) as client:
        client.hset(meta, field, "7")
    found = await look(backend.url, namespace=namespace)
    assert found["namespace"].level == "error"
    assert "7" in found["namespace"].text
    assert "--namespace" in found["namespace"].advice
    # Whatever is in it, this version can't read.
    assert "queue" not in found


async def test_a_namespace_of_somebody_else(real_backend: Backend) -> None:
    namespace = real_backend.namespace()
    with contextlib.closing(real_backend.client()) as client:
        client.set(f"{{{namespace}}}:v1:meta", "mine")
        client.set(f"{{{namespace}/0.0}}:v1:parked", "mine")
    found = await look(real_backend.url, namespace=namespace)
    assert found["namespace"].level == found["writes"].level == "error"
    assert "--namespace" in found["writes"].advice


# -- what is in it -------------------------------------------------------------------------

Clocked = tuple[RedisWorld, ManualClock]


async def test_a_queue_that_nobody_empties(clocked: Clocked, backend: Backend) -> None:
    world, clock = clocked
    await send(world, wake())
    await send(world, content(1), delay=7200)
    await clock.advance(60)
    finding = (await inside(world, backend))["queue"]
    assert (finding.level, finding.advice) == ("ok", "")
    assert finding.figures["ready"] == finding.figures["delayed"] == 1
    await clock.advance(1)
    finding = (await inside(world, backend))["queue"]
    assert finding.level == "warning"
    assert TOPIC in finding.text
    assert "61 s" in finding.text
    assert "redis-world worker" in finding.advice


async def test_workers_that_hang_are_told_from_none(clocked: Clocked, backend: Backend) -> None:
    world, clock = clocked
    await send(world, wake())
    await clock.advance(100)
    channel = world.connection.keys.queue_channel(TOPIC)
    with contextlib.closing(backend.client()) as client, client.pubsub() as pubsub:  # type: ignore[no-untyped-call]
        pubsub.subscribe(channel)
        assert pubsub.get_message(timeout=10) is not None
        finding = (await inside(world, backend))["queue"]
        pubsub.unsubscribe()
    assert finding.figures["listeners"] == 1
    assert "1 process listens" in finding.text
    assert "--concurrency" in finding.advice


async def test_topics_are_told_one_by_one(clocked: Clocked, backend: Backend) -> None:
    world, clock = clocked
    await send(world, wake())
    await clock.advance(100)
    await send(world, wake(), name="__other_wkf_workflow_orders")
    found = await check_up(backend.url, config=world.config, library=ManualClock.library())
    queue = [(each.figures["topic"], each.level) for each in found if each.name == "queue"]
    assert queue == [("__other_wkf_workflow_", "ok"), (TOPIC, "warning")]


async def test_dead_letters(backend: Backend) -> None:
    async with backend.world(max_failures=2) as world:
        await send(world, content(1))
        found = await look(backend.url, namespace=world.config.namespace)
        assert found["dead letters"].level == "ok"
        for _ in range(2):
            await world.queue.retry(await claim_one(world), error="no", delay=0)
        found = await look(backend.url, namespace=world.config.namespace)
    finding = found["dead letters"]
    assert (finding.level, finding.figures) == ("warning", {"dead": 1})
    assert f"`redis-world dead list --namespace {world.config.namespace}`" in finding.advice


async def test_workflows_that_nobody_knows(clocked: Clocked, backend: Backend) -> None:
    """A deployment takes a while; what is unknown for longer is missing."""
    world, clock = clocked
    await send(world, content(1), name=TOPIC + "workflow//shop//refund")
    assert (await inside(world, backend))["postponed"].level == "ok"
    await world.queue.postpone(await claim_one(world), 3600)
    await clock.advance(30)
    await send(world, step())
    await world.queue.postpone(await claim_one(world), 3600)
    await clock.advance(30)
    finding = (await inside(world, backend))["postponed"]
    assert (finding.level, finding.figures) == ("ok", {"postponed": 2, "longest_postponed": 60})
    await clock.advance(60)
    finding = (await inside(world, backend))["postponed"]
    assert finding.level == "warning"
    assert "workflow workflow//shop//refund for 2 min, step charge for 90 s" in finding.text
    assert "redis-world worker" in finding.advice
    for number in range(5):
        await send(world, health_check(number), name=f"{TOPIC}w{number}")
    for message in await world.queue.claim(TOPIC):
        await world.queue.postpone(message, 3600)
    assert "and others" in (await inside(world, backend))["postponed"].text


async def test_leases_that_nobody_frees(clocked: Clocked, backend: Backend) -> None:
    world, clock = clocked
    await send(world, content(1))
    await claim_one(world, lease=10)
    await clock.advance(70)
    assert (await inside(world, backend))["leases"].level == "ok"
    await clock.advance(1)
    finding = (await inside(world, backend))["leases"]
    assert finding.level == "warning"
    assert finding.figures == {"old": 1, "oldest_seconds": 61}
    await world.queue.claim(TOPIC)
    assert (await inside(world, backend))["leases"].level == "ok"


async def test_runs_that_nobody_sweeps(clocked: Clocked, backend: Backend) -> None:
    world, clock = clocked
    await start_run(world)
    await clock.advance(4 * world.config.sweep_interval - 1)
    finding = (await inside(world, backend))["sweeps"]
    assert finding.level == "info"
    assert "No worker has swept yet" in finding.text
    assert finding.figures["parked"] == finding.figures["pending_wakeups"] == 1
    await clock.advance(2)
    finding = (await inside(world, backend))["sweeps"]
    assert finding.level == "warning"
    assert finding.figures["parked_old"] == finding.figures["pending_wakeups_old"] == 1
    await world.sweep()
    finding = (await inside(world, backend))["sweeps"]
    assert finding.level == "ok"
    assert finding.figures["last_sweep_seconds"] == 0


async def test_a_namespace_that_nobody_sweeps(clocked: Clocked, backend: Backend) -> None:
    """It is told before a run waits for a sweep."""
    world, clock = clocked
    assert (await inside(world, backend))["sweeps"].level == "info"
    await world.sweep()
    await clock.advance(4 * world.config.sweep_interval)
    finding = (await inside(world, backend))["sweeps"]
    assert finding.level == "ok"
    assert "The last sweep was 60 s ago" in finding.text
    await clock.advance(1)
    finding = (await inside(world, backend))["sweeps"]
    assert finding.level == "warning"
    assert "the last sweep was 61 s ago" in finding.text
    assert "redis-world worker" in finding.advice
    assert finding.figures["last_sweep_seconds"] == 61


async def test_runs_that_wait_for_hooks_are_no_fault(clocked: Clocked, backend: Backend) -> None:
    """The sweeper looks at them once an hour."""
    world, clock = clocked
    run_id = await start_run(world)
    data = {"token": "t"}
    event = {"eventType": "hook_created", "correlationId": "hook_1", "eventData": data}
    await world.events.create(run_id, event)
    await send(world, wake(run_id))
    await world.queue.ack(await claim_one(world))
    for _ in range(3):
        await clock.advance(world.config.sweep_interval)
        await world.sweep()
    await clock.advance(3500)
    finding = (await inside(world, backend))["sweeps"]
    assert "the last sweep was" in finding.text
    assert finding.figures["parked"] == 1
    assert finding.figures["parked_old"] == 0


# -- partitions and clusters ---------------------------------------------------------------

MANY: Final = 40
"""Runs that several of sixteen partitions share."""


async def trouble(world: RedisWorld) -> None:
    """Messages of many runs, a half of which are dead letters."""
    for number in range(MANY):
        run_id = e.new_run_id()
        await world.events.create(run_id, e.run_created())
        await send(world, content(number, run_id))
        if number == MANY // 2 - 1:
            while messages := await world.queue.claim(TOPIC, limit=MANY):
                for message in messages:
                    await world.queue.retry(message, error="no", delay=0)


async def test_all_partitions_are_looked_at(backend: Backend) -> None:
    library = ManualClock.library()
    async with backend.world(partitions=16, max_failures=2, library=library) as world:
        clock = await ManualClock(world).set()
        await trouble(world)
        await clock.advance(100)
        found = await inside(world, backend)
        assert await world.queue.claim(TOPIC, limit=1, lease=1)
        await clock.advance(100)
        later = await inside(world, backend)
    assert found["queue"].figures["ready"] == MANY // 2
    assert found["queue"].figures["oldest_due_age"] == 100
    assert found["dead letters"].figures == {"dead": MANY // 2}
    assert found["sweeps"].figures["parked"] == MANY // 2
    assert (later["leases"].level, later["leases"].figures["old"]) == ("warning", 1)


async def test_all_partitions_are_looked_for_runs_that_wait(backend: Backend) -> None:
    library = ManualClock.library()
    async with backend.world(partitions=16, library=library) as world:
        clock = await ManualClock(world).set()
        for _ in range(MANY):
            await start_run(world)
        await clock.advance(5 * world.config.sweep_interval)
        finding = (await inside(world, backend))["sweeps"]
    assert finding.level == "warning"
    assert finding.figures["parked_old"] == finding.figures["pending_wakeups_old"] == MANY


async def test_a_cluster() -> None:
    """The namespace is read wherever it lies, and each of the masters is looked at."""
    options: dict[str, Any] = {"namespace": "spread", "partitions": 16}
    with private_cluster(args=SAFE) as cluster:
        async with RedisWorld(cluster.url, max_failures=2, **options) as world:
            await trouble(world)
        found = await look(cluster.url, **options)
        assert levels(found) == {"dead letters": "warning"}
        assert found["dead letters"].figures == {"dead": MANY // 2}
        assert found["queue"].figures["ready"] == MANY // 2
        assert found["cluster"].figures == {"masters": 3, "partitions": 16}

        ill = cluster.masters[1]
        with contextlib.closing(redis.Redis.from_url(ill.url)) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        found = await look(cluster.url, **options)
        assert found["eviction"].level == "error"
        assert found["eviction"].text.startswith(f"{ill.host}:{ill.port}: ")

        found = await look(cluster.url, namespace="narrow")
        assert found["cluster"].level == "info"
        assert "--partitions" in found["cluster"].advice

        found = await look(ill.url, **options)
        assert found["cluster"].level == "info"
        assert "redis+cluster://" in found["cluster"].advice


async def test_a_cluster_that_is_not_there() -> None:
    url = "redis+cluster://127.0.0.1:1,127.0.0.1:2"
    (finding,) = await check_up(url, config=WorldConfig())
    assert (finding.name, finding.level) == ("connection", "error")
    assert finding.figures["server"] == "127.0.0.1:1,127.0.0.1:2"


@pytest.mark.parametrize("owed", [0, 1])
@pytest.mark.parametrize("parked", [0, 1])
def test_a_debt_is_as_good_a_sign_as_a_parked_run(owed: int, parked: int) -> None:
    known = facts({"HMGET": [b"1", b"1", b"2000"]})
    finding = check_sweeps(known, [Old(owed, 5, 99.0)], [Old(parked, 5, 99.0)], 3000)
    assert finding.level == ("warning" if owed or parked else "ok")


def test_the_default_namespace_needs_no_option() -> None:
    letters = Topic(TOPIC, 0, 0, 0, 0, 2, 0.0, 0, 0.0, (), None)
    finding = check_dead(facts(), [letters])
    assert "`redis-world dead list`, " in finding.advice


# -- words ---------------------------------------------------------------------------------


def test_the_worst_counts() -> None:
    found = [Finding(name="n", level=level, text="t") for level in LEVELS]
    assert worst([]) == "ok"
    assert [worst(found[: i + 1]) for i in range(len(LEVELS))] == [*LEVELS]
    assert worst(found[::-1]) == "error"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.02, "20 ms"), (1, "1 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"),
        (7200, "2 h"), (172_800, "2 days"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (2**20, "1.0 MiB"),
        (1.5 * 2**30, "1.5 GiB"), (5 * 2**50, "5120.0 TiB"),
    ],
)  # fmt: skip
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


def test_amounts() -> None:
    assert amount(1, "run") == "1 run"
    assert amount(1200, "run") == "1,200 runs"
    assert amount(0, "process", "processes") == "0 processes"


@pytest.mark.slow
async def test_a_frozen_node_of_a_cluster_is_named() -> None:
    with private_cluster() as cluster:
        for node in cluster.masters[1:]:
            os.kill(node.pid, signal.SIGSTOP)
            try:
                config = WorldConfig.create(partitions=3, socket_timeout=1, connect_timeout=1)
                (finding,) = await check_up(cluster.url, config=config)
            finally:
                os.kill(node.pid, signal.SIGCONT)
            assert (finding.name, finding.level) == ("connection", "error")
            assert f"The server at {node.host}:{node.port} did not answer" in finding.text
