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
from redis_world.cli.inspect.common import Json, refuse, with_world
from redis_world.cli.inspect.output import Mode, Output
from redis_world.cli.options import Namespace, Url
from redis_world.runs import TERMINAL

__all__ = ["prune"]

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE: Final = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?([{''.join(_UNITS)}])")


def _parse_age(text: str) -> timedelta:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no age: write it like 90s, 15m, 12h, 30d or 4w")
    try:
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is longer than anybody remembers") from None


@app.command()
def prune(
    older_than: Annotated[
        timedelta,
        typer.Option(parser=_parse_age, metavar="AGE", help="Ended so long ago: 12h, 30d, 4w."),
    ],
    url: Url = None,
    namespace: Namespace = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only runs of this status: completed, failed, cancelled; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    as_json: Json = False,
) -> None:
    """Remove finished runs for good, with their logs, steps, streams and messages.

    A run with a hook that outlives it stays until that has had its time.
    """
    output = Output.choose(as_json=as_json)
    wanted = status or [*TERMINAL]
    for name in wanted:
        if name not in TERMINAL:
            refuse(f"{name!r} is no status of a finished run: {', '.join(TERMINAL)}")
    work = partial(_prune, older_than=older_than, status=wanted, dry_run=dry_run)
    count = with_world(url, namespace, work)
    if output.mode is Mode.JSON:
        output.document({"removed": 0 if dry_run else count, "found": count, "dryRun": dry_run})
    elif output.mode is Mode.LINES:
        output.line("found" if dry_run else "removed", str(count))
    else:
        noun = "run" if count == 1 else "runs"
        text = "would be removed" if dry_run else "removed"
        Console(highlight=False).print(f"{count} {noun} {text}")


async def _prune(
    world: RedisWorld, *, older_than: timedelta, status: list[str], dry_run: bool
) -> int:
    total = await world.prune(older_than, status=status, dry_run=True)
    if dry_run or not total:
        return total
    with _progress() as progress:
        task = progress.add_task("removing", total=total)

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
