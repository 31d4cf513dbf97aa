"""Which part of its run's log comes with an event's answer (contract, section 5).

A part says first what it reads: that goes behind the event's script, in the same round trip. Then
it makes the result of what the event answers by itself and what was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from redis_world.connection import Command
from redis_world.errors import RunNotFoundError
from redis_world.events.log import LogMark, LogReader, slot_of
from redis_world.keys import RunKeys
from redis_world.models import Event, EventResult
from redis_world.paging import event_cursor
from redis_world.rows import RUN_FIELDS, run_from

__all__ = [
    "NOTHING",
    "Beginning",
    "Behind",
    "Part",
    "Recorded",
    "Replay",
    "ReplayPart",
    "Unseen",
    "Whole",
]

R = TypeVar("R")


class Recorded(NamedTuple):
    """An event that was accepted, before the part of the log is with it.

    Attributes:
        result: what the event answers by itself.
        is_new: whether something was recorded; not for the run_started of a running run.
        replies: to `commands` of the part.
    """

    result: EventResult
    is_new: bool
    replies: Sequence[Any]


class Part(Generic[R]):
    """A part of a log."""

    def commands(self) -> list[Command]:
        """What is read behind the event's script."""
        raise NotImplementedError

    async def attach(self, recorded: Recorded) -> R:
        """The event's result, with the part."""
        raise NotImplementedError


class _Nothing(Part[EventResult]):
    """The event alone."""

    def commands(self) -> list[Command]:
        return []

    async def attach(self, recorded: Recorded) -> EventResult:
        return recorded.result


NOTHING: Final = _Nothing()


class Beginning(Part[EventResult]):
    """The first page of the log, as with run_started."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._count = reader.first_page(0)

    def commands(self) -> list[Command]:
        return self._reader.commands(0, self._count)

    async def attach(self, recorded: Recorded) -> EventResult:
        events, more = await self._reader.parse(recorded.replies, 0, self._count)
        return _with(recorded.result, events, more=more)


class Behind(Part[EventResult]):
    """All events behind a slot, as with `since_cursor`."""

    def __init__(self, reader: LogReader, after: int) -> None:
        self._reader = reader
        self._after, self._count = after, reader.first_page(after)

    def commands(self) -> list[Command]:
        return self._reader.commands(self._after, self._count)

    async def attach(self, recorded: Recorded) -> EventResult:
        events, more = await self._reader.parse(recorded.replies, self._after, self._count)
        events = await self._reader.rest(events, more=more)
        return _with(recorded.result, events, more=False, cursor=event_cursor(self._after))


class Unseen(Part[EventResult]):
    """The events between those that the writer had seen and its own, as with `event_count`.

    Args:
        reader: of the log.
        seen: how many events the writer had seen.
        preloads: whether the beginning of the log comes where there are none.
    """

    def __init__(self, reader: LogReader, seen: int, *, preloads: bool) -> None:
        self._reader = reader
        self._seen, self._count = seen, reader.first_page(seen)
        self._preloads = preloads

    def commands(self) -> list[Command]:
        return self._reader.commands(self._seen, self._count)

    async def attach(self, recorded: Recorded) -> EventResult:
        result, is_new, replies = recorded
        own = slot_of(result.event) if is_new and result.event is not None else 0
        if own > self._seen + 1:
            events, more = await self._reader.parse(replies, self._seen, self._count)
            if more and slot_of(events[-1]) < own - 1:
                events = await self._reader.rest(events, more=more)
            between = [event for event in events if slot_of(event) < own]
            return result.changed({"events": between, "cursor": None, "has_more": False})
        if self._preloads:
            events, more = await self._reader.page(0, self._reader.first_page(0))
            return _with(result, events, more=more)
        return result


class Whole(Part[EventResult]):
    """The run and all of its log, as with `preload_events`.

    The run's payloads are those of its log.
    """

    def __init__(self, reader: LogReader, run: RunKeys, max_events: int | None) -> None:
        self._reader = reader
        self._run, self._max_events = run, max_events
        self._count = reader.first_page(0)

    def commands(self) -> list[Command]:
        return [
            ("HMGET", self._run.run, *RUN_FIELDS),
            ("HGETALL", self._run.attributes),
            *self._reader.commands(0, self._count),
        ]

    async def attach(self, recorded: Recorded) -> EventResult:
        fields, attributes, *of_log = recorded.replies
        events, more = await self._reader.parse(of_log, 0, self._count)
        events = await self._reader.rest(events, more=more)
        if fields[0] is None:
            # It had ended, and was removed right behind the event.
            raise RunNotFoundError(self._reader.run_id)
        run = run_from(
            self._reader.run_id,
            [fields, [], attributes],
            self._reader.resolve_data,
            {b"%d" % slot_of(event): _payload_of(event) for event in events},
        )
        result = recorded.result.changed({"run": run, "max_events": self._max_events})
        return _with(result, events, more=False)


class Replay(NamedTuple):
    """The start of a replay.

    Attributes:
        result: the result of its run_started.
        events: the whole log, or the part of it after the mark.
        mark: the last event.
        is_continued: whether it is the part after the mark. If not, there was no mark, or the log
            is another one.
    """

    result: EventResult
    events: Sequence[Event]
    mark: LogMark | None
    is_continued: bool = False


class ReplayPart(Part[Replay]):
    """All of the log, or what lies behind a mark by which it is known again."""

    def __init__(self, reader: LogReader, mark: LogMark | None) -> None:
        self._reader = reader
        self._mark = mark
        self._count = reader.first_page(0 if mark is None else mark.slot)

    def commands(self) -> list[Command]:
        if self._mark is None:
            return self._reader.commands(0, self._count)
        return self._reader.commands_from(self._mark, self._count)

    async def attach(self, recorded: Recorded) -> Replay:
        reader, mark = self._reader, self._mark
        result, _, replies = recorded
        if mark is None:
            events, more = await reader.parse(replies, 0, self._count)
            return Replay(result, await reader.rest(events, more=more), reader.mark)
        found = await reader.parse_from(replies, mark, self._count)
        if found is None:
            return Replay(result, await reader.all_behind(0), reader.mark)
        events, more = found
        return Replay(result, await reader.rest(events, more=more), reader.mark, is_continued=True)


def _payload_of(event: Event) -> Any:
    """What an event of a log carries; None for nothing."""
    data = getattr(event, "event_data", None)
    field = None if data is None else data.payload_field
    return None if field is None else getattr(data, field)


def _with(
    result: EventResult, events: list[Event], *, more: bool, cursor: str | None = None
) -> EventResult:
    if events:
        cursor = event_cursor(slot_of(events[-1]))
    return result.changed({"events": events, "cursor": cursor, "has_more": more})
