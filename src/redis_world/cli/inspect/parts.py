"""`redis-world inspect events | steps | hooks`: lists of what belongs to a run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from redis_world import RedisWorld
from redis_world.cli.inspect.common import All, Cursor, Json, Limit, RunId, commands, with_world
from redis_world.cli.inspect.output import (
    Column,
    Listing,
    Output,
    Paging,
    age,
    duration,
    read_pages,
    short_name,
    status_text,
)
from redis_world.cli.inspect.payloads import iso, one_line, printable
from redis_world.cli.inspect.runs import seconds_of, server_now
from redis_world.cli.options import Namespace, Url
from redis_world.events.log import slot_of
from redis_world.models import AttrSetEvent, Event, Hook, Page, Step
from redis_world.rows import PAYLOAD_FIELDS

__all__ = ["events", "hooks", "steps"]

_STYLES: Final = {
    "run": "bold",
    "step": "cyan",
    "wait": "blue",
    "hook": "magenta",
    "attr": "dim",
}


@commands.command()
def events(
    run_id: RunId,
    url: Url = None,
    namespace: Namespace = None,
    correlation_id: Annotated[
        str | None, typer.Option(help="Only events of the step, sleep or hook with this id.")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    everything: All = False,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="List the newest events first.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the event log of a run.

    In a pipe: one JSON object for each line, with the field names of the wire
    format. Decoded payloads are in eventData.
    """
    output = Output.choose(as_json=as_json)
    paging = Paging(limit, cursor, everything)
    work = partial(_events, output, run_id, correlation_id, paging, newest_first)
    with_world(url, namespace, work)


async def _events(
    output: Output,
    run_id: str,
    correlation_id: str | None,
    paging: Paging,
    newest_first: bool,  # noqa: FBT001 - of a partial
    world: RedisWorld,
) -> None:
    found = await world.runs.get(run_id, resolve_data="none")

    async def fetch(limit: int, cursor: str | None) -> Page[Event]:
        order: Any = "desc" if newest_first else "asc"
        if correlation_id is None:
            return await world.events.list(run_id, limit=limit, cursor=cursor, sort_order=order)
        return await world.events.list_by_correlation_id(
            run_id, correlation_id, limit=limit, cursor=cursor, sort_order=order
        )

    page = await read_pages(fetch, paging)
    listing = _event_listing(found.created_at, _names(page.data))
    output.show(listing, page, none=f"run {run_id} has no such events")


def _names(log: list[Event]) -> dict[str, str]:
    """What the steps and hooks are called that these events tell of."""
    names = {}
    for event in log:
        data = event.event_data
        name = getattr(data, "step_name", None) or getattr(data, "token", None)
        if event.correlation_id and name:
            names[event.correlation_id] = short_name(name)
    return names


def _event_listing(begin: datetime, names: Mapping[str, str]) -> Listing[Event]:
    def about(event: Event) -> Text:
        correlation_id = event.correlation_id or ""
        # An attribute write is not looked for by its id.
        name = "" if isinstance(event, AttrSetEvent) else names.get(correlation_id, correlation_id)
        text = Text(printable(name))
        if detail := _detail(event):
            text.append("  " if name else "").append(detail, "dim")
        return text

    def offset(event: Event) -> str:
        assert event.created_at is not None
        return f"+{(event.created_at - begin).total_seconds():.3f} s"

    def kind(event: Event) -> Text:
        return Text(event.event_type, _STYLES.get(event.event_type.partition("_")[0], ""))

    return Listing(
        "events",
        [
            Column("slot", None, lambda event: str(slot_of(event)), right=True),
            Column("time", None, offset, right=True),
            Column("event", None, kind),
            Column("what", None, about, flexible=True),
        ],
        lambda event: event.to_wire(),
        is_json=True,
    )


def _detail(event: Any) -> str:
    """What is worth knowing of an event's data, at a glance."""
    if isinstance(event, AttrSetEvent) and event.event_data is not None:
        changes = event.event_data.changes
        return printable(" ".join(f"{each.key}={each.value}" for each in changes))
    data = event.to_wire().get("eventData") or {}
    payload = PAYLOAD_FIELDS.get(event.event_type)
    if payload in data:
        return one_line(data[payload])
    rest = {name: value for name, value in data.items() if name not in ("stepName", "token")}
    return one_line(rest) if rest else ""


# -- steps ---------------------------------------------------------------------------------


@commands.command()
def steps(
    run_id: RunId,
    url: Url = None,
    namespace: Namespace = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """List the steps of a run.

    A narrow terminal does not show step ids. Fields in a pipe: step id,
    status, name, attempts, created, started, ended, retry after, input,
    output, error.
    """
    output = Output.choose(as_json=as_json)
    work = partial(_steps, output, run_id, Paging(limit, cursor, everything))
    with_world(url, namespace, work)


async def _steps(output: Output, run_id: str, paging: Paging, world: RedisWorld) -> None:
    await world.runs.get(run_id, resolve_data="none")
    page = await read_pages(
        lambda limit, cursor: world.steps.list(run_id, limit=limit, cursor=cursor), paging
    )
    output.show(_step_listing(server_now(world), output), page, none=f"run {run_id} has no steps")


def _step_listing(now: datetime, output: Output) -> Listing[Step]:
    return Listing(
        "steps",
        [
            Column(
                "step",
                lambda step: step.step_id,
                (lambda step: step.step_id) if output.is_wide else None,
            ),
            Column("status", lambda step: step.status, lambda step: status_text(step.status)),
            Column(
                "name",
                lambda step: step.step_name,
                lambda step: short_name(step.step_name),
                flexible=True,
            ),
            Column(
                "tries",
                lambda step: str(step.attempt),
                lambda step: str(step.attempt),
                right=True,
            ),
            Column("created", lambda step: iso(step.created_at)),
            Column("started", lambda step: iso(step.started_at)),
            Column(
                "time",
                lambda step: iso(step.completed_at),
                lambda step: duration(seconds_of(step, now)),
                right=True,
            ),
            Column("retry", lambda step: iso(step.retry_after)),
            Column("input", lambda step: _payload(step, "input")),
            Column("output", lambda step: _payload(step, "output")),
            Column("error", lambda step: _payload(step, "error")),
            Column("result", None, _outcome, flexible=True),
        ],
        Step.to_wire,
    )


def _payload(step: Step, name: str) -> str:
    return one_line(getattr(step, name)) if name in step.model_fields_set else ""


def _outcome(step: Step) -> Text:
    """What it returned, or its newest error."""
    if "output" in step.model_fields_set:
        return Text(_payload(step, "output"))
    return Text(_payload(step, "error"), "red" if step.status == "failed" else "yellow")


# -- hooks ---------------------------------------------------------------------------------


@commands.command()
def hooks(
    run_id: Annotated[
        str | None, typer.Argument(help="Id of a run. Default: the hooks of all runs.")
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """List the live hooks: those that can still be resumed.

    Fields in a pipe: token, run id, hook id, created, webhook or system,
    retained until, metadata.
    """
    output = Output.choose(as_json=as_json)
    with_world(url, namespace, partial(_hooks, output, run_id, Paging(limit, cursor, everything)))


async def _hooks(output: Output, run_id: str | None, paging: Paging, world: RedisWorld) -> None:
    if run_id is not None:
        await world.runs.get(run_id, resolve_data="none")
    page = await read_pages(
        lambda limit, cursor: world.hooks.list(run_id, limit=limit, cursor=cursor), paging
    )
    where = f"run {run_id}" if run_id else f"namespace {world.config.namespace!r}"
    output.show(_hook_listing(server_now(world)), page, none=f"{where} has no live hooks")


def _hook_listing(now: datetime) -> Listing[Hook]:
    return Listing(
        "hooks",
        [
            Column(
                "token", lambda hook: hook.token, lambda hook: printable(hook.token), flexible=True
            ),
            Column("run", lambda hook: hook.run_id, lambda hook: hook.run_id),
            Column("hook", lambda hook: hook.hook_id),
            Column(
                "created",
                lambda hook: iso(hook.created_at),
                lambda hook: age(hook.created_at, now),
                right=True,
            ),
            Column("kind", _kind, _kind),
            Column("retained", lambda hook: iso(hook.token_retention_until)),
            Column("metadata", _metadata, _metadata, flexible=True),
        ],
        Hook.to_wire,
    )


def _kind(hook: Hook) -> str:
    kinds = (("webhook", hook.is_webhook), ("system", hook.is_system))
    return " ".join(name for name, is_so in kinds if is_so)


def _metadata(hook: Hook) -> str:
    return one_line(hook.metadata) if "metadata" in hook.model_fields_set else ""
