"""What the commands that look into a World have in common: options, and how they reach it."""

from __future__ import annotations

import asyncio
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
    "commands",
    "refuse",
    "topics_of",
    "with_world",
]

T = TypeVar("T")

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON, with wire names.")]
Limit: TypeAlias = Annotated[int, typer.Option(min=1, max=MAX_LIMIT, help="How many at most.")]
Cursor: TypeAlias = Annotated[
    str | None, typer.Option(help="Go on where an earlier list ended, which named its cursor.")
]
All: TypeAlias = Annotated[bool, typer.Option("--all", help="All that there are.")]
RunId: TypeAlias = Annotated[str, typer.Argument(help="The run's id, wrun_...")]
Topic: TypeAlias = Annotated[
    str | None, typer.Argument(help="A topic, e.g. __wkf_workflow_; without one: all of them.")
]

commands = typer.Typer(name="inspect", no_args_is_help=True)


@commands.callback()
def inspect() -> None:
    """Look at runs, their parts, and the queue.

    Tables on a terminal; in a pipe lines whose fields are separated by tabs,
    with ISO times and nothing shortened; with --json the wire's names.
    Payloads of the Python SDK are decoded where it is installed, other ones
    are told by their size.
    """


def with_world(
    url: str | None,
    namespace: str | None,
    work: Callable[[RedisWorld], Awaitable[T]],
) -> T:
    """Open the World that the options or the environment name, and do something with it.

    Raises:
        typer.Exit: it is an embedded store.
        WorldError: the World can't be opened, or does not do it.
    """
    world = RedisWorld.from_env(**world_options(url, namespace))
    if world.is_memory:
        refuse(
            "an embedded store can't be inspected from another process: it is seen by nobody "
            "else. Give a --url, or set REDIS_WORLD_URL"
        )

    async def inside() -> T:
        async with world:
            return await work(world)

    return asyncio.run(inside())


async def topics_of(world: RedisWorld, topic: str | None) -> list[str]:
    """The topic that was named, or all that messages were ever sent to."""
    return await world.queue.topics() if topic is None else [topic]


def refuse(text: str) -> NoReturn:
    """End the command as one that was called wrongly: one line, and exit code 2."""
    Console(stderr=True, soft_wrap=True).print(
        f"redis-world: {text}", style="red", markup=False, highlight=False
    )
    raise typer.Exit(2)
