"""The goals of the project, measured as ratios within one run.

    python benchmarks/figures.py [--json out.json] [name ...]

A rate by itself says as much of the machine as of the project. So what is measured here is
compared with something else that runs a moment before or after it, in rounds that alternate, by
the medians of both.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import figures_against
import figures_size
import figures_speed
import figures_work
from figures_base import Figure, Measured
from peers.base import MissingError

__all__ = ["FIGURES", "Figure", "Measured", "main", "measure", "record"]

FIGURES: Final[tuple[Figure, ...]] = (
    *figures_speed.FIGURES,
    *figures_size.FIGURES,
    *figures_work.FIGURES,
    *figures_against.FIGURES,
)
_WIDTH: Final = 99
_VERDICTS: Final = {True: "met", False: "missed", None: ""}


def measure(figure: Figure) -> Measured | MissingError:
    """Measure a figure, or say why that can't be done."""
    try:
        return figure.measure()
    except MissingError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the others can be measured nevertheless
        return MissingError(f"{type(error).__name__}: {error}")


def _load() -> str:
    """How busy the machine is; rounds in turns need it to be so evenly, not to be idle."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def _choose(names: Sequence[str]) -> list[Figure]:
    """The figures of these names, or of groups of these names; all where there are none.

    Raises:
        SystemExit: there is no such figure.
    """
    if not names:
        return [*FIGURES]
    chosen = []
    for name in names:
        found = [each for each in FIGURES if each.name == name or each.name.startswith(f"{name}.")]
        if not found:
            raise SystemExit(
                f"no figure {name!r}: choose of {', '.join(each.name for each in FIGURES)}"
            )
        chosen += [each for each in found if each not in chosen]
    return chosen


def _row(figure: Figure, measured: Measured | MissingError) -> str:
    if isinstance(measured, MissingError):
        value, verdict, text = "missing", "", str(measured)
    else:
        value = f"{measured.value:,.2f} {measured.unit}"
        verdict = _VERDICTS[figure.is_met(measured.value)]
        text = measured.text
    lines = textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    head = f"{figure.name:24}{value:>18}   {figure.goal:10}{verdict}".rstrip()
    return "\n".join([head, *lines])


def record(figure: Figure, measured: Measured | MissingError) -> dict[str, Any]:
    """A figure and what it has come to, as JSON has it."""
    head = {"name": figure.name, "goal": figure.goal}
    if isinstance(measured, MissingError):
        return {**head, "missing": str(measured)}
    return {
        **head,
        "value": measured.value,
        "unit": measured.unit,
        "met": figure.is_met(measured.value),
        "text": measured.text,
        "details": measured.details,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure figures, and print each as soon as it is there."""
    parser = argparse.ArgumentParser(description="Measure the goals of the project.")
    parser.add_argument("names", nargs="*", metavar="name", help="figures or groups; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where all rounds are written")
    parser.add_argument("--list", action="store_true", help="only name the figures")
    options = parser.parse_args(arguments)
    chosen = _choose(options.names)
    if options.list:
        sys.stdout.writelines(f"{figure.name:24}{figure.goal}\n" for figure in chosen)
        return
    sys.stdout.write(f"{os.cpu_count()} cores, load of the last minute {_load()}\n")
    records = {}
    for figure in chosen:
        measured = measure(figure)
        records[figure.name] = record(figure, measured)
        sys.stdout.write(_row(figure, measured) + "\n")
        sys.stdout.flush()
        if options.json is not None:
            # After each: the later ones take minutes, and may be broken off.
            options.json.write_text(
                json.dumps(records, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )


if __name__ == "__main__":
    main()
