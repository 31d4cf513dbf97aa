"""What the commands that look into a World have in common: options, and how they reach it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, NoReturn, TypeAlias, TypeVar

import typer
from rich.console import Console

from redis_world import RedisWorld
from redis_world.cli.options import world_options
from redis_world.paging import MAX_LIMIT

__all__ = [
    "All",
    "Cursor",
    "Json",
    "Limit",
    "RunId",
    "Topic",
    "Yes",
    "commands",
    "confirm",
    "refuse",
    "topics_of",
    "with_world",
]

T = TypeVar("T")

Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON with the field names of the wire format.")
]
Limit: TypeAlias = Annotated[
    int, typer.Option(min=1, max=MAX_LIMIT, help="Maximum number of items.")
]
Cursor: TypeAlias = Annotated[
    str | None, typer.Option(help="Continue after an earlier list, which printed this cursor.")
]
All: TypeAlias = Annotated[bool, typer.Option("--all", help="List all items.")]
RunId: TypeAlias = Annotated[str, typer.Argument(help="Id of the run, wrun_...")]
Topic: TypeAlias = Annotated[
    str | None, typer.Argument(help="Topic, e.g. __wkf_workflow_. Default: all topics.")
]

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

commands = typer.Typer(name="inspect", no_args_is_help=True)


@commands.callback()
def inspect() -> None:
    """Show runs, their steps, events, hooks and streams, and the queue.

    These commands change nothing. The namespace must exist.

    On a terminal they print tables. In a pipe they print one line for each
    item: fields separated by tabs, ISO times, nothing shortened. `inspect
    events` prints one JSON object for each line. With --json every command
    prints one JSON document.

    Payloads that the Python SDK wrote are decoded if the SDK is installed.
    For other payloads the size is shown.
    """


def with_world(
    url: str | None,
    namespace: str | None,
    work: Callable[[RedisWorld], Awaitable[T]],
) -> T:
    """Open a namespace that exists, of the options or the environment, and do something with it.

    Raises:
        typer.Exit: it is an embedded store.
        WorldError: the World can't be opened, or does not do it.
    """
    # Looking for a mistyped name must not create it, nor fix the partitions of one to come.
    world = RedisWorld.from_env(**world_options(url, namespace), partitions=None)
    if world.is_memory:
        refuse(
            "this command needs a server: an embedded store exists only inside its own process. "
            "Add --url, or set REDIS_WORLD_URL"
        )

    async def inside() -> T:
        async with world:
            return await work(world)

    return asyncio.run(inside())


async def topics_of(world: RedisWorld, topic: str | None) -> list[str]:
    """The topic that was named, or all that messages were ever sent to."""
    return await world.queue.topics() if topic is None else [topic]


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is deleted.

    Args:
        question: what is asked on a terminal.
        yes: do not ask.

    Raises:
        typer.Exit: the answer is no, or there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        refuse(f"{question} stdin is not a terminal, so nothing was deleted: add --yes to confirm")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def refuse(text: str) -> NoReturn:
    """End the command as one that was called wrongly: one line, and exit code 2."""
    Console(stderr=True, soft_wrap=True).print(
        f"redis-world: {text}", style="red", markup=False, highlight=False
    )
    raise typer.Exit(2)
