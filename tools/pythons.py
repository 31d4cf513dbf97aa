"""Find an interpreter of each Python that pyproject.toml names, on the path or elsewhere.

    pythons.py           the versions that are here, one per line
    pythons.py 3.12      the interpreter of one version
    pythons.py --missing the versions that are not here
    pythons.py --lowest  the lowest release of each dependency, as constraints for pip

The first two report on stderr what is missing. They exit with 1 if the requested version, or all
of them, are missing, or, with the environment variable CI, any. 2: the arguments are wrong.

It runs before anything is installed, so it imports nothing but the standard library.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

PYPROJECT: Final = Path(__file__).parents[1] / "pyproject.toml"

_CLASSIFIER: Final = re.compile(r"Programming Language :: Python :: (3\.\d+)")
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*>=\s*([0-9][0-9.]*)")
_TESTED_EXTRAS: Final = ("vercel", "servers")
_PATIENCE: Final = 20.0
"""Seconds for an interpreter to start."""
_QUESTION: Final = (
    "import sys, ensurepip, venv; print(sys.implementation.name, '%d.%d' % sys.version_info[:2])"
)
"""Debian's Python has no ensurepip until python3.x-venv is installed: it can't make a venv."""


def project(path: Path = PYPROJECT) -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return table


def versions(table: Mapping[str, Any]) -> list[str]:
    """The Pythons that the classifiers name, oldest first."""
    found = [_CLASSIFIER.fullmatch(each) for each in table["classifiers"]]
    return sorted((each[1] for each in found if each), key=_numbers)


def lowest(table: Mapping[str, Any]) -> list[str]:
    """Constraints that pin every direct dependency, and those of the extras, to its lower bound.

    Raises:
        ValueError: a dependency has no lower bound, so that nobody knows what works.
    """
    extras = table["optional-dependencies"]
    requirements = [
        *table["dependencies"],
        *(each for name in _TESTED_EXTRAS for each in extras[name]),
    ]
    pins = []
    for requirement in requirements:
        found = _REQUIREMENT.match(requirement)
        if found is None:
            raise ValueError(f"{requirement!r} in pyproject.toml has no lower bound (>=)")
        pins.append(f"{found[1]}=={found[2]}")
    return pins


def candidates(version: str, environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    """Where an interpreter may be, best first: the path, version managers, the system's folders.

    Args:
        version: such as "3.12".
        environ: PATH, HOME, and the variables by which version managers can be moved.
        root: of the file system.
    """
    name = f"python{version}"
    for on_path in environ.get("PATH", "").split(os.pathsep):
        if on_path:
            yield Path(on_path) / name
    home = Path(environ.get("HOME") or root / "root")
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    for folder, inside in (
        (_place(environ, "PYENV_ROOT", home / ".pyenv") / "versions", "bin"),
        (_place(environ, "UV_PYTHON_INSTALL_DIR", data / "uv/python"), "bin"),
        (_place(environ, "ASDF_DATA_DIR", home / ".asdf") / "installs/python", "bin"),
        (_place(environ, "MISE_DATA_DIR", data / "mise") / "installs/python", "bin"),
        (_place(environ, "RUNNER_TOOL_CACHE", root / "opt/hostedtoolcache") / "Python", "*/bin"),
        (root / "opt", "bin"),
        (root / "opt/pyenv/versions", "bin"),
        (root / "Library/Frameworks/Python.framework/Versions", "bin"),
    ):
        yield from sorted(folder.glob(f"*/{inside}/{name}"), key=_newest_first)
    for place in ("usr/local/bin", "usr/bin", "opt/homebrew/bin"):
        yield root / place / name


def find(version: str, environ: Mapping[str, str], root: Path = Path("/")) -> Path | None:
    """An interpreter of this version that runs and can make virtual environments."""
    tried = set()
    for path in candidates(version, environ, root):
        if path not in tried and path.is_file() and _is_usable(path, version):
            return path
        tried.add(path)
    return None


def _place(environ: Mapping[str, str], variable: str, default: Path) -> Path:
    return Path(environ.get(variable) or default)


def _newest_first(path: Path) -> tuple[list[int], str]:
    """3.12.10 before 3.12.9, whatever the folder is called around its numbers."""
    numbers = next((part for part in reversed(path.parts[:-2]) if re.search(r"3\.\d+", part)), "")
    found = re.search(r"3(?:\.\d+)+", numbers)
    return ([-each for each in _numbers(found[0])] if found else [0], str(path))


def _numbers(version: str) -> list[int]:
    return [int(each) for each in version.split(".")]


def _is_usable(path: Path, version: str) -> bool:
    """Run it: a version manager's shim is on the path for versions that it can't start."""
    try:
        done = subprocess.run(  # noqa: S603
            [path, "-I", "-c", _QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.split() == ["cpython", version]


def _missing(version: str) -> str:
    return (
        f"Python {version} is missing. Install it with one of:\n"
        f"  apt-get install python{version} python{version}-venv\n"
        f"  pyenv install {version}\n"
        f"  uv python install {version}\n"
    )


def main(arguments: Sequence[str], environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """Do what the arguments say; returns the exit status."""
    table = project()
    if list(arguments) == ["--lowest"]:
        sys.stdout.writelines(f"{pin}\n" for pin in lowest(table))
        return 0
    known = versions(table)
    if list(arguments) == ["--missing"]:
        absent = [version for version in known if find(version, environ, root) is None]
        sys.stdout.writelines(f"{version}\n" for version in absent)
        return 0
    if len(arguments) > 1 or any(each not in known for each in arguments):
        sys.stderr.write(f"usage: pythons.py [--lowest | --missing | {' | '.join(known)}]\n")
        return 2
    found = {version: find(version, environ, root) for version in arguments or known}
    for version, path in found.items():
        if path is None:
            sys.stderr.write(_missing(version))
        else:
            sys.stdout.write(f"{path if arguments else version}\n")
    is_complete = all(found.values())
    if is_complete or (any(found.values()) and not environ.get("CI")):
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
