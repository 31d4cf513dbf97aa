from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import fakeredis
import pytest

from plugins.lua_coverage import Recorder, Report, executable_lines, map_lines, merge
from redis_world.lua import ScriptLibrary

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIBRARY = {
    "lib/shared": """\
-- Doubles a number.
local function double(n)
  return n * 2
end

local function unused()
  return 'never'
end
""",
    "run/it": """\
-- Doubles its argument, unless it is zero.
--
-- KEYS: key
-- ARGV: n
-- Returns: a number.
--
-- @include lib/shared

local number = tonumber(n)
if number == 0 then
  redis.call('DEL', key)
  return 'ZERO' or unused()
else
  -- The one way that is run.
  number = double(number)
end
return {
  'OK',
  number,
}
""",
}
TESTS = """
import fakeredis
import pytest
from pathlib import Path
from redis_world.lua import ScriptLibrary

@pytest.mark.parametrize("n", [0, 1])
def test_it(n):
    script = ScriptLibrary(Path(__file__).parent / "lua")["run/it"]
    with fakeredis.FakeRedis() as client:
        assert client.eval(script.source, 1, "key", n) == ([b"OK", 2] if n else b"ZERO")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "lua"
    for name, text in LIBRARY.items():
        path = root / f"{name}.lua"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    recorder.install()
    yield recorder
    recorder.uninstall()


def run(library: ScriptLibrary, recorder: Recorder, root: Path, *numbers: int) -> Report:
    hits: dict[str, set[int]] = {}
    with fakeredis.FakeRedis(server=fakeredis.FakeServer()) as client:
        for number in numbers:
            client.eval(library["run/it"].source, 1, "key", number)
    for source, lines in recorder.lines.items():
        merge(hits, map_lines(root, source.decode(), lines))
    return Report.make(root, hits)


def test_lines_that_did_not_run_are_missed(root: Path, recorder: Recorder) -> None:
    report = run(ScriptLibrary(root), recorder, root, 1, 1)
    assert report.executable == {"lib/shared": {3, 7}, "run/it": {9, 10, 11, 12, 15, 17, 18}}
    assert report.missed == {"lib/shared": {7}, "run/it": {11, 12}}
    assert report.percent == pytest.approx(200 / 3)
    assert list(report.describe()) == [
        "Lua coverage: 66.6% (2 files, 9 lines)",
        "  lib/shared.lua: 7",
        "  run/it.lua: 11-12",
    ]


def test_runs_add_up(root: Path, recorder: Recorder) -> None:
    assert run(ScriptLibrary(root), recorder, root, 0, 1).missed == {"lib/shared": {7}}


def test_a_replaced_library_covers_nothing(root: Path, recorder: Recorder) -> None:
    other = "local function double(n)\n\n  return n + n\nend"
    report = run(ScriptLibrary(root, {"lib/shared": other}), recorder, root, 0, 1)
    assert report.missed == {"lib/shared": {3, 7}}


def test_a_library_without_a_script_counts(root: Path, recorder: Recorder) -> None:
    (root / "lib" / "orphan.lua").write_text("local function f()\n  return 1\nend\n")
    assert run(ScriptLibrary(root), recorder, root, 0, 1).missed["lib/orphan"] == {2}


def test_almost_everything_is_not_everything() -> None:
    report = Report({"a": set(range(1, 10_001))}, {"a": {1}})
    assert next(report.describe()) == "Lua coverage: 99.9% (1 files, 10000 lines)"


def test_nothing_is_recorded_once_uninstalled(root: Path) -> None:
    recorder = Recorder()
    recorder.install()
    recorder.uninstall()
    run(ScriptLibrary(root), recorder, root, 1)
    assert not recorder.lines


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("local a = 1\n\n-- a comment\nreturn a -- and one more", {1, 4}),
        ("for i = 1, 2 do\n  f(i)\nend", {1, 2}),
        ("f(function()\n  return 1\nend)", {1, 2}),
        ("return {\n  { 1 },\n  {\n    x = true,\n  },\n}, nil", {1, 2, 4, 6}),
        ("return a or\n  b or\n  c", {1, 2, 3}),
        ("local text = [[\none\n]]\nreturn text", {3, 4}),
    ],
)
def test_executable_lines(source: str, expected: set[int]) -> None:
    assert executable_lines(source) == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("fail_under", "status"), [("80", 0), ("100", 1)])
def test_a_session_reports_and_fails(
    workers: int, fail_under: str, status: int, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    # A session of its own: nothing of this one's, its workers' names above all, may leak in.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = ["-q", "-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    options += ["-p", "plugins.lua_coverage", "--lua-cov", "--lua-cov-root", str(root)]
    options += ["--lua-cov-fail-under", fail_under, "-n", str(workers), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        env={**ours, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Lua coverage: 88.8% (2 files, 9 lines)\n  lib/shared.lua: 7\n" in done.stdout
    assert "2 passed" in done.stdout
    assert ("FAIL: Lua coverage is below 100%" in done.stdout) == (status == 1)
