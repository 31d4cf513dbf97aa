"""`redis-world cancel` and `redis-world dead`: what an operator ends, repeats and deletes."""

from __future__ import annotations

import dataclasses
import sys
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
    """List, send again or delete messages that nothing more is tried for."""


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
    run_ids: Annotated[list[str], typer.Argument(help="Ids of runs, wrun_...")],
    url: Url = None,
    namespace: Namespace = None,
    reason: Annotated[
        str | None, typer.Option(help="Why; kept in the run's log. Up to 512 characters.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Cancel runs at once; steps that are being executed are not interrupted.

    The fields in a pipe: run id, what became of it, and why. Exit code 0 when
    all of them are cancelled now, else 1.
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
            return _Cancelled(found.run_id, "not found", "there is no such run")
        case _:
            # What a server that is away has done of it, nobody knows.
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
    """List dead letters, those that died first in front, topic by topic.

    The fields in a pipe: message id, queue name, run id, died, reason,
    attempts, last error, payload. --limit and --cursor are of one topic.
    """
    output = Output.choose(as_json=as_json)
    if cursor is not None and topic is None:
        refuse("--cursor needs the TOPIC that it is of")
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
        list[str] | None, typer.Argument(help="Ids of dead letters, msg_...")
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    topic: Annotated[str | None, typer.Option(help="With --all: only those of a topic.")] = None,
    as_json: Json = False,
) -> None:
    """Send dead letters again, due now, with their failures forgotten.

    Exit code 0 when all of them were found, else 1.
    """
    output = Output.choose(as_json=as_json)
    if bool(message_ids) == everything:
        refuse("name the MESSAGE_IDS to be sent again, or --all of them")
    if topic is not None and not everything:
        refuse("--topic belongs to --all")
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
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete dead letters for good, of a topic or of all topics; it asks first."""
    output = Output.choose(as_json=as_json)
    if not yes:
        if not sys.stdin.isatty():
            refuse("dead letters are deleted for good, and nobody is here to be asked: add --yes")
        count = with_world(url, namespace, partial(_count, topic))
        noun = "dead letter" if count == 1 else "dead letters"
        if not typer.confirm(f"Delete {count} {noun} for good?", err=True):
            raise typer.Exit(1)
    _tell(output, "purged", with_world(url, namespace, partial(_purge, topic)))


async def _count(topic: str | None, world: RedisWorld) -> int:
    return sum([(await world.queue.stats(each)).dead for each in await topics_of(world, topic)])


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
