"""`redis-world demo`: a small order workflow, shown live."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from redis_world.cli import app
from redis_world.cli.options import Partitions, Url, needs_sdk, world_options

if TYPE_CHECKING:
    from redis_world.demo.run import View

__all__ = ["demo"]

_NAMESPACE: Final = "demo"
"""Not the default one of a World, which may be in use for real runs."""
_GO_ON: Final = "demo --url redis://localhost:6379/0 --processes 2"


@app.command()
def demo(
    url: Url = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", envvar="REDIS_WORLD_NAMESPACE", help="Namespace. Default: demo."
        ),
    ] = None,
    partitions: Partitions = None,
    processes: Annotated[
        int,
        typer.Option(min=0, help="Number of worker processes. 0: run the worker in this process."),
    ] = 0,
) -> None:
    """Run an example order workflow and show each step live.

    Without --url, the demo uses an embedded store that ends with the command.
    """
    try:
        from redis_world.demo.run import run_demo
    except ModuleNotFoundError as error:
        raise needs_sdk(error) from None
    if not logging.getLogger().isEnabledFor(logging.INFO):
        # The runtime warns of every retry, and one that the demo makes on purpose is no news.
        logging.getLogger("vercel.workflow").setLevel(logging.ERROR)
    options = world_options(url, namespace or _NAMESPACE, partitions)
    try:
        done = asyncio.run(run_demo(options, processes, _view()))
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        done = False
    if url is None:
        # As it was called: it need not be on the path.
        command = sys.argv[0] if sys.argv[0].endswith("redis-world") else "redis-world"
        typer.echo(f"next, on a server: {command} {_GO_ON}")
    raise typer.Exit(0 if done else 1)


def _view() -> View:
    from redis_world.demo.lines import PlainView
    from redis_world.demo.view import LiveView

    console = Console()
    # Asked itself: rich takes a pipe for a terminal when the environment tells it to.
    if sys.stdout.isatty() and not console.is_dumb_terminal and not console.options.ascii_only:
        return LiveView(console)
    return PlainView(sys.stdout)
