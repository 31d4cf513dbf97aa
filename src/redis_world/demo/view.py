"""The demo on a terminal: the run as it is right now, redrawn ten times a second."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from redis_world.demo.story import Entry, Item, Story

__all__ = ["LiveView"]

_MAX_WIDTH: Final = 100
"""Lines that are longer are hard to read."""
_LOOKS: Final = {
    "pending": ("○", "dim"),
    "running": ("●", "cyan"),
    "retrying": ("↻", "yellow"),
    "waiting": ("◷", "blue"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("✗", "red"),
}
_EVENT_STYLES: Final = {
    "run": "bold",
    "step": "cyan",
    "wait": "blue",
    "hook": "magenta",
    "attr": "dim",
}
_TEXT_LINES: Final = 5
"""Kept free for the text from the start, or everything would jump when it comes."""


class LiveView:
    """Draws a story on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Two columns are left for the ^C that a terminal echoes: in the next line it would
        # shift the picture.
        self._width = min(console.width - 2, _MAX_WIDTH)
        self._spinner = Spinner("dots", style="cyan")
        self._story: Story | None = None
        self._live: Live | None = None
        self._remark = ""

    @contextlib.contextmanager
    def begin(self, story: Story) -> Iterator[None]:
        """Draw until the end of the block, and leave the last picture."""
        self._story = story
        live = Live(
            get_renderable=self._picture,
            console=self._console,
            auto_refresh=False,
            vertical_overflow="crop",
            transient=True,
        )
        try:
            with live, _logs_above():
                self._live = live
                yield
        finally:
            self._live = None
            # The one in between may have been cut off at the terminal's height.
            self._console.print(self._picture())

    def happened(self, entry: Entry) -> None:
        """It is in the next picture: drawing takes time that the demo's worker needs."""
        if entry.event_type == "hook_received":
            self._remark = ""

    def said(self, text: str) -> None:
        """Keep it in the picture until its effect is there."""
        self._remark = text

    def streamed(self, piece: str) -> None:
        """It is in the next picture."""

    def tick(self) -> None:
        """Draw."""
        if self._live is not None:
            self._live.refresh()

    def end(self, result: str, *, expected: bool) -> None:
        """The event log and the result."""
        assert self._story is not None
        self._console.print(self._log(self._story))
        mark, style = _LOOKS["completed" if expected else "failed"]
        text = Text.assemble((f"{mark} result: ", f"bold {style}"), result)
        if not expected:
            text.append(" (not as expected)", style)
        self._console.print(text, width=self._width)

    # -- the picture -----------------------------------------------------------------------

    def _picture(self) -> RenderableType:
        story = self._story
        assert story is not None
        return Panel(
            Group(
                self._header(story),
                "",
                self._items(story),
                "",
                self._attributes(story),
                self._text(story),
            ),
            title="[bold]redis-world demo[/bold]",
            subtitle=Text(story.workers, "dim"),
            box=box.ROUNDED,
            border_style="dim",
            padding=(0, 1),
            width=self._width,
        )

    def _header(self, story: Story) -> RenderableType:
        line = Table.grid(expand=True)
        line.add_column()
        line.add_column(justify="right")
        mark, style = _LOOKS[story.status]
        status = Text(f"{mark} {story.status}", f"bold {style}")
        line.add_row(Text(story.run_id, "bold"), status.append(f"  {story.now():.1f} s", "dim"))
        return line

    def _items(self, story: Story) -> RenderableType:
        if not story.items:
            return Text("waiting for a worker", "dim")
        table = Table(box=None, expand=True, padding=(0, 1), header_style="dim", pad_edge=False)
        table.add_column("", width=1)
        table.add_column("what", no_wrap=True)
        table.add_column("state", ratio=1, no_wrap=True)
        table.add_column("attempt", justify="right")
        table.add_column("time", justify="right", width=7)
        for item in story.items.values():
            self._add(table, item, story.now())
        return table

    def _add(self, table: Table, item: Item, now: float) -> None:
        mark, style = _LOOKS[item.state]
        detail = item.detail
        if item.kind == "hook" and item.state == "waiting" and self._remark:
            detail = self._remark
        state = Text(item.state, style)
        if detail:
            state.append(f"  {detail}", "dim")
        seconds = item.seconds(now)
        table.add_row(
            self._spinner if item.state == "running" else Text(mark, style),
            Text.assemble((f"{item.kind} ", "dim"), item.name),
            state,
            str(item.attempts) if item.attempts else "",
            "" if seconds is None else f"{seconds:.2f} s",
        )

    def _attributes(self, story: Story) -> RenderableType:
        text = Text("attributes", "dim")
        for key, value in story.attributes.items():
            text.append(f"  {key}=", "dim").append(value, "bold" if key == "phase" else "")
        return text

    def _text(self, story: Story) -> RenderableType:
        lines = story.text.rstrip("\n").split("\n")
        blank = [""] * (_TEXT_LINES - len(lines))
        return Panel(
            Text("\n".join([*lines, *blank])),
            title=Text("stream", "dim"),
            title_align="left",
            box=box.ROUNDED,
            border_style="dim",
        )

    def _log(self, story: Story) -> RenderableType:
        density = "no gaps" if story.dense else "WITH GAPS"
        table = Table(
            title=f"event log: {len(story.entries)} events, {density}",
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            header_style="dim",
            width=self._width,
        )
        table.add_column("slot", justify="right")
        table.add_column("event", no_wrap=True)
        table.add_column("what", ratio=1)
        table.add_column("time", justify="right", no_wrap=True)
        for entry in story.entries:
            what = Text.assemble(
                entry.subject, "  " if entry.subject else "", (entry.detail, "dim")
            )
            style = _EVENT_STYLES.get(entry.event_type.partition("_")[0], "")
            table.add_row(
                str(entry.slot), Text(entry.event_type, style), what, f"+{entry.offset:.3f} s"
            )
        return table


@contextlib.contextmanager
def _logs_above() -> Iterator[None]:
    """Have logs written above the picture, not into it."""
    handlers = [
        (handler, handler.stream)
        for handler in logging.getLogger().handlers
        if type(handler) is logging.StreamHandler
    ]
    for handler, _ in handlers:
        # What stands there while the picture is drawn.
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler, stream in handlers:
            handler.setStream(stream)
