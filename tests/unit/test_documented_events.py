"""docs/operations.md explains every event that a log line can have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
OPERATIONS: Final = ROOT / "docs" / "operations.md"
SOURCES: Final = sorted((ROOT / "src").rglob("*.py"))

OUTCOMES: Final = [
    "acked",
    "continued",
    "failed",
    "released",
    "postponed",
    "lease_lost",
    "unsettled",
]
CASES: Final = {
    "delivery.{}": [f"delivery.{outcome}" for outcome in OUTCOMES],
    "stream.{}": ["stream.interrupted", "stream.resumed"],
}
"""Events whose end is chosen at run time."""


def events_of(tree: ast.AST) -> Iterator[str]:
    """The values of `event` in the fields of log lines; what is chosen at run time is `{}`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "event":
                    yield from _text(value)
        elif isinstance(node, ast.keyword) and node.arg == "event":
            yield from _text(node.value)


def _text(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in value.values
        )


def documented() -> set[str]:
    """What stands in the first cells of the tables."""
    rows = re.findall(r"^\| (`[^|]*`) \|", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


@pytest.mark.slow
def test_every_event_is_explained() -> None:
    found = {
        event
        for path in SOURCES
        for event in events_of(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert {"redis.lost", "lease.lost", "worker.started"} <= found
    wanted = {each for event in found for each in CASES.get(event, [event])}
    assert wanted - documented() == set()
