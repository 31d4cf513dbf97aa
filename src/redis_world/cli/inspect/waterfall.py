"""The waterfall: each step, sleep and hook of a run as a bar over the time of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from redis_world.cli.inspect.output import duration, short_name, status_text
from redis_world.cli.inspect.payloads import printable
from redis_world.cli.inspect.timeline import Item

__all__ = ["Bar", "waterfall"]

_BUSY: Final = "█"
_IDLE: Final = "─"
_WAITING: Final = "░"
_STYLES: Final = {
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "retried": "yellow",
    "lost": "red",
}
_MIN_WIDTH: Final = 10


@dataclass(frozen=True)
class Part:
    """A part of a bar; begin and end are fractions of its width."""

    begin: float
    end: float
    char: str
    style: str


@dataclass(frozen=True)
class Bar:
    """Parts on a line that is as wide as there is room; each at least one character."""

    parts: Sequence[Part]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """As wide as can be."""
        return Measurement(min(_MIN_WIDTH, options.max_width), options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it; later parts over earlier ones."""
        width = options.max_width
        cells: list[tuple[str, str]] = [(" ", "")] * width
        for part in self.parts:
            first = min(width - 1, max(0, int(part.begin * width)))
            last = max(first, min(width, round(part.end * width)) - 1)
            cells[first : last + 1] = [(part.char, part.style)] * (last + 1 - first)
        for char, style in cells:
            yield Segment(char, console.get_style(style or "none"))


def waterfall(items: Sequence[Item], begin: datetime, end: datetime, width: int) -> Table:
    """The items as a table with their bars.

    Args:
        items: what is shown.
        begin: when the run was created.
        end: when it ended, or now.
        width: of the terminal.
    """
    span = max((end - begin).total_seconds(), 0.001)
    table = Table(
        box=box.SIMPLE_HEAD,
        header_style="dim",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        expand=True,
    )
    table.add_column("", no_wrap=True)
    table.add_column("what", no_wrap=True, overflow="ellipsis", max_width=_name_width(width))
    table.add_column("tries", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column(_scale(span), ratio=1, no_wrap=True)
    for item in items:
        table.add_row(
            status_text(item.state),
            Text.assemble((f"{item.kind} ", "dim"), printable(_name(item))),
            str(len(item.attempts)) if item.attempts else "",
            duration(item.seconds(end)),
            Bar(_parts(item, begin, end, span)),
        )
    return table


def _name_width(width: int) -> int:
    """What names may take, so that there is room for the bars."""
    return min(max(16, width // 4), 36)


def _name(item: Item) -> str:
    if item.resume_at is not None:
        # A sleep has no name, but how long it is to be.
        return duration((item.resume_at - item.created).total_seconds())
    return short_name(item.name)


def _scale(span: float) -> Table:
    """The heading of the bars: where time begins, and where it ends."""
    scale = Table.grid(expand=True)
    scale.add_column()
    scale.add_column(justify="right")
    scale.add_row("0", duration(span))
    return scale


def _parts(item: Item, begin: datetime, end: datetime, span: float) -> list[Part]:
    def part(since: datetime, until: datetime | None, char: str, style: str) -> Part:
        first = (since - begin).total_seconds() / span
        return Part(first, ((until or end) - begin).total_seconds() / span, char, style)

    if item.kind != "step":
        style = "magenta" if item.kind == "hook" else "blue"
        return [part(item.created, item.ended, _WAITING, style)]
    return [
        part(item.created, item.ended, _IDLE, "dim"),
        *(part(each.began, each.ended, _BUSY, _STYLES[each.outcome]) for each in item.attempts),
    ]
