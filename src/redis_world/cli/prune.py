"""`redis-world prune`: removes runs that ended a while ago."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from redis_world import RedisWorld
from redis_world.cli import app
from redis_world.cli.inspect.common import Json, Yes, confirm, refuse, with_world
from redis_world.cli.inspect.output import Mode, Output
from redis_world.cli.options import Namespace, Url
from redis_world.runs import TERMINAL

__all__ = ["prune"]

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE: Final = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?([{''.join(_UNITS)}])")


def _parse_age(text: str) -> timedelta:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not an age: write it like 90s, 15m, 12h, 30d or 4w")
    try:
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too large an age") from None


@app.command()
def prune(
    older_than: Annotated[
        timedelta,
        typer.Option(
            parser=_parse_age,
            metavar="AGE",
            help="Only runs that ended at least this long ago: 90s, 15m, 12h, 30d, 4w.",
        ),
    ],
    url: Url = None,
    namespace: Namespace = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            help="Only runs with this status: completed, failed or cancelled. Repeatable."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the runs and delete nothing.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete finished runs, with their logs, steps, streams and messages.

    prune asks before it deletes. Without a terminal, add --yes. A run whose
    hook keeps its token longer than the run stays until that time is over.
    """
    output = Output.choose(as_json=as_json)
    wanted = status or [*TERMINAL]
    for name in wanted:
        if name not in TERMINAL:
            refuse(f"{name!r} is not the status of a finished run: {', '.join(TERMINAL)}")
    found = with_world(url, namespace, partial(_count, older_than, wanted))
    removed = 0
    if found and not dry_run:
        confirm(
            f"Delete {_runs(found)} for good, with logs, steps, streams and messages?", yes=yes
        )
        removed = with_world(url, namespace, partial(_prune, older_than, wanted, found))
    if output.mode is Mode.JSON:
        output.document({"removed": removed, "found": max(found, removed), "dryRun": dry_run})
    elif output.mode is Mode.LINES:
        output.line("found", str(found)) if dry_run else output.line("removed", str(removed))
    elif not found:
        output.draw("No runs to delete")
    elif dry_run:
        output.draw(f"{_runs(found)} would be deleted")
    else:
        output.draw(f"{_runs(removed)} deleted")


def _runs(count: int) -> str:
    return f"{count} {'run' if count == 1 else 'runs'}"


async def _count(older_than: timedelta, status: list[str], world: RedisWorld) -> int:
    return await world.prune(older_than, status=status, dry_run=True)


async def _prune(older_than: timedelta, status: list[str], total: int, world: RedisWorld) -> int:
    with _progress() as progress:
        task = progress.add_task("deleting", total=total)

        def show(_: int, gone: int) -> None:
            # More may have come of age meanwhile.
            progress.update(task, completed=gone, total=max(total, gone))

        return await world.prune(older_than, status=status, on_progress=show)


def _progress() -> Progress:
    """A bar on stderr, where that is a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
