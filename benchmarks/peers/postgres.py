"""A private PostgreSQL for the backends that store their state in one."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, SIGQUIT
from typing import Any, Final, NamedTuple

from peers.base import MissingError
from peers.commands import run
from redis_world.testing.ports import free_port

__all__ = ["Database", "postgres", "postgres_version"]

HOST: Final = "127.0.0.1"
USER: Final = "postgres"
"""Owns the database, and runs the server where we are root, whom PostgreSQL refuses."""
START_ATTEMPTS: Final = 5
START_TIMEOUT: Final = 60.0
STOP_TIMEOUT: Final = 30.0
COMMAND_TIMEOUT: Final = 120.0
INSTALL_TIMEOUT: Final = 600.0
POLL_INTERVAL: Final = 0.05

INSTALLED: Final = Path("/usr/lib/postgresql")
"""Debian has each version in a folder of its own, and none of them on the path."""
POLICY: Final = Path("/usr/sbin/policy-rc.d")


class Database(NamedTuple):
    """A database that runs.

    Attributes:
        url: with the name and the password of its owner.
        pid: of the server, whose children serve its clients.
    """

    url: str
    pid: int


class _PortTakenError(Exception):
    """Somebody else took the free port before the server did."""


@contextmanager
def postgres() -> Iterator[Database]:
    """Run a private PostgreSQL for the length of a `with` block.

    Its settings are those that `initdb` gives: `fsync` and `synchronous_commit` are on, so that
    a commit is answered when it is on disk, `shared_buffers` is 128 MB and `max_connections` 100.
    Only its addresses are our own: a free port of the loopback interface, and a socket in its
    private folder. It is ended, by its own pid, when the block ends in any way.

    Yields:
        An empty database.

    Raises:
        MissingError: there is no PostgreSQL and it can't be installed, or it doesn't start.
    """
    binaries = _binaries()
    # Short: the path of the socket in it may have a hundred bytes at most.
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        password = secrets.token_hex(16)
        _initialise(binaries, directory, password)
        process, port = _start(binaries, directory)
        try:
            url = f"postgresql://{USER}:{password}@{HOST}:{port}/postgres"
            yield Database(url, process.pid)
        finally:
            _stop(process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def postgres_version() -> str:
    """Of the server that `postgres` starts, such as `PostgreSQL 15.14`.

    Raises:
        MissingError: there is none and it can't be installed.
    """
    printed = run([_binaries() / "postgres", "--version"], timeout=COMMAND_TIMEOUT)
    match = re.search(r"\d+(?:\.\d+)*", printed)
    if match is None:
        raise MissingError(f"PostgreSQL doesn't tell its version: {printed!r}")
    return f"PostgreSQL {match[0]}"


def _binaries() -> Path:
    """The folder of the newest PostgreSQL, installed if need be."""
    found = _find()
    if found is None:
        _install()
        found = _find()
    if found is None:
        raise MissingError("PostgreSQL has no initdb and postgres in one folder")
    return found


def _find() -> Path | None:
    folders = [folder for folder in INSTALLED.glob("*/bin") if folder.parent.name.isdecimal()]
    folders.sort(key=lambda folder: int(folder.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    if on_path is not None:
        # Often a link to the folder in which its server stands too.
        folders.append(Path(on_path).resolve().parent)
    for folder in folders:
        if all((folder / name).exists() for name in ("initdb", "postgres", "pg_isready")):
            return folder
    return None


def _install() -> None:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise MissingError(
            "PostgreSQL isn't there: install Debian's postgresql, or initdb on PATH"
        )
    ours = not POLICY.exists()
    if ours:
        # The package would start a server of its own; 101 forbids that.
        POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
        POLICY.chmod(0o755)
    try:
        environment = {"DEBIAN_FRONTEND": "noninteractive"}
        for words in (
            ["update", "-qq"],
            ["install", "-y", "-qq", "--no-install-recommends", "postgresql"],
        ):
            run([apt, *words], timeout=INSTALL_TIMEOUT, environment=environment)
    finally:
        if ours:
            POLICY.unlink(missing_ok=True)


def _initialise(binaries: Path, directory: Path, password: str) -> None:
    """Make an empty database in the directory, which becomes the server's own."""
    password_file = directory / "password"
    password_file.write_text(password, encoding="utf-8")
    owner = _server_user()
    if owner is not None:
        for path in (directory, password_file):
            shutil.chown(path, owner, pwd.getpwnam(owner).pw_gid)
    run(
        [
            binaries / "initdb",
            f"--pgdata={_data(directory)}",
            f"--username={USER}",
            f"--pwfile={password_file}",
            "--auth-local=trust",  # nobody else can open the folder of the socket
            "--auth-host=scram-sha-256",
            # Not the environment's, on which the order of texts and the speed of sorting depend.
            "--encoding=UTF8",
            "--locale=C",
        ],
        timeout=COMMAND_TIMEOUT,
        directory=directory,
        **_identity(owner),
    )


def _server_user() -> str | None:
    """Who runs the server, or None for whoever we are."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(USER)
    except KeyError:
        raise MissingError(f"PostgreSQL refuses root, and there is no user {USER}") from None
    return USER


def _start(binaries: Path, directory: Path) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(START_ATTEMPTS):
        port = free_port()
        process = _spawn(binaries, directory, port)
        try:
            _wait_until_ready(process, binaries, directory, port)
        except _PortTakenError:
            continue
        except BaseException:
            _stop(process)
            raise
        return process, port
    raise MissingError(f"PostgreSQL found its port taken {START_ATTEMPTS} times")


def _spawn(binaries: Path, directory: Path, port: int) -> subprocess.Popen[bytes]:
    command = [str(binaries / "postgres"), "-D", str(_data(directory)), "-p", str(port)]
    command += ["-h", HOST, "-k", str(directory)]
    user = _server_user()
    with _log_path(directory).open("wb") as log:
        # Not by `runuser`, which would stand between us and the process that we have to end.
        return subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **_identity(user),
        )


def _identity(user: str | None) -> dict[str, Any]:
    """Who a process is, as subprocess has it."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _wait_until_ready(
    process: subprocess.Popen[bytes], binaries: Path, directory: Path, port: int
) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not _accepts_clients(binaries, directory, port):
        if process.poll() is not None:
            tail = _log_tail(directory)
            if "could not create any TCP/IP sockets" in tail:
                raise _PortTakenError
            raise MissingError(f"PostgreSQL exited at its start:\n{tail}")
        if time.monotonic() > deadline:
            raise MissingError(
                f"PostgreSQL wasn't ready after {START_TIMEOUT:g} s:\n{_log_tail(directory)}"
            )
        time.sleep(POLL_INTERVAL)


def _accepts_clients(binaries: Path, directory: Path, port: int) -> bool:
    # Asked over the socket in the private folder: on the port somebody else's server may answer.
    address = ["-h", str(directory), "-p", str(port), "-U", USER]
    return (
        subprocess.run(
            [str(binaries / "pg_isready"), "-q", "-t", "5", *address],
            cwd=directory,
            timeout=COMMAND_TIMEOUT,
            check=False,
        ).returncode
        == 0
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    # Ends the connections of clients that are still there, instead of waiting for them.
    process.send_signal(SIGINT)
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        # Unlike SIGKILL, this takes the server's own processes along.
        process.send_signal(SIGQUIT)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _data(directory: Path) -> Path:
    return directory / "data"


def _log_path(directory: Path) -> Path:
    return directory / "log"


def _log_tail(directory: Path) -> str:
    text = _log_path(directory).read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-10:])
