"""The figures of a measurement, each with one value per round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["Figure", "Measurement", "Round", "Spread", "Unit", "collect", "percentile"]

Unit: TypeAlias = Literal["1/s", "ms", "cores"]
Round: TypeAlias = Mapping[str, float]
"""The figures of one round, by their names."""

_UNITS: Mapping[str, Unit] = {"Ms": "ms", "PerSecond": "1/s"}
"""By how the names of the figures end."""


@dataclass(frozen=True)
class Spread:
    """One value per round, and their spread.

    Attributes:
        rounds: the values, in order, without the warm-up.
    """

    rounds: Sequence[float]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.rounds)

    @property
    def lowest(self) -> float:
        """The smallest value."""
        return min(self.rounds)

    @property
    def highest(self) -> float:
        """The largest value."""
        return max(self.rounds)

    def document(self) -> dict[str, Any]:
        """The same as a JSON document."""
        return {
            "median": self.median,
            "lowest": self.lowest,
            "highest": self.highest,
            "rounds": [*self.rounds],
        }


@dataclass(frozen=True)
class Figure(Spread):
    """One measured quantity.

    Attributes:
        title: its name in words.
        unit: the unit of its values: `1/s` or `ms`.
        round_trips: the median as a multiple of the bare round trip; None where that means
            nothing, for example where many callers wait for each other.
    """

    title: str
    unit: Unit
    round_trips: float | None = None

    def document(self) -> dict[str, Any]:
        """The same as a JSON document."""
        return {"unit": self.unit, **super().document(), "roundTrips": self.round_trips}


@dataclass(frozen=True)
class Measurement:
    """One measurement.

    Attributes:
        name: its name in JSON.
        title: its name in words.
        figures: its figures by name.
    """

    name: str
    title: str
    figures: Mapping[str, Figure]

    def document(self) -> dict[str, Any]:
        """The same as a JSON document."""
        figures = {name: figure.document() for name, figure in self.figures.items()}
        return {"title": self.title, "figures": figures}


def collect(
    rounds: Sequence[Round],
    titles: Mapping[str, str],
    *,
    round_trip_ms: float | None = None,
    as_round_trips: Iterable[str] = (),
) -> dict[str, Figure]:
    """The figures of some rounds.

    Args:
        rounds: what each of them brought.
        titles: what the figures are, by their names; the order is that of the output.
        round_trip_ms: the median of the bare round trip.
        as_round_trips: the figures, in ms, that are also shown as multiples of it.
    """
    found = {}
    for name, title in titles.items():
        values = [each[name] for each in rounds]
        unit = next(unit for end, unit in _UNITS.items() if name.endswith(end))
        ratio = None
        if round_trip_ms and name in as_round_trips:
            ratio = statistics.median(values) / round_trip_ms
        found[name] = Figure(values, title, unit, ratio)
    return found


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
