"""`--watch`: the same picture again and again, until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import RenderableType
from rich.live import Live

from redis_world.cli.inspect.common import refuse
from redis_world.cli.inspect.output import Mode, Output

__all__ = ["Watch", "check_watch", "watch_items", "watch_picture"]

_SECONDS: Final = 1.0

Watch: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--watch",
        "-w",
        help="Redraw every second until Ctrl-C. With --json: print what changed.",
    ),
]


def check_watch(output: Output, *, watch: bool) -> None:
    """Refuse to draw into a pipe.

    Raises:
        typer.Exit: it was asked for.
    """
    if watch and output.mode is Mode.LINES:
        refuse("--watch needs a terminal, and stdout is none: remove it, or add --json")


async def watch_picture(output: Output, look: Callable[[], Awaitable[RenderableType]]) -> None:
    """Draw what `look` gives, every second, for ever."""
    with Live(
        await look(), console=output.console, auto_refresh=False, vertical_overflow="ellipsis"
    ) as live:
        while True:
            live.refresh()
            await asyncio.sleep(_SECONDS)
            live.update(await look())


async def watch_items(output: Output, look: Callable[[], Awaitable[dict[str, Any]]]) -> None:
    """Write the items that `look` gives by their names, each when it is new or has changed."""
    known: dict[str, Any] = {}
    while True:
        items = await look()
        for name, item in items.items():
            if known.get(name) != item:
                output.item(item)
        # What is gone is forgotten, or this would grow for ever.
        known = items
        await asyncio.sleep(_SECONDS)
