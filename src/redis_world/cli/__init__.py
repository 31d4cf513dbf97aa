"""The command line: `redis-world`."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Annotated

import typer
from rich.console import Console

from redis_world import __version__
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
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # What a warning says is logged too, in a line that fits the other ones.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"redis_world\..*")


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
        Console(stderr=True, soft_wrap=True).print(
            f"redis-world: {error}", style="red", markup=False, highlight=False
        )
        sys.exit(1)
