"""Durable workflow engines: workflows of sequential no-op steps, 16 of them at a time.

Each is one process, which starts workflows and executes them, and its store. `count` of a sample
is the number of steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from peers.base import STEPS, MissingError, Peer, Round
from peers.commands import run
from peers.environments import Ask, environment, program, sample
from peers.postgres import postgres, postgres_version
from peers.servers import private_redis, server_version
from peers.watching import of_process, of_redis, watched

__all__ = ["PEERS", "AbsurdPeer", "DbosPeer", "VercelPeer"]

SCHEMA_TIMEOUT: Final = 120.0


def _round(ask: Ask) -> Round:
    return lambda workflows: sample(ask({"workflows": workflows, "steps": STEPS}))


@dataclass
class VercelPeer:
    """The Python SDK on RedisWorld, on a private Redis 7."""

    name: str = "vercel-workflow on RedisWorld"
    _server: str = ""

    @contextmanager
    def start(self) -> Iterator[Round]:
        try:
            version("vercel-workflow")
        except PackageNotFoundError as error:
            raise MissingError("vercel-workflow isn't installed: redis-world[vercel]") from error
        with private_redis() as server:
            self._server = server_version(server)
            with (
                program(Path(sys.executable), "engine_vercel.py", server.url) as ask,
                of_redis(server) as look,
            ):
                yield watched(_round(ask), look)

    def version(self) -> str:
        sdk, own = version("vercel-workflow"), version("redis-world")
        return f"vercel-workflow {sdk}, redis-world {own}, {self._server}"


@dataclass
class DbosPeer:
    """dbos, with its state in a private PostgreSQL."""

    name: str = "dbos"
    requirement: str = "dbos==3.4.0"

    @contextmanager
    def start(self) -> Iterator[Round]:
        python = environment("dbos", [self.requirement])
        with postgres() as base, program(python, "engine_dbos.py", base.url) as ask:
            yield watched(_round(ask), of_process(base.pid))

    def version(self) -> str:
        return f"{self.requirement.replace('==', ' ')}, {postgres_version()}"


@dataclass
class AbsurdPeer:
    """absurd-sdk, with its state in a private PostgreSQL; absurdctl brings the schema."""

    name: str = "absurd-sdk"
    requirements: tuple[str, str] = ("absurd-sdk==0.5.1", "absurdctl==0.5.1")

    @contextmanager
    def start(self) -> Iterator[Round]:
        python = environment("absurd", self.requirements)
        with postgres() as base:
            _install_schema(python.with_name("absurdctl"), base.url)
            with program(python, "engine_absurd.py", base.url) as ask:
                yield watched(_round(ask), of_process(base.pid))

    def version(self) -> str:
        return f"{self.requirements[0].replace('==', ' ')}, {postgres_version()}"


def _install_schema(absurdctl: Path, url: str) -> None:
    """Have absurd's own command make its tables and functions.

    Raises:
        MissingError: it couldn't; it needs `psql` on the path.
    """
    variables = {"ABSURD_DATABASE_URL": url}
    run([absurdctl, "init"], timeout=SCHEMA_TIMEOUT, environment=variables)


PEERS: Final[list[Peer]] = [VercelPeer(), DbosPeer(), AbsurdPeer()]
