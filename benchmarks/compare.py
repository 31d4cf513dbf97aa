"""Backends side by side: rounds of all of them by turns, so that noise meets all alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any, Final

from peers.base import MissingError, Peer, Round, Sample

__all__ = ["Comparison", "Group", "Row", "compare"]

ROUND_SECONDS: Final = 2.0
"""About how long a round takes."""
_FAILURES: Final = (OSError, RuntimeError, TimeoutError, AssertionError)
"""Of one backend, which must not end the measurement of the others."""


@dataclass(frozen=True, slots=True)
class Group:
    """Backends that do the same.

    Attributes:
        name: of the table.
        unit: what is counted.
        item: one of them.
        peers: the first one is what the others are compared with.
        step: rounds have a multiple of so many.
        most: and at most so many.
        shows_latencies: whether the samples' latencies mean something.
        note: what a reader has to know.
        goals: by the names of peers: how many times as fast the first one is to be.
    """

    name: str
    unit: str
    peers: Sequence[Peer]
    step: int
    most: int
    goals: Mapping[str, float] = field(default_factory=dict)
    shows_latencies: bool = False
    note: str = ""
    item: str = "run"


@dataclass(slots=True)
class Row:
    """What was measured of a backend.

    Attributes:
        rates: of each round, per second.
        ratios: the first backend's rate over this one's, round by round.
        latencies: p50 and p99 in ms, of all rounds, where they are known.
        servers: microseconds of the server's processors for each item, of each round, where they
            are known.
        commands: that the server ran for each item, likewise.
        goal: of the ratio; None where there is none.
        missing: why nothing was measured.
        failed: in which round it failed, and of what; later ones it has not.
    """

    name: str
    version: str = ""
    count: int = 0
    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    servers: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)
    goal: float | None = None
    missing: str = ""
    failed: str = ""

    @property
    def rate(self) -> float | None:
        return median(self.rates) if self.rates else None

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None

    @property
    def server(self) -> float | None:
        """Microseconds of the server's processors for each item."""
        return median(self.servers) if self.servers else None


@dataclass(slots=True)
class Comparison:
    """A group and its rows."""

    name: str
    unit: str
    note: str
    rows: list[Row]
    item: str = "run"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "note": self.note,
            "item": self.item,
            "rows": [
                {**asdict(row), "rate": row.rate, "ratio": row.ratio, "server": row.server}
                for row in self.rows
            ],
        }


def compare(group: Group, rounds: int, tell: Callable[[str], None]) -> Comparison:
    """Measure all backends of a group.

    Args:
        group: what is compared.
        rounds: of each backend.
        tell: is told what is going on.
    """
    rows = [Row(peer.name, goal=group.goals.get(peer.name)) for peer in group.peers]
    own = rows[0]
    with ExitStack() as stack:
        measures: list[tuple[Row, Round]] = []
        for peer, row in zip(group.peers, rows, strict=True):
            tell(f"{group.name}: {peer.name} starts")
            try:
                measure = stack.enter_context(peer.start())
                row.version = peer.version()
                row.count = _size(group, measure(group.step))
            except (MissingError, *_FAILURES) as error:
                row.missing = _reason(error)
                continue
            measures.append((row, measure))
        waits: dict[str, list[float]] = {row.name: [] for row, _ in measures}
        for number in range(rounds):
            for row, measure in measures:
                tell(f"{group.name}: round {number + 1} of {rounds}, {row.name}")
                try:
                    sample = measure(row.count)
                except _FAILURES as error:
                    row.failed = f"round {number + 1}: {_reason(error)}"
                    continue
                row.rates.append(sample.rate)
                waits[row.name] += sample.latencies
                if sample.server is not None:
                    row.servers.append(sample.server * 1e6 / sample.count)
                if sample.commands is not None:
                    row.commands.append(sample.commands / sample.count)
                # It comes first in each round, as long as it does not fail.
                if own.rates and not own.failed:
                    row.ratios.append(own.rates[-1] / sample.rate)
            measures = [pair for pair in measures if not pair[0].failed]
        for row in rows:
            if group.shows_latencies and len(waits.get(row.name, ())) > 1:
                cuts = quantiles(waits[row.name], n=100)
                row.latencies = [cuts[49] * 1000, cuts[98] * 1000]
    return Comparison(group.name, group.unit, group.note, rows, group.item)


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def _size(group: Group, first: Sample) -> int:
    """How much makes a round, by the speed of a first one, in which not all is warm yet."""
    wanted = int(group.step * ROUND_SECONDS / first.seconds) // group.step * group.step
    return max(group.step, min(group.most, wanted))


def print_plainly(text: str) -> None:
    """Tell on stderr what is going on."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
