"""Who does the demo's work: this process, or worker processes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import IO, Final

from redis_world.config import ENVIRONMENT_PREFIX
from redis_world.errors import WorldError
from redis_world.signals import stopped_by_signals
from redis_world.vercel import VercelWorld

__all__ = ["WORKFLOWS", "Crew", "in_process", "in_processes"]

WORKFLOWS: Final = "redis_world.demo.workflows"
"""The module of the workflows, which is imported when the World is there."""

_LEASE_SECONDS: Final = 5.0
"""Short, so that the demo can be watched to survive the end of a worker."""
_SHUTDOWN_SECONDS: Final = 1.0
_FAREWELL_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Crew:
    """The workers of a demo.

    Attributes:
        text: who they are.
        work: ends when SIGINT or SIGTERM came, or by an error when no worker is left.
    """

    text: str
    work: asyncio.Task[None]


@contextlib.asynccontextmanager
async def in_process(adapter: VercelWorld) -> AsyncIterator[Crew]:
    """One worker in this process and event loop."""
    worker = adapter.worker(shutdown_timeout=_SHUTDOWN_SECONDS)
    work = asyncio.create_task(worker.run(), name="demo worker")
    try:
        yield Crew("a worker in this process", work)
    finally:
        worker.stop()
        await asyncio.gather(work, return_exceptions=True)


@contextlib.asynccontextmanager
async def in_processes(count: int, options: Mapping[str, str]) -> AsyncIterator[Crew]:
    """So many worker processes, which get these options of the World."""
    with tempfile.TemporaryFile() as log, _processes(count, options, log) as processes:
        watching = asyncio.create_task(_watch(processes, log), name="demo workers")
        pids = " and ".join(str(process.pid) for process in processes)
        noun = "process" if count == 1 else "processes"
        try:
            yield Crew(f"worker {noun} {pids}", watching)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


@contextlib.contextmanager
def _processes(
    count: int, options: Mapping[str, str], log: IO[bytes]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "redis_world", "worker", WORKFLOWS]
    command += ["--lease", str(_LEASE_SECONDS), "--shutdown-timeout", str(_SHUTDOWN_SECONDS)]
    # By the environment: a URL may hold a password, which everybody sees who lists processes.
    given = {ENVIRONMENT_PREFIX + name.upper(): value for name, value in options.items()}
    environment = {**os.environ, **given}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        while len(processes) < count:
            # Among the lines of the demo their logs would only be noise.
            process = subprocess.Popen(  # noqa: S603 - our own command
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            processes.append(process)
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(_FAREWELL_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _watch(processes: list[subprocess.Popen[bytes]], log: IO[bytes]) -> None:
    """Return after SIGINT or SIGTERM.

    One worker that ends is no matter: the others go on with what it has left.

    Raises:
        WorldError: all workers have ended; it says what the last one said.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    with stopped_by_signals(partial(loop.call_soon_threadsafe, stopped.set)):
        while not stopped.is_set():
            codes = [process.poll() for process in processes]
            if None not in codes:
                raise WorldError(f"all workers have ended. Last log line: {_last_line(log)}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), _POLL_SECONDS)


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "(none)"
