"""How things are shown: a table on a terminal, lines in a pipe, or JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from redis_world.cli.inspect.payloads import printable, shown
from redis_world.errors import WorldError
from redis_world.models import Page

__all__ = [
    "Column",
    "Listing",
    "Mode",
    "Output",
    "Paging",
    "age",
    "duration",
    "read_pages",
    "short_name",
    "status_text",
    "writing",
]

T = TypeVar("T")

_PAGE: Final = 200
"""Items of one round trip when all are wanted: each may carry large payloads."""
_WIDE: Final = 100
_LOOKS: Final = {
    "pending": ("○", "dim"),
    "running": ("●", "cyan"),
    "waiting": ("◷", "blue"),
    "retrying": ("↻", "yellow"),
    "completed": ("✓", "green"),
    "received": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("✗", "red"),
}


class Mode(Enum):
    """What the output is for."""

    TABLE = "a terminal"
    LINES = "a pipe"
    JSON = "a program"


@dataclass(frozen=True)
class Column(Generic[T]):
    """One field of the items of a list.

    Attributes:
        title: its heading on a terminal.
        plain: the whole of it, for a pipe; None: it is for terminals alone.
        cell: how it is shown on a terminal; None: it is for pipes alone.
        right: it is a number.
        flexible: it gets the room that is left, and is shortened where that is too little.
    """

    title: str
    plain: Callable[[T], str] | None
    cell: Callable[[T], str | Text] | None = None
    right: bool = False
    flexible: bool = False


@dataclass(frozen=True)
class Listing(Generic[T]):
    """How a list of items is shown.

    Attributes:
        noun: what they are, in the plural.
        columns: their fields.
        wire: an item with the wire's names.
        is_json: in a pipe each item is a JSON object, since its payload is more than a field.
    """

    noun: str
    columns: Sequence[Column[T]]
    wire: Callable[[T], Mapping[str, Any]]
    is_json: bool = False

    def table(self, items: Sequence[T]) -> Table:
        """The items as a table."""
        flexible = any(column.flexible for column in self.columns)
        table = Table(
            box=box.SIMPLE_HEAD,
            header_style="dim",
            expand=flexible,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        cells = [(column, column.cell) for column in self.columns if column.cell is not None]
        for column, _ in cells:
            table.add_column(
                column.title,
                justify="right" if column.right else "left",
                ratio=1 if column.flexible else None,
                no_wrap=True,
                overflow="ellipsis" if column.flexible else "fold",
            )
        for item in items:
            table.add_row(*(_text(cell(item)) for _, cell in cells))
        return table

    def line(self, item: T) -> str:
        """An item as one line."""
        fields = (column.plain(item) for column in self.columns if column.plain is not None)
        return "\t".join(map(printable, fields))


def _text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(printable(cell))


@dataclass(frozen=True)
class Paging:
    """Which part of a list is wanted."""

    limit: int
    cursor: str | None = None
    everything: bool = False


async def read_pages(
    fetch: Callable[[int, str | None], Awaitable[Page[T]]], paging: Paging
) -> Page[T]:
    """Read the page that is wanted, or all that follow, too.

    Args:
        fetch: gives a page of so many items behind a cursor.
        paging: what is wanted.
    """
    if not paging.everything:
        return await fetch(paging.limit, paging.cursor)
    data: list[T] = []
    cursor = paging.cursor
    while True:
        page = await fetch(_PAGE, cursor)
        data += page.data
        cursor = page.cursor
        if not page.has_more:
            return Page[T].model_construct(None, data=data, cursor=cursor, has_more=False)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """A block that writes to stdout.

    Raises:
        WorldError: it can't, since the disk is full, for example.
        BrokenPipeError: its reader is gone, which is no error.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):
            # What is left of it would fail again at the end of the process.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise WorldError(f"stdout can't be written: {error.strerror or error}") from None


@dataclass(frozen=True)
class Output:
    """Writes to stdout, and what is not the result to stderr."""

    mode: Mode
    console: Console = field(default_factory=lambda: Console(highlight=False))

    @classmethod
    def choose(cls, *, as_json: bool) -> Output:
        """What fits the options and where stdout goes."""
        console = Console(highlight=False)
        if as_json:
            return cls(Mode.JSON, console)
        # Asked itself: rich takes a pipe for a terminal when the environment tells it to.
        if sys.stdout.isatty() and not console.is_dumb_terminal and not console.options.ascii_only:
            return cls(Mode.TABLE, console)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A name that the encoding does not have must not end the list.
            sys.stdout.reconfigure(errors="backslashreplace")
        return cls(Mode.LINES, console)

    @property
    def is_wide(self) -> bool:
        """Whether the terminal has room for what is rarely needed."""
        return self.console.width >= _WIDE

    def draw(self, *what: RenderableType) -> None:
        """Draw on the terminal."""
        with writing():
            for each in what:
                self.console.print(each)

    def line(self, *fields: str) -> None:
        """Write one line, its fields separated by tabs."""
        self.write_line("\t".join(map(printable, fields)))

    def write_line(self, line: str) -> None:
        """Write a line that is ready."""
        with writing():
            sys.stdout.write(f"{line}\n")
            # At once: somebody may be reading along.
            sys.stdout.flush()

    def document(self, value: Any) -> None:
        """Write a JSON document: laid out for a person, or in one line for a program."""
        self.write_line(json.dumps(shown(value), indent=2 if sys.stdout.isatty() else None))

    def item(self, value: Any) -> None:
        """Write one of several JSON documents, in one line."""
        self.write_line(json.dumps(shown(value)))

    def note(self, text: str) -> None:
        """Say something that is not the result."""
        with contextlib.suppress(OSError):
            typer.echo(printable(text), err=True)

    def show(
        self,
        listing: Listing[T],
        page: Page[T],
        *,
        none: str,
        more: Sequence[str] | None = None,
    ) -> None:
        """Show a page of a list, and say when there is more.

        Args:
            listing: how its items are shown.
            page: the page.
            none: what a person is told when it is empty.
            more: arguments that go on, where there are several; None: the page's cursor.
        """
        match self.mode:
            case Mode.JSON:
                data = [listing.wire(item) for item in page.data]
                self.document({"data": data, "cursor": page.cursor, "hasMore": page.has_more})
            case Mode.LINES:
                for item in page.data:
                    if listing.is_json:
                        self.item(listing.wire(item))
                    else:
                        self.write_line(listing.line(item))
            case Mode.TABLE if page.data:
                self.draw(listing.table(page.data))
            case Mode.TABLE:
                self.note(none)
        if page.has_more:
            places = [f"--cursor {page.cursor}"] if more is None else more
            self.note(f"there are more {listing.noun}: add {' or '.join(places)}, or --all")


# -- words ---------------------------------------------------------------------------------


def status_text(name: str) -> Text:
    """A status with its mark."""
    mark, style = _LOOKS.get(name, ("·", "dim"))
    return Text(f"{mark} {name}", style)


def short_name(name: str) -> str:
    """`step//app.orders//charge` is shown as `charge`."""
    return name.rpartition("//")[2]


def duration(seconds: float | None) -> str:
    """Seconds in words; empty for None."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    minutes, whole = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {whole:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02} h"


def age(moment: datetime, now: datetime) -> str:
    """How long ago, or how far ahead, roughly."""
    seconds = (now - moment).total_seconds()
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= length:
            words = f"{int(abs(seconds) / length)} {unit}"
            break
    else:
        words = f"{int(abs(seconds))} s"
    return f"{words} ago" if seconds >= 0 else f"in {words}"
