"""A user with the rights of the manual can do all in its namespace, and nothing elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from typer.testing import CliRunner

from redis_world import RedisWorld
from redis_world.checkup import check_up
from redis_world.checkup.rights import rights
from redis_world.cli import app, inspect, manage, prune  # noqa: F401 - they add their commands
from redis_world.queue import Message
from redis_world.testing import Server, redis_cluster, redis_server
from redis_world.worker import Worker
from support.events import new_run, run_ended, write
from support.exercise import exercise, exercise_partitions
from support.marks import slow
from support.private_servers import any_kind, needing

NAMESPACE: Final = "orders"
PASSWORD: Final = "pass-word"
MANUAL: Final = Path(__file__).parents[2] / "docs" / "operations.md"
SAFE: Final = ("--appendonly", "yes", "--maxmemory", "200mb")


@dataclass(frozen=True)
class Place:
    """Servers with a user of the rights of the manual.

    Attributes:
        url: of that user.
        servers: whose default user may do everything.
        partitions: that suit them.
    """

    url: str
    servers: tuple[Server, ...]
    partitions: int

    def users(self) -> Iterator[redis.Redis]:
        """A client of that user for each server."""
        for server in self.servers:
            yield redis.Redis(server.host, server.port, username="world", password=PASSWORD)

    def denied(self) -> set[str]:
        """What was refused to the user since the last look, by the server's own log."""
        found = set()
        for server in self.servers:
            with contextlib.closing(redis.Redis(server.host, server.port)) as client:
                log: Any = client.acl_log()
                found |= {f"{each['reason']} {each['object']}" for each in log}
                client.acl_log_reset()
        # redis-py names itself, and does not need to.
        return found - {"command client|setinfo", "command client"}


@pytest.fixture(params=["server", slow("cluster of 1 partition"), slow("cluster of 4 partitions")])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    line = re.search(r"^ACL SETUSER world on >password (.*)$", MANUAL.read_text(), re.MULTILINE)
    assert line is not None
    args = (*SAFE, "--user", "world", "on", f">{PASSWORD}", *line[1].split())
    with needing("real"):
        if request.param == "server":
            with redis_server(any_kind(), args=args) as server:
                url = server.url.replace("://", f"://world:{PASSWORD}@")
                yield Place(url, (server,), 1)
        else:
            with redis_cluster(any_kind(), args=args) as cluster:
                url = cluster.url.replace("://", f"://world:{PASSWORD}@")
                yield Place(url, cluster.masters, 4 if "4" in request.param else 1)


def test_the_manual_has_the_rights_of_doctor() -> None:
    assert f"ACL SETUSER world on >password {rights(NAMESPACE)}\n" in MANUAL.read_text()


async def test_everything_works_under_these_rights(place: Place) -> None:
    options: dict[str, Any] = {"namespace": NAMESPACE, "partitions": place.partitions}
    async with RedisWorld(place.url, durability="memory", **options) as world:
        assert place.denied() == set()
        if place.partitions == 1:
            run_id = await exercise(world)
        else:
            await exercise_partitions(world)
            run_id = await new_run(world)
        assert place.denied() == set(), "all public calls"
        await _work(world)
        assert place.denied() == set(), "a worker"
        config = world.config
        findings = await check_up(place.url, config=config)
        assert {each.name for each in findings if each.level == "error"} == set()
        # What it says is unknown, and does not count.
        assert place.denied() <= {"command config|get"}
    variables = {
        "REDIS_WORLD_URL": place.url,
        "REDIS_WORLD_NAMESPACE": NAMESPACE,
        "REDIS_WORLD_PARTITIONS": str(place.partitions),
    }
    for command in (
        *(["inspect", each] for each in ("runs", "hooks", "queue")),
        *(["inspect", each, run_id] for each in ("run", "events", "steps", "streams")),
        *(["dead", "list"], ["cancel", run_id], ["prune", "--older-than", "1d", "--dry-run"]),
    ):
        # In this process: ten more of them would take longer than all the rest.
        done = await asyncio.to_thread(CliRunner().invoke, app, command, env=variables)
        assert done.exit_code == 0, (command, done.output)
        assert place.denied() == set(), command


async def _work(world: RedisWorld) -> None:
    """Have a worker handle a message, wait for it, and sweep."""
    handled = asyncio.Event()

    async def handle(message: Message) -> None:
        if "run" in message.payload:
            await write(world, message.payload["run"], run_ended("completed"))
            handled.set()

    worker = Worker(world, {"__wkf_workflow_": handle}, concurrency=4)
    run_id = await new_run(world)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        await world.queue.send("__wkf_workflow_rights", {"run": run_id})
        await handled.wait()
        await world.runs.wait_for_terminal(run_id, timeout=30)
        await world.sweep()
        worker.stop()


@pytest.mark.parametrize("durability", ["replica", "disk"])
async def test_waiting_needs_no_other_rights(durability: str) -> None:
    with needing("redis7"), contextlib.ExitStack() as stack:
        kind = any_kind() if durability == "replica" else _with_waitaof()
        rule = rights(NAMESPACE, durability=durability).split()
        args = (*SAFE, "--user", "world", "on", f">{PASSWORD}", *rule)
        server = stack.enter_context(redis_server(kind, args=args))  # type: ignore[arg-type]
        if durability == "replica":
            follow = ("--replicaof", f"{server.host} {server.port}")
            stack.enter_context(
                redis_server(kind, args=(*follow, "--repl-diskless-sync-delay", "0"))  # type: ignore[arg-type]
            )
        url = server.url.replace("://", f"://world:{PASSWORD}@")
        async with RedisWorld(
            url, namespace=NAMESPACE, durability=durability, durability_timeout=9.0
        ) as world:
            await new_run(world)
        assert Place(url, (server,), 1).denied() == set()


def _with_waitaof() -> str:
    from redis_world.testing import available_kinds

    return next(each for each in ("valkey9", "redis8") if each in available_kinds())


OTHERS: Final = (
    "{orders2}:v1:meta", "{orders2/0.0}:v1:run:a", "{ordersx", "{order}:v1:meta", "orders",
    "orders:x", "{orders", "{Orders}:v1:meta", "{orders}", "{orders.eu/0.0}:v1:run:a",
    "{orders-2/0.0}:v1:topics", "{xorders/0.0}:v1:run:a", "x{orders}:v1:meta",
)  # fmt: skip


def test_other_namespaces_are_out_of_reach(place: Place) -> None:
    for client in place.users():
        with contextlib.closing(client):
            for key in OTHERS:
                for command in (["GET", key], ["SET", key, "1"], ["DEL", key], ["XLEN", key]):
                    _is_denied(client, *command)
                _is_denied(client, "EVAL", "return redis.call('GET', KEYS[1])", "1", key)
                _is_denied(client, "PUBLISH", key, "")
                _is_denied(client, "SUBSCRIBE", key)
            for command in (
                ["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "requirepass"], ["SCAN", "0"],
                ["ACL", "LIST"], ["SHUTDOWN"], ["PSUBSCRIBE", "*"],
            ):  # fmt: skip
                _is_denied(client, *command)


def _is_denied(client: redis.Redis, *command: str) -> None:
    try:
        reply = client.execute_command(*command)  # type: ignore[no-untyped-call]
    except redis.exceptions.NoPermissionError:
        return
    except redis.exceptions.ResponseError as error:
        # Of a command inside of a script only the text says so.
        assert "permission" in str(error) or "ACL" in str(error), (command, error)  # noqa: PT017
        return
    raise AssertionError(f"{command}: {reply}")
