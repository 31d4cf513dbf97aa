"""What was measured, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from compare import Comparison, Row

from redis_world.checkup.capacity import BUSY

__all__ = ["markdown"]

_DASH = "-"

_INTRODUCTION = """\
# Benchmarks

`make bench BENCH_ARGS=--publish` measures everything and writes this page. Without the argument
it writes to build/bench. `python benchmarks/run.py <table>` and `python benchmarks/figures.py
<figure>` measure a part.

* The column "... is" tells how many times as fast redis-world is as the backend of the row.
* All figures of a table come from one run. Its backends take turns, round by round, so that other
  load on the machine affects all of them.
* Trust the ratios more than the absolute figures. A ratio in a table is the median of the ratios
  of its rounds. A ratio in "Figures and goals" is the ratio of two medians.
* The spread goes from the slowest to the fastest round. `results.json`, beside the pictures, has
  all rounds.
"""


def markdown(results: Mapping[str, Any], comparisons: Sequence[Comparison], folder: str) -> str:
    """The whole document.

    Args:
        results: machine, versions, curves and figures, as the JSON beside it has them.
        comparisons: the tables.
        folder: where the pictures are, seen from the document.
    """
    return "\n".join(
        [
            _INTRODUCTION,
            *_machine(results),
            *(line for each in comparisons for line in _table(each, folder)),
            *(_figures(results["figures"]) if "figures" in results else ()),
            *(_curves(results, folder) if "history" in results else ()),
        ]
    )


def _machine(results: Mapping[str, Any]) -> Iterator[str]:
    yield f"Measured on {results['date']}: {results['machine']}."
    yield f"Load average before the start: {results['load']}. Rounds: {results['rounds']}."
    times = results["yardstick ms"]
    yield (
        f"A fixed piece of Python code took {median(times):.1f} ms of processor time,"
        f" {min(times):.1f} to {max(times):.1f}, at {len(times)} moments during the run."
        " Compare two versions of this page only if this time is about the same."
    )
    yield ""


def _table(comparison: Comparison, folder: str) -> Iterator[str]:
    first = comparison.rows[0]
    yield f"## {comparison.name}"
    yield ""
    yield comparison.note
    yield ""
    has_latencies = any(row.latencies for row in comparison.rows)
    head = ["backend", comparison.unit, "spread", f"{first.name} is"]
    head += ["p50 ms", "p99 ms"] if has_latencies else []
    has_servers = any(row.servers for row in comparison.rows)
    if has_servers:
        head += [f"server µs per {comparison.item}", f"commands per {comparison.item}"]
    head += ["versions"]
    yield _line(head)
    yield _line(["---", *["---:"] * (len(head) - 2), "---"])
    missing: list[Row] = []
    for row in sorted(comparison.rows, key=lambda row: -(row.rate or 0)):
        if row.rate is None:
            missing.append(row)
            continue
        cells = [row.name, f"{row.rate:,.0f}", f"{min(row.rates):,.0f} to {max(row.rates):,.0f}"]
        cells += ["" if row is first else _ratio(row)]
        if has_latencies:
            cells += [f"{each:.1f}" for each in row.latencies] or ["", ""]
        if has_servers:
            cells += [f"{row.server:,.0f}" if row.server is not None else _DASH]
            cells += [f"{median(row.commands):,.1f}" if row.commands else _DASH]
        yield _line([*cells, row.version])
    if has_servers:
        yield ""
        yield " ".join(_servers(comparison))
    for row in missing:
        yield ""
        yield f"Missing: {row.name}, {row.missing or f'failed in {row.failed}'}."
    for row in comparison.rows:
        if row.failed and row.rates:
            yield ""
            failed = f"{row.name} in {row.failed}"
            yield f"Failed: {failed}. Its figures are those of the earlier rounds."
    yield ""
    yield f"![{comparison.name}]({folder}/{slug(comparison.name)}.svg)"
    yield ""


def _servers(comparison: Comparison) -> Iterator[str]:
    """What the columns of the servers mean, and what follows from them."""
    first, item = comparison.rows[0], comparison.item
    if first.server:
        rate = BUSY * 1e6 / first.server
        yield (
            f"One Redis that uses {BUSY * 100:.0f} % of a core carries {rate:,.0f} {item}s per"
            f" second of {first.name}."
        )
    yield (
        f"Server time is the processor time of the backend's server for each {item}. Commands are"
        " those that Redis counts, including those inside scripts."
    )
    dashes = [row for row in comparison.rows if row.rate is not None and not row.commands]
    if dashes:
        yield f"{_DASH}: the backend has no server, or PostgreSQL, which counts no commands."


def _ratio(row: Row) -> str:
    """How many times as fast the first backend is."""
    if row.ratio is None:
        return "unknown"
    text = f"{row.ratio:.2f} x"
    if row.goal is None:
        return text
    return f"{text} (goal {row.goal:g}: {'met' if row.ratio >= row.goal else 'missed'})"


def _figures(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Figures and goals"
    yield ""
    yield "The list below the table describes each figure. `x` is a ratio."
    yield ""
    yield _line(["figure", "goal", "measured", ""])
    yield _line(["---", "---", "---:", "---"])
    verdicts = {True: "met", False: "missed", None: ""}
    for each in figures:
        if "missing" in each:
            yield _line([each["name"], each["goal"], "missing", ""])
            continue
        value = f"{each['value']:,.2f} {each['unit']}".rstrip()
        yield _line([each["name"], each["goal"], value, verdicts[each["met"]]])
    yield ""
    for each in figures:
        yield f"* **{each['name']}**: {each.get('text') or each['missing']}"
    yield ""


def _curves(results: Mapping[str, Any], folder: str) -> Iterator[str]:
    yield "## Curves"
    yield ""
    yield "`events.create` of a bare `step_started` on Redis 7, which returns models."
    yield ""
    yield _line(["callers", "events/s", "p50 ms", "p90 ms", "p99 ms"])
    yield _line(["---:"] * 5)
    for callers, each in results["callers"].items():
        times = [f"{each[name]:.2f}" for name in ("p50", "p90", "p99")]
        yield _line([callers, f"{each['rate']:,.0f}", *times])
    yield ""
    yield f"![latency by callers]({folder}/callers.svg)"
    yield ""
    yield _line(["events in the log", "server time of one more event, µs", "spread"])
    yield _line(["---:"] * 3)
    for length, each in results["history"].items():
        spread = f"{each['lowest']:.1f} to {each['highest']:.1f}"
        yield _line([f"{int(length):,}", f"{each['median']:.1f}", spread])
    yield ""
    yield f"![cost by the length of a log]({folder}/history.svg)"
    yield ""


def slug(name: str) -> str:
    """A name as part of a file's."""
    return name.lower().replace(" ", "-")


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
