"""Run luacheck over the assembled Lua scripts and tell what it finds by file and line.

A library is pasted into many scripts: a finding in it is told once. What is unused is judged
apart: of a library, what no script reaches; of a header, only arguments, which would be sent
for nobody, and not keys, which may be there to route the script.

Exits with luacheck's status, or with 0 when nothing of its findings is left: 1 warnings,
2 errors or no luacheck, 3 luacheck failed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redis_world.lua import default_library, origins, script_root

if TYPE_CHECKING:
    from redis_world.lua import Script

_CONFIG = Path(__file__).parents[1] / ".luacheckrc"
_FINDING = re.compile(r"^(?P<path>.+\.lua):(?P<line>\d+):(?P<column>\d+): (?P<text>.*)$")
_KEY = re.compile(r"^local \w+ = KEYS\[\d+\]$")
_UNUSED = "(W211)"


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """A line of a script file; line 1 stands for the whole header."""

    file: str
    line: int


def map_lines(script: Script) -> list[Place]:
    """For each line of an assembled script, where it comes from."""
    return [
        Place(script.name, 1) if origin is None else Place(*origin)
        for origin in origins(script.source)
    ]


def run_luacheck(
    luacheck: str, scripts: list[Script]
) -> tuple[int, list[tuple[Script, int, str]]]:
    """Its status, and each finding as script, line and text."""
    with tempfile.TemporaryDirectory() as directory:
        paths = {Path(directory) / f"{i}.lua": script for i, script in enumerate(scripts)}
        for path, script in paths.items():
            path.write_text(script.source, encoding="utf-8")
        done = subprocess.run(  # noqa: S603
            [luacheck, "--config", _CONFIG, "--codes", "--formatter", "plain", *paths],
            capture_output=True,
            text=True,
            check=False,
        )
        matches = [_FINDING.match(line) for line in done.stdout.splitlines()]
        findings = [
            (paths[Path(match["path"])], int(match["line"]), match["text"])
            for match in matches
            if match is not None
        ]
    sys.stderr.write(done.stderr)
    if done.returncode > 0 and not findings:
        raise SystemExit(f"luacheck failed ({done.returncode}):\n{done.stdout}")
    return done.returncode, findings


def select(scripts: list[Script], findings: list[tuple[Script, int, str]]) -> list[str]:
    """The findings that are worth telling, each once, sorted."""
    lines = {script.name: map_lines(script) for script in scripts}
    # In how many scripts a line is: the loader leaves empty what a script does not reach.
    there = Counter(
        place
        for script in scripts
        for place in {
            place
            for place, text in zip(lines[script.name], script.source.splitlines(), strict=True)
            if text
        }
    )
    counted: Counter[tuple[Place, str]] = Counter()
    for script, line, text in findings:
        own = lines[script.name]
        index = min(line, len(own)) - 1  # a syntax error may be one behind the end
        if not _KEY.match(script.source.splitlines()[index]):
            counted[own[index], text] += 1
    return [
        f"{place.file}.lua:{place.line}: {text}"
        for (place, text), count in sorted(counted.items())
        if not text.startswith(_UNUSED) or count == there[place]
    ]


def unreached(scripts: list[Script], libraries: Path) -> list[str]:
    """What of the libraries the loader leaves out of every script."""
    kept = {line for script in scripts for line in script.source.splitlines()}
    return [
        f"lib/{path.name}:{number}: unused: no script reaches it"
        for path in sorted(libraries.glob("*.lua"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.startswith("local ") and line not in kept
    ]


def main() -> int:
    luacheck = shutil.which("luacheck")
    if luacheck is None:
        sys.stderr.write("luacheck isn't installed: it comes as lua-check or from LuaRocks\n")
        return 2
    scripts = list(default_library())
    status, findings = run_luacheck(luacheck, scripts)
    told = select(scripts, findings) + unreached(scripts, script_root() / "lib")
    for line in told:
        sys.stdout.write(f"{script_root().name}/{line}\n")
    sys.stdout.write(f"luacheck: {len(scripts)} scripts, {len(told)} findings\n")
    return max(status, 1) if told else 0


if __name__ == "__main__":
    sys.exit(main())
