"""A pytest plugin that selects the quick part of the tests: `pytest --quick`, `make test`.

It runs in minutes and needs Python, make and git alone. It has the tests of behaviour on the
embedded server and on one real server, which a wheel brings, and the code of the README. Other
Pythons and other versions of the dependencies are tested by it, too. Left out are the same tests
on the other servers, chaos, the rest of acceptance, and what is marked as slow or as in need of a
program. `make test-all` runs everything.

A skipped test fails the quick part: what is not tested is left out by name, or not at all.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from support.backends import ALL_KINDS, CLUSTER, EMBEDDED, QUICK_KINDS, SENTINEL
from support.private_servers import use_wheels_only

_FOLDERS_LEFT_OUT: Final = ("chaos", "acceptance")
"""Below tests: long, the rules are those of the contract's tests, the calls those of the units."""
_NOT_EVEN_IMPORTED: Final = ("chaos",)
_ONLY_FROM_REDIS_7: Final = ("redis7",)
_FOR_SOME: Final = (CLUSTER, SENTINEL, "redis8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="run only the quick part of the tests, on any machine"
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "quick: of the quick part, although the rest of its folder is not",
        "slow: takes seconds, or tests a tool of the project; the quick part leaves it out",
        "large: stores or calls much, or has many cases; in the quick part on a real server alone",
        "everywhere: on every server that a wheel brings, in the quick part, too",
        "needs(program): runs where this program is; the quick part leaves it out",
        "without(*kinds, why): does not run on servers of these kinds",
        "no_cover: runs without coverage; pytest-cov has it, too, but may be missing",
    ):
        config.addinivalue_line("markers", line)
    if config.getoption("--quick"):
        use_wheels_only()
        # What is collected stays: to look through it for garbage, again and again, takes longer
        # than some tests.
        gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the collector look at what comes from here on."""
    if session.config.getoption("--quick"):
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """More workers than cores: these tests often wait, for servers, processes and clocks."""
    return workers_of_each_core(2) if config.getoption("--quick") else None


def workers_of_each_core(number: float) -> int | None:
    """How many workers that makes; None where the environment says how many there are to be."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int((cores or 1) * number)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Have each worker begin with other files.

    pytest compiles tests with its own `assert` and keeps the result. In a new checkout, workers
    that all begin with the same file would each compile every file.
    """
    config = session.config
    worker = getattr(config, "workerinput", None)
    folders = [config.rootpath / argument for argument in config.args]
    if worker and all(folder.is_dir() for folder in folders):
        files = [file for folder in folders for file in sorted(folder.rglob("test_*.py"))]
        files = [file for file in files if not pytest_ignore_collect(file.parent, config)]
        first = int(worker["workerid"].removeprefix("gw")) * len(files) // worker["workercount"]
        config.args = [str(file) for file in files[first:] + files[:first]]


def pytest_ignore_collect(collection_path: object, config: pytest.Config) -> bool | None:
    """Do not even import what is left out as a whole."""
    folders = [config.rootpath / "tests" / name for name in _NOT_EVEN_IMPORTED]
    return True if config.getoption("--quick") and collection_path in folders else None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Make no items for servers that the quick part does not have: they are the most by far."""
    yield
    if metafunc.config.getoption("--quick") and not metafunc.definition.get_closest_marker(
        "everywhere"
    ):
        calls = metafunc._calls  # what is made of them would be thrown away
        # One is left in any case: without, pytest would take the function for one without any.
        calls[:] = [each for each in calls if _kinds_in(each.params) <= {*QUICK_KINDS}] or calls[
            :1
        ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # All workers have to agree on the order.
    items.sort(key=lambda item: str(item.path))
    items[:] = [item for item in items if not kinds_of(item) & _ruled_out(item)]
    if not config.getoption("--quick"):
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (kept if is_quick(item) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    # First, all in the worker that begins with them, so that one set of these servers is enough.
    items[:] = sorted(kept, key=lambda item: not is_first(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    servers = getattr(item, "funcargs", {}).get("servers")
    yield
    is_last = is_first(item) and not (nextitem and is_first(nextitem))
    if servers is not None and is_last and item.config.getoption("--quick"):
        servers.end(*_FOR_SOME)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        (program,) = marker.args
        if shutil.which(program) is None:
            text = f"{program} is not there"
            if os.environ.get("CI"):
                pytest.fail(text)
            pytest.skip(text)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--quick") and reporter is not None:
        skipped = reporter.stats.get("skipped", [])
        if skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if config.getoption("--quick") and skipped:
        terminalreporter.write_sep("!", f"{len(skipped)} tests of the quick part were skipped")


def is_quick(item: pytest.Item) -> bool:
    """Whether a test is of the quick part."""
    place = item.path.relative_to(item.config.rootpath / "tests")
    if place.parts[0] in _FOLDERS_LEFT_OUT and not item.get_closest_marker("quick"):
        return False
    if item.get_closest_marker("slow") or item.get_closest_marker("needs"):
        return False
    if item.get_closest_marker("large") and kinds_of(item) == {EMBEDDED}:
        return False
    if item.get_closest_marker("everywhere"):
        return not kinds_of(item) & {*_ONLY_FROM_REDIS_7}
    return kinds_of(item) <= {*QUICK_KINDS}


def is_first(item: pytest.Item) -> bool:
    """Whether a test needs servers that most tests of the quick part do without."""
    return bool(kinds_of(item) & {*_FOR_SOME})


def kinds_of(item: pytest.Item) -> set[str]:
    """The kinds of servers that a test is for, by its parameters, whatever their names are."""
    return _kinds_in(item.callspec.params) if hasattr(item, "callspec") else set()


def _kinds_in(params: Mapping[str, object]) -> set[str]:
    return {value for value in params.values() if isinstance(value, str) and value in ALL_KINDS}


def _ruled_out(item: pytest.Item) -> set[str]:
    return {kind for marker in item.iter_markers("without") for kind in marker.args}
