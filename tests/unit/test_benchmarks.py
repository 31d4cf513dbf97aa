"""The benchmarks' own tables: what a backend fails at is told, and changes no other's figures."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).parents[2]


class Benchmarks:
    """Modules of the benchmarks, which are no package."""

    def __init__(self) -> None:
        self.base: Any = importlib.import_module("peers.base")
        self.compare: Any = importlib.import_module("compare")
        self.report: Any = importlib.import_module("report")

    def table(self, *peers: Any, goals: dict[str, float] | None = None) -> list[str]:
        """The lines of a table of these peers, of four rounds."""
        group = self.compare.Group("Some", "runs", peers, 1, 100, goals=goals or {})
        found = self.compare.compare(group, 4, lambda _: None)
        return [*self.report._table(found, "folder")]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Benchmarks:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])
    return Benchmarks()


class Peer:
    """A backend that takes so many seconds for one run, in each round; at 0 it fails."""

    def __init__(
        self, base: Any, name: str, *seconds: float, error: Exception | None = None
    ) -> None:
        self.name = name
        self._base = base
        self._seconds = iter(seconds)
        self._error = error or RuntimeError("it broke")

    @contextlib.contextmanager
    def start(self) -> Iterator[Callable[[int], Any]]:
        def measure(count: int) -> Any:
            seconds = next(self._seconds)
            if not seconds:
                raise self._error
            return self._base.Sample(count, count * seconds)

        yield measure

    def version(self) -> str:
        return "1.0"


def row(lines: list[str], name: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_ratios_are_those_of_the_first_one(benchmarks: Benchmarks) -> None:
    ours = Peer(benchmarks.base, "ours", *(1.0,) * 5)
    half = Peer(benchmarks.base, "half", *(2.0,) * 5)
    lines = benchmarks.table(ours, half, goals={"half": 1.5})
    assert "| backend | runs | spread | ours is | versions |" in lines
    assert row(lines, "ours")[3] == ""
    assert row(lines, "half")[3] == "2.00 x (goal 1.5: met)"
    lines = benchmarks.table(
        Peer(benchmarks.base, "ours", *(1.0,) * 5),
        Peer(benchmarks.base, "half", *(2.0,) * 5),
        goals={"half": 3},
    )
    assert row(lines, "half")[3] == "2.00 x (goal 3: missed)"


@pytest.mark.parametrize("error", [RuntimeError("it broke"), AssertionError("it broke")])
def test_a_failure_in_a_round_is_told(benchmarks: Benchmarks, error: Exception) -> None:
    ours = Peer(benchmarks.base, "ours", *(1.0,) * 5)
    theirs = Peer(benchmarks.base, "theirs", 2.0, 2.0, 2.0, 0.0, error=error)
    lines = benchmarks.table(ours, theirs)
    assert row(lines, "theirs")[3] == "2.00 x"
    text = "Failed: theirs in round 3: it broke. Its figures are those of the earlier rounds."
    assert text in lines


def test_a_failure_in_the_first_round_is_missing(benchmarks: Benchmarks) -> None:
    ours = Peer(benchmarks.base, "ours", *(1.0,) * 5)
    lines = benchmarks.table(ours, Peer(benchmarks.base, "theirs", 2.0, 0.0))
    assert "Missing: theirs, failed in round 1: it broke." in lines
    assert not any(line.startswith("| theirs") for line in lines)


def test_what_can_not_start_is_missing(benchmarks: Benchmarks) -> None:
    ours = Peer(benchmarks.base, "ours", *(1.0,) * 5)
    missing = benchmarks.base.MissingError("npm is not installed")
    lines = benchmarks.table(ours, Peer(benchmarks.base, "theirs", 0.0, error=missing))
    assert "Missing: theirs, npm is not installed." in lines


def test_without_the_first_one_there_is_no_ratio(benchmarks: Benchmarks) -> None:
    """The others are not compared with each other by mistake."""
    ours = Peer(benchmarks.base, "ours", 1.0, 1.0, 1.0, 0.0)
    lines = benchmarks.table(
        ours,
        Peer(benchmarks.base, "half", *(2.0,) * 5),
        Peer(benchmarks.base, "tenth", *(10.0,) * 5),
    )
    assert "| backend | runs | spread | ours is | versions |" in lines
    assert row(lines, "half")[3] == "2.00 x"
    assert row(lines, "tenth")[3] == "10.00 x"
    lines = benchmarks.table(
        Peer(benchmarks.base, "ours", 0.0), Peer(benchmarks.base, "half", *(2.0,) * 5)
    )
    assert "Missing: ours, it broke." in lines
    assert row(lines, "half")[3] == "unknown"


def test_each_figure_is_explained_below_the_table(benchmarks: Benchmarks) -> None:
    met = {"name": "speed", "goal": ">= 2", "value": 3.0, "unit": "x", "met": True, "text": "How."}
    missing = {"name": "size", "goal": "<= 1", "missing": "no server"}
    lines = [*benchmarks.report._figures([met, missing])]
    assert row(lines, "speed") == ["speed", ">= 2", "3.00 x", "met"]
    assert row(lines, "size") == ["size", "<= 1", "missing", ""]
    assert lines[-3:-1] == ["* **speed**: How.", "* **size**: no server"]


def test_the_document_tells_how_fast_the_machine_was(benchmarks: Benchmarks) -> None:
    results = {
        "date": "2026-01-02",
        "machine": "2 cores",
        "load": "0.1",
        "rounds": 5,
        "yardstick ms": [12.5, 10.0, 14.0],
    }
    text = benchmarks.report.markdown(results, [], "folder")
    assert "Measured on 2026-01-02: 2 cores." in text
    assert "12.5 ms of processor time, 10.0 to 14.0, at 3 moments" in text
    assert 0 < importlib.import_module("yardstick").yardstick() < 10_000
