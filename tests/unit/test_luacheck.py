"""What of luacheck's findings is told."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from redis_world.lua import Script, ScriptLibrary
from support.tools import load_tool

pytestmark = pytest.mark.slow

HEADER: Final = (
    "-- Does it.\n--\n-- KEYS: key\n-- ARGV:\n-- Returns: it.\n--\n-- @include lib/some\n"
)
LIBRARY: Final = """\
-- A library.
local function first()
  local x = 1
end
local function second()
end
local function third()
end
"""
UNUSED: Final = "(W211) unused variable 'x'"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("luacheck")


@pytest.fixture
def scripts(tmp_path: Path) -> list[Script]:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "some.lua").write_text(LIBRARY, encoding="utf-8")
    for name, body in (("a", "first()"), ("b", "second()"), ("c", "first()")):
        path = tmp_path / "runs" / f"{name}.lua"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{HEADER}return {body}\n", encoding="utf-8")
    return [*ScriptLibrary(tmp_path)]


def line_of(script: Script, text: str) -> int:
    return script.source.splitlines().index(text) + 1


def test_what_is_unused_in_every_script_that_has_it_is_told(
    tool: ModuleType, scripts: list[Script]
) -> None:
    a, _, c = scripts
    findings = [(script, line_of(script, "  local x = 1"), UNUSED) for script in (a, c)]
    assert tool.select(scripts, findings) == [f"lib/some.lua:3: {UNUSED}"]


def test_what_one_script_uses_is_not_told(tool: ModuleType, scripts: list[Script]) -> None:
    a = scripts[0]
    assert tool.select(scripts, [(a, line_of(a, "  local x = 1"), UNUSED)]) == []


def test_what_no_script_reaches_is_told(
    tool: ModuleType, scripts: list[Script], tmp_path: Path
) -> None:
    assert tool.unreached(scripts, tmp_path / "lib") == [
        "lib/some.lua:7: unused: no script reaches it"
    ]
