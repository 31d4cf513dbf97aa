"""A pytest plugin that selects the quick part of the tests: `pytest --quick`.

It is for another Python, or for other versions of the dependencies, so it keeps what can behave
differently there: each public call, the command line, the SDK's scenarios, the code of the
documents, on the embedded server, and what talks to a real server on one from a wheel. Left out
are the same tests on the other servers, chaos, and the tests of the project's own tools.
"""

from __future__ import annotations

from typing import Final

import pytest

EMBEDDED: Final = "memory"
FROM_A_WHEEL: Final = "valkey9"
_PARAMETERS: Final = ("backend", "real_backend", "site")
"""Fixtures whose parameter is the kind of a server."""
_LEFT_OUT: Final = {
    "chaos": "long, and the same rules as in the contract's tests",
    "unit/test_bench.py": "measures",
    "unit/test_benchmarks.py": "not part of the package",
    "unit/test_contract_table.py": "a tool of the project",
    "unit/test_lua_coverage.py": "a tool of the project",
    "unit/test_luacheck.py": "a tool of the project",
    "acceptance/test_demo.py": "the documents' tests run the demo",
}
"""What the quick part leaves out, and why."""
_ON_A_REAL_SERVER: Final = (
    "test_smoke",
    "test_one_request_once",
    "test_queue_claim",
    "test_stream_readers",
    "test_waiting",
)
"""Of the contract's tests: those of connections, lost replies and notifications. The others
send the same scripts through the same connection."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="run only the quick part of the tests, for a Python"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes seconds; the quick part leaves it out")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    kept = [item for item in items if is_quick(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def is_quick(item: pytest.Item) -> bool:
    """Whether a test is of the quick part."""
    path = item.path.as_posix()
    if any(f"/tests/{place}" in path for place in _LEFT_OUT) or item.get_closest_marker("slow"):
        return False
    params = item.callspec.params if hasattr(item, "callspec") else {}
    kinds = {params[name] for name in _PARAMETERS if name in params}
    if kinds <= {EMBEDDED}:
        return True
    needs_one = "/tests/unit/" in path or item.path.stem in _ON_A_REAL_SERVER
    return kinds == {FROM_A_WHEEL} and needs_one
