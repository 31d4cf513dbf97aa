from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import redis.asyncio

from redis_world import RedisWorld
from redis_world.config import WorldConfig
from redis_world.errors import ConfigurationError, WorldUnavailableError
from redis_world.testing import Server
from support.backends import Backend
from support.events import new_run, run_created
from support.ports import reserved_port
from support.private_servers import ONE, private_server
from support.resp import Reply, fake_server, healthy

URL: Final = "redis://localhost:6379/0"
PASSWORD: Final = "pass-w0rd-of-the-test"


@pytest.fixture
def private() -> Iterator[Server]:
    """A server of the test's own, for what it changes of the server itself."""
    with private_server(ONE) as server:
        yield server


# -- options -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("namespace", name) for name in ("", "a b", "a:b", "a/b", "{a}", "é", "a\n", "x" * 65)),
        *(("namespace", name) for name in (None, 1)),
        *(("partitions", number) for number in (0, -1, "many", 1.5)),
        *(("max_connections", number) for number in (0, -1, "x")),
        *(("max_events_per_run", number) for number in (0, -5, "x")),
        *(("max_payload_bytes", number) for number in (0, 512 * 1024 * 1024)),
        *(("max_failures", 0), ("max_lost_leases", 0), ("serialize_runs", "perhaps")),
        *(("retention", timedelta(0)), ("retention", "a while"), ("hook_retention_limit", "x")),
        *(("connect_timeout", 0), ("socket_timeout", -1), ("deployment_id", 1)),
        *(("name_space", "a"), ("decode_responses", True), ("Namespace", "a")),
    ],
)
def test_a_bad_option_is_named(option: str, value: Any) -> None:
    for url in (URL, "memory://"):
        with pytest.raises(ConfigurationError, match=option):
            RedisWorld(url, **{option: value})


@pytest.mark.parametrize("namespace", ["a", "A-Z_a.z-0", "0", ".", "-", "x" * 64])
def test_good_namespaces(namespace: str) -> None:
    assert RedisWorld(URL, namespace=namespace).config.namespace == namespace


def test_all_bad_options_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisWorld(URL, namespace="a b", max_connections=0, unknown=1)
    for name in ("namespace", "max_connections", "unknown"):
        assert name in str(caught.value)


# Contract: 5.event ceiling, 5.hook retention, 5.run retention, 7.dead letters
def test_defaults_are_the_documented_ones() -> None:
    config = RedisWorld(URL).config
    assert config.namespace == "world"
    assert config.partitions == 1
    assert config.deployment_id == ""
    assert config.environment is None
    assert config.retention == timedelta(days=30)
    assert config.hook_retention_limit == timedelta(days=365)
    assert config.max_events_per_run == 25_000
    assert config.max_payload_bytes == 64 * 1024 * 1024
    assert config.serialize_runs is True
    assert (config.max_failures, config.max_lost_leases) == (64, 1000)


def test_none_lifts_a_limit() -> None:
    config = RedisWorld(URL, max_events_per_run=None, retention=None).config
    assert (config.max_events_per_run, config.retention) == (None, None)


# -- environment ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", *(option.upper() for option in WorldConfig.model_fields)):
        monkeypatch.delenv(f"REDIS_WORLD_{name}", raising=False)


async def test_the_environment_says_where_and_how(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = backend.namespace()
    monkeypatch.setenv("REDIS_WORLD_URL", backend.url)
    monkeypatch.setenv("REDIS_WORLD_NAMESPACE", namespace)
    monkeypatch.setenv("REDIS_WORLD_MAX_EVENTS_PER_RUN", "7")
    monkeypatch.setenv("REDIS_WORLD_SERIALIZE_RUNS", "false")
    monkeypatch.setenv("REDIS_WORLD_RETENTION", "P2D")
    async with RedisWorld.from_env(max_events_per_run=9, deployment_id="dpl_1") as world:
        run_id = await new_run(world)
        assert world.config.namespace == namespace
        assert world.config.max_events_per_run == 9, "keywords win"
        assert world.config.serialize_runs is False
        assert world.config.retention == timedelta(days=2)
        assert world.config.deployment_id == "dpl_1"
    async with backend.world(namespace=namespace) as world:
        assert (await world.runs.get(run_id)).run_id == run_id


async def test_the_embedded_store_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_WORLD_URL", "memory://")
    async with RedisWorld.from_env(namespace="from-env") as world:
        assert world.config.namespace == "from-env"
        run_id = await new_run(world)
    async with RedisWorld("memory://", namespace="from-env") as world:
        assert (await world.runs.get(run_id)).run_id == run_id


def test_a_url_as_keyword_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_WORLD_URL", "nonsense")
    RedisWorld.from_env(url="memory://")
    with pytest.raises(ConfigurationError, match="nonsense"):
        RedisWorld.from_env()


@pytest.mark.parametrize(
    ("name", "value"), [("PARTITIONS", "many"), ("NAMESPACE", "a b"), ("MAX_CONNECTIONS", "")]
)
def test_a_bad_variable_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"REDIS_WORLD_{name}", value)
    with pytest.raises(ConfigurationError, match=re.compile(name, re.IGNORECASE)):
        RedisWorld.from_env()


# -- URLs and clients ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "localhost:6379",
        "://",
        "http://localhost:6379",
        "redi://localhost",
        "redis:/localhost",
        "redis://localhost:port/0",
        "redis://localhost:70000/0",
        "redis://localhost/0?socket_timeout=soon",
    ],
)
def test_a_bad_url_is_told(url: str) -> None:
    with pytest.raises(ConfigurationError, match="URL"):
        RedisWorld(url)


@pytest.mark.parametrize(
    "url",
    [
        f"redi://user:{PASSWORD}@localhost",
        f"redis://user:{PASSWORD}@localhost:port/0",
        f"user:{PASSWORD}@localhost",
        f"redis://user:{PASSWORD}@localhost/0?socket_timeout=soon",
        f"redis://user:{PASSWORD}@localhost/0?decode_responses=yes",
    ],
)
def test_no_error_tells_a_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisWorld(url)
    assert PASSWORD not in str(caught.value)


async def test_an_option_of_the_url_that_nobody_knows(private: Server) -> None:
    with pytest.raises(ConfigurationError, match="colour"):
        async with RedisWorld(f"{private.url}?colour=red"):
            pass


async def test_a_database_that_the_server_does_not_have(private: Server) -> None:
    url = private.url.removesuffix("/0") + "/99"
    with pytest.raises(ConfigurationError):
        async with RedisWorld(url):
            pass


def test_either_a_url_or_a_client() -> None:
    with pytest.raises(ConfigurationError, match="URL or a ready client"):
        RedisWorld()
    with pytest.raises(ConfigurationError, match="URL or a ready client"):
        RedisWorld(URL, client=redis.asyncio.Redis())


def test_clients_that_decode_are_refused() -> None:
    client = redis.asyncio.Redis(decode_responses=True)
    with pytest.raises(ConfigurationError, match="decode_responses"):
        RedisWorld(client=client)
    for value in ("true", "True", "1", "yes"):
        with pytest.raises(ConfigurationError, match="decode_responses"):
            RedisWorld(f"{URL}?decode_responses={value}")
    RedisWorld(client=redis.asyncio.Redis(decode_responses=False))


# -- servers -------------------------------------------------------------------------------


async def test_a_server_that_is_not_there() -> None:
    with reserved_port() as port:
        world = RedisWorld(f"redis://user:{PASSWORD}@127.0.0.1:{port}/0")
        for call in (
            world.open,
            world.runs.list,
            lambda: world.events.create(None, run_created()),
        ):
            with pytest.raises(WorldUnavailableError) as caught:
                await call()
            text = str(caught.value)
            assert f"127.0.0.1:{port}" in text
            assert "is it running" in text, "says what to look at"
            assert PASSWORD not in text
        await world.aclose()


async def test_a_socket_that_is_not_there(tmp_path: Path) -> None:
    world = RedisWorld(f"unix://{tmp_path}/nothing")
    with pytest.raises(WorldUnavailableError, match="nothing"):
        await world.open()
    await world.aclose()


async def test_a_server_behind_a_socket(private: Server) -> None:
    with contextlib.closing(redis.Redis.from_url(private.url)) as client:
        path = client.config_get("unixsocket")["unixsocket"]
    async with RedisWorld(f"unix://{path}") as world:
        run_id = await new_run(world)
        assert (await world.runs.get(run_id)).run_id == run_id
        # Subscribers and blocking callers go the same way.
        await world.runs.wait_for_terminal(run_id, timeout=0.01)
        caller = world.connection.sync_caller()
        keys = {"wait_states": world.connection.partitions.of(run_id).of_run(run_id).wait_states}
        replies = await asyncio.to_thread(
            caller.call_many, "waits/get", [(keys, {"correlation_id": "w"})]
        )
        assert replies == [[b"WAIT_NOT_FOUND"]]
        caller.close()


async def test_a_server_that_does_not_answer() -> None:
    async with fake_server(lambda _: None) as server:
        world = RedisWorld(server.url, socket_timeout=0.05)
        with pytest.raises(WorldUnavailableError):
            await world.open()
        await world.aclose()
        assert server.commands


@pytest.mark.parametrize(
    ("info", "refused"),
    [
        ("redis_version:7.0.0", ""),
        ("redis_version:8.2.1", ""),
        ("redis_version:255.255.255", ""),
        ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1", ""),
        ("redis_version:6.2.14", "6.2.14"),
        ("redis_version:5.0.7", "5.0.7"),
        ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:7.2.5", "7.2.5"),
    ],
)
async def test_the_version_of_the_server(info: str, refused: str) -> None:
    def answer(command: list[bytes]) -> Reply:
        return healthy(command, server=info)

    async with fake_server(answer) as server:
        world = RedisWorld(server.url)
        if refused:
            with pytest.raises(ConfigurationError) as caught:
                await world.open()
            assert refused in str(caught.value)
            assert "7.0" in str(caught.value), "says what is needed"
            assert not {b"EVALSHA", b"EVAL"} & set(server.names), "nothing was written"
        else:
            await world.open()
            assert b"EVAL" in server.names
        await world.aclose()


async def test_a_server_that_may_evict_keys_is_warned_about(private: Server) -> None:
    with contextlib.closing(redis.Redis.from_url(private.url)) as client:
        for policy in ("allkeys-lru", "volatile-ttl"):
            client.config_set("maxmemory-policy", policy)
            with pytest.warns(RuntimeWarning, match=f"{policy}.*noeviction"):
                async with RedisWorld(private.url) as world:
                    await new_run(world)
        client.config_set("maxmemory-policy", "noeviction")
        async with RedisWorld(private.url):
            pass  # A warning would be an error.


async def test_a_password_that_is_wrong_or_missing() -> None:
    with private_server(ONE, "--requirepass", "right") as server:
        place = f"{server.host}:{server.port}"
        for login in (f":{PASSWORD}@", f"nobody:{PASSWORD}@", ""):
            world = RedisWorld(f"redis://{login}{place}/0")
            with pytest.raises(ConfigurationError) as caught:
                await world.open()
            assert "password" in str(caught.value)
            assert place in str(caught.value)
            assert PASSWORD not in str(caught.value)
            await world.aclose()
        async with RedisWorld(f"redis://:right@{place}/0") as world:
            await new_run(world)


async def test_a_user_who_may_not_run_scripts(private: Server) -> None:
    with contextlib.closing(redis.Redis.from_url(private.url)) as client:
        client.execute_command(  # type: ignore[no-untyped-call]
            "ACL", "SETUSER", "reader", "on", ">secret", "~*", "&*", "+@read", "+@connection"
        )
        world = RedisWorld(f"redis://reader:secret@{private.host}:{private.port}/0")
        with pytest.raises(ConfigurationError, match="denies"):
            await world.open()
        await world.aclose()
        assert list(client.scan_iter()) == []


# -- what is pinned ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pinned", "told"),
    [
        ({"schema": "3", "partitions": "4"}, "partitions=4"),
        ({"schema": "2", "partitions": "1"}, "schema 2"),
        ({"schema": "99", "partitions": "8"}, "schema 99"),
    ],
)
async def test_a_namespace_that_was_made_otherwise_is_left_alone(
    pinned: dict[str, str], told: str, backend: Backend
) -> None:
    namespace = backend.namespace()
    with contextlib.closing(backend.client()) as client:
        client.hset(f"{{{namespace}}}:v1:meta", mapping=pinned)  # type: ignore[arg-type]
    before = backend.dump()
    world = backend.world(namespace=namespace)
    for call in (world.open, lambda: world.events.create(None, run_created()), world.runs.list):
        with pytest.raises(ConfigurationError) as caught:
            await call()
        assert told in str(caught.value)
        assert namespace in str(caught.value)
    assert backend.dump() == before
    await world.aclose()


async def test_the_first_opening_pins_and_the_next_ones_keep(backend: Backend) -> None:
    namespace = backend.namespace()
    async with backend.world(namespace=namespace):
        pinned = backend.dump()
    ((key, (kind, fields)),) = pinned.items()
    assert (key, kind) == (f"{{{namespace}}}:v1:meta".encode(), b"hash")
    assert (fields[b"schema"], fields[b"partitions"]) == (b"3", b"1")
    async with backend.world(namespace=namespace):
        assert backend.dump() == pinned
