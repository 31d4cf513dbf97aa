"""`redis-world bench`: how fast a World is on a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from redis_world.bench import Figure, Measurement, Report, run_bench
from redis_world.cli import app
from redis_world.cli.inspect.common import Json
from redis_world.cli.inspect.output import Mode, Output
from redis_world.cli.options import Partitions, Url

__all__ = ["bench"]

_TITLES: Final = ("", "median", "lowest", "highest", "unit", "round trips")
_RIGHT: Final = ("median", "lowest", "highest", "round trips")


@app.command()
def bench(
    url: Url = None,
    namespace: Annotated[
        str | None,
        # Not of the environment, where the namespace of real runs is.
        typer.Option(
            help="Namespace to work in. It must not exist; bench deletes it at the end. "
            "Default: a random name."
        ),
    ] = None,
    partitions: Partitions = None,
    seconds: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Approximate duration in seconds.")
    ] = 30.0,
    as_json: Json = False,
) -> None:
    """Measure how fast redis-world is on a server, and what limits it.

    bench writes runs, messages and streams into its own namespace. It deletes
    the namespace at the end, also after Ctrl-C. The server is busy during the
    test, so other clients wait longer.

    Each figure is the median of several rounds, with the lowest and the
    highest. The column "round trips" compares it with a read that finds
    nothing. With --url memory:// it measures the embedded store.
    """
    output = Output.choose(as_json=as_json)
    try:
        with _progress() as progress:
            shown = _Shown(progress)
            work = run_bench(
                url,
                namespace=namespace,
                partitions=partitions,
                seconds=seconds,
                on_progress=shown,
            )
            report = asyncio.run(work)
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("interrupted", err=True)
        raise typer.Exit(1) from None
    match output.mode:
        case Mode.JSON:
            output.document(report.document())
        case Mode.TABLE:
            output.draw(*_head(report), _table(report.measurements), report.busy.sentence)
        case Mode.LINES:
            for line in [*_head(report), *_lines(report), report.busy.sentence]:
                output.write_line(line)


class _Shown:
    """Progress on a bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def __call__(self, title: str, done: int, total: int) -> None:
        if self._task is None:
            self._task = self._progress.add_task(title, total=total)
        self._progress.update(self._task, description=title, completed=done, total=total)
        self._progress.refresh()


def _progress() -> Progress:
    """A bar on stderr, where that is a terminal."""
    return Progress(
        BarColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        # It would draw in a thread, in the midst of what is measured.
        auto_refresh=False,
        # Asked itself: rich takes a pipe for a terminal when the environment tells it to.
        disable=not sys.stderr.isatty(),
    )


def _head(report: Report) -> list[str]:
    versions, where = report.versions, report.parameters
    server = versions["server"]
    name = "A server"
    if server["kind"] is not None:
        name = f"{server['kind'].capitalize()} {server['version'] or ''}".strip()
    partitions = where["partitions"]
    noun = "partition" if partitions == 1 else "partitions"
    software = (
        f"redis-world {versions['redisWorld']}, Python {versions['python']}, "
        f"redis-py {versions['redisPy']}, hiredis {versions['hiredis'] or 'none'}"
    )
    return [
        f"{software}, {report.machine['cpus']} CPUs",
        f"{name} at {where['server']}, {partitions} {noun}, durability {where['durability']}",
        "",
    ]


def _number(value: float) -> str:
    """A number with three digits that count."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _row(figure: Figure) -> tuple[str, ...]:
    numbers = (figure.median, figure.lowest, figure.highest)
    ratio = "" if figure.round_trips is None else f"{figure.round_trips:.1f}"
    return f"  {figure.title}", *map(_number, numbers), figure.unit, ratio


def _table(measurements: Sequence[Measurement]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", padding=(0, 1, 0, 0), pad_edge=False)
    for title in _TITLES:
        # The last title may take two lines, where a narrow terminal has no place for wide numbers.
        table.add_column(
            title,
            justify="right" if title in _RIGHT else "left",
            no_wrap=title != _TITLES[-1],
        )
    for each in measurements:
        table.add_row(each.title, style="bold")
        for figure in each.figures.values():
            table.add_row(*_row(figure))
    return table


def _lines(report: Report) -> list[str]:
    """The table as lines whose columns stand below each other."""
    rows: list[tuple[str, ...]] = [_TITLES]
    for each in report.measurements:
        rows.append((each.title,))
        rows += [_row(figure) for figure in each.figures.values()]
    numbers = [row for row in rows if len(row) == len(_TITLES)]
    widths = [max(len(row[place]) for row in numbers) for place in range(len(_TITLES))]
    return [*(_line(row, widths) for row in rows), ""]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    if len(row) == 1:
        return row[0]
    cells = [
        cell.rjust(width) if title in _RIGHT else cell.ljust(width)
        for cell, width, title in zip(row, widths, _TITLES, strict=True)
    ]
    return "  ".join(cells).rstrip()
