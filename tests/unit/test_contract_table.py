"""Every part of the contract has a test, and the table that says which is up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.tools import load_tool

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("contract_table")


SMALL = {"1.first": "the first part", "2.second": "the second part"}

MODULE = '''"""About something."""

# Contract: 1.first

from __future__ import annotations


def test_of_the_module() -> None: ...


# Contract: 2.second
@mark
@mark(1)
async def test_of_its_own() -> None: ...


class TestInAClass:
    # Contract: 1.first
    # Contract: 2.second
    def test_of_both(self) -> None: ...


def helper() -> None: ...
'''


@pytest.fixture
def project(tmp_path: Path, tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one module of tests, and a contract of two parts."""
    monkeypatch.setattr(tool, "PARTS", SMALL)
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests" / "unit" / "test_it.py").write_text(MODULE)
    write_page(tool, tmp_path)
    return tmp_path


def write_page(tool: ModuleType, root: Path) -> None:
    tests, _ = tool.read_tests(root)
    (root / tool.TABLE).write_text(tool.render(tests))


def change(root: Path, old: str, new: str) -> None:
    path = root / "tests" / "unit" / "test_it.py"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_every_part_has_a_test(tool: ModuleType) -> None:
    assert tool.check(ROOT) == []


def test_every_part_is_of_a_section(tool: ModuleType) -> None:
    assert {part.partition(".")[0] for part in tool.PARTS} == set(tool.SECTIONS)
    assert not [part for part in tool.PARTS if "," in part or part != part.strip()]


def test_tests_name_their_parts(tool: ModuleType, project: Path) -> None:
    tests, problems = tool.read_tests(project)
    assert {test.name: test.parts for test in tests} == {
        "test_of_the_module": ("1.first",),
        "test_of_its_own": ("2.second",),
        "TestInAClass::test_of_both": ("1.first", "2.second"),
    }
    assert {test.module for test in tests} == {"unit/test_it.py"}
    assert problems == []
    assert tool.check(project) == []


def test_the_page_lists_them(tool: ModuleType, project: Path) -> None:
    page = (project / tool.TABLE).read_text()
    assert (
        "| second | the second part | `unit/test_it.py`: `test_of_its_own`, "
        "`TestInAClass::test_of_both` |"
    ) in page
    change(project, "# Contract: 2.second\n@mark", "# Contract: 1.first, 2.second\n@mark")
    write_page(tool, project)
    assert "| first | the first part | `unit/test_it.py`: all 3 |" in (
        (project / tool.TABLE).read_text()
    )


def test_a_part_without_a_test_is_told(
    tool: ModuleType, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "PARTS", {**SMALL, "2.third": "the third part"})
    write_page(tool, project)
    assert tool.check(project) == ["no test names '2.third' (the third part)"]


def test_a_page_that_is_not_up_to_date_is_told(tool: ModuleType, project: Path) -> None:
    stale = ["docs/contract.md is not up to date: run tools/contract_table.py"]
    change(project, "test_of_its_own", "test_by_another_name")
    assert tool.check(project) == stale
    (project / tool.TABLE).unlink()
    assert tool.check(project) == stale


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            '"""About something."""\n\n# Contract: 1.first',
            '"""About something."""\n\n# Contract: 1.frist',
            "unit/test_it.py:3: no part of the contract is called '1.frist'",
        ),
        (
            "# Contract: 2.second\n@mark",
            "# Contract: 2.second\n\n@mark",
            "unit/test_it.py:11: there is no test below this",
        ),
        (
            "def helper",
            "# Contract: 2.second\ndef helper",
            "unit/test_it.py:23: there is no test below this",
        ),
    ],
    ids=["an unknown name", "a line between", "no test"],
)
def test_a_wrong_comment_is_told(
    tool: ModuleType, project: Path, old: str, new: str, told: str
) -> None:
    change(project, old, new)
    assert told in tool.check(project)


@pytest.mark.parametrize(("arguments", "status"), [(["--check"], 1), ([], 0), (["--help"], 2)])
def test_the_command(
    tool: ModuleType,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
) -> None:
    (project / tool.TABLE).write_text("old")
    monkeypatch.setattr(tool, "ROOT", project)
    monkeypatch.setattr(sys, "argv", ["contract_table.py", *arguments])
    assert tool.main() == status
    printed = capsys.readouterr()
    if arguments == ["--check"]:
        assert "docs/contract.md is not up to date" in printed.out
        assert (project / tool.TABLE).read_text() == "old"
    elif not arguments:
        assert tool.check(project) == []
        assert tool.main() == 0
