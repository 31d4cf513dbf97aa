"""Measures redis-world beside what others use, and itself against its goals.

    python benchmarks/run.py [--rounds 5] [--out build/bench] [--publish] [group ...]

Writes `results.json`, `benchmarks.md` and the pictures; with `--publish` into docs/. Of the groups
that are named, or of all of them, figures and curves.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from compare import compare, print_plainly  # noqa: E402
from curves import cost_by_history, latency_by_callers  # noqa: E402
from figures import FIGURES, measure, record  # noqa: E402
from groups import GROUPS  # noqa: E402
from plots import draw_callers, draw_comparison, draw_history  # noqa: E402
from report import markdown, slug  # noqa: E402
from yardstick import yardstick  # noqa: E402

OWN: Final = {"Worlds as stores": "RedisWorld", "Task queues": "redis-world"}


def main() -> int:
    options = _options()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    results: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": _machine(),
        "load": f"{load:.1f}",
        "rounds": options.rounds,
        "yardstick ms": [],
    }

    def tell(what: str) -> None:
        results["yardstick ms"].append(round(yardstick(), 2))
        print_plainly(what)

    groups = [each for each in GROUPS if not options.groups or slug(each.name) in options.groups]
    comparisons = [compare(each, options.rounds, tell) for each in groups]
    results["groups"] = [each.as_json() for each in comparisons]
    for each in comparisons:
        own = OWN.get(each.name, "RedisWorld")
        draw_comparison(each, out / slug(each.name), own=own)
    if not options.groups:
        results["figures"] = []
        for figure in FIGURES:
            tell(f"figure: {figure.name}")
            results["figures"].append(record(figure, measure(figure)))
        tell("curves")
        results["callers"] = latency_by_callers()
        results["history"] = cost_by_history()
        draw_callers(results["callers"], out / "callers")
        draw_history(results["history"], out / "history")
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = markdown(results, comparisons, out.name if options.publish else ".")
    document = out.with_suffix(".md") if options.publish else out / "benchmarks.md"
    document.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [slug(each.name) for each in GROUPS]
    parser.add_argument("groups", nargs="*", metavar="group", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=5, help="of each backend")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--publish", action="store_true", help="write into docs/")
    options = parser.parse_args()
    if unknown := {*options.groups} - {*names}:
        parser.error(f"no group {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    if options.publish and options.groups:
        parser.error("--publish writes the whole document: name no group")
    if options.publish:
        options.out = ROOT / "docs" / "benchmarks"
    return options


def _machine() -> str:
    system = f"{platform.system()} {platform.machine()}"
    return f"{os.cpu_count()} cores, {system}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
