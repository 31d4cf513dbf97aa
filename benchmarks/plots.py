"""Draws what was measured, as SVG and PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from compare import Comparison
from matplotlib.figure import Figure

__all__ = ["draw_callers", "draw_comparison", "draw_history"]

OWN = "#b3261e"
OTHER = "#8a8f98"
LINES = {"p50": "#b3261e", "p90": "#d98c2b", "p99": "#5b6472"}

mpl.rcParams.update(
    {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        # The same file for the same figures.
        "svg.hashsalt": "redis-world",
    }
)


def draw_comparison(comparison: Comparison, path: Path, *, own: str) -> None:
    """Bars of the backends' rates, the fastest on top; own ones in another colour."""
    rows = sorted(
        ((row.name, row.rate) for row in comparison.rows if row.rate is not None),
        key=lambda pair: pair[1],
    )
    figure = Figure(figsize=(8, 1 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(
        [name for name, _ in rows],
        [rate for _, rate in rows],
        color=[OWN if own in name else OTHER for name, _ in rows],
    )
    axes.bar_label(bars, [f"{rate:,.0f}" for _, rate in rows], padding=3)
    axes.set_title(f"{comparison.name}: {comparison.unit}")
    _save(figure, path)


def draw_callers(found: Mapping[int, Mapping[str, float]], path: Path) -> None:
    """Latency of one event by the number of callers."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, color in LINES.items():
        axes.plot([*found], [each[name] for each in found.values()], "o-", color=color, label=name)
    axes.set(xscale="log", yscale="log", xlabel="callers", ylabel="ms")
    axes.set_xticks([*found], [str(callers) for callers in found], minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set_title("One event, by callers in one process")
    axes.legend(frameon=False)
    _save(figure, path)


def draw_history(found: Mapping[int, Mapping[str, float]], path: Path) -> None:
    """The server's time for one event by the length of the log."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    lengths = [f"{length:,}" for length in found]
    of = {
        name: [each[name] for each in found.values()] for name in ("median", "lowest", "highest")
    }
    axes.plot(lengths, of["median"], "o-", color=OWN)
    axes.fill_between(lengths, of["lowest"], of["highest"], color=OWN, alpha=0.2)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="events in the log", ylabel="µs of the server")
    axes.grid(alpha=0.3)
    axes.set_title("One more event, by the length of its log")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=150)
