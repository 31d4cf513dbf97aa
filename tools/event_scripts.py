"""Write src/redis_world/events/scripts.py: a function for each script of an event, by its header.

A function takes what the header of its script names and puts it in the header's order, so that
mypy finds a name that the script does not have, or one that is missing.

With `--check` nothing is written; the status is 1 where the file is not up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from redis_world.lua import Script, default_library

WRITTEN: Final = Path(__file__).parents[1] / "src/redis_world/events/scripts.py"
_SKIPPED: Final = "events/batch"
"""Its row is made of the rows of others."""

_HEAD: Final = '''"""The scripts of events as functions: their headers' names, in order.

Written by `tools/event_scripts.py` from the headers of `lua/events`. Change those, not this.
"""

from __future__ import annotations

from collections.abc import Sequence

'''


def text() -> str:
    """The module, as it should be."""
    scripts = [
        script
        for script in default_library()
        if script.name.startswith("events/") and script.name != _SKIPPED
    ]
    names = [_function(script) for script in scripts]
    lines = ["__all__ = [", *(f'    "{name}",' for name in ["Row", "Word", *names]), "]", ""]
    lines += ["Word = str | bytes", "Row = tuple[Word, ...]", '"""Keys and arguments."""']
    for script in scripts:
        lines += ["", "", *_lines(script)]
    return _HEAD + "\n".join(lines) + "\n"


def _function(script: Script) -> str:
    return script.name.rpartition("/")[2]


def _lines(script: Script) -> Iterator[str]:
    names = [*script.keys, *script.args]
    yield f"def {_function(script)}("
    yield "    *,"
    yield from (f"    {name}: Word," for name in names)
    if script.tail is not None:
        yield f"    {script.tail}: Sequence[Word],"
    yield ") -> Row:"
    yield f'    """Call `{script.name}`."""'
    yield "    return ("
    yield from (f"        {name}," for name in names)
    if script.tail is not None:
        yield f"        *{script.tail},"
    yield "    )"


def main(arguments: list[str]) -> int:
    """Write it, or compare it; the exit status."""
    wanted = text()
    if arguments == ["--check"]:
        if WRITTEN.read_text(encoding="utf-8") != wanted:
            print(f"{WRITTEN} is not up to date: run python tools/event_scripts.py")
            return 1
        return 0
    WRITTEN.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
