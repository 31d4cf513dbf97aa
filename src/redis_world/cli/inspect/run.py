"""`redis-world inspect run`: one run with all that belongs to it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from redis_world import RedisWorld
from redis_world.cli.inspect.common import All, Json, Limit, RunId, commands, with_world
from redis_world.cli.inspect.output import (
    Mode,
    Output,
    Paging,
    age,
    duration,
    read_pages,
    short_name,
    status_text,
)
from redis_world.cli.inspect.payloads import failure_lines, iso, one_line, printable
from redis_world.cli.inspect.runs import attributes_text, seconds_of, server_now
from redis_world.cli.inspect.streams import Stream, read_streams
from redis_world.cli.inspect.timeline import Item, Timeline
from redis_world.cli.inspect.watch import Watch, check_watch, watch_items, watch_picture
from redis_world.cli.inspect.waterfall import waterfall
from redis_world.cli.options import Namespace, Url
from redis_world.errors import StepNotFoundError
from redis_world.models import Hook, Page, Run, Step, Wait
from redis_world.runs import TERMINAL

__all__ = ["run"]

_PAYLOADS: Final = ("input", "output", "error")
_FAILED_STEPS: Final = 3
"""How many of them are shown with their errors."""


@dataclass(frozen=True)
class Picture:
    """A run as it is right now.

    Attributes:
        items: of the timeline, as many as are wanted.
        failures: what a person is told of errors: headings, and tracebacks by their lines.
        left_out: how many more there are.
        now: the server's time.
    """

    run: Run
    timeline: Timeline
    items: Sequence[Item]
    left_out: int
    steps: Sequence[Step]
    hooks: Sequence[Hook]
    waits: Sequence[Wait]
    streams: Sequence[Stream]
    now: datetime
    failures: Sequence[tuple[str, Sequence[str]]] = ()

    @property
    def end(self) -> datetime:
        """When the run ended, or now; a step may record its outcome later than its run."""
        if self.run.status not in TERMINAL:
            return self.now
        moments = (self.run.completed_at, self.timeline.last)
        return max(moment for moment in moments if moment is not None)

    def to_wire(self) -> dict[str, Any]:
        """With the wire's names."""
        return {
            "run": self.run.to_wire(),
            "steps": [step.to_wire() for step in self.steps],
            "hooks": [hook.to_wire() for hook in self.hooks],
            "waits": [wait.to_wire() for wait in self.waits],
            "streams": [stream.to_wire() for stream in self.streams],
            "timeline": [item.to_wire() for item in self.items],
            "events": self.timeline.events,
            "hasMore": self.left_out > 0,
        }


@commands.command()
def run(
    run_id: RunId,
    url: Url = None,
    namespace: Namespace = None,
    limit: Limit = 100,
    everything: All = False,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Show a run: its state, steps, attempts, sleeps, hooks, streams and errors.

    On a terminal, errors have their tracebacks. In a pipe, the first field of
    each line is its kind: run, attribute, input, output, error, step, attempt,
    sleep, hook or stream. --limit applies to steps, sleeps and hooks together.
    """
    output = Output.choose(as_json=as_json)
    check_watch(output, watch=watch)
    paging = Paging(limit, None, everything)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            with_world(url, namespace, partial(_watch, output, paging, run_id))
    else:
        with_world(url, namespace, partial(_show, output, paging, run_id))


async def _look(world: RedisWorld, run_id: str, paging: Paging, mode: Mode) -> Picture:
    """Read what is shown of a run: the entities for a program, errors for people."""
    found = await world.runs.get(run_id)
    log = await world.events.list(run_id, resolve_data="none")
    timeline = Timeline(log.data)
    items = timeline.items
    shown_items = items if paging.everything else items[: paging.limit]
    failures = await _failures(world, found, items) if mode is Mode.TABLE else []
    steps: Page[Step] = Page(data=[])
    hooks: Page[Hook] = Page(data=[])
    waits: Page[Wait] = Page(data=[])
    if mode is Mode.JSON:
        steps = await read_pages(
            lambda limit, cursor: world.steps.list(run_id, limit=limit, cursor=cursor), paging
        )
        hooks = await read_pages(
            lambda limit, cursor: world.hooks.list(run_id, limit=limit, cursor=cursor), paging
        )
        waits = await read_pages(
            lambda limit, cursor: world.waits.list(run_id, limit=limit, cursor=cursor), paging
        )
    return Picture(
        run=found,
        timeline=timeline,
        items=shown_items,
        left_out=len(items) - len(shown_items),
        steps=steps.data,
        hooks=hooks.data,
        waits=waits.data,
        streams=await read_streams(world, run_id),
        now=server_now(world),
        failures=failures,
    )


async def _failures(
    world: RedisWorld, found: Run, items: Sequence[Item]
) -> list[tuple[str, list[str]]]:
    """The errors of a run, and of the newest of its steps that failed or are to be tried again."""
    failures: list[tuple[str, list[str]]] = []
    if "error" in found.model_fields_set:
        failures.append(("error of the run", failure_lines(found.error)))
    failed = [each for each in items if each.kind == "step" and _has_failed(each)]
    for item in failed[-_FAILED_STEPS:]:
        with contextlib.suppress(StepNotFoundError):
            step = await world.steps.get(found.run_id, item.correlation_id)
            lines = failure_lines(step.error) if "error" in step.model_fields_set else []
            failures.append((f"error of step {printable(short_name(item.name))}", lines))
    if len(failed) > _FAILED_STEPS:
        more = len(failed) - _FAILED_STEPS
        failures.append((f"{more} more steps failed: see `inspect steps`", [""]))
    return [(title, lines) for title, lines in failures if lines]


def _has_failed(step: Item) -> bool:
    if step.state == "failed":
        return True
    return step.ended is None and any(each.outcome == "retried" for each in step.attempts)


async def _show(output: Output, paging: Paging, run_id: str, world: RedisWorld) -> None:
    picture = await _look(world, run_id, paging, output.mode)
    match output.mode:
        case Mode.JSON:
            output.document(picture.to_wire())
        case Mode.LINES:
            _write(output, picture)
        case Mode.TABLE:
            output.draw(*_drawn(picture, output.console.width))
    if picture.left_out:
        output.note(
            f"{picture.left_out} more steps, sleeps and hooks are not shown: raise --limit, or "
            "add --all"
        )


async def _watch(output: Output, paging: Paging, run_id: str, world: RedisWorld) -> None:
    if output.mode is Mode.JSON:

        async def items() -> dict[str, Any]:
            return {run_id: (await _look(world, run_id, paging, output.mode)).to_wire()}

        await watch_items(output, items)

    async def draw() -> RenderableType:
        picture = await _look(world, run_id, paging, output.mode)
        more = f"{picture.left_out} more are not shown (--limit, --all); " * bool(picture.left_out)
        return Group(*_drawn(picture, output.console.width), Text(f"{more}Ctrl-C ends it", "dim"))

    await watch_picture(output, draw)


# -- on a terminal -------------------------------------------------------------------------


def _drawn(picture: Picture, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = [_facts(picture)]
    if picture.items:
        parts.append(waterfall(picture.items, picture.run.created_at, picture.end, width))
    if picture.streams:
        parts.append(_streams(picture.streams))
    for title, lines in picture.failures:
        parts.append(Text(title, "bold red"))
        parts += [Padding(Text(line), (0, 0, 0, 2)) for line in lines]
    return parts


def _facts(picture: Picture) -> Table:
    found, now = picture.run, picture.now
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    facts.add_row("run", Text(found.run_id, "bold"))
    state = status_text(found.status)
    took = seconds_of(found, now)
    if took is not None:
        state.append(f"  {duration(took)}", "bold")
    if found.error_code:
        state.append(f"  {printable(found.error_code)}", "red")
    facts.add_row("status", state)
    facts.add_row("workflow", Text(printable(found.workflow_name)))
    facts.add_row(
        "created",
        Text.assemble(iso(found.created_at), (f"  {age(found.created_at, now)}", "dim")),
    )
    facts.add_row("events", str(picture.timeline.events))
    if found.attributes:
        facts.add_row("attributes", attributes_text(found, "  "))
    for name in _PAYLOADS:
        if name in found.model_fields_set:
            facts.add_row(name, Text(one_line(getattr(found, name))))
    if found.expired_at:
        facts.add_row("expired", Text(f"payloads were deleted at {iso(found.expired_at)}"))
    return facts


def _streams(streams: Sequence[Stream]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_column()
    for stream in streams:
        state = Text("closed", "dim") if stream.done else Text("open", "cyan")
        table.add_row(
            "stream", Text(printable(stream.name)), Text(f"{stream.chunks} chunks, ") + state
        )
    return table


# -- in a pipe -----------------------------------------------------------------------------


def _write(output: Output, picture: Picture) -> None:
    found = picture.run
    output.line(
        "run",
        found.run_id,
        found.status,
        found.workflow_name,
        iso(found.created_at),
        iso(found.started_at),
        iso(found.completed_at),
        found.error_code or "",
    )
    for key, value in found.attributes.items():
        output.line("attribute", key, value)
    for name in _PAYLOADS:
        if name in found.model_fields_set:
            output.line(name, one_line(getattr(found, name)))
    for item in picture.items:
        _write_item(output, item)
    for stream in picture.streams:
        output.line("stream", stream.name, str(stream.chunks), "closed" if stream.done else "open")


def _write_item(output: Output, item: Item) -> None:
    fields = [item.kind, item.correlation_id, item.name, item.state]
    fields += [iso(item.created), iso(item.ended)]
    match item.kind:
        case "step":
            output.line(*fields, str(len(item.attempts)))
        case "sleep":
            output.line(*fields, iso(item.resume_at))
        case "hook":
            output.line(*fields, str(item.received))
    for number, attempt in enumerate(item.attempts, 1):
        times = [iso(attempt.began), iso(attempt.ended)]
        output.line("attempt", item.correlation_id, str(number), attempt.outcome, *times)
