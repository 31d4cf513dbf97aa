"""`redis-world cancel` and `redis-world dead`: what an operator ends, repeats and deletes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import typer
from pydantic.alias_generators import to_camel
from rich.text import Text

from redis_world import RedisWorld
from redis_world.cli import app
from redis_world.cli.inspect.common import (
    All,
    Cursor,
    Json,
    Limit,
    Topic,
    Yes,
    confirm,
    refuse,
    topics_of,
    with_world,
)
from redis_world.cli.inspect.output import Column, Listing, Mode, Output, Paging, age, read_pages
from redis_world.cli.inspect.payloads import iso, one_line
from redis_world.cli.inspect.runs import server_now
from redis_world.cli.options import Namespace, Url
from redis_world.errors import MessageNotFoundError
from redis_world.messages import run_of
from redis_world.models import CancelOutcome, Page
from redis_world.queue import DeadLetter
from redis_world.runs import MAX_CANCELLED

__all__ = ["cancel", "dead", "dead_list", "purge", "redrive"]

dead = typer.Typer(name="dead", no_args_is_help=True)


@dead.callback()
def _dead() -> None:
    """List, send again or delete dead letters: messages that failed too often."""


app.add_typer(dead)


# -- cancel --------------------------------------------------------------------------------

Fate: TypeAlias = Literal["cancelled", "cancelled before", "ended", "not found", "unknown"]


@dataclasses.dataclass(frozen=True)
class _Cancelled:
    """What became of a run that was to be cancelled."""

    run_id: str
    fate: Fate
    text: str = ""
    code: str | None = None

    @property
    def is_cancelled(self) -> bool:
        return self.fate in ("cancelled", "cancelled before")

    def to_wire(self) -> dict[str, Any]:
        told = {"outcome": self.fate, "code": self.code, "message": self.text}
        return {"runId": self.run_id, **{name: value for name, value in told.items() if value}}


@app.command()
def cancel(
    run_ids: Annotated[list[str], typer.Argument(help="Ids of the runs, wrun_...")],
    url: Url = None,
    namespace: Namespace = None,
    reason: Annotated[
        str | None,
        typer.Option(help="Reason, stored in the run's event log. At most 512 characters."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Cancel runs. Steps that are already running are not interrupted.

    Fields in a pipe: run id, outcome, reason of the outcome. The exit code is
    0 if all of the runs are cancelled now, else 1.
    """
    output = Output.choose(as_json=as_json)
    fates = with_world(url, namespace, partial(_cancel_all, run_ids, reason))
    if output.mode is Mode.JSON:
        output.document({"data": [each.to_wire() for each in fates]})
    elif output.mode is Mode.LINES:
        for each in fates:
            output.line(each.run_id, each.fate, each.text)
    else:
        for each in fates:
            text = Text(f"{each.run_id}  ").append(
                each.fate, "green" if each.is_cancelled else "red"
            )
            output.draw(text.append(f"  {each.text}" if each.text else "", "dim"))
    raise typer.Exit(0 if all(each.is_cancelled for each in fates) else 1)


async def _cancel_all(
    run_ids: Sequence[str], reason: str | None, world: RedisWorld
) -> list[_Cancelled]:
    ids = [*dict.fromkeys(run_ids)]
    fates: list[_Cancelled] = []
    for first in range(0, len(ids), MAX_CANCELLED):
        result = await world.runs.cancel_many(ids[first : first + MAX_CANCELLED], reason)
        fates += map(_fate, result.results)
    return fates


def _fate(found: CancelOutcome) -> _Cancelled:
    match found.outcome:
        case "cancelled":
            return _Cancelled(found.run_id, "cancelled")
        case "already_cancelled":
            return _Cancelled(found.run_id, "cancelled before")
        case "not_cancellable":
            return _Cancelled(found.run_id, "ended", f"it is {found.status}")
        case "not_found":
            return _Cancelled(found.run_id, "not found", "the run does not exist")
        case _:
            # A server that is away may have done it or not.
            text = "try it again" if found.retryable else "it can't be cancelled"
            return _Cancelled(found.run_id, "unknown", text, found.code)


# -- dead letters --------------------------------------------------------------------------


def _listing(now: datetime, output: Output) -> Listing[DeadLetter]:
    def run_id(letter: DeadLetter) -> str:
        return run_of(letter.payload or {})

    return Listing(
        "dead letters",
        [
            Column("message", lambda each: each.message_id, lambda each: each.message_id),
            Column("queue", lambda each: each.queue_name),
            Column("run", run_id, run_id if output.is_wide else None),
            Column("died", lambda each: iso(each.died_at), lambda each: age(each.died_at, now)),
            Column("reason", lambda each: each.reason),
            Column(
                "tries", lambda each: str(each.attempt), lambda each: str(each.attempt), right=True
            ),
            Column(
                "last error",
                lambda each: each.last_error or "",
                lambda each: each.last_error or each.reason,
                flexible=True,
            ),
            Column("payload", lambda each: "" if each.payload is None else one_line(each.payload)),
        ],
        _letter_to_wire,
    )


def _letter_to_wire(letter: DeadLetter) -> dict[str, Any]:
    fields = {field.name: getattr(letter, field.name) for field in dataclasses.fields(letter)}
    return {to_camel(name): value for name, value in fields.items()}


@dead.command("list")
def dead_list(
    topic: Topic = None,
    url: Url = None,
    namespace: Namespace = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """List dead letters topic by topic, oldest first.

    Fields in a pipe: message id, queue name, run id, died, reason, attempts,
    last error, payload. --limit and --cursor apply to each topic.
    """
    output = Output.choose(as_json=as_json)
    if cursor is not None and topic is None:
        refuse("--cursor needs the TOPIC that it belongs to: add it")
    paging = Paging(limit, cursor, everything)
    with_world(url, namespace, partial(_list, output, topic, paging))


async def _list(output: Output, topic: str | None, paging: Paging, world: RedisWorld) -> None:
    letters: list[DeadLetter] = []
    cursors: dict[str, str | None] = {}
    cursor = None
    for each in await topics_of(world, topic):
        page = await read_pages(partial(_fetch, world, each), paging)
        letters += page.data
        cursor = page.cursor
        if page.has_more:
            cursors[each] = page.cursor
    # A cursor is of one topic.
    page = Page[DeadLetter].model_construct(
        None, data=letters, cursor=cursor if topic else None, has_more=bool(cursors)
    )
    namespace = world.config.namespace
    output.show(
        _listing(server_now(world), output),
        page,
        none=f"no dead letters in namespace {namespace!r}",
        more=[f"{each} --cursor {place}" for each, place in cursors.items()],
    )


async def _fetch(
    world: RedisWorld, topic: str, limit: int, cursor: str | None
) -> Page[DeadLetter]:
    return await world.queue.dead_letters(topic, limit=limit, cursor=cursor)


@dead.command()
def redrive(
    message_ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of the dead letters, msg_...")
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Send all dead letters again.")
    ] = False,
    topic: Annotated[
        str | None, typer.Option(help="With --all: only the dead letters of this topic.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send dead letters again. They are due now, and their failures are reset.

    Fields in a pipe: message id, outcome, and the new id if another message
    was sent in its place; with --all: topic, outcome, count. The exit code is
    0 if all of the dead letters were found, else 1.
    """
    output = Output.choose(as_json=as_json)
    if bool(message_ids) == everything:
        refuse("give either MESSAGE_IDS or --all")
    if topic is not None and not everything:
        refuse("--topic works only with --all: add --all, or remove --topic")
    if everything:
        _tell(output, "redriven", with_world(url, namespace, partial(_redrive_all, topic)))
        return
    fates = with_world(url, namespace, partial(_redrive, message_ids or []))
    if output.mode is Mode.JSON:
        data = [dict(zip(("messageId", "outcome", "sentAs"), each, strict=True)) for each in fates]
        output.document({"data": data})
    else:
        for message_id, outcome, sent_as in fates:
            other = sent_as if sent_as not in (None, message_id) else ""
            output.line(message_id, outcome, other or "")
    raise typer.Exit(1 if any(outcome == "not found" for _, outcome, _ in fates) else 0)


async def _redrive(
    message_ids: Sequence[str], world: RedisWorld
) -> list[tuple[str, str, str | None]]:
    fates: list[tuple[str, str, str | None]] = []
    for message_id in dict.fromkeys(message_ids):
        try:
            sent_as = await world.queue.redrive(message_id)
        except MessageNotFoundError:
            fates.append((message_id, "not found", None))
        else:
            # The step of the message may be over, or have got another message meanwhile.
            fates.append((message_id, "redriven" if sent_as else "not needed", sent_as))
    return fates


async def _redrive_all(topic: str | None, world: RedisWorld) -> dict[str, int]:
    topics = await topics_of(world, topic)
    return {each: await world.queue.redrive_all(each) for each in topics}


@dead.command()
def purge(
    topic: Topic = None,
    url: Url = None,
    namespace: Namespace = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete the dead letters of a topic, or of all topics.

    purge asks before it deletes. Without a terminal, add --yes. Fields in a
    pipe: topic, outcome, count.
    """
    output = Output.choose(as_json=as_json)
    counts = with_world(url, namespace, partial(_count, topic))
    total = sum(counts.values())
    if total:
        noun = "dead letter" if total == 1 else "dead letters"
        confirm(f"Delete {total} {noun} for good?", yes=yes)
        counts = with_world(url, namespace, partial(_purge, topic))
    elif output.mode is not Mode.JSON:
        output.note("no dead letters to delete")
    _tell(output, "purged", counts)


async def _count(topic: str | None, world: RedisWorld) -> dict[str, int]:
    topics = await topics_of(world, topic)
    return {each: (await world.queue.stats(each)).dead for each in topics}


async def _purge(topic: str | None, world: RedisWorld) -> dict[str, int]:
    topics = await topics_of(world, topic)
    return {each: await world.queue.purge_dead_letters(each) for each in topics}


def _tell(output: Output, verb: str, counts: dict[str, int]) -> None:
    """Say of how many messages of each topic something became."""
    if output.mode is Mode.JSON:
        data = [{"topic": topic, verb: count} for topic, count in counts.items()]
        output.document({"data": data})
        return
    for topic, count in counts.items():
        output.line(topic, verb, str(count))
