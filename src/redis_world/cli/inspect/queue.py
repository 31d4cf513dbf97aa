"""`redis-world inspect queue`."""

from __future__ import annotations

import contextlib
import dataclasses
from functools import partial
from typing import Any, Final, NamedTuple

from pydantic.alias_generators import to_camel
from rich.console import Group, RenderableType
from rich.text import Text

from redis_world import RedisWorld
from redis_world.cli.inspect.common import Json, Topic, commands, topics_of, with_world
from redis_world.cli.inspect.output import Column, Listing, Mode, Output, duration
from redis_world.cli.inspect.watch import Watch, check_watch, watch_items, watch_picture
from redis_world.cli.options import Namespace, Url
from redis_world.models import Page
from redis_world.queue import QueueStats

__all__ = ["queue"]

_OLD_SECONDS: Final = 60.0
"""A message that is due for so long says that workers are missing."""


class _Row(NamedTuple):
    topic: str
    stats: QueueStats

    def to_wire(self) -> dict[str, Any]:
        counts = dataclasses.asdict(self.stats)
        counts["postponed_names"] = [
            {to_camel(name): value for name, value in each._asdict().items()}
            for each in self.stats.postponed_names
        ]
        return {"topic": self.topic, **{to_camel(name): each for name, each in counts.items()}}


def _count(title: str, style: str = "") -> Column[_Row]:
    def number(row: _Row) -> str:
        return str(getattr(row.stats, title))

    def cell(row: _Row) -> Text:
        text = number(row)
        return Text(text, "dim" if text == "0" else style)

    return Column(title, number, cell, right=True)


def _oldest(row: _Row) -> Text:
    seconds = row.stats.oldest_due_age
    return Text(duration(seconds), "red" if seconds > _OLD_SECONDS else "") if seconds else Text()


def _unknown(row: _Row) -> str:
    """What postponed messages ask for: names of steps, and queues of workflows."""
    return ", ".join(each.step_name or each.queue_name for each in row.stats.postponed_names)


def _postponed(row: _Row) -> Text:
    if not row.stats.postponed:
        return Text()
    seconds = row.stats.longest_postponed
    text = f"{row.stats.postponed} for {duration(seconds)}: {_unknown(row)}"
    return Text(text, "red" if seconds > _OLD_SECONDS else "yellow")


_LISTING: Final = Listing[_Row](
    "topics",
    [
        Column("topic", lambda row: row.topic, lambda row: row.topic),
        _count("ready"),
        _count("delayed"),
        _count("leased", "cyan"),
        _count("held"),
        _count("dead", "red"),
        Column("oldest due", lambda row: f"{row.stats.oldest_due_age:.3f}", _oldest, right=True),
        Column("postponed", lambda row: str(row.stats.postponed)),
        Column("longest postponed", lambda row: f"{row.stats.longest_postponed:.3f}"),
        Column("unknown", _unknown),
        Column("postponed", None, _postponed, flexible=True),
    ],
    _Row.to_wire,
)


@commands.command()
def queue(
    topic: Topic = None,
    url: Url = None,
    namespace: Namespace = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Count the messages in the queue, topic by topic.

    ready: due now. delayed: due later. leased: a worker handles it. held: due,
    but waits for another message of its run. dead: failed too often, see `dead
    list`. postponed: ready or delayed, and no worker so far has the workflow
    or step.

    Fields in a pipe: topic, ready, delayed, leased, held, dead, age of the
    oldest due message in seconds, postponed. Two more fields: seconds since
    the first postponement, and names of the missing workflows and steps.
    """
    output = Output.choose(as_json=as_json)
    check_watch(output, watch=watch)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            with_world(url, namespace, partial(_watch, output, topic))
    else:
        with_world(url, namespace, partial(_show, output, topic))


async def _look(world: RedisWorld, topic: str | None) -> list[_Row]:
    return [_Row(each, await world.queue.stats(each)) for each in await topics_of(world, topic)]


async def _show(output: Output, topic: str | None, world: RedisWorld) -> None:
    rows = await _look(world, topic)
    page = Page[_Row].model_construct(None, data=rows, cursor=None, has_more=False)
    output.show(
        _LISTING,
        page,
        none=f"no message was ever sent in namespace {world.config.namespace!r}",
    )


async def _watch(output: Output, topic: str | None, world: RedisWorld) -> None:
    if output.mode is Mode.JSON:

        async def items() -> dict[str, Any]:
            return {row.topic: row.to_wire() for row in await _look(world, topic)}

        await watch_items(output, items)

    async def picture() -> RenderableType:
        table = _LISTING.table(await _look(world, topic))
        state = f"namespace {world.config.namespace}; Ctrl-C ends it"
        return Group(table, Text(state, "dim"))

    await watch_picture(output, picture)
