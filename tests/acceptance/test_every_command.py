"""Every command of the command line, with everything that it may meet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from redis_world import RedisWorld
from redis_world.bench.measurements import Bench
from redis_world.keys import meta_key
from redis_world.testing import redis_cluster
from redis_world.testing.ports import free_port
from support.backends import CLUSTER, SENTINEL, Backend, Servers
from support.command_line import Ended, environment, run_here
from support.events import (
    event,
    lazy_start,
    new_run,
    new_run_id,
    run_created,
    run_ended,
    step_completed,
    write,
)
from support.ports import reserved_port
from support.private_servers import needing, private_server
from support.sdk import kept_modules, kept_world

PARTITIONS: Final = 4
TOPIC: Final = "__wkf_workflow_"
PASSWORD: Final = "pass-word"
RUN: Final = new_run_id()

READING: Final = (
    ("inspect", "runs"),
    ("inspect", "run", RUN),
    ("inspect", "events", RUN),
    ("inspect", "steps", RUN),
    ("inspect", "hooks"),
    ("inspect", "hooks", RUN),
    ("inspect", "streams", RUN),
    ("inspect", "streams", RUN, "letter"),
    ("inspect", "streams", RUN, "letter", "--json"),
    ("inspect", "queue"),
    ("dead", "list"),
    ("prune", "--older-than", "0s", "--dry-run"),
)
"""They need a namespace, and change nothing."""
CHANGING: Final = (
    ("cancel", RUN),
    ("dead", "redrive", "msg_1"),
    ("dead", "redrive", "--all"),
    ("dead", "purge", "--yes"),
    ("dead", "purge"),
    ("prune", "--older-than", "0s", "--yes"),
    ("prune", "--older-than", "0s"),
)
"""They need a namespace, and change what is in it."""
WORKING: Final = (("worker",), ("demo",), ("bench", "--seconds", "1"))
"""They make a namespace where there is none; the first one needs a module."""
SITES: Final = ("redis7", CLUSTER, SENTINEL)


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    """One server, one behind Sentinels, and a cluster."""
    with servers.backend(request.param).at_work() as backend:
        yield backend


@pytest.fixture(autouse=True)
def same_world_afterwards() -> Iterator[None]:
    with kept_modules(), kept_world():
        yield


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Write a module with a registry into the folder of the command; gives its name.

    Each is another one: a registry registers itself once, when its module is imported.
    """
    monkeypatch.chdir(tmp_path)

    def make() -> str:
        name = f"made_{secrets.token_hex(4)}"
        text = "from vercel.workflow import Workflows\napp = Workflows()\n"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return name

    return make


def assert_refused(command: Sequence[str], ended: Ended, code: int = 1) -> None:
    """One line on stderr, and nothing else."""
    assert (ended.code, ended.out) == (code, ""), (command, ended)
    assert ended.err.startswith("redis-world: "), (command, ended)
    assert ended.err.count("\n") == 1, (command, ended)
    assert "Traceback" not in ended.err, (command, ended)
    assert PASSWORD not in ended.err, (command, ended)


def ids(command: tuple[str, ...]) -> str:
    return " ".join(word for word in command if word != RUN)


def use(site: Backend, namespace: str, change: Callable[[RedisWorld], Any], **options: Any) -> Any:
    """Do something in a World of its own."""

    async def inside() -> Any:
        async with site.world(namespace=namespace, **options) as world:
            return await change(world)

    return asyncio.run(inside())


async def fill(world: RedisWorld) -> None:
    """A run with a step and a stream, runs in all partitions, and a dead letter."""
    await write(world, RUN, run_created(), event("run_started"))
    await write(world, RUN, lazy_start("step_1"), step_completed("step_1"))
    await world.streams.write(RUN, "letter", b"Dear Ada")
    for _ in range(3 * PARTITIONS):
        await write(world, await new_run(world), run_ended("completed"))
    await world.queue.send(f"{TOPIC}w", {})
    (message,) = await world.queue.claim(TOPIC)
    await world.queue.retry(message, delay=0)


def filled(site: Backend) -> str:
    namespace = site.namespace()
    use(site, namespace, fill, partitions=PARTITIONS, max_failures=1)
    return namespace


# -- which namespace -----------------------------------------------------------------------


class TestNamespaces:
    def test_one_that_does_not_exist(self, site: Backend) -> None:
        """No command creates it, and each says which ones there are."""
        there, missing = site.namespace(), site.namespace()
        use(site, there, new_run, partitions=PARTITIONS)
        with site.calm():
            before = site.dump()
            for command in (*READING, *CHANGING):
                ended = run_here(*command, "--url", site.url, "--namespace", missing)
                assert_refused(command, ended)
                assert f"no such namespace: {missing!r}" in ended.err, command
                assert f"Existing namespaces are: {there}." in ended.err, command
            assert site.dump() == before

    def test_a_server_without_any(self, site: Backend) -> None:
        with site.calm():
            for command in (*READING, *CHANGING):
                ended = run_here(*command, "--url", site.url, "--namespace", site.namespace())
                assert_refused(command, ended)
                assert "The server has no namespaces." in ended.err, command
            assert site.dump() == {}

    def test_reading_takes_its_partitions_and_changes_nothing(self, site: Backend) -> None:
        namespace = filled(site)
        options = ("--url", site.url, "--namespace", namespace)
        expected = {
            "inspect runs": 1 + 3 * PARTITIONS,
            "inspect run": 5,
            "inspect events": 5,
            "inspect steps": 1,
            "inspect hooks": 0,
            "inspect streams": 1,
            "inspect queue": 1,
            "dead list": 1,
            "prune --older-than": 1,
        }
        with site.calm():
            before = site.dump()
            for command in READING:
                # What the environment says of partitions is for namespaces to come.
                ended = run_here(*command, *options, REDIS_WORLD_PARTITIONS="7")
                assert (ended.code, ended.err) == (0, ""), command
                lines = ended.out.splitlines()
                if command[-1] not in ("letter", "--json"):
                    assert len(lines) == expected[" ".join(command[:2])], (command, ended.out)
                assert site.dump() == before, command
            assert f"found\t{3 * PARTITIONS}\n" in ended.out

    def test_changing_takes_its_partitions(self, site: Backend) -> None:
        namespace = filled(site)
        options = ("--url", site.url, "--namespace", namespace)
        with site.calm():
            ended = run_here("cancel", RUN, *options, REDIS_WORLD_PARTITIONS="7")
            assert (ended.code, ended.out) == (0, f"{RUN}\tcancelled\t\n")
            ended = run_here("dead", "redrive", "--all", *options)
            assert (ended.code, ended.out) == (0, f"{TOPIC}\tredriven\t1\n")
            ended = run_here("prune", "--older-than", "0s", "--yes", *options)
            assert (ended.code, ended.out) == (0, f"removed\t{1 + 3 * PARTITIONS}\n")

    @pytest.mark.parametrize("command", WORKING, ids=ids)
    def test_working_is_told_the_number(
        self, site: Backend, command: tuple[str, ...], make_module: Callable[[], str]
    ) -> None:
        """A number that is not the namespace's is an error; the text has the right one."""
        namespace = filled(site)
        module = [make_module()] if command == ("worker",) else []
        options = ["--url", site.url, "--namespace", namespace]
        for way in (["--partitions", "3"], []):
            given = {} if way else {"REDIS_WORLD_PARTITIONS": "3"}
            with site.calm():
                ended = run_here(*command, *module, *options, *way, **given)
            assert_refused(command, ended)
            # bench works in no namespace that exists.
            word = "already exists" if command[0] == "bench" else f"partitions={PARTITIONS}"
            assert word in ended.err

    def test_a_bench_has_the_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The measurements take too long to be waited for."""
        seen: list[int] = []

        async def measure(bench: Bench) -> None:
            seen.append(len(bench.world.connection.partitions))
            raise KeyboardInterrupt

        monkeypatch.setattr("redis_world.bench.run._measure", measure)
        bench = ("bench", "--url", "memory://")
        assert run_here(*bench, "--partitions", "3").err == "interrupted\n"
        assert run_here(*bench, REDIS_WORLD_PARTITIONS="2").code == 1
        assert seen == [3, 2]

    @pytest.mark.parametrize("number", ["0", "1025", "x"])
    @pytest.mark.parametrize("command", WORKING, ids=ids)
    def test_a_number_that_is_none(self, command: tuple[str, ...], number: str) -> None:
        module = ["json"] if command == ("worker",) else []
        ended = run_here(*command, *module, "--partitions", number)
        assert (ended.code, ended.out) == (2, "")
        assert "--partitions" in ended.err


class TestDoctor:
    def find(self, site: Backend, namespace: str, **variables: str) -> tuple[int, dict[str, Any]]:
        options = ("--url", site.url, "--namespace", namespace, "--json")
        ended = run_here("doctor", *options, **variables)
        found = json.loads(ended.out)["findings"]
        return ended.code, {each["name"]: each for each in found}

    def test_a_mistyped_name_is_not_ok(self, site: Backend) -> None:
        there, missing = filled(site), site.namespace()
        with site.calm():
            before = site.dump()
            code, found = self.find(site, missing)
            assert site.dump() == before
        assert code >= 1
        assert found["namespace"]["level"] == "warning"
        text = found["namespace"]["text"]
        assert f"{missing} does not exist" in text
        assert f"Existing namespaces are: {there}" in text

    def test_a_server_without_any_is_checked(self, site: Backend) -> None:
        with site.calm():
            _, found = self.find(site, site.namespace())
            assert site.dump() == {}
        assert found["namespace"]["level"] == "info"
        assert "does not exist. The server has no namespaces" in found["namespace"]["text"]
        assert found["scripts"]["level"] == found["writes"]["level"] == "ok"

    def test_the_partitions_of_the_namespace(self, site: Backend) -> None:
        namespace = filled(site)
        with site.calm():
            before = site.dump()
            _, found = self.find(site, namespace)
            assert site.dump() == before
        assert found["namespace"]["level"] == "ok"
        assert found["dead letters"]["figures"]["dead"] == 1
        # What the environment says is what a worker would say.
        with site.calm():
            code, found = self.find(site, namespace, REDIS_WORLD_PARTITIONS="3")
        assert code == 2
        assert found["namespace"]["level"] == "error"
        assert f"partitions={PARTITIONS}" in found["namespace"]["text"]


# -- what goes wrong -----------------------------------------------------------------------

IMPATIENT: Final = {
    "REDIS_WORLD_RETRY_TIMEOUT": "0",
    "REDIS_WORLD_CONNECT_TIMEOUT": "0.3",
    "REDIS_WORLD_SOCKET_TIMEOUT": "0.3",
}
NAMESPACE: Final = "n"
Answer = Callable[[socket.socket], None]


@contextlib.contextmanager
def listening(answer: Answer) -> Iterator[str]:
    """Somebody who is no Redis, for the length of a block; gives the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    kept.append(connection)
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in kept:
            connection.close()


def speak_http(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


class TestTrouble:
    """One clear line and an exit code that is not 0, whatever the command and the trouble."""

    @pytest.fixture
    def check(self, make_module: Callable[[], str]) -> Callable[..., None]:
        """See that commands refuse a URL; the line of each has these words.

        One of each way to reach the server, or `all_of_them`: it takes a second or more.
        """

        def check(
            url: str,
            *words: str,
            working: bool = True,
            all_of_them: bool = False,
            **variables: str,
        ) -> None:
            given = {**IMPATIENT, **variables}
            given.setdefault("REDIS_WORLD_NAMESPACE", NAMESPACE)
            options = ("--url", url)
            known = (*READING, *CHANGING) if all_of_them else (READING[0], CHANGING[0])
            for command in (*known, *(WORKING if working else ())):
                module = [make_module()] if command == ("worker",) else []
                ended = run_here(*command, *module, *options, **given)
                assert_refused(command, ended)
                assert all(word in ended.err for word in words), (command, ended)
            ended = run_here("doctor", *options, **given)
            assert (ended.code, ended.err) == (2, ""), ended
            assert PASSWORD not in ended.out
            rows = [line.split("\t") for line in ended.out.splitlines()]
            assert {len(row) for row in rows} == {4}
            assert any(row[0] == "error" for row in rows)

        return check

    @pytest.mark.parametrize(
        "url",
        [
            *("no url", "http://127.0.0.1", "redis://127.0.0.1:port", "redis://127.0.0.1:99999"),
            *("redis://127.0.0.1/zero", "redis+cluster://", "redis+sentinel://127.0.0.1:1"),
            "redis://127.0.0.1?no_such_option=1",
        ],
    )
    def test_a_url_that_is_none(self, check: Callable[..., None], url: str) -> None:
        check(url)

    @pytest.mark.parametrize("name", ["RETRY_TIMEOUT", "MAX_CONNECTIONS", "DURABILITY"])
    def test_an_option_of_the_environment(self, check: Callable[..., None], name: str) -> None:
        check("redis://127.0.0.1:1", name.lower(), **{f"REDIS_WORLD_{name}": "soon"})

    def test_a_namespace_that_is_none(self, check: Callable[..., None]) -> None:
        # bench does not look there.
        check("redis://127.0.0.1:1", "namespace", working=False, REDIS_WORLD_NAMESPACE="{}")

    @pytest.mark.parametrize("kind", ["redis", "redis+cluster", "redis+sentinel"])
    def test_nobody_is_there(self, check: Callable[..., None], kind: str) -> None:
        tail = "/orders" if kind == "redis+sentinel" else ""
        with reserved_port() as port:
            check(
                f"{kind}://user:{PASSWORD}@127.0.0.1:{port}{tail}",
                "s it running, and is the URL correct?",
                all_of_them=True,
            )

    @pytest.mark.parametrize("kind", ["redis", "redis+cluster", "redis+sentinel", "rediss"])
    @pytest.mark.parametrize(
        "answer", [socket.socket.close, speak_http, lambda _: None], ids=["none", "http", "silent"]
    )
    def test_somebody_else_is_there(
        self, check: Callable[..., None], kind: str, answer: Answer
    ) -> None:
        tail = "/orders" if kind == "redis+sentinel" else ""
        with listening(answer) as address:
            check(f"{kind}://:{PASSWORD}@{address}{tail}")

    def test_a_server_of_another_kind(self, check: Callable[..., None]) -> None:
        with private_server("redis7") as server:
            address = f"{server.host}:{server.port}"
            check(f"redis+cluster://{address}")
            check(f"redis+sentinel://{address}/orders")

    def test_a_user_without_rights(self, check: Callable[..., None]) -> None:
        user = ("--user", "reader", "on", f">{PASSWORD}", "+ping", "+hello")
        with private_server("redis7", *user, "--requirepass", PASSWORD) as server:
            address = f"{server.host}:{server.port}"
            for login in ("", ":wrong@", f"nobody:{PASSWORD}@", f"reader:{PASSWORD}@"):
                check(f"redis://{login}{address}")

    def test_a_damaged_namespace(self, check: Callable[..., None]) -> None:
        with private_server("redis7") as server, contextlib.closing(
            redis.Redis(server.host, server.port)
        ) as client:  # fmt: skip
            meta = meta_key(NAMESPACE)
            damages: list[Callable[[], Any]] = [
                lambda: client.set(meta, "x"),
                lambda: client.hset(meta, "schema", "1"),
                lambda: client.hset(meta, mapping={"schema": "x", "partitions": "1"}),
                lambda: client.hset(meta, mapping={"schema": "1", "partitions": "x"}),
                lambda: client.hset(meta, mapping={"schema": "99", "partitions": "1"}),
            ]
            for damage in damages:
                client.flushall()
                damage()
                before = client.dump(meta)
                check(server.url, NAMESPACE, working=False)
                assert client.dump(meta) == before

    @pytest.mark.parametrize("state", ["killed", "frozen", "all killed"])
    def test_a_node_of_a_cluster_is_down(self, check: Callable[..., None], state: str) -> None:
        with needing("redis7"), redis_cluster("redis7") as cluster:

            async def make() -> None:
                async with RedisWorld(
                    cluster.url, namespace=NAMESPACE, partitions=PARTITIONS
                ) as world:
                    await fill(world)

            asyncio.run(make())
            nodes = cluster.masters if state == "all killed" else cluster.masters[1:2]
            number = signal.SIGSTOP if state == "frozen" else signal.SIGKILL
            for node in nodes:
                os.kill(node.pid, number)
            try:
                check(cluster.url, f":{nodes[0].port}", all_of_them=state == "killed")
            finally:
                if state == "frozen":
                    os.kill(nodes[0].pid, signal.SIGCONT)

    def test_a_cluster_whose_slots_nobody_has(self, check: Callable[..., None]) -> None:
        # The port that it would choose itself is 10,000 above its own, which may be too high.
        bus = str(free_port())
        with private_server("redis7", "--cluster-enabled", "yes", "--cluster-port", bus) as server:
            check(f"redis+cluster://{server.host}:{server.port}")

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("./flows.py", "`flows`"),
            ("flows.py", "`flows`"),
            ("app/workflows.py", "`app.workflows`"),
            ("app/", "`app`"),
            ("app/__init__.py", "`app`"),
            ("../app/flows.py", "`flows`, as in `import flows`, and run this command in ../app"),
            ("/srv/app/flows.py", "run this command in /srv/app"),
            ("flows:app", "`flows`"),
            (".flows", "`flows`"),
            ("a..b", "`a.b`"),
            ("", "`app.workflows`"),
            ("..", "`app.workflows`"),
            (".py", "not the name of a Python module"),
            ("no_such_module", "there is no module 'no_such_module'"),
            ("no.such.module", "there is no module 'no.such.module'"),
            ("json", "no workflows were found in json"),
        ],
    )
    def test_what_is_no_module(self, name: str, words: str) -> None:
        ended = run_here("worker", name, "--url", "redis://127.0.0.1:1/0")
        assert_refused([name], ended)
        assert words in ended.err

    def test_what_is_no_module_is_told_once(self) -> None:
        """Not by each of the processes."""
        ended = run_here("worker", "./flows.py", "--processes", "2")
        assert_refused(["worker"], ended)

    @pytest.mark.parametrize("command", [*READING, *CHANGING, *WORKING, ("doctor",)], ids=ids)
    def test_an_option_that_does_not_exist(self, command: tuple[str, ...]) -> None:
        ended = run_here(*command, "--no-such-option")
        assert (ended.code, ended.out) == (2, "")
        assert "--no-such-option" in ended.err

    @pytest.mark.parametrize(
        "command",
        [("doctor",), ("inspect", "runs"), ("inspect", "streams", RUN, "letter")],
        ids=ids,
    )
    def test_a_full_disk(self, servers: Servers, command: tuple[str, ...]) -> None:
        with servers.backend("redis7").at_work() as site:
            options = ("--url", site.url, "--namespace", filled(site))
            with Path("/dev/full").open("w") as full:
                done = in_a_process(*command, *options, stdout=full)
        assert done.returncode == 1
        assert done.stderr == "redis-world: stdout can't be written: No space left on device\n"

    def test_no_standard_streams(self, servers: Servers) -> None:
        """As some service managers start it."""
        with servers.backend("redis7").at_work() as site:
            options = ("--url", site.url, "--namespace", filled(site))
            script = 'exec "$@" <&- >&- 2>&-'
            for command, code in (
                (("inspect", "runs"), 0), (("doctor",), 1), (("prune", "--older-than", "0s"), 2),
            ):  # fmt: skip
                whole = [sys.executable, "-m", "redis_world", *command, *options]
                done = subprocess.run(
                    ["sh", "-c", script, "sh", *whole], check=False, env=environment()
                )
                assert done.returncode == code, command


def in_a_process(*arguments: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "redis_world", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=environment(),
        **streams,
    )
