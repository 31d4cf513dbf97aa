"""Plays the demo: starts an order, answers its approval, and tells a view what happens."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import secrets
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Protocol

from vercel.workflow import (
    HookNotFoundError,
    Run,
    WorkflowRunFailedError,
    WorkflowWorldError,
    start,
)
from vercel.workflow._internal.runtime import workflow_entrypoint

from redis_world import RedisWorld
from redis_world.demo.crew import WORKFLOWS, Crew, in_process, in_processes
from redis_world.demo.story import Entry, Story
from redis_world.errors import ConfigurationError, WorldError
from redis_world.memory import SCHEME as MEMORY
from redis_world.models import Event, HookCreatedEvent
from redis_world.vercel import use_redis_world

__all__ = ["View", "run_demo"]

_LOOK_SECONDS: Final = 0.05
_TICK_SECONDS: Final = 0.1
_THINKING_SECONDS: Final = 1.0
"""What the manager needs to decide."""
_FAREWELL_SECONDS: Final = 2.0
_MANAGER: Final = "Mia"
_LAST_EVENTS: Final = frozenset({"run_completed", "run_failed", "run_cancelled"})


class View(Protocol):
    """Shows a story to a person, or writes it into a pipe."""

    def begin(self, story: Story) -> contextlib.AbstractContextManager[None]:
        """Show it for the length of a block."""

    def happened(self, entry: Entry) -> None:
        """A new event; the story has it already."""

    def said(self, text: str) -> None:
        """Something happened outside of the run."""

    def streamed(self, piece: str) -> None:
        """A piece of the stream; the story has it already."""

    def tick(self) -> None:
        """Called ten times a second."""

    def end(self, result: str, *, expected: bool) -> None:
        """The run is over; this is what it returned, or why it did not."""


async def run_demo(options: Mapping[str, str], processes: int, view: View) -> bool:
    """Run the demo.

    Args:
        options: of the World; without a URL it is the embedded store.
        processes: how many worker processes do the work; 0: this process does.
        view: what shows it.

    Returns:
        Whether the run returned what it has to.

    Raises:
        ConfigurationError: worker processes can't share the embedded store.
        WorldError: the server does not do it, or no worker is left.
        KeyboardInterrupt: SIGINT or SIGTERM came; the run is cancelled.
    """
    if processes and options.get("url", MEMORY).partition("://")[0] == MEMORY:
        raise ConfigurationError(
            "worker processes need a server: the embedded store works in one process only. "
            "Give --url, or omit --processes"
        )
    adapter = use_redis_world(options.get("url", f"{MEMORY}://"), **_without_url(options))
    async with adapter.world as world:
        # Imported no sooner: a registry asks for the World at once, and an older one, of an
        # earlier demo in this process, is asked to do it again.
        workflow_entrypoint(importlib.import_module(WORKFLOWS).app)
        crews = in_processes(processes, options) if processes else in_process(adapter)
        async with crews as crew:
            playing = asyncio.create_task(_play(world, crew, view), name="demo")
            await asyncio.wait({playing, crew.work}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                return _outcome(playing)
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            crew.work.result()
            raise KeyboardInterrupt


def _without_url(options: Mapping[str, str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "url"}


def _outcome(playing: asyncio.Task[bool]) -> bool:
    try:
        return playing.result()
    except WorkflowWorldError as error:
        # The SDK's own kind of error, made of the World's.
        raise WorldError(str(error)) from error


async def _play(world: RedisWorld, crew: Crew, view: View) -> bool:
    from redis_world.demo import workflows

    order = workflows.Order(f"A-{secrets.token_hex(2)}", "Ada", "lamp", 3)
    run = await start(workflows.fulfil, order)
    story = Story(run.run_id, crew.text)
    with view.begin(story):
        try:
            await _show(world, run, story, view)
        except BaseException:
            await _cancel(run, story, view)
            raise
    try:
        receipt = await run.return_value()
    except (WorkflowRunFailedError, RuntimeError) as error:
        view.end(str(error), expected=False)
        return False
    letter = "".join(workflows.letter_of(order, receipt.total, _MANAGER))
    expected = (
        receipt == workflows.receipt_of(order, _MANAGER) and story.text == letter and story.dense
    )
    view.end(str(receipt), expected=expected)
    return expected


async def _cancel(run: Run[Any], story: Story, view: View) -> None:
    """End a run that nobody follows any more, or it would wait for its approval for ever."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_FAREWELL_SECONDS):
            await run.terminate(reason="the demo was interrupted")
        story.status = "cancelled"
        view.said("run cancelled")


async def _show(world: RedisWorld, run: Run[Any], story: Story, view: View) -> None:
    """Follow a run to its end."""
    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(_read(run, story, view))
            animation = group.create_task(_animate(view))
            async for event in _follow(world, run.run_id):
                view.happened(story.add(event))
                if isinstance(event, HookCreatedEvent) and event.event_data is not None:
                    group.create_task(_approve(event.event_data.token, view))
            if story.status == "completed":
                await reading
            reading.cancel()
            animation.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _follow(world: RedisWorld, run_id: str) -> AsyncGenerator[Event, None]:
    """The events of a run, those to come too, until its end."""
    cursor = None
    while True:
        page = await world.events.list(run_id, cursor=cursor)
        cursor = page.cursor or cursor
        for event in page.data:
            yield event
            if event.event_type in _LAST_EVENTS:
                return
        await asyncio.sleep(_LOOK_SECONDS)


async def _read(run: Run[Any], story: Story, view: View) -> None:
    async for piece in run.readable(type=str):
        story.text += piece
        view.streamed(piece)


async def _approve(token: str, view: View) -> None:
    from redis_world.demo import workflows

    view.said("the manager reads it")
    await asyncio.sleep(_THINKING_SECONDS)
    view.said(f"{_MANAGER}, the manager, approves")
    # Whoever watches the demo may have been faster.
    with contextlib.suppress(HookNotFoundError):
        await workflows.Approval(approved=True, by=_MANAGER).resume(token)


async def _animate(view: View) -> None:
    while True:
        view.tick()
        await asyncio.sleep(_TICK_SECONDS)
