"""`redis-world inspect runs`."""

from __future__ import annotations

import contextlib
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Annotated, Any, cast, get_args

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from redis_world import RedisWorld
from redis_world.cli.inspect.common import All, Cursor, Json, Limit, commands, with_world
from redis_world.cli.inspect.output import (
    Column,
    Listing,
    Mode,
    Output,
    Paging,
    age,
    duration,
    read_pages,
    short_name,
    status_text,
)
from redis_world.cli.inspect.payloads import iso, printable
from redis_world.cli.inspect.watch import Watch, check_watch, watch_items, watch_picture
from redis_world.cli.options import Namespace, Url
from redis_world.codec import from_ms
from redis_world.models import Page, Run, RunStatus, Step

__all__ = ["attributes_text", "runs", "seconds_of", "server_now"]

Status = Enum("Status", {name: name for name in get_args(RunStatus)})  # type: ignore[misc]


@commands.command()
def runs(
    url: Url = None,
    namespace: Namespace = None,
    workflow: Annotated[
        str | None, typer.Option(help="Only runs of the workflow with this full name.")
    ] = None,
    status: Annotated[
        list[Status] | None, typer.Option(help="Only runs with this status. Repeatable.")
    ] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    everything: All = False,
    oldest_first: Annotated[
        bool, typer.Option("--oldest-first", help="List the oldest runs first.")
    ] = False,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """List runs, newest first.

    Fields in a pipe: run id, status, workflow, created, started, ended,
    seconds, error code, attributes.
    """
    output = Output.choose(as_json=as_json)
    check_watch(output, watch=watch)
    filters: dict[str, Any] = {"workflow_name": workflow}
    filters["status"] = [each.value for each in status] if status else None
    filters["sort_order"] = "asc" if oldest_first else "desc"
    paging = Paging(limit, cursor, everything)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            with_world(url, namespace, partial(_watch, output, paging, filters))
    else:
        with_world(url, namespace, partial(_list, output, paging, filters))


def server_now(world: RedisWorld) -> datetime:
    """The server's time: all times of a World are its own, whatever this machine's clock says."""
    return from_ms(world.connection.server_time())


def seconds_of(entity: Run | Step, now: datetime) -> float | None:
    """How long a run or a step has taken since it was started."""
    if entity.started_at is None:
        return None
    return ((entity.completed_at or now) - entity.started_at).total_seconds()


def attributes_text(run: Run, gap: str) -> Text:
    """The attributes of a run in one text, with a gap between them."""
    text = Text()
    for key, value in run.attributes.items():
        text.append(gap if text else "")
        text.append(f"{printable(key)}=", "dim").append(printable(value))
    return text


async def _read(
    world: RedisWorld, output: Output, paging: Paging, filters: dict[str, Any]
) -> Page[Run]:
    payloads = "all" if output.mode is Mode.JSON else "none"

    async def fetch(limit: int, cursor: str | None) -> Page[Run]:
        return await world.runs.list(
            limit=limit, cursor=cursor, resolve_data=cast("Any", payloads), **filters
        )

    return await read_pages(fetch, paging)


async def _list(
    output: Output, paging: Paging, filters: dict[str, Any], world: RedisWorld
) -> None:
    page = await _read(world, output, paging, filters)
    namespace = world.config.namespace
    output.show(
        _listing(server_now(world), output),
        page,
        none=f"no such runs in namespace {namespace!r}",
    )
    name = filters["workflow_name"]
    if not page.data and name and "//" not in name:
        output.note(
            f"no runs: {name!r} is not the full name of a workflow. The Python SDK names it "
            "workflow//<module>//<function>; see the third field, or workflowName in --json"
        )


async def _watch(
    output: Output, paging: Paging, filters: dict[str, Any], world: RedisWorld
) -> None:
    if output.mode is Mode.JSON:

        async def items() -> dict[str, Any]:
            page = await _read(world, output, paging, filters)
            return {run.run_id: run.to_wire() for run in page.data}

        await watch_items(output, items)

    async def picture() -> RenderableType:
        page = await _read(world, output, paging, filters)
        table = _listing(server_now(world), output).table(page.data)
        state = f"namespace {world.config.namespace}, {len(page.data)} runs"
        if page.has_more:
            state += " of more (--limit, --all)"
        return Group(table, Text(f"{state}; Ctrl-C ends it", "dim"))

    await watch_picture(output, picture)


def _listing(now: datetime, output: Output) -> Listing[Run]:
    columns: list[Column[Run]] = [
        Column("run", lambda run: run.run_id, lambda run: run.run_id),
        Column("status", lambda run: run.status, lambda run: status_text(run.status)),
        Column(
            "workflow",
            lambda run: run.workflow_name,
            lambda run: short_name(run.workflow_name),
            flexible=True,
        ),
        Column(
            "created",
            lambda run: iso(run.created_at),
            lambda run: age(run.created_at, now),
            right=True,
        ),
        Column("started", lambda run: iso(run.started_at)),
        Column("ended", lambda run: iso(run.completed_at)),
        Column(
            "time",
            lambda run: _number(seconds_of(run, now)),
            lambda run: duration(seconds_of(run, now)),
            right=True,
        ),
        Column("error", lambda run: run.error_code or ""),
        Column(
            "attributes",
            lambda run: " ".join(f"{key}={value}" for key, value in run.attributes.items()),
            (lambda run: attributes_text(run, " ")) if output.is_wide else None,
            flexible=True,
        ),
    ]
    return Listing("runs", columns, Run.to_wire)


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f}"
