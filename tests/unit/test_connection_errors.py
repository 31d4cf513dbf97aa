"""Errors of a connection: whatever is wrong, the text says what it is and what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import redis
import redis.asyncio

from redis_world import RedisWorld
from redis_world.checkup import check_up
from redis_world.connection import diagnosis
from redis_world.errors import ConfigurationError, WorldError, WorldUnavailableError
from redis_world.testing import Cluster, Server, redis_cluster, redis_server
from redis_world.testing.ports import free_port
from redis_world.testing.servers import _find
from support.command_line import environment
from support.events import new_run, run_created, step_created
from support.marks import slow
from support.ports import reserved_port
from support.private_servers import any_kind, needing
from support.resp import Reply, fake_server, healthy
from support.tls import PAST, Authority, listener, tls_proxy
from support.until import wait_until

HOST: Final = "127.0.0.1"
PASSWORD: Final = "pass-w0rd-of-the-test"
SERVICE: Final = "orders"
QUICK: Final[dict[str, Any]] = {"retry_timeout": 0, "connect_timeout": 20.0}
IMPATIENT: Final[dict[str, Any]] = {**QUICK, "connect_timeout": 0.3, "socket_timeout": 0.3}
"""Where nothing else comes than silence."""
BASES: Final = ("redis", "rediss", "valkey", "valkeys")
SCHEMES: Final = (
    *BASES,
    *(f"{base}+{kind}" for kind in ("cluster", "sentinel") for base in BASES),
)
QUICK_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "redis+sentinel")


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    with needing("real"), redis_server(any_kind()) as server:
        yield server


@contextlib.contextmanager
def sentinel(master: Server, folder: Path, port: int = 0) -> Iterator[int]:
    """A Sentinel of the same kind that watches a server; its port."""
    binary, _ = _find(master.kind)
    port = port or free_port()
    lines = [
        f"port {port}", f"bind {HOST}", f"dir {folder}", "protected-mode no",
        f"sentinel monitor {SERVICE} {master.host} {master.port} 1",
    ]  # fmt: skip
    (folder / "sentinel.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [binary, str(folder / "sentinel.conf"), "--sentinel"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: _answers(port))
        yield port
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with contextlib.closing(redis.Redis(port=port)) as client, contextlib.suppress(Exception):
        return bool(client.ping())
    return False


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        while await reader.read(1000):
            pass


async def _be_a_web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.fixture(scope="module")
def places(
    plain: Server, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    """Host and port of each kind of server, and of what is none."""
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        locked = enter(redis_server(plain.kind, args=("--requirepass", "right")))
        ports = {
            "plain": plain.port,
            "tls": enter(tls_proxy(plain.port, authority.server())),
            "cluster node": enter(redis_cluster(plain.kind)).masters[0].port,
            "Sentinel": enter(sentinel(plain, tmp_path_factory.mktemp("sentinel"))),
            "locked": locked.port,
            "nobody": enter(reserved_port()),
            "silent": enter(listener(_say_nothing)),
            "web": enter(listener(_be_a_web_server)),
            "closing": enter(listener(_hang_up)),
        }
        yield {
            **{name: f"{HOST}:{port}" for name, port in ports.items()},
            "unknown": "no-such-host.invalid:6379",
        }


KINDS: Final = (
    *("plain", "tls", "cluster node", "Sentinel", "locked", "nobody", "silent", "web", "closing"),
    "unknown",
)
FIT: Final = {"plain": "", "tls": "", "cluster node": "cluster", "Sentinel": "sentinel"}
"""What a URL's scheme has to say behind its plus, for this kind of server."""


def url_of(scheme: str, place: str, authority: Authority, *, login: str = "") -> str:
    base, _, kind = scheme.partition("+")
    path = f"/{SERVICE}" if kind == "sentinel" else ""
    options = (
        f"?ssl_ca_certs={authority.ca_file}" if base.endswith("s") and base != "redis" else ""
    )
    if base == "redis":
        options = ""
    return f"{scheme}://{login}{place}{path}{options}"


def expected(scheme: str, kind: str) -> tuple[type[WorldError], str] | None:
    """The error of a URL of this scheme that leads to such a server, and a part of its text."""
    base, _, wanted = scheme.partition("+")
    is_secure = base in ("rediss", "valkeys")
    match kind:
        case "nobody":
            return WorldUnavailableError, r"connection refused.*[iI]s it running"
        case "unknown":
            return WorldUnavailableError, r"the host name is unknown"
        case "silent":
            return WorldUnavailableError, r"no (answer|reply)"
        case "closing":
            return WorldUnavailableError, r"(can't|can) be reached"
        case "web" if is_secure:
            return ConfigurationError, "does not use TLS on this port: use redis://"
        case "web":
            return WorldUnavailableError, "does not answer as Redis does"
    if is_secure != (kind == "tls"):
        return ConfigurationError, (
            r"does not use TLS on this port: use redis:// instead of rediss://"
            if is_secure
            else r"uses TLS on this port: use rediss:// instead of redis://"
        )
    if kind == "locked" and wanted != "sentinel":
        return ConfigurationError, "requires a password: add it to the URL"
    if FIT.get(kind) == wanted:
        return None
    if kind == "locked":
        # Valkey asks for the password before it looks at the command.
        return ConfigurationError, "is not a Sentinel: give|requires a password: add it"
    if wanted == "sentinel":
        return ConfigurationError, r"is not a Sentinel: give the addresses of Sentinels"
    if kind == "Sentinel":
        return ConfigurationError, r"is a Sentinel.* use redis\+sentinel://"
    if kind == "cluster node":
        return ConfigurationError, r"is a node of a cluster: use redis\+cluster://"
    plain = "rediss" if is_secure else "redis"
    return ConfigurationError, rf"is not a node of a cluster: use {plain}:// instead"


def judge(error: BaseException, place: str) -> str:
    """What holds for the text of every error; the text."""
    text = str(error)
    assert place in text, "the address"
    assert PASSWORD not in text
    assert not re.search(r"<\w+[.(]| object at 0x|Error\(|Errno|\bb'", text), "no objects"
    assert text.count(place) == 1, "once is enough"
    assert len(text) < 400
    assert error.__cause__ is None or isinstance(error.__cause__, WorldError)
    assert error.__suppress_context__
    return text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "scheme", [each if each in QUICK_SCHEMES else slow(each) for each in SCHEMES]
)
async def test_each_url_to_each_kind_of_server(
    scheme: str,
    kind: str,
    places: Mapping[str, str],
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnosis, "_LOOK_SECONDS", 0.3 if kind == "silent" else 20.0)
    place = places[kind]
    url = url_of(scheme, place, authority)
    answer = expected(scheme, kind)
    # A server without TLS waits for the end of what it takes for a command.
    is_silent = kind == "silent" or (answer is not None and "not use TLS" in answer[1])
    world = RedisWorld(url, namespace="matrix", **(IMPATIENT if is_silent else QUICK))
    config = world.config
    if answer is None:
        async with world:
            run_id = await new_run(world)
            assert (await world.runs.get(run_id)).run_id == run_id
        assert (await check_up(url, config=config))[0].level == "ok"
        return
    kind_of_error, pattern = answer
    with pytest.raises(WorldError) as caught:
        await world.open()
    await world.aclose()
    text = judge(caught.value, place)
    assert type(caught.value) is kind_of_error, text
    assert re.search(pattern, text), text
    # The checkup says the same, unless it can look at a part.
    findings = await check_up(url, config=config)
    assert all(PASSWORD not in each.text for each in findings)
    if kind == "closing":
        assert place in findings[0].text
    elif findings[0].level == "ok":
        assert kind in ("cluster node", "Sentinel", "locked")
    else:
        assert findings[0].text[1:] == text[1:]


@pytest.mark.parametrize("kind", ["nobody", "silent", "closing", "locked", "tls", "Sentinel"])
@pytest.mark.parametrize("scheme", ["redis", slow("valkeys"), "redis+cluster", "rediss+sentinel"])
async def test_no_error_has_the_password(
    scheme: str,
    kind: str,
    places: Mapping[str, str],
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnosis, "_LOOK_SECONDS", 0.2)
    url = url_of(scheme, places[kind], authority, login=f"user:{PASSWORD}@")
    world = RedisWorld(url, **IMPATIENT)
    with contextlib.suppress(WorldError):
        await world.open()
        await world.events.create(None, run_created())
    with pytest.raises(WorldError) as caught:
        await world.runs.list()
    # With the right URL of a Sentinel it is the master that refuses the user.
    place = (
        places["plain"]
        if (kind, scheme.partition("+")[2]) == ("Sentinel", "sentinel")
        else places[kind]
    )
    judge(caught.value, places[kind] if places[kind] in str(caught.value) else place)
    await world.aclose()


# -- certificates --------------------------------------------------------------------------


async def opening(url: str, **options: Any) -> str:
    """The text of the error that opening fails with."""
    world = RedisWorld(url, **{**QUICK, **options})
    with pytest.raises(ConfigurationError) as caught:
        await world.open()
    await world.aclose()
    return judge(caught.value, url.partition("://")[2].partition("/")[0].partition("?")[0])


async def test_a_certificate_of_an_unknown_authority(
    plain: Server, authority: Authority, tmp_path: Path
) -> None:
    with tls_proxy(plain.port, authority.server()) as port:
        for more in ("", f"?ssl_ca_certs={Authority.make(tmp_path).ca_file}"):
            text = await opening(f"rediss://{HOST}:{port}/0{more}")
            assert "certificate" in text
            assert "ssl_ca_certs=/path/to/ca.pem" in text
            assert "running" not in text


async def test_a_certificate_of_another_host(plain: Server, authority: Authority) -> None:
    with tls_proxy(plain.port, authority.server("db.example")) as port:
        text = await opening(f"rediss://{HOST}:{port}?ssl_ca_certs={authority.ca_file}")
        assert "use the host name of the certificate in the URL" in text


async def test_a_certificate_that_has_expired(plain: Server, authority: Authority) -> None:
    with warnings.catch_warnings(), tls_proxy(plain.port, authority.server(until=PAST)) as port:
        text = await opening(f"rediss://{HOST}:{port}?ssl_ca_certs={authority.ca_file}")
        assert "expired" in text


async def test_a_server_that_wants_a_certificate(
    plain: Server, authority: Authority, tmp_path: Path
) -> None:
    with tls_proxy(plain.port, authority.demanding_server()) as port:
        url = f"rediss://{HOST}:{port}?ssl_ca_certs={authority.ca_file}"
        text = await opening(url)
        assert "ssl_certfile=/path/to/cert.pem" in text
        cert, key = authority.client_files(tmp_path)
        async with RedisWorld(f"{url}&ssl_certfile={cert}&ssl_keyfile={key}") as world:
            await new_run(world)


@pytest.mark.parametrize("kind", ["", "+cluster", "+sentinel"])
@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
async def test_a_file_of_the_url_that_is_missing_or_wrong(
    option: str, kind: str, plain: Server, authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.client_files(tmp_path)
    good = {"ssl_ca_certs": authority.ca_file, "ssl_certfile": cert, "ssl_keyfile": key}
    text_file = tmp_path / "text.pem"
    text_file.write_text("no certificate")
    with tls_proxy(plain.port, authority.server()) as port:
        for path, words in (
            (tmp_path / "nothing.pem", "no such file"),
            (tmp_path, "is a directory"),
            (text_file, "can't be used"),
        ):
            options = "&".join(f"{name}={file}" for name, file in {**good, option: path}.items())
            path_of_url = f"/{SERVICE}" if kind == "+sentinel" else ""
            world = RedisWorld(f"rediss{kind}://{HOST}:{port}{path_of_url}?{options}", **QUICK)
            with pytest.raises(ConfigurationError) as caught:
                await world.open()
            await world.aclose()
            text = str(caught.value)
            assert str(path) in text, text
            assert option in text
            assert words in text
            assert "running" not in text


# -- databases, users, nodes ---------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["redis", "valkey", "rediss", "redis+sentinel"])
async def test_a_database_that_is_not_there(
    scheme: str, places: Mapping[str, str], authority: Authority
) -> None:
    kind = {"rediss": "tls", "redis+sentinel": "Sentinel"}.get(scheme, "plain")
    service = f"/{SERVICE}" if kind == "Sentinel" else ""
    tls = f"?ssl_ca_certs={authority.ca_file}" if kind == "tls" else ""
    world = RedisWorld(f"{scheme}://{places[kind]}{service}/99{tls}", **QUICK)
    with pytest.raises(ConfigurationError, match="does not have database 99") as caught:
        await world.open()
    await world.aclose()
    assert "lower number" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    # A cluster of Valkey 9 may have databases.
    [("Sentinel", "is a Sentinel"), ("cluster node", "is a node of a cluster|have database 1")],
)
async def test_a_database_of_a_server_without_any(
    kind: str, pattern: str, places: Mapping[str, str]
) -> None:
    text = await opening(f"redis://{places[kind]}/1")
    assert re.search(pattern, text), text


@pytest.mark.parametrize("login", [":wrong@", "nobody:wrong@", "nobody:right@"])
@pytest.mark.parametrize("scheme", ["redis", "valkey", "redis+cluster"])
async def test_a_wrong_user_or_password(
    scheme: str, login: str, places: Mapping[str, str], authority: Authority
) -> None:
    url = url_of(scheme, places["locked"], authority, login=login)
    world = RedisWorld(url, **QUICK)
    with pytest.raises(ConfigurationError, match="refuses the user or password") as caught:
        await world.open()
    await world.aclose()
    judge(caught.value, places["locked"])
    assert "wrong" not in str(caught.value)


async def expect_nobody(url: str, problem: str) -> None:
    """Open a World at two places where nobody is: the error tells of both."""
    with reserved_port() as first, reserved_port() as second:
        places = [f"{HOST}:{port}" for port in (first, second)]
        world = RedisWorld(url.format(hosts=",".join(places)), **QUICK)
        with pytest.raises(WorldUnavailableError, match=problem) as caught:
            await world.open()
    for place in places:
        assert f"{place} (connection refused)" in str(caught.value)
    judge(caught.value, places[0])


async def test_sentinels_that_are_not_there(plain: Server, tmp_path: Path) -> None:
    await expect_nobody("redis+sentinel://{hosts}/" + SERVICE, "no Sentinel can be reached")
    with sentinel(plain, tmp_path) as port:
        world = RedisWorld(f"redis+sentinel://{HOST}:{port}/other", **QUICK)
        with pytest.raises(ConfigurationError, match="watch no service named 'other'"):
            await world.open()


async def test_sentinels_that_go(
    plain: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their master's connections break meanwhile: the call tells who was asked for another."""
    async with contextlib.AsyncExitStack() as stack:
        with sentinel(plain, tmp_path) as port:
            world = RedisWorld(f"redis+sentinel://{HOST}:{port}/{SERVICE}", **QUICK)
            await stack.enter_async_context(world)
            await new_run(world)
        with contextlib.closing(redis.Redis.from_url(plain.url)) as client:
            client.client_kill_filter(_type="normal", skipme=True)
        with caplog.at_level("DEBUG"), pytest.raises(WorldUnavailableError) as caught:
            await world.runs.list()
        text = str(caught.value)
        assert f"{HOST}:{port}" in text
        assert SERVICE in text
        for told in (text, *caplog.messages):
            assert not re.search(r"<redis| object at |\(<", told), told


async def test_a_sentinel_that_comes_back(plain: Server, tmp_path: Path) -> None:
    """None is forgotten, however many connections are made at once while one is away."""

    async def call_on_new_connections(world: RedisWorld) -> None:
        with contextlib.closing(redis.Redis.from_url(plain.url)) as client:
            client.client_kill_filter(_type="normal", skipme=True)
        calls = []
        for _ in range(5):
            calls.append(asyncio.create_task(world.runs.list()))
            # What is sent in one turn of the loop shares a connection.
            await asyncio.sleep(0)
        await asyncio.gather(*calls)

    async with contextlib.AsyncExitStack() as stack:
        first = stack.enter_context(reserved_port())
        second = stack.enter_context(reserved_port())
        url = f"redis+sentinel://{HOST}:{first},{HOST}:{second}/{SERVICE}"
        world = RedisWorld(url, **{**QUICK, "retry_timeout": 20})
        for there in (second, first, second):
            with sentinel(plain, tmp_path, there):
                await stack.enter_async_context(world)
                await call_on_new_connections(world)


async def test_a_cluster_without_nodes() -> None:
    await expect_nobody("redis+cluster://{hosts}", "no node of the cluster")


COMMANDS: Final = (
    *(("doctor",), ("inspect", "runs"), ("inspect", "queue"), ("dead", "list"), ("bench",)),
    *(("inspect", "run", "wrun_1"), ("prune", "--older-than", "1d", "--dry-run")),
    ("worker", "json"),
)


@contextlib.contextmanager
def incomplete_cluster() -> Iterator[tuple[Cluster, str, Callable[[], None]]]:
    """A cluster, the address of one of its nodes, and what takes that down."""
    args = ("--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes")
    with needing("real"), redis_cluster(any_kind(), args=args) as cluster:
        node = cluster.masters[1]

        def take_down() -> None:
            os.kill(node.pid, signal.SIGKILL)
            wait_until(lambda: not _answers(node.port))

        yield cluster, f"{node.host}:{node.port}", take_down


@pytest.mark.slow
async def test_a_node_of_a_cluster_that_is_down() -> None:
    """Its address is told, in one line."""
    with incomplete_cluster() as (cluster, place, take_down):
        world = RedisWorld(
            cluster.url, namespace="n", partitions=16, **{**QUICK, "retry_timeout": 1}
        )
        async with world:
            runs = [await new_run(world) for _ in range(40)]
            take_down()
            failures = []
            for run_id in runs:
                try:
                    await world.events.create(run_id, step_created())
                except WorldUnavailableError as error:
                    failures.append(error)
                    if len(failures) > 2:
                        break
            assert failures
            for each in failures:
                assert place in str(each)
                assert "Errno" not in str(each)
        again = RedisWorld(cluster.url, namespace="n", partitions=16, **QUICK)
        with pytest.raises(WorldUnavailableError) as caught:
            await again.open()
        judge(caught.value, place)
        await again.aclose()


@pytest.mark.slow
async def test_each_command_tells_which_node_of_a_cluster_is_down(tmp_path: Path) -> None:
    with incomplete_cluster() as (cluster, place, take_down):
        async with RedisWorld(cluster.url, namespace="n", partitions=16):
            take_down()
        variables = {
            "REDIS_WORLD_URL": cluster.url,
            "REDIS_WORLD_NAMESPACE": "n",
            "REDIS_WORLD_PARTITIONS": "16",
            "REDIS_WORLD_RETRY_TIMEOUT": "0.2",
        }
        for command in COMMANDS:
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "redis_world", *command],
                capture_output=True, text=True, check=False, cwd=tmp_path,
                env=environment(**variables),
            )  # fmt: skip
            told = done.stdout + done.stderr
            assert done.returncode in (1, 2), (command, told)
            assert "Traceback" not in told, (command, told)
            if command[0] != "worker":
                assert place in told, (command, told)


# -- servers that are another one ----------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "name"),
    [
        ("redis_version:7.4.0\r\ndragonfly_version:df-v1.21.2", "Dragonfly df-v1.21.2"),
        ("redis_version:6.3.4\r\nexecutable:/usr/local/bin/keydb-server", "KeyDB"),
        ("redis_version:6.2.1", "Redis 6.2.1"),
    ],
)
async def test_another_server_is_refused(info: str, name: str) -> None:
    async with fake_server(lambda command: healthy(command, server=info)) as server:
        world = RedisWorld(server.url)
        with pytest.raises(ConfigurationError) as caught:
            await world.open()
        await world.aclose()
        text = judge(caught.value, server.url.removeprefix("redis://").removesuffix("/0"))
        assert name in text
        assert "use Redis 7.0, Valkey 8.0 or newer" in text
        assert not {b"EVAL", b"EVALSHA"} & {*server.names}
        assert b"LOAD" not in [each[1] for each in server.commands if len(each) > 1]


@pytest.mark.parametrize("command", ["XADD", "HSCAN", "ZRANDMEMBER", "UNLINK", "HMGET"])
async def test_a_server_without_a_command_is_refused(command: str) -> None:
    with (
        needing("real"),
        redis_server(any_kind(), args=("--rename-command", command, "")) as server,
    ):
        world = RedisWorld(server.url, **QUICK)
        with pytest.raises(ConfigurationError, match=rf"lacks .*\b{command}\b") as caught:
            await world.open()
        await world.aclose()
        judge(caught.value, f"{server.host}:{server.port}")
        with contextlib.closing(redis.Redis.from_url(server.url)) as client:
            assert client.dbsize() == 0


@pytest.mark.parametrize("command", ["EVAL", "SCRIPT"])
async def test_a_server_without_scripts_is_refused(command: str) -> None:
    with (
        needing("real"),
        redis_server(any_kind(), args=("--rename-command", command, "")) as server,
    ):
        world = RedisWorld(server.url, **QUICK)
        with pytest.raises(ConfigurationError, match=rf"lacks .*\b{command}\b"):
            await world.open()
        await world.aclose()


async def test_a_server_without_a_function_of_lua_is_refused() -> None:
    def answer(command: list[bytes]) -> Reply:
        if command[0] == b"EVAL":
            assert b"string.format" in command[1]
            return b"*2\r\n$7\r\nMISSING\r\n$13\r\nstring.format\r\n"
        return healthy(command)

    async with fake_server(answer) as server:
        world = RedisWorld(server.url)
        with pytest.raises(ConfigurationError, match=r"\(string\.format\)"):
            await world.open()
        await world.aclose()


async def test_a_good_server_lacks_nothing_and_the_look_costs_nothing(plain: Server) -> None:
    """In the round trip that loads the scripts, and no more once they are there."""
    with contextlib.closing(redis.Redis.from_url(plain.url)) as client:
        client.script_flush()
        trips, errors = [], []
        for _ in range(2):
            client.config_resetstat()
            async with RedisWorld(plain.url, namespace="trips"):
                pass
            stats: Any = client.info("commandstats")
            trips.append(stats.get("cmdstat_eval", {"calls": 0})["calls"])
            errors.append(client.info("errorstats"))
    assert trips == [2, 1], "a look and the pinning; then the pinning alone"
    assert errors[0] == errors[1], "what is missing is not found by trying it"


async def test_a_node_of_a_cluster_that_has_all_slots_may_be_used_alone() -> None:
    with needing("real"), redis_cluster(any_kind(), masters=1) as cluster:
        async with RedisWorld(cluster.masters[0].url, partitions=4) as world:
            await new_run(world)
