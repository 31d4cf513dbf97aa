"""The benchmarks' own tables: what a backend fails at is told, and changes no other's figures."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from support.private_servers import ONE, private_server

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
        self,
        base: Any,
        name: str,
        *seconds: float,
        error: Exception | None = None,
        server: float | None = None,
        commands: float | None = None,
    ) -> None:
        self.name = name
        self._base = base
        self._seconds = iter(seconds)
        self._error = error or RuntimeError("it broke")
        self._server = server
        self._commands = commands

    @contextlib.contextmanager
    def start(self) -> Iterator[Callable[[int], Any]]:
        def measure(count: int) -> Any:
            seconds = next(self._seconds)
            if not seconds:
                raise self._error
            server, commands = (
                None if each is None else each * count for each in (self._server, self._commands)
            )
            return self._base.Sample(count, count * seconds, [], server, commands)

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


# -- what servers take ---------------------------------------------------------------------


def test_servers_have_columns_and_a_rate(benchmarks: Benchmarks) -> None:
    """6 ms of a core for each run: 60 % of it are 100 runs a second."""
    rounds = (1.0,) * 5
    lines = benchmarks.table(
        Peer(benchmarks.base, "ours", *rounds, server=0.006, commands=251.25),
        Peer(benchmarks.base, "postgres", *rounds, server=0.5),
        Peer(benchmarks.base, "files", *rounds),
    )
    head = (
        "| backend | runs | spread | ours is | server µs per run | commands per run | versions |"
    )
    assert head in lines
    assert row(lines, "ours")[4:6] == ["6,000", "251.2"]
    assert row(lines, "postgres")[4:6] == ["500,000", "-"]
    assert row(lines, "files")[4:6] == ["-", "-"]
    (text,) = [line for line in lines if line.startswith("One Redis")]
    assert text.startswith(
        "One Redis that uses 60 % of a core carries 100 runs per second of ours."
    )
    assert "-: the backend has no server, or PostgreSQL" in text


def test_without_servers_there_are_no_columns(benchmarks: Benchmarks) -> None:
    lines = benchmarks.table(Peer(benchmarks.base, "ours", *(1.0,) * 5))
    assert "| backend | runs | spread | ours is | versions |" in lines
    assert not any("Redis" in line or "Server time" in line for line in lines)


def test_what_a_round_takes_of_redis(benchmarks: Benchmarks) -> None:
    watching = importlib.import_module("peers.watching")
    with private_server(ONE) as server, watching.of_redis(server) as look:
        client = redis.Redis(host=server.host, port=server.port)

        def measure(count: int) -> Any:
            for _ in range(count):
                client.eval("for n = 1, 1000 do redis.call('GET', 'x') end", 0)
            return benchmarks.base.Sample(count, 1.0)

        measure(1)
        found = watching.watched(measure, look)(20)
        client.close()
    # The script, and what is in it; not the looks.
    assert found.commands == 20 * 1001
    assert 0 < found.server < 60
    assert (found.count, found.seconds) == (20, 1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_process_and_its_children_take(benchmarks: Benchmarks) -> None:
    """One child has ended and one has not, as those of a PostgreSQL."""
    watching = importlib.import_module("peers.watching")
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    parent = (
        f"import subprocess, sys\nbusy = {busy!r}\n"
        "subprocess.run([sys.executable, '-c', busy])\n"
        "more = subprocess.Popen([sys.executable, '-c', busy + 'print(1, flush=True)\\ninput()'],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "more.stdout.readline()\nprint(1, flush=True)\ninput()\nmore.communicate(b'\\n')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        found = watching.of_process(process.pid)()
        process.stdin.write(b"\n")
    assert found.seconds > 0.55
    assert found.commands is None
    # It is gone by now, as is what it took.
    assert watching.of_process(process.pid)().seconds == 0


# -- the goals -----------------------------------------------------------------------------

GOALS: Final = {
    "server.against_earlier": "<= 0.5",
    "server.against_npm": "<= 0.45",
    "sdk.server_against_earlier": "<= 0.5",
    "client.against_earlier": "<= 0.55",
    "npm.redis.1": ">= 4",
    "npm.redis.2": ">= 5",
    "npm.postgres.1": ">= 15",
    "npm.postgres.2": ">= 18",
    "npm.local.1": ">= 14",
    "npm.local.2": ">= 17",
    "large_get": "<= 2",
    "history": "<= 1.2",
    "claim": "<= 1.2",
    "listing.all": "<= 1.2",
    "listing.of_status": "<= 1.2",
    "idle_worker": "<= 1.5",
    "sdk.gather": "<= 45",
}


def test_each_goal_has_a_figure(benchmarks: Benchmarks) -> None:
    figures = importlib.import_module("figures").FIGURES
    found = {each.name: each.goal for each in figures}
    assert len(found) == len(figures)
    assert {name: found.get(name) for name in GOALS} == GOALS


def test_goals_of_the_table_are_those_of_one_process(benchmarks: Benchmarks) -> None:
    against = importlib.import_module("figures_against")
    (worlds, *_) = importlib.import_module("groups").GROUPS
    goals = {name: float(one.removeprefix(">= ")) for name, one, _ in against._GOALS.values()}
    assert worlds.goals == goals


def test_scripts_are_sent_in_pipelines(benchmarks: Benchmarks) -> None:
    """Each as many commands as there are replies to wait for, in their order."""
    against = importlib.import_module("figures_against")
    commands = [(b"EVALSHA", b"%d" % number) for number in range(2 * against.PIPELINE + 3)]
    first, second = against._pipelines(commands)
    assert first.count(b"EVALSHA") == second.count(b"EVALSHA") == against.PIPELINE
    assert first.index(b"\r\n0\r\n") < first.index(b"\r\n15\r\n")
    assert second.index(b"\r\n16\r\n") < second.index(b"\r\n31\r\n")


def test_a_replay_asks_the_server_what_was_recorded(
    benchmarks: Benchmarks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recorded scripts are accepted on an empty server, by this commit's own client."""
    against = importlib.import_module("figures_against")
    monkeypatch.setattr(against, "private_redis", lambda: private_server(ONE))
    monkeypatch.setattr(against, "REPLAYED", 16)
    with against._recorded(Path(sys.executable)) as replay:
        assert replay.play() > 0
        assert replay.play() > 0
        stats = replay.client.info("commandstats")["cmdstat_evalsha"]
    assert stats["calls"] == 3 * 16 * against.EVENTS
    assert stats["failed_calls"] == stats["rejected_calls"] == 0


def test_figures_of_npm_compare_rates_and_servers(
    benchmarks: Benchmarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    against = importlib.import_module("figures_against")
    sample = benchmarks.base.Sample
    one, two, theirs = (
        [sample(100, seconds, [], server)]
        for seconds, server in ((0.25, 0.1), (0.2, 0.1), (1, 0.4))
    )
    monkeypatch.setattr(against, "_against_npm", lambda _: [one, two, theirs])
    assert against.runs_against_npm("@workflow-worlds/redis", 1).value == pytest.approx(4)
    assert against.runs_against_npm("@workflow-worlds/redis", 2).value == pytest.approx(5)
    found = against.server_against_npm()
    assert found.value == pytest.approx(0.25)
    assert "1,000 against 4,000 µs" in found.text


def test_a_large_run_is_read_for_a_figure(
    benchmarks: Benchmarks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    against = importlib.import_module("figures_against")
    monkeypatch.setattr(against, "private_redis", lambda: private_server(ONE))
    monkeypatch.setattr(against, "READS", 2)
    monkeypatch.setattr(against, "ROUNDS", 1)
    found = against.large_get()
    assert found.unit == "x"
    assert "an input of 1,000,000 bytes" in found.text
