"""The findings of a checkup, and how they show numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["LEVELS", "Finding", "Level", "amount", "duration", "size", "worst"]

Level = Literal["ok", "info", "unknown", "warning", "error"]

LEVELS: Final[tuple[Level, ...]] = ("ok", "info", "unknown", "warning", "error")
"""From best to worst."""


class Finding(BaseModel):
    """The result of one check.

    Attributes:
        name: the check, in a word or two.
        level: `ok`, `info`, `unknown`, `warning` or `error`. `unknown`: the check could not run.
            `warning`: the World works, but not well or not for long. `error`: it does not work, or
            it loses data.
        text: what was found, in a sentence or two.
        advice: how to fix it; empty if there is nothing to fix.
        figures: the values that the text is made from.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    level: Level
    text: str
    advice: str = ""
    figures: dict[str, int | float | str | None] = Field(default_factory=dict)


def worst(findings: Iterable[Finding]) -> Level:
    """The level of the worst of them; `ok` when there are none."""
    return max((each.level for each in findings), key=LEVELS.index, default="ok")


def amount(count: int, noun: str, nouns: str = "") -> str:
    """A number with its noun: `1 run`, `2 runs`."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def duration(seconds: float) -> str:
    """A duration, rounded to a unit that fits."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"


def size(count: float) -> str:
    """A number of bytes, in a unit that fits."""
    units = ("KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log2(max(count, 1))) // 10, len(units))
    return f"{count / 1024**power:.1f} {units[power - 1]}" if power else f"{count:.0f} bytes"
