"""Which Pythons the tests run on, where they are found, and the lower bounds of dependencies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from support.tools import load_tool

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("pythons")


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def interpreter(path: Path, answer: str = "cpython 3.12", status: int = 0) -> Path:
    """A program that answers as an interpreter does."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho {answer}\nexit {status}\n")
    path.chmod(0o755)
    return path


class TestVersions:
    def test_they_are_those_of_the_classifiers(
        self, tool: ModuleType, table: dict[str, Any]
    ) -> None:
        named = [each.rpartition(" ")[2] for each in table["classifiers"] if ":: 3." in each]
        assert tool.versions(table) == named == ["3.11", "3.12", "3.13"]

    def test_the_first_is_the_one_that_is_required(
        self, tool: ModuleType, table: dict[str, Any]
    ) -> None:
        assert table["requires-python"] == f">={tool.versions(table)[0]}"

    def test_ci_runs_the_quick_part_on_a_bare_path_and_then_everything(self) -> None:
        run = (ROOT / ".ci/run").read_text()
        steps = [line for line in run.splitlines() if re.match(r"(PATH=\S+ )?make ", line)]
        assert steps[0] == "make pythons", "what is missing is told before the long part"
        assert steps[-2:] == ['PATH="$bare" make test', "make test-all"]

    def test_the_rest_comes_before_the_others(self) -> None:
        text = (ROOT / "Makefile").read_text()
        (parts,) = re.findall(r"^test-all: (.*?) ##", text, re.MULTILINE)
        own = ["test-rest", "test-typescript", "conformance"]
        assert parts.split() == [*own, "test-lowest", "test-pythons"]

    def test_3_10_comes_after_3_9(self, tool: ModuleType) -> None:
        classifiers = [f"Programming Language :: Python :: {v}" for v in ("3.10", "3.9", "3")]
        assert tool.versions({"classifiers": classifiers}) == ["3.9", "3.10"]


class TestFind:
    @pytest.mark.parametrize(
        ("place", "variable"),
        [
            ("usr/bin", None),
            ("usr/local/bin", None),
            ("home/.pyenv/versions/3.12.1/bin", None),
            ("moved/versions/3.12.1/bin", "PYENV_ROOT"),
            ("home/.local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu/bin", None),
            ("moved/cpython-3.12.4-linux-x86_64-gnu/bin", "UV_PYTHON_INSTALL_DIR"),
            ("home/.asdf/installs/python/3.12.7/bin", None),
            ("moved/installs/python/3.12.7/bin", "ASDF_DATA_DIR"),
            ("home/.local/share/mise/installs/python/3.12.7/bin", None),
            ("moved/installs/python/3.12.7/bin", "MISE_DATA_DIR"),
            ("opt/python-3.12/bin", None),
            ("opt/pyenv/versions/3.12.1/bin", None),
            ("opt/hostedtoolcache/Python/3.12.10/x64/bin", None),
            ("opt/homebrew/bin", None),
            ("Library/Frameworks/Python.framework/Versions/3.12/bin", None),
        ],
    )
    def test_places(
        self, tool: ModuleType, tmp_path: Path, place: str, variable: str | None
    ) -> None:
        path = interpreter(tmp_path / place / "python3.12")
        environ = {"PATH": str(tmp_path / "empty"), "HOME": str(tmp_path / "home")}
        if variable is not None:
            environ[variable] = str(tmp_path / "moved")
        assert tool.find("3.12", environ, tmp_path) == path
        assert tool.find("3.13", environ, tmp_path) is None

    def test_the_path_comes_first(self, tool: ModuleType, tmp_path: Path) -> None:
        interpreter(tmp_path / "usr/bin/python3.12")
        first = interpreter(tmp_path / "first/python3.12")
        environ = {"PATH": f"{tmp_path / 'none'}::{first.parent}", "HOME": str(tmp_path)}
        assert tool.find("3.12", environ, tmp_path) == first

    @pytest.mark.parametrize(
        ("answer", "status"),
        [("cpython 3.12", 127), ("cpython 3.11", 0), ("pypy 3.12", 0), ("", 0)],
        ids=["a stub that starts nothing", "another version", "another kind", "no answer"],
    )
    def test_what_is_no_use_is_passed_over(
        self, tool: ModuleType, tmp_path: Path, answer: str, status: int
    ) -> None:
        interpreter(tmp_path / "shims/python3.12", answer, status)
        used = interpreter(tmp_path / "home/.pyenv/versions/3.12.1/bin/python3.12")
        environ = {"PATH": str(tmp_path / "shims"), "HOME": str(tmp_path / "home")}
        assert tool.find("3.12", environ, tmp_path) == used

    def test_the_newest_of_a_version_manager(self, tool: ModuleType, tmp_path: Path) -> None:
        versions = tmp_path / ".pyenv/versions"
        paths = {v: interpreter(versions / v / "bin/python3.12") for v in ("3.12.9", "3.12.10")}
        assert tool.find("3.12", {"HOME": str(tmp_path)}, tmp_path) == paths["3.12.10"]

    def test_this_interpreter_is_usable(self, tool: ModuleType) -> None:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        folder = Path(sys.executable).resolve().parent
        found = tool.find(version, {"PATH": str(folder)}, Path("/"))
        answer = [found, "-c", "import sys; print(sys.version_info[:2])"]
        assert subprocess.check_output(answer, text=True).strip() == str(sys.version_info[:2])


class TestCommand:
    def environ(self, tmp_path: Path, **more: str) -> dict[str, str]:
        interpreter(tmp_path / "usr/bin/python3.11", "cpython 3.11")
        interpreter(tmp_path / "opt/a/bin/python3.12")
        return {"HOME": str(tmp_path / "home"), **more}

    def test_here_a_missing_one_is_told(
        self, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert tool.main([], self.environ(tmp_path), tmp_path) == 0
        output, errors = capsys.readouterr()
        assert output == "3.11\n3.12\n"
        assert "Python 3.13 is missing" in errors
        assert "pyenv install 3.13" in errors
        assert "apt-get install python3.13 python3.13-venv" in errors

    def test_in_ci_it_is_a_failure(
        self, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert tool.main([], self.environ(tmp_path, CI="true"), tmp_path) == 1
        assert "Python 3.13 is missing" in capsys.readouterr().err

    def test_none_at_all_is_a_failure(self, tool: ModuleType, tmp_path: Path) -> None:
        assert tool.main([], {"HOME": str(tmp_path)}, tmp_path) == 1

    def test_one(
        self, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        environ = self.environ(tmp_path)
        assert tool.main(["3.12"], environ, tmp_path) == 0
        assert capsys.readouterr().out == f"{tmp_path}/opt/a/bin/python3.12\n"
        assert tool.main(["3.13"], environ, tmp_path) == 1
        assert not capsys.readouterr().out

    def test_missing(
        self, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert tool.main(["--missing"], self.environ(tmp_path), tmp_path) == 0
        assert capsys.readouterr() == ("3.13\n", "")

    @pytest.mark.parametrize("arguments", [["3.2"], ["--what"], ["3.11", "3.12"]])
    def test_usage(self, tool: ModuleType, tmp_path: Path, arguments: list[str]) -> None:
        assert tool.main(arguments, {}, tmp_path) == 2

    def test_it_needs_nothing_installed(self) -> None:
        command = [sys.executable, "-I", "-S", str(ROOT / "tools/pythons.py"), "--lowest"]
        assert b"redis==" in subprocess.check_output(command, env=dict(os.environ))


class TestLowest:
    def test_every_dependency_and_extra_is_pinned_to_its_bound(
        self, tool: ModuleType, table: dict[str, Any]
    ) -> None:
        pins = dict(pin.split("==") for pin in tool.lowest(table))
        extras = table["optional-dependencies"]
        for requirement in [*table["dependencies"], *extras["vercel"], *extras["servers"]]:
            name = re.split(r"[\[><=]", requirement)[0]
            assert f">={pins.pop(name)}" in requirement
        assert not pins

    def test_a_dependency_without_a_bound_is_refused(self, tool: ModuleType) -> None:
        table = {
            "dependencies": ["some<3"],
            "optional-dependencies": {"vercel": [], "servers": []},
        }
        with pytest.raises(ValueError, match=r"'some<3' .* no lower bound"):
            tool.lowest(table)

    def test_what_is_used_of_its_private_names_has_an_upper_bound(
        self, table: dict[str, Any]
    ) -> None:
        bounds = {re.split(r"[\[><=]", each)[0]: each for each in table["dependencies"]}
        assert re.search(r",<\d+$", bounds["redis"])
        assert re.search(r",<0\.\d+$", table["optional-dependencies"]["vercel"][0])
