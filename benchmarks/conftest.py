from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from redis_world import RedisWorld
from redis_world.testing import redis_server

REPORT = pytest.StashKey[list[str]]()

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash[REPORT]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> list[str]:
    """Lines that are printed when all benchmarks have run."""
    return pytestconfig.stash[REPORT]


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    with redis_server("redis7") as server:
        yield server.url


@pytest.fixture
def run() -> Iterator[Run]:
    """Run a coroutine in an event loop that lives as long as the benchmark."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(params=["redis7", "memory"])
def world(request: pytest.FixtureRequest, run: Run) -> Iterator[RedisWorld]:
    url = request.getfixturevalue("server_url") if request.param == "redis7" else "memory://bench"
    world = RedisWorld(url, namespace="bench")
    run(world.open())
    yield world
    run(world.aclose())
