"""A pytest plugin that has the servers take turns: `pytest --in-turn`, `make test-all`.

The quick part has run each behaviour test on the embedded server and on one real one. Here it
runs on another real one, and on either a cluster or the servers that Sentinels watch. Its name
tells which: each server gets its share of all tests, and a test the same ones each time.
`make test-everything` runs every test on every server.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import Final

import pytest

from plugins.quick import is_quick, workers_of_each_core
from support.backends import ALL_KINDS, CLUSTER, KINDS, QUICK_KINDS, SENTINEL

LEFT_OUT: Final = pytest.StashKey[list[pytest.Item]]()
"""The tests that another server runs."""
_FIXTURES: Final = ("backend", "real_backend")
"""Whose servers take turns. A test that names its servers by other means needs each of them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--in-turn", action="store_true", help="run each test on some of its servers, not on all"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """More workers than cores: some of the tests wait most of the time."""
    return workers_of_each_core(1.5) if config.getoption("--in-turn") else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[LEFT_OUT] = []
    if not config.getoption("--in-turn"):
        return
    rivals: defaultdict[tuple[str, bool], list[pytest.Item]] = defaultdict(list)
    left_out: set[pytest.Item] = set()
    for item in items:
        kind = _turn_of(item)
        if kind in QUICK_KINDS and is_quick(item):
            left_out.add(item)
        elif kind:
            rivals[_without(kind, item.nodeid), kind in (CLUSTER, SENTINEL)].append(item)
    for (name, _), same in rivals.items():
        chosen = zlib.crc32(name.encode()) % len(same)
        left_out.update(same[:chosen] + same[chosen + 1 :])
    config.stash[LEFT_OUT] = [item for item in items if item in left_out]
    config.hook.pytest_deselected(items=config.stash[LEFT_OUT])
    items[:] = [item for item in items if item not in left_out]


def _turn_of(item: pytest.Item) -> str:
    """The kind of the real server whose turn it may be; "" where a certain one is needed."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    named = [name for name, value in params.items() if value in ALL_KINDS]
    kind = str(params[named[0]]) if len(named) == 1 and named[0] in _FIXTURES else ""
    return kind if kind in (*KINDS[1:], CLUSTER, SENTINEL) else ""


def _without(kind: str, name: str) -> str:
    """What the names of a test have in common that differ in the server."""
    test, _, parameters = name.removesuffix("]").partition("[")
    return "-".join([test, *(each for each in parameters.split("-") if each != kind)])
