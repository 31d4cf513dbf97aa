from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from redis_world import RedisWorld
from redis_world.testing import ManualClock
from support.backends import KINDS, UNMEASURED, Backend, Servers

pytest_plugins = [
    "plugins.kept_scripts",
    "plugins.lua_coverage",
    "plugins.quick",
    "plugins.in_turn",
]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    """A server without data; whatever a test leaves must lie in its own namespaces."""
    with servers.backend(request.param).at_work() as backend:
        yield backend


@pytest.fixture(params=KINDS[1:])
def real_backend(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    """A real server, for what the embedded one can't show."""
    with servers.backend(request.param).at_work() as backend:
        yield backend


@pytest_asyncio.fixture
async def world(backend: Backend) -> AsyncIterator[RedisWorld]:
    """An open World in a namespace of its own."""
    async with backend.world() as world:
        yield world


@pytest_asyncio.fixture
async def clocked(backend: Backend) -> AsyncIterator[tuple[RedisWorld, ManualClock]]:
    """An open World whose scripts see a clock that stands still, at first at the present."""
    async with backend.world(library=ManualClock.library()) as world:
        yield world, await ManualClock(world).set()


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT], ids=lambda value: value.name)
def others_signal(request: pytest.FixtureRequest) -> Iterator[tuple[signal.Signals, list[int]]]:
    """A signal that somebody else handles, and how often he did."""
    handled: list[int] = []
    before = signal.signal(request.param, lambda number, _: handled.append(number))
    yield request.param, handled
    signal.signal(request.param, before)


def pytest_configure() -> None:
    """Let signals reach the processes that tests start.

    In the background of a script, below nohup and on some CI machines SIGINT is ignored, which
    every child inherits. One that waits for it would wait until the time limit of its test.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            is_ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure the coverage of behaviour tests on the embedded server and one real one.

    On the others the same tests run the same code, and measuring takes as long as they do.
    """
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if any(params.get(name) in UNMEASURED for name in ("backend", "real_backend", "site")):
            item.add_marker(pytest.mark.no_cover)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what did not run on a real server."""
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and " server: " in report.longrepr[2]
    ]
    if skipped:
        terminalreporter.write_sep("!", f"{len(skipped)} tests had no real server to run on")
    elif os.environ.get("CI"):
        terminalreporter.write_line("no test was skipped for want of a real server")
