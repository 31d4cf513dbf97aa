"""The Worlds of npm, each in one Node process that is asked for one round after the other."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any, Final, Self

from peers.base import PAYLOAD, STEPS, MissingError, Peer, Round, Sample
from peers.commands import run
from peers.postgres import postgres, postgres_version
from peers.watching import Look, of_process, of_redis, watched
from redis_world.testing import ServerUnavailableError, redis_server

__all__ = ["CALLERS", "PEERS", "NpmWorld"]

CALLERS: Final = 64
"""Runs that are under way at a time."""

FOLDER: Final = Path(__file__).parent / "npm"
"""Has the driver and what it imports, with pinned versions."""
NODE_MAJOR: Final = 20
INSTALL_TIMEOUT: Final = 600.0
COMMAND_TIMEOUT: Final = 120.0
ROUND_TIMEOUT: Final = 900.0
STOP_TIMEOUT: Final = 10.0

Place = tuple[str, str, Look | None]
"""Where a World keeps its data, as the driver takes it, and the server there, if there is one."""


class NpmWorld:
    """A World of npm, whose runs of ten steps are measured by their 33 calls of `events.create`.

    Args:
        name: of the npm package.
        place: gives it a place of its own for its data, which must be empty.
        callers: runs that are under way at a time.
    """

    def __init__(
        self,
        name: str,
        place: Callable[[], AbstractContextManager[Place]],
        *,
        callers: int = CALLERS,
    ) -> None:
        self.name = name
        self.callers = callers
        self._place = place
        self._version = ""

    @contextmanager
    def start(self) -> Iterator[Round]:
        """Start its server and the driver, and end both with the block.

        Raises:
            MissingError: there is no Node with npm, or a package or the server can't be had.
        """
        _install()
        with self._place() as (place, server, look), _Driver(self.name, place) as driver:
            parts = [driver.version, f"Node {driver.node}", server]
            self._version = ", ".join(part for part in parts if part)

            def measure(count: int) -> Sample:
                return driver.measure(count, callers=self.callers)

            # Else the first round would measure connecting and compiling.
            measure(self.callers)
            yield measure if look is None else watched(measure, look)

    def version(self) -> str:
        """Such as `0.2.2, Node 22.1.0, Redis 7.0.15`."""
        return self._version


class _Driver:
    """The process that holds the World, from the start of a block to its end."""

    version: str
    node: str

    def __init__(self, name: str, place: str) -> None:
        self._command = [_program("node"), "driver.mjs", name, place]

    def __enter__(self) -> Self:
        # A file, since a pipe that nobody reads would stop the process when it is full.
        self._log = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                self._command,
                cwd=FOLDER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
            )
        except BaseException:
            self._log.close()
            raise
        try:
            hello = self._receive(COMMAND_TIMEOUT)
            self.version, self.node = hello["version"], hello["node"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()  # asks it to end
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def measure(self, runs: int, *, callers: int) -> Sample:
        request = {"runs": runs, "callers": callers, "steps": STEPS, "bytes": len(PAYLOAD)}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        result = self._receive(ROUND_TIMEOUT)
        return Sample(result["count"], result["seconds"], result["latencies"])

    def _receive(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        # Its end ends the wait for its answer too.
        timer = Timer(timeout, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            raise self._ended()
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise RuntimeError(f"{self._command[2]}: {message['error']}")
        return message

    def _ended(self) -> RuntimeError:
        self._process.kill()
        code = self._process.wait()
        self._log.seek(0)
        tail = self._log.read().decode(errors="replace").splitlines()[-20:]
        return RuntimeError(
            "\n".join([f"{self._command[2]}: the driver ended with {code}", *tail])
        )


def _install() -> None:
    """Install the packages into the folder, unless these very ones are there."""
    node = run([_program("node"), "--version"], timeout=COMMAND_TIMEOUT).strip()
    if int(node.removeprefix("v").split(".")[0]) < NODE_MAJOR:
        raise MissingError(f"Node {NODE_MAJOR} or later is needed, and this is {node}")
    wanted = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    # In the folder that `npm ci` removes first, so that half an installation has none.
    stamp = FOLDER / "node_modules" / ".installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    run(
        # None of the packages needs its scripts: what they would compile is optional.
        [_program("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
        timeout=INSTALL_TIMEOUT,
        directory=FOLDER,
        reason=_beginning,
    )
    stamp.write_text(wanted, encoding="utf-8")


def _beginning(output: str, errors: str) -> str:
    # The first lines have the reason, and the last ones how npm is called.
    return "\n".join((errors or output).splitlines()[:10])


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingError(f"{name} isn't there: install Node {NODE_MAJOR} or later with its npm")
    return found


@contextmanager
def _redis() -> Iterator[Place]:
    try:
        with redis_server("redis7") as server, of_redis(server) as look:
            yield server.url, f"Redis {server.version}", look
    except ServerUnavailableError as error:
        raise MissingError(str(error)) from error


@contextmanager
def _postgres() -> Iterator[Place]:
    with postgres() as base:
        # Makes the tables. It is the package's own command, which its readers are told to call.
        setup = FOLDER / "node_modules" / "@workflow" / "world-postgres" / "bin" / "setup.js"
        run(
            [_program("node"), str(setup)],
            timeout=COMMAND_TIMEOUT,
            environment={"WORKFLOW_POSTGRES_URL": base.url},
            directory=FOLDER,
        )
        yield base.url, postgres_version(), of_process(base.pid)


@contextmanager
def _local() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="world-local-") as folder:
        yield folder, "", None


PEERS: Final[tuple[Peer, ...]] = (
    NpmWorld("@workflow-worlds/redis", _redis),
    NpmWorld("@workflow/world-postgres", _postgres),
    NpmWorld("@workflow/world-local", _local),
)
