"""The command line: `redis-world`."""

from __future__ import annotations

import os
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
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also log what goes as planned.")
    ] = False,
) -> None:
    """Durable workflows on Redis. Results go to stdout, logs and errors to stderr."""
    set_up(LogLevel.INFO if verbose else LogLevel.WARNING)


def main() -> None:
    """Run the command line. An error of the World is one line on stderr and exit code 1."""
    from redis_world.cli import (  # noqa: F401 - they add their commands
        bench,
        demo,
        doctor,
        inspect,
        manage,
        prune,
        serve,
        worker,
    )

    _open_missing_streams()
    try:
        app()
    except WorldError as error:
        report(str(error), event="failed")
        sys.exit(1)


def _open_missing_streams() -> None:
    """Give the process all three standard streams: a service manager may start it without them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123
