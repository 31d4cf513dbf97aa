from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fakeredis
import pytest

from redis_world.errors import ScriptError
from redis_world.lua import ScriptLibrary, default_library, origins, script_root
from redis_world.testing import redis_server
from support.private_servers import any_kind

if TYPE_CHECKING:
    from pathlib import Path

    from redis_world.lua import Script

GOOD = """\
-- Counts something
-- by a step.
--
-- KEYS: counter, log
-- ARGV: step, reason, names...
-- Returns: the new value,
--   or nothing.
"""


class Folder:
    """A folder of scripts that a test fills."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> None:
        path = self.root / f"{name}.lua"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def script(self, name: str = "a/script", **overrides: str) -> Script:
        return ScriptLibrary(self.root, overrides)[name]

    def error(self, text: str) -> str:
        self.write("a/script", text)
        with pytest.raises(ScriptError) as caught:
            self.script()
        return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def header(keys: str = "key", args: str = "", includes: tuple[str, ...] = ()) -> str:
    lines = ["-- Does it.", "--", f"-- KEYS: {keys}", f"-- ARGV: {args}", "-- Returns: it.", "--"]
    return "\n".join([*lines, *(f"-- @include {name}" for name in includes), ""])


def test_a_header_is_read(folder: Folder) -> None:
    folder.write("a/script", GOOD + "return 1\n")
    script = folder.script()
    assert script.name == "a/script"
    assert script.summary == "Counts something by a step."
    assert script.keys == ("counter", "log")
    assert script.args == ("step", "reason")
    assert script.tail == "names"
    assert script.returns == "the new value, or nothing."


def test_prose_after_the_declarations_belongs_to_none(folder: Folder) -> None:
    folder.write("a/script", GOOD + "--\n-- More prose.\n-- And more.\nreturn 1\n")
    script = folder.script()
    assert script.summary == "Counts something by a step."
    assert script.returns == "the new value, or nothing."


def test_names_stand_for_positions(folder: Folder) -> None:
    folder.write("a/script", GOOD + "return { counter, log, step, reason, #names, unpack(names) }")
    script = folder.script()
    args: dict[str, Any] = {"names": ["x", "y"], "reason": "a2", "step": "a1"}
    row = script.arrange({"log": "k2", "counter": "k1"}, args)
    assert row == [2, "k1", "k2", "a1", "a2", "x", "y"]
    with fakeredis.FakeRedis() as client:
        answer = client.eval(script.source, *row)
    assert answer == [b"k1", b"k2", b"a1", b"a2", 2, b"x", b"y"]


def test_an_empty_tail_is_an_empty_table(folder: Folder) -> None:
    folder.write("a/script", header(args="names...") + "return #names\n")
    script = folder.script()
    args: dict[str, Any] = {"names": []}
    row = script.arrange({"key": "k"}, args)
    assert row == [1, "k"]
    with fakeredis.FakeRedis() as client:
        assert client.eval(script.source, *row) == 0


def test_a_script_without_arguments(folder: Folder) -> None:
    folder.write("a/script", header() + "return key\n")
    script = folder.script()
    assert (script.args, script.tail) == ((), None)
    assert script.arrange({"key": "k"}, {}) == [1, "k"]


@pytest.mark.parametrize(
    ("keys", "args", "message"),
    [
        ({"counter": "k"}, {"step": 1, "reason": 2, "names": []}, "no value for 'log'"),
        ({"counter": "k", "log": "l"}, {"step": 1, "names": []}, "no value for 'reason'"),
        ({"counter": "k", "log": "l"}, {"step": 1, "reason": 2}, "no value for 'names'"),
        (
            {"counter": "k", "log": "l", "lgo": "x"},
            {"step": 1, "reason": 2, "names": []},
            "unknown argument names ['lgo']",
        ),
        (
            {"counter": "k", "log": "l"},
            {"step": 1, "reason": 2, "names": [], "steps": 1},
            "unknown argument names ['steps']",
        ),
    ],
)
def test_wrong_names_are_told(
    keys: dict[str, str], args: dict[str, Any], message: str, folder: Folder
) -> None:
    folder.write("a/script", GOOD + "return 1\n")
    with pytest.raises(ScriptError) as caught:
        folder.script().arrange(keys, args)
    assert str(caught.value) == f"a/script: {message}"


def test_libraries_stand_in_front_each_once(folder: Folder) -> None:
    folder.write("lib/base", "local function base() return 'base' end")
    folder.write("lib/left", "-- @include lib/base\nlocal function left() return base() end")
    folder.write("lib/right", "-- @include lib/base\nlocal function right() return base() end")
    folder.write(
        "a/script",
        header(includes=("lib/left", "lib/right")) + "return { left(), right(), base() }\n",
    )
    script = folder.script()
    markers = [line for line in script.source.splitlines() if line.startswith("-- file: ")]
    assert markers == [
        "-- file: lib/base",
        "-- file: lib/left",
        "-- file: lib/right",
        "-- file: a/script",
    ]
    with fakeredis.FakeRedis() as client:
        assert client.eval(script.source, 1, "k") == [b"base"] * 3


def test_what_a_script_does_not_reach_is_left_out(folder: Folder) -> None:
    library = """\
-- A library.

local LIMIT, REST = 3, 4
local UNUSED = {
  1,
}

local function inner(n)
  if n > LIMIT then
    return LIMIT
  end
  return n
end

-- Says more about outer, not about unused.
local function outer() return inner(5) end
local function unused()
  return UNUSED
end"""
    folder.write("lib/some", library)
    folder.write("a/script", header(includes=("lib/some",)) + "-- Not unused.\nreturn outer()\n")
    script = folder.script()
    lines = script.source.split("\n")
    first = lines.index("-- file: lib/some") + 1
    pasted = lines[first : first + len(library.split("\n"))]
    kept = [line for line in pasted if line]
    assert not any("UNUSED" in line for line in kept)
    assert "local LIMIT, REST = 3, 4" in kept
    # What is kept has the same line as before.
    assert all(a in ("", b) for a, b in zip(pasted, library.split("\n"), strict=True))
    with fakeredis.FakeRedis() as client:
        assert client.eval(script.source, 1, "k") == 3


def test_a_missing_script_is_named(folder: Folder) -> None:
    with pytest.raises(ScriptError) as caught:
        folder.script("a/nothing")
    assert str(caught.value) == f"no script a/nothing.lua below {folder.root}"


def test_a_missing_library_is_named_with_who_asked(folder: Folder) -> None:
    folder.write("lib/outer", "-- @include lib/inner\n")
    message = folder.error(header(includes=("lib/outer",)))
    assert message == f"no script lib/inner.lua below {folder.root} (included by lib/outer)"


def test_a_cycle_names_the_chain(folder: Folder) -> None:
    folder.write("lib/one", "-- @include lib/two\n")
    folder.write("lib/two", "-- @include lib/three\n")
    folder.write("lib/three", "-- @include lib/one\n")
    message = folder.error(header(includes=("lib/one",)))
    assert message == "include cycle: a/script -> lib/one -> lib/two -> lib/three -> lib/one"


def test_a_library_that_includes_itself(folder: Folder) -> None:
    folder.write("lib/self", "-- @include lib/self\n")
    message = folder.error(header(includes=("lib/self",)))
    assert message == "include cycle: a/script -> lib/self -> lib/self"


def test_an_include_is_mentioned_once(folder: Folder) -> None:
    folder.write("lib/log", "")
    message = folder.error(header(includes=("lib/log", "lib/log")))
    assert message == "a/script: lib/log is included twice"


def test_only_libraries_are_included(folder: Folder) -> None:
    folder.write("a/other", header())
    message = folder.error(header(includes=("a/other",)))
    assert message == "a/script: a/other is not a library: only lib/ is included"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("return 1\n", "the header lacks KEYS, ARGV, Returns"),
        (GOOD.replace("-- KEYS: counter, log\n", ""), "the header lacks KEYS"),
        (GOOD.replace("-- ARGV: step, reason, names...\n", ""), "the header lacks ARGV"),
        (GOOD.replace("-- Returns: the new value,\n", ""), "the header lacks Returns"),
        ("-- KEYS: key\n-- ARGV:\n-- Returns: it.\n", "the header lacks a first sentence"),
        ("local x = 1\n" + GOOD, "the header lacks KEYS, ARGV, Returns"),
        (header() + "-- KEYS: key\n", "KEYS is declared twice"),
        (header(keys=""), "a script needs at least one key, which routes it"),
        (header(keys="run, keys..."), "KEYS can't be variadic"),
        (header(args="rest..., op"), "only the last name after ARGV: may be variadic"),
        (header(args="op, Spec"), "'Spec' after ARGV: is not a name"),
        (header(args="op, two words"), "'two words' after ARGV: is not a name"),
        (header(args="op,"), "'' after ARGV: is not a name"),
        (header(keys="1st"), "'1st' after KEYS: is not a name"),
        (header(keys="run, run"), "a name is declared twice"),
        (header(keys="run", args="op, run"), "a name is declared twice"),
        (header(keys="run", args="op, run..."), "a name is declared twice"),
    ],
)
def test_a_bad_header_is_told(text: str, message: str, folder: Folder) -> None:
    assert folder.error(text) == f"a/script: {message}"


def test_an_override_takes_the_place_of_a_file(folder: Folder) -> None:
    folder.write("lib/clock", "local function now() return 'real' end")
    folder.write("a/script", header(includes=("lib/clock",)) + "return now()\n")
    other = {"lib/clock": "local function now() return 'set' end"}
    with fakeredis.FakeRedis() as client:
        assert client.eval(folder.script().source, 1, "k") == b"real"
        assert client.eval(folder.script(**other).source, 1, "k") == b"set"
    assert folder.script().sha != folder.script(**other).sha


def test_an_override_needs_no_file_and_may_include(folder: Folder) -> None:
    folder.write("lib/base", "local function base() return 'base' end")
    folder.write("a/script", header(includes=("lib/extra",)) + "return extra()\n")
    extra = "-- @include lib/base\nlocal function extra() return base() end"
    with fakeredis.FakeRedis() as client:
        assert client.eval(folder.script(**{"lib/extra": extra}).source, 1, "k") == b"base"


def test_a_library_lists_its_scripts(folder: Folder) -> None:
    for name in ("b/second", "a/first", "b/deep/third"):
        folder.write(name, header() + "return 1\n")
    folder.write("lib/log", "local function append() end")
    assert [script.name for script in ScriptLibrary(folder.root)] == [
        "a/first",
        "b/deep/third",
        "b/second",
    ]


def test_a_script_is_assembled_once(folder: Folder) -> None:
    folder.write("a/script", header() + "return 1\n")
    library = ScriptLibrary(folder.root)
    first = library["a/script"]
    folder.write("a/script", header() + "return 2\n")
    assert library["a/script"] is first


def test_the_sha_is_the_servers(folder: Folder) -> None:
    folder.write("a/script", header() + "return 'grün'\n")
    script = folder.script()
    with fakeredis.FakeRedis() as client:
        assert client.script_load(script.source) == script.sha


def test_our_own_scripts_load_on_a_real_server() -> None:
    kind = any_kind()
    redis = pytest.importorskip("redis")
    with redis_server(kind) as server, redis.Redis.from_url(server.url) as client:
        for script in default_library():
            assert client.script_load(script.source) == script.sha, script.name


def test_our_own_scripts_are_found_once_per_process() -> None:
    assert default_library() is default_library()
    assert (script_root() / "events").is_dir()
    assert (script_root() / "lib").is_dir()


def test_what_is_deferred_has_with_it_what_it_alone_reaches(folder: Folder) -> None:
    library = """\
local FEW = { 1, 2 }
local MANY = { 3, 4 }
local function both(n) return n end
local function alone(list)
  return #list
end

-- Says what it does.
-- @deferred
local function rare(...)
  local n = ...
  return both(n) + alone(MANY)
end

local function often(n)
  if n == #FEW then
    return rare(n)
  end
  return both(n)
end"""
    folder.write("lib/some", library)
    folder.write(
        "a/script",
        header(includes=("lib/some",)) + "return { often(2), often(tonumber(ARGV[1])) }\n",
    )
    script = folder.script()
    lines = script.source.split("\n")
    inside = lines[lines.index("local function rare(...)") : lines.index("  local n = ...")]
    assert {"local MANY = { 3, 4 }", "local function alone(list)"} <= {*inside}
    assert lines.count("local function alone(list)") == 1
    assert "local function both(n) return n end" not in inside
    # Each line tells where it comes from, wherever it has gone.
    texts = {name: (folder.root / f"{name}.lua").read_text() for name in ("lib/some", "a/script")}
    seen: set[tuple[str, int]] = set()
    for line, origin in zip(lines, origins(script.source), strict=False):
        if origin is not None and line:
            seen.add(origin)
            assert line == texts[origin[0]].split("\n")[origin[1] - 1]
    assert {("lib/some", line) for line, text in enumerate(library.split("\n"), 1) if text} <= seen
    with fakeredis.FakeRedis() as client:
        assert client.eval(script.source, 1, "k", "7") == [4, 7]


SEVERAL = """\
local last
local NAMES = { 'a', 'b' }
local function note(n)
  last = n
  return NAMES[n]
end

-- @deferred
local function one(...)
  return note(...)
end

-- @deferred
local function other(...)
  return note(...) .. last
end
"""
TWICE = """\
local answers = {}
if ARGV[1] == '1' then
  answers[1] = one(1)
  answers[2] = one(2)
else
  answers[1] = other(2)
end
answers[#answers + 1] = one(1) .. other(1)
return answers
"""


def test_what_is_deferred_is_made_once_in_a_block_that_calls_it(folder: Folder) -> None:
    folder.write("lib/some", SEVERAL)
    folder.write("a/script", header(includes=("lib/some",)) + TWICE)
    script = folder.script()
    lines = script.source.split("\n")
    first = lines.index("if ARGV[1] == '1' then")
    # Each has its own of what it shares with the other one; but a variable is one.
    assert lines.count("local function note(n)") == lines.count("local NAMES = { 'a', 'b' }") == 4
    assert [place for place, line in enumerate(lines) if line == "local last"] < [first]
    assert lines.count("local last") == 1
    assert lines.count("local function one(...)") == lines.count("local function other(...)") == 2
    assert lines.index("local function one(...)") > first
    with fakeredis.FakeRedis() as client:
        assert client.eval(script.source, 1, "k", "1") == [b"a", b"b", b"aa1"]
        assert client.eval(script.source, 1, "k", "2") == [b"b2", b"aa1"]


NESTED = """\
local count = 0
local function plus(n)
  count = count + n
  return count
end

-- @deferred
local function rarest(...)
  return plus(...) * 100
end

-- @deferred
local function rare(...)
  local n = ...
  if n > 1 then
    return rarest(n)
  end
  return plus(n)
end"""


def test_what_is_deferred_may_be_so_within_another_one(folder: Folder) -> None:
    """It is made where that calls it, of what that has; what is no function is one thing."""
    folder.write("lib/some", NESTED)
    text = "local answers = {}\nfor n = 1, 3 do\n  answers[n] = rare(n)\nend\nreturn answers\n"
    folder.write("a/script", header(includes=("lib/some",)) + text)
    script = folder.script()
    lines = script.source.split("\n")
    outer = lines.index("local function rare(...)")
    assert lines.index("  if n > 1 then") < lines.index("local function rarest(...)")
    assert lines.count("local function rarest(...)") == lines.count("local count = 0") == 1
    assert lines.index("local count = 0") < lines.index("for n = 1, 3 do") < outer
    # Made for the outer one, it is there for the inner one.
    assert lines.count("local function plus(n)") == 1
    with fakeredis.FakeRedis() as client:
        assert client.eval(script.source, 1, "k", "1") == [1, 300, 600]


@pytest.mark.parametrize(
    "line",
    ["  or one(1)", "  + one(1)", "elseif one(1) then", "n = {\n  one(1)", "n = n +\n  one(1)"],
)
def test_a_statement_that_calls_what_is_deferred_begins_on_that_line(
    folder: Folder, line: str
) -> None:
    folder.write("lib/some", SEVERAL)
    text = header(includes=("lib/some",)) + f"local n = 1\n{line}\n"
    number = text.count("\n")
    assert folder.error(text).startswith(f"a/script:{number}: the statement that calls one, which")


# -- scripts that apply those of events -----------------------------------------------------------


def apply(*events: str, keys: str = "key", args: str = "base, items...") -> str:
    """A script that calls the functions of events with what it is given, and answers theirs."""
    lines = [header(keys, args).rstrip(), *(f"-- @event {name}" for name in events)]
    return "\n".join([*lines, "return { double(unpack(items)) }", ""])


def test_the_script_of_an_event_is_a_function(folder: Folder) -> None:
    """Its parameters are what its header names and the other one does not."""
    folder.write("lib/twice", "local function twice(n)\n  return 2 * n\nend\n")
    folder.write(
        "events/double",
        header("key", "base, number, word", ("lib/twice",))
        + "if number == '0' then\n  return 'none'\nend\n"
        + "return base .. twice(number) .. word\n",
    )
    folder.write("a/script", apply("events/double"))
    script = folder.script()
    assert (script.args, script.tail) == (("base",), "items")
    assert script.names == {"key", "base", "items"}
    client = fakeredis.FakeRedis()
    for items, answer in ((["4", "x"], b"b8x"), (["0", "x"], b"none")):
        row = script.arrange({"key": "k"}, {"base": "b", "items": items})
        assert client.eval(script.source, *row) == [answer]  # type: ignore[arg-type]


def test_a_line_of_an_event_is_told_by_its_own_file(folder: Folder) -> None:
    folder.write(
        "events/double", header("key", "number") + "local answer = number\nreturn answer\n"
    )
    folder.write("a/script", apply("events/double"))
    source = folder.script().source
    places = dict(zip(source.splitlines(), origins(source), strict=True))
    assert places["local answer = number"] == ("events/double", 7)
    assert places["return { double(unpack(items)) }"] == ("a/script", 8)
    assert places["end"] is None


@pytest.mark.parametrize(
    ("event", "events", "message"),
    [
        (header("key, log"), ["double"], "events/double: who applies it does not name its keys"),
        (header("key", "a, rest..."), ["double"], "events/double: a script with a variadic"),
        (header(), ["double", "double"], "a/script: events/double is applied twice"),
        (header(), ["other"], "no script events/other.lua below"),
    ],
)
def test_what_can_not_be_a_function_is_told(
    folder: Folder, event: str, events: list[str], message: str
) -> None:
    folder.write("events/double", f"{event}return 1\n")
    assert message in folder.error(apply(*(f"events/{name}" for name in events)))
