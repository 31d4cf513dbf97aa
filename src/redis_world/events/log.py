"""Reading the event log: a stream of entries, small payloads in them and large ones beside it.

Behind the entries it asks whether the user data of the run is deleted: that is said at once,
and done piece by piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis_world.connection import Command, Connection
from redis_world.ids import parse_event_id
from redis_world.models import Event, ResolveData
from redis_world.payloads import LOOKS, load
from redis_world.rows import event_from, pairs
from redis_world.text import utf8

__all__ = ["Lengths", "LogMark", "LogReader", "slot_of"]

FIRST_PAGE: Final = 64
"""Entries of the first round trip of an unlimited read: most logs are shorter."""
NEXT_PAGE: Final = 1000
_SLOTS_AT_ONCE: Final = 64
"""Events of one round trip that are read one by one."""
_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Of entries in one round trip, as far as those before tell how large the next ones are."""
_MEMORY: Final = 4096
"""Of how many runs the lengths of their logs are remembered."""


def slot_of(event: Event) -> int:
    """The slot of an event that was read."""
    slot = parse_event_id(event.event_id or "")
    assert slot is not None
    return slot


@dataclass(frozen=True, slots=True)
class LogMark:
    """An event by which a log is known again: as long as it is there, all before it is, too.

    Attributes:
        slot: its place in the log.
        entry: its fields as they are stored, with the id of the request that wrote them. In
            another run of the same id the event in this place has another one.
    """

    slot: int
    entry: tuple[bytes, ...]


class Lengths:
    """How long the logs were that were read last, and how large their entries.

    Replays read the log of one run over and over, each time a little longer: they ask for what
    there is and what may have come since in one round trip.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def note(self, run_id: str, slot: int, page: int) -> None:
        """A log was seen to have this slot, and so many events are a page of it."""
        # What is asked for anew is forgotten last.
        self._seen[run_id] = max(slot, self._seen.pop(run_id, (0, 0))[0]), page
        if len(self._seen) > _MEMORY:
            del self._seen[next(iter(self._seen))]

    def first_page(self, run_id: str, after: int) -> int:
        """How many events behind a slot a first look asks for."""
        length, page = self._seen.get(run_id, (0, NEXT_PAGE))
        return min(max(length - after, 0) + FIRST_PAGE, page)


class LogReader:
    """Reads one run's log."""

    def __init__(
        self, connection: Connection, lengths: Lengths, run_id: str, resolve_data: ResolveData
    ) -> None:
        self._connection = connection
        self._lengths = lengths
        self.run_id = run_id
        self._keys = connection.partitions.of(run_id).of_run(run_id)
        self.resolve_data: ResolveData = resolve_data
        # What it has read so far.
        self._events = self._bytes = 0
        self.mark: LogMark | None = None
        """The last event that it has read."""

    def commands(self, after: int, count: int) -> list[Command]:
        """What reads up to `count` events behind a slot, and tells whether there is one more."""
        first = after + 1
        commands: list[Command] = [
            ("XRANGE", self._keys.events, f"0-{first}", "+", "COUNT", count + 1)
        ]
        if self.resolve_data == "all":
            commands.append(self._look)
        return commands

    async def parse(
        self, replies: Sequence[Any], after: int, count: int
    ) -> tuple[list[Event], bool]:
        """Events of the replies to `commands`, and whether there are more."""
        entries = replies[0]
        events, complete = await self._events_of(entries[:count], *replies[1:])
        for _ in range(LOOKS - 1):
            if complete:
                break
            # Payloads were deleted since it looked: so it looks again.
            entries, *of_run = await self._connection.execute(*self.commands(after, count))
            events, complete = await self._events_of(entries[:count], *of_run)
        if events:
            slot, fields = entries[len(events) - 1]
            self.mark = LogMark(int(slot[2:]), tuple(fields))
        if events and len(entries) <= count:
            self._lengths.note(self.run_id, after + len(events), self._next_page())
        return events, len(entries) > count

    async def _events_of(
        self, entries: Sequence[Any], of_run: Sequence[bytes | None] = (b"", None)
    ) -> tuple[list[Event], bool]:
        """The events of entries, and whether all their payloads were there still.

        Without payloads where these are deleted, the run is gone, or nobody asked for them.
        """
        status, expired_at = of_run
        is_hidden = status is None or expired_at is not None
        logged = [pairs(fields) for _, fields in entries]
        payloads: list[bytes] = []
        for (entry_id, raw), fields in zip(entries, logged, strict=True):
            self._bytes += sum(map(len, raw))
            payloads += [entry_id[2:], b"" if is_hidden else fields.get(b"payload", b"")]
        self._events += len(entries)
        complete = True
        if self.resolve_data == "all":
            complete = await load(self._connection, [(self.run_id, payloads)])
        events = [
            event_from(self.run_id, slot, fields, payload, self.resolve_data)
            for fields, slot, payload in zip(logged, payloads[::2], payloads[1::2], strict=True)
        ]
        return events, complete

    @property
    def _look(self) -> Command:
        """What tells, behind entries, whether the payloads in them may be shown."""
        return "HMGET", self._keys.run, "status", "expired_at"

    def first_page(self, after: int) -> int:
        """How many events behind a slot a first look asks for."""
        return self._lengths.first_page(self.run_id, after)

    def commands_from(self, mark: LogMark, count: int) -> list[Command]:
        """What reads the event of a mark again, and those behind it."""
        first, *others = self.commands(mark.slot, count)
        name, key, _, *rest, number = first
        return [(name, key, f"0-{mark.slot}", *rest, int(number) + 1), *others]

    async def parse_from(
        self, replies: Sequence[Any], mark: LogMark, count: int
    ) -> tuple[list[Event], bool] | None:
        """Events behind a mark, and whether there are more; None where the log is another one."""
        entries, *others = replies
        if not entries or tuple(entries[0][1]) != mark.entry:
            return None
        if len(entries) == 1:
            self.mark = mark
        return await self.parse([entries[1:], *others], mark.slot, count)

    def _next_page(self) -> int:
        """How many events to ask for behind those that were read: less where they are large."""
        return min(NEXT_PAGE, max(1, _PAGE_BYTES * self._events // max(self._bytes, 1)))

    async def page(self, after: int, count: int) -> tuple[list[Event], bool]:
        """Up to `count` events behind a slot, and whether there are more.

        Where many are allowed it looks at a few first: asking for a thousand payloads takes time
        even where there are five.
        """
        events, more = await self._read(after, min(count, self.first_page(after)))
        while more and len(events) < count:
            left = min(count - len(events), self._next_page())
            behind, more = await self._read(slot_of(events[-1]), left)
            events += behind
        return events, more

    async def _read(self, after: int, count: int) -> tuple[list[Event], bool]:
        replies = await self._connection.execute(*self.commands(after, count))
        return await self.parse(replies, after, count)

    async def rest(self, events: list[Event], *, more: bool) -> list[Event]:
        """A first page with all that follows it."""
        events = list(events)
        while more:
            page, more = await self._read(slot_of(events[-1]), self._next_page())
            events += page
        return events

    async def all_behind(self, after: int) -> list[Event]:
        """All events behind a slot."""
        events, more = await self._read(after, self.first_page(after))
        return await self.rest(events, more=more)

    async def at(self, slots: Sequence[int]) -> list[Event]:
        """The events in some slots that the log has."""
        events: list[Event] = []
        for first in range(0, len(slots), _SLOTS_AT_ONCE):
            some = slots[first : first + _SLOTS_AT_ONCE]
            *entries, of_run = await self._connection.execute(
                *(("XRANGE", self._keys.events, f"0-{slot}", f"0-{slot}") for slot in some),
                self._look,
            )
            # The run may be gone, or be another one by now.
            found, _ = await self._events_of([each[0] for each in entries if each], of_run)
            events += found
        return events

    async def slots_of(self, correlation_id: str) -> list[int]:
        """The slots of the events of a step, hook or wait; of the others no models are made."""
        wanted = utf8(correlation_id)
        found: list[int] = []
        after, more = 0, bool(wanted)
        while more:
            (entries,) = await self._connection.execute(
                ("XRANGE", self._keys.events, f"0-{after + 1}", "+", "COUNT", NEXT_PAGE)
            )
            found += [
                int(entry_id[2:])
                for entry_id, fields in entries
                if pairs(fields)[b"corr"] == wanted
            ]
            after += len(entries)
            more = len(entries) == NEXT_PAGE
        return found

    async def in_front_of(self, before: int | None, limit: int | None) -> tuple[list[Event], bool]:
        """Events in front of a slot, or of the end of the log, newest first."""
        (length,) = await self._connection.execute(("XLEN", self._keys.events))
        end = length + 1 if before is None else min(before, length + 1)
        first = 1 if limit is None else max(1, end - limit)
        events: list[Event] = []
        while len(events) < end - first:
            after = first - 1 + len(events)
            count = self._next_page() if events else FIRST_PAGE
            page, _ = await self._read(after, min(count, end - 1 - after))
            if not page:
                # The run was removed meanwhile.
                break
            events += page
        return events[::-1], first > 1 and bool(events)
