"""A pytest plugin that measures which lines of the Lua scripts the tests have run.

Active with `--lua-cov`, for scripts that run on fakeredis, whose Lua runtime lives in this
process: a line hook there notes each line the first time it runs. `--lua-cov-fail-under=N`
fails the session when less than N percent were run.

Executable are the lines for which Lua's compiler made an instruction, as the line table of
the byte code says, in functions that are called and in those that are not alike. (It may put
the last value of a list on the line after it.) Left out of them are lines of closing words and
brackets only (`end`, `else`, `})`): an instruction there is the end of a loop or of a function,
which need not be reached when the body returns.

A piece of an assembled script counts for its file only while its text is the file's, but for what
the loader has left out: a library that a test has replaced, the clock for one, covers nothing.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from fakeredis.commands_mixins.scripting_mixin import LUA_MODULE, ScriptingCommandsMixin

from redis_world.lua import ScriptLibrary, origins, script_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Lines = dict[str, set[int]]
"""File name, as in `-- file:`, to line numbers."""

_CLOSING = re.compile(r"(?:\b(?:end|else)\b|[\s)},;])*(?:--.*)?")

# The hook runs once per line, so it does as little as it can. `leave` gives back the lines
# that were new: none, most of the time, once a script has run a few times.
_HOOK = b"""
local all, seen, fresh = {}, {}, {}
debug.sethook(function(_, line)
  if not seen[line] then
    seen[line] = true
    fresh[#fresh + 1] = line
  end
end, 'l')
local function enter(source)
  all[source] = all[source] or {}
  seen, fresh = all[source], {}
end
local function leave()
  local lines = table.concat(fresh, ' ')
  seen, fresh = {}, {}
  return lines
end
return { enter = enter, leave = leave }
"""


class Recorder:
    """Notes the lines that run in every Lua runtime of fakeredis while it is installed."""

    def __init__(self) -> None:
        self.lines: defaultdict[bytes, set[int]] = defaultdict(set)
        """Source text to the lines of it that ran."""
        original = ScriptingCommandsMixin._get_server_runtime
        place = f"_watched_by_{id(self)}"

        def get_server_runtime(mixin: ScriptingCommandsMixin, server: Any) -> Any:
            runtime = original(mixin, server)
            # Kept by the server, which it refers to: kept anywhere else, neither would be freed.
            watched = vars(server).get(place)
            if watched is None:
                watched = vars(server)[place] = _WatchedRuntime(runtime, self.lines)
            return watched

        # By its name in the class: the function may be another recorder's.
        self._patch = patch.object(
            ScriptingCommandsMixin, "_get_server_runtime", get_server_runtime
        )

    def install(self) -> None:
        self._patch.start()

    def uninstall(self) -> None:
        self._patch.stop()


class _WatchedRuntime:
    """A Lua runtime whose scripts are watched.

    All of its chunks have the same name in Lua, so that a hook alone couldn't tell which
    script it is in. But one script runs at a time in a runtime, and nothing else meanwhile.
    """

    def __init__(self, runtime: Any, lines: defaultdict[bytes, set[int]]) -> None:
        self._runtime = runtime
        self._lines = lines
        hook = runtime.execute(_HOOK)
        self._enter, self._leave = hook[b"enter"], hook[b"leave"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def execute(self, source: bytes | str, *args: Any) -> Any:
        if not isinstance(source, bytes):  # fakeredis's own, such as its garbage collection
            return self._runtime.execute(source, *args)
        self._enter(source)
        try:
            return self._runtime.execute(source, *args)
        finally:
            fresh = self._leave()
            if fresh:
                self._lines[source].update(map(int, fresh.split()))


def map_lines(root: Path, source: str, lines: Iterable[int]) -> Lines:
    """Lines of an assembled source to lines of the files below `root` that it is made of."""
    texts = source.splitlines()
    places = {
        number: origin for number, origin in enumerate(origins(source), 1) if origin is not None
    }
    own = {name: _lines_of(root / f"{name}.lua") for name, _ in places.values()}
    # What is not what lies there was put in its place, such as the clock of a test.
    foreign = {
        name
        for number, (name, line) in places.items()
        if texts[number - 1] and own[name][line - 1 : line] != [texts[number - 1]]
    }
    found: Lines = {}
    for line in lines:
        if line in places and places[line][0] not in foreign:
            name, own_line = places[line]
            found.setdefault(name, set()).add(own_line)
    return found


def _lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n") if path.is_file() else []


def merge(into: Lines, more: Lines) -> None:
    for name, lines in more.items():
        into.setdefault(name, set()).update(lines)


def executable_lines(source: str) -> set[int]:
    """The lines of a Lua source that can run, by the rule on top of this module."""
    dump = LUA_MODULE.LuaRuntime(encoding=None).eval(
        b"function(source) return string.dump(assert(loadstring(source))) end"
    )
    texts = source.split("\n")
    return {
        line
        for line in _ByteCode(dump(source.encode())).lines()
        if not _CLOSING.fullmatch(texts[line - 1])
    }


class _ByteCode:
    """A reader of the byte code of Lua 5.1, for the line tables in it."""

    def __init__(self, code: bytes) -> None:
        signature, version, _, little, int_, self._size_t, instruction, number, _ = struct.unpack(
            "4s8B", code[:12]
        )
        if (signature, version, int_, instruction, number) != (b"\x1bLua", 0x51, 4, 4, 8):
            raise ValueError("not the byte code of Lua 5.1 as it is made here")
        self._order = "<" if little else ">"
        self._code = code
        self._at = 12

    def lines(self) -> set[int]:
        """The lines of one function and of all functions in it."""
        self._skip_string()  # name
        self._skip(4 + 4 + 4)  # first and last line; upvalues, parameters, varargs, stack
        self._skip(4 * self._int())  # instructions
        for _ in range(self._int()):
            self._skip_constant()
        lines: set[int] = set()
        for _ in range(self._int()):
            lines |= self.lines()
        lines.update(self._int() for _ in range(self._int()))
        for _ in range(self._int()):  # local variables: name, first and last instruction
            self._skip_string()
            self._skip(4 + 4)
        for _ in range(self._int()):  # upvalues: name
            self._skip_string()
        return lines

    def _take(self, kind: str) -> int:
        (value,) = struct.unpack_from(self._order + kind, self._code, self._at)
        self._at += struct.calcsize(self._order + kind)
        return int(value)

    def _int(self) -> int:
        return self._take("i")

    def _skip(self, size: int) -> None:
        self._at += size

    def _skip_string(self) -> None:
        self._skip(self._take("Q" if self._size_t == 8 else "I"))

    def _skip_constant(self) -> None:
        kind = self._take("B")
        if kind == 4:
            self._skip_string()
        else:
            self._skip({0: 0, 1: 1, 3: 8}[kind])  # nil, boolean, number


@dataclass(frozen=True)
class Report:
    """What was run of what can be run."""

    executable: Lines
    missed: Lines

    @classmethod
    def make(cls, root: Path, hits: Lines) -> Report:
        executable: Lines = {}
        for script in ScriptLibrary(root):
            merge(executable, map_lines(root, script.source, executable_lines(script.source)))
        for path in root.rglob("*.lua"):
            name = path.relative_to(root).with_suffix("").as_posix()
            if name not in executable:  # a library that no script includes
                executable[name] = executable_lines(path.read_text(encoding="utf-8"))
        missed = {name: lines - hits.get(name, set()) for name, lines in executable.items()}
        return cls(executable, {name: lines for name, lines in missed.items() if lines})

    @property
    def total(self) -> int:
        return sum(map(len, self.executable.values()))

    @property
    def percent(self) -> float:
        missed = sum(map(len, self.missed.values()))
        return 100.0 * (self.total - missed) / self.total if self.total else 100.0

    def describe(self) -> Iterator[str]:
        # Cut, not rounded: 100.0% is said of nothing less.
        percent = int(self.percent * 10) / 10
        yield f"Lua coverage: {percent:.1f}% ({len(self.executable)} files, {self.total} lines)"
        for name, lines in sorted(self.missed.items()):
            yield f"  {name}.lua: {_ranges(lines)}"


def _ranges(lines: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for line in sorted(lines):
        if spans and spans[-1][-1] == line - 1:
            spans[-1][1:] = [line]
        else:
            spans.append([line])
    return ", ".join("-".join(map(str, span)) for span in spans)


class LuaCoverage:
    """The plugin of one process: the whole session, a controller of workers, or a worker."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._root = Path(config.getoption("lua_cov_root") or script_root()).resolve()
        self._fail_under: float | None = config.getoption("lua_cov_fail_under")
        self._recorder = Recorder()
        self._hits: Lines = {}
        self._report: Report | None = None
        self._recorder.install()

    def pytest_unconfigure(self) -> None:
        self._recorder.uninstall()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker is done; its lines come with its last message."""
        output: dict[str, Any] = getattr(node, "workeroutput", None) or {}
        merge(self._hits, {name: set(found) for name, found in output.get("lua_cov", {}).items()})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for source, lines in self._recorder.lines.items():
            merge(self._hits, map_lines(self._root, source.decode(errors="replace"), lines))
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["lua_cov"] = {name: sorted(lines) for name, lines in self._hits.items()}
        elif not self._config.getoption("collectonly"):
            self._report = Report.make(self._root, self._hits)
            if self._falls_short() and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._report is None:
            return
        terminalreporter.section("Lua coverage")
        for line in self._report.describe():
            terminalreporter.line(line)
        if self._falls_short():
            terminalreporter.line(
                f"FAIL: Lua coverage is below {self._fail_under:g}%", red=True, bold=True
            )

    def _falls_short(self) -> bool:
        return (
            self._fail_under is not None
            and self._report is not None
            and self._report.percent < self._fail_under
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lua-cov", "coverage of the Lua scripts")
    group.addoption(
        "--lua-cov", action="store_true", help="measure the lines of Lua that run on fakeredis"
    )
    group.addoption(
        "--lua-cov-fail-under",
        type=float,
        metavar="N",
        help="fail when less than N percent of the lines of Lua were run",
    )
    group.addoption(
        "--lua-cov-root", metavar="FOLDER", help="the folder of the scripts (default: our own)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("lua_cov"):
        config.pluginmanager.register(LuaCoverage(config), "lua-coverage")
