"""The command `redis-world serve`: where it listens, its processes, signals, and Redis away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trustme

from redis_world.server.running import Address
from redis_world.testing import redis_server
from redis_world.testing.ports import free_port
from support.command_line import environment
from support.http_server import Client
from support.ports import reserved_port
from support.private_servers import any_kind
from support.until import wait_until

pytestmark = pytest.mark.slow

TOKEN: Final = "a-token-of-the-orders-app"
SERVE: Final = [sys.executable, "-m", "redis_world", "serve"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with redis_server(any_kind()) as server:
        yield f"redis://{server.host}:{server.port}/0"


@contextlib.contextmanager
def serving(folder: Path, *options: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server as a process of its own; what it logs is in a file of the folder."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*SERVE, *options], env=environment(**variables), stderr=log, stdout=log
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(40)
            finally:
                process.kill()


def log_of(folder: Path) -> str:
    return (folder / "log").read_text(encoding="utf-8")


def ask(port: int, path: str, *, scheme: str = "http", context: Any = None) -> tuple[int, Any]:
    """Status and value of an answer."""
    address = f"{scheme}://127.0.0.1:{port}{path}"
    try:
        with urllib.request.urlopen(address, timeout=40, context=context) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def is_ready(port: int) -> bool:
    try:
        return ask(port, "/readyz")[0] == 200
    except OSError:
        return False


REFUSED: Final[dict[str, tuple[list[str], str]]] = {
    "another host": (["--host", "0.0.0.0"], "without tokens the server listens on loopback"),
    "no file": (["--tokens", "no-such-file"], "can't read the tokens in no-such-file"),
    "push without tokens": (["--push", "http://127.0.0.1:1"], "--push needs a token"),
    "no address": (["--push", "app"], "--push must be the address of an app"),
    "no certificate": (["--certfile", "no-such-file"], "can't load the certificate"),
    "a key alone": (["--keyfile", "no-such-file"], "--keyfile needs --certfile"),
    "no url": ([], "REDIS_WORLD_URL"),
}


LOOPBACK: Final = ["127.0.0.1", "127.1.2.3", "localhost", "::1"]
ELSEWHERE: Final = ["0.0.0.0", "::", "10.0.0.1", "127.0.0.1.example.com", "localhost.example.com",
                    "::1234", "", "127.0.0.256"]  # fmt: skip


def test_loopback_is_this_machine_alone() -> None:
    assert all(Address(host, 0).is_loopback for host in LOOPBACK)
    assert not any(Address(host, 0).is_loopback for host in ELSEWHERE)


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses_is_one_line(tmp_path: Path, name: str) -> None:
    options, text = REFUSED[name]
    url = [] if name == "no url" else ["--url", "redis://127.0.0.1:1/0"]
    done = subprocess.run(
        [*SERVE, *url, *options], env=environment(), capture_output=True, text=True,
        timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_port_that_is_taken(url: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = subprocess.run(
            [*SERVE, "--url", url, "--port", str(port)], env=environment(), capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"can't listen on 127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(tmp_path: Path, url: str, number: signal.Signals) -> None:
    port = free_port()
    with serving(tmp_path, "--url", url, "--port", str(port)) as process:
        wait_until(lambda: is_ready(port))
        assert ask(port, "/v1/server.info")[1]["namespace"] == "world"
        process.send_signal(number)
        assert process.wait(30) == 0
    assert "Traceback" not in log_of(tmp_path)
    assert "server ended" in log_of(tmp_path)


async def test_a_running_request_finishes_at_a_stop(tmp_path: Path, url: str) -> None:
    port = free_port()
    with serving(tmp_path, "--url", url, "--port", str(port)) as process:
        await asyncio.to_thread(wait_until, lambda: is_ready(port))
        poll = {"topics": ["__wkf_workflow_"], "wait": 20}
        polling = asyncio.create_task(Client(port).call("queue.claim", poll))
        await asyncio.sleep(0.5)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        reply = await polling
        assert (reply.status, reply.value) == (200, {"messages": []})
        assert await asyncio.to_thread(process.wait, 30) == 0
        assert time.monotonic() - began < 15


def test_processes_share_a_port_and_are_replaced(tmp_path: Path, url: str) -> None:
    port = free_port()
    options = ["--url", url, "--port", str(port), "--processes", "2"]
    with serving(tmp_path, *options) as process:
        wait_until(lambda: log_of(tmp_path).count("serving on") == 2)
        wait_until(lambda: is_ready(port))
        first = children(process.pid)
        assert len(first) == 2
        os.kill(first[0], signal.SIGKILL)
        wait_until(lambda: len({*children(process.pid)} - {*first}) == 1)
        wait_until(lambda: log_of(tmp_path).count("serving on") == 3)
        assert all(ask(port, "/livez")[0] == 200 for _ in range(20))
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
    assert f"server process {first[0]} ended with code -9" in log_of(tmp_path)


async def test_processes_let_their_requests_finish(tmp_path: Path, url: str) -> None:
    """Their supervisor's signal, and that of a terminal, are one stop."""
    port = free_port()
    options = ["--url", url, "--port", str(port), "--processes", "2"]
    with serving(tmp_path, *options) as process:
        await asyncio.to_thread(wait_until, lambda: log_of(tmp_path).count("serving on") == 2)
        await asyncio.to_thread(wait_until, lambda: is_ready(port))
        poll = {"topics": ["__wkf_workflow_"], "wait": 20}
        polling = [asyncio.create_task(Client(port).call("queue.claim", poll)) for _ in range(8)]
        await asyncio.sleep(0.5)
        for each in children(process.pid):
            os.kill(each, signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        replies = await asyncio.gather(*polling)
        assert {(each.status, str(each.value)) for each in replies} == {(200, "{'messages': []}")}
        assert await asyncio.to_thread(process.wait, 40) == 0
    assert "Traceback" not in log_of(tmp_path)
    assert log_of(tmp_path).count("server ended") == 2


def test_a_second_signal_ends_it_at_once(tmp_path: Path, url: str) -> None:
    port = free_port()
    with serving(tmp_path, "--url", url, "--port", str(port)) as process:
        wait_until(lambda: is_ready(port))
        with socket.create_connection(("127.0.0.1", port)) as other:
            # A request that does not end by itself.
            other.sendall(b"GET /v1/streams.read?runId=r&name=s HTTP/1.1\r\nHost: x\r\n\r\n")
            assert other.recv(20)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) in (0, 130)


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(each) for each in text.split()]


def test_tokens_of_the_environment_count(tmp_path: Path, url: str) -> None:
    port = free_port()
    with serving(
        tmp_path, "--url", url, "--port", str(port),
        REDIS_WORLD_TOKENS=f"{TOKEN} orders app; another-token-for-reading orders read",
    ):  # fmt: skip
        wait_until(lambda: is_ready(port))
        assert ask(port, "/v1/server.info")[0] == 401
        info = asyncio.run(Client(port, TOKEN).value("server.info"))
        assert (info["namespace"], info["role"]) == ("orders", "app")
    assert TOKEN not in log_of(tmp_path)


def test_tls(tmp_path: Path, url: str) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    certificate = tmp_path / "own.pem"
    own.private_key_and_cert_chain_pem.write_to_path(str(certificate))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    port = free_port()
    with serving(tmp_path, "--url", url, "--port", str(port), "--certfile", str(certificate)):
        wait_until(lambda: "serving on https" in log_of(tmp_path))

        def is_there() -> bool:
            try:
                return ask(port, "/readyz", scheme="https", context=context)[0] == 200
            except OSError:
                return False

        wait_until(is_there)


def test_a_server_without_redis_lives_and_is_not_ready(tmp_path: Path) -> None:
    """It starts, tells so, answers within a bounded time, and works as soon as Redis is there."""
    port = free_port()
    kind = any_kind()
    with reserved_port() as redis_port:
        url = f"redis://127.0.0.1:{redis_port}/0"
        with serving(tmp_path, "--url", url, "--port", str(port), REDIS_WORLD_RETRY_TIMEOUT="1"):
            wait_until(lambda: "serving on" in log_of(tmp_path))
            wait_until(lambda: is_alive(port))
            assert ask(port, "/readyz")[0] == 503
            began = time.monotonic()
            status, error = ask(port, "/v1/runs.list")
            assert (status, error["code"]) == (503, "unavailable")
            assert time.monotonic() - began < 20
            with redis_server(kind, args=("--port", str(redis_port), "--bind", "127.0.0.1")):
                wait_until(lambda: is_ready(port))
                assert ask(port, "/v1/runs.list")[0] == 200


def is_alive(port: int) -> bool:
    try:
        return ask(port, "/livez")[0] == 200
    except OSError:
        return False


def test_the_embedded_store_can_be_served(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, "--url", "memory://served", "--port", str(port)):
        wait_until(lambda: is_ready(port))
        assert ask(port, "/v1/runs.list")[1]["data"] == []
