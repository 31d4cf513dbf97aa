"""The command line: `redis-world`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from redis_world import __version__
from redis_world.cli.logs import LogLevel, report, set_up
from redis_world.errors import WorldError

__all__ = ["app", "main"]

app = typer.Typer(
    name="redis-world",
    help="Durable workflows on Redis.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:  # noqa: FBT001 - a callback of typer's
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[  # noqa: ARG001 - eager, acts by itself
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Durable workflows on Redis. Logs go to stderr, results to stdout."""
    set_up(LogLevel.INFO if verbose else LogLevel.WARNING)


def main() -> None:
    """Run the command line; an error of the World is one line and exit code 1."""
    from redis_world.cli import (  # noqa: F401 - they add their commands
        bench,
        demo,
        doctor,
        inspect,
        manage,
        prune,
        worker,
    )

    try:
        app()
    except WorldError as error:
        report(str(error), event="failed")
        sys.exit(1)
