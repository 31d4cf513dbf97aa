"""Pages and cursors of all listings (contract, section 6).

A cursor is text: the name of its listing and the place behind which the next page begins. It
stands for a place, not for an item, so that nothing is lost or repeated when items come and go.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from redis_world.errors import InvalidCursorError, InvalidInputError
from redis_world.ids import MAX_SLOT, RUN_ID_PATTERN, event_id, parse_event_id
from redis_world.models import Page, ResolveData, SortOrder
from redis_world.values import shown, whole

__all__ = [
    "DEFAULT_LIMIT",
    "MAX_LIMIT",
    "ask_all",
    "check_limit",
    "check_order",
    "check_resolve_data",
    "event_cursor",
    "make_page",
    "merge",
    "parse_cursor",
    "parse_event_cursor",
    "read_page",
]

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
ROWS_AT_ONCE: Final = 200
"""Rows of one script: the server does nothing else meanwhile."""
_FOLLOWING: Final = 3
"""The place in a reply of the place to go on behind."""

_SLOT: Final = re.compile(r"[0-9]{1,16}")
_PLACES: Final = {
    "runs": re.compile(RUN_ID_PATTERN),
    "steps": _SLOT,
    "waits": _SLOT,
    "hooks": _SLOT,
    "all_hooks": re.compile(rf"[0-9]{{15}}/(?:[0-9a-f]{{2}})*/{RUN_ID_PATTERN}"),
    "chunks": _SLOT,
    "dead_letters": re.compile(r"[0-9]{1,16}:msg_[0-7][0-9A-HJKMNP-TV-Z]{25}"),
}
_EVENT_PREFIX: Final = "eid:"

_LONGEST_PLACE: Final = 200
_RESOLVE: Final[Mapping[str, ResolveData]] = {"all": "all", "none": "none"}
_ORDERS: Final[Mapping[str, SortOrder]] = {"asc": "asc", "desc": "desc"}

T = TypeVar("T")
C = TypeVar("C")


def check_limit(limit: int) -> int:
    """Check the size of a page.

    Raises:
        InvalidInputError: it is not from 1 to 1,000.
    """
    return whole(limit, "limit", 1, MAX_LIMIT)


def check_resolve_data(resolve_data: ResolveData, what: str = "resolve_data") -> ResolveData:
    """Check what is asked for of payloads.

    Raises:
        InvalidInputError: it is neither `all` nor `none`.
    """
    return _one_of(resolve_data, what, _RESOLVE)


def check_order(order: SortOrder) -> SortOrder:
    """Check a sort order.

    Raises:
        InvalidInputError: it is neither `asc` nor `desc`.
    """
    return _one_of(order, "sort_order", _ORDERS)


def _one_of(value: object, what: str, allowed: Mapping[str, C]) -> C:
    # Only text is looked up: what else there is may have no hash.
    found = allowed.get(value) if isinstance(value, str) else None
    if found is None:
        names = " or ".join(map(repr, allowed))
        raise InvalidInputError(f"{what} must be {names}, not {shown(value)}")
    return found


def parse_cursor(listing: str, cursor: str | None, name_limit: int | None = None) -> str:
    """The place that a cursor of this listing stands for; empty for none.

    Args:
        listing: its name.
        cursor: of an earlier page.
        name_limit: the most bytes of a name, where a place has one in it.

    Raises:
        InvalidCursorError: it was not made by this listing.
    """
    if cursor is None:
        return ""
    prefix = f"{listing}:"
    # Two characters for each byte of a name.
    longest = _LONGEST_PLACE + 2 * (name_limit or 0)
    if isinstance(cursor, str) and len(cursor) <= longest and cursor.startswith(prefix):
        place = str.__str__(cursor).removeprefix(prefix)
        if _PLACES[listing].fullmatch(place):
            return place
    raise InvalidCursorError(
        f"cursor {shown(cursor)} does not come from this listing ({listing}): "
        "use the cursor of an earlier page"
    )


def event_cursor(slot: int) -> str:
    """The cursor behind a slot of an event log."""
    return _EVENT_PREFIX + event_id(slot)


def parse_event_cursor(cursor: str, what: str = "cursor") -> int:
    """The slot that a cursor of an event log stands behind.

    Raises:
        InvalidCursorError: it is no cursor of an event log.
    """
    slot = None
    if isinstance(cursor, str) and cursor.startswith(_EVENT_PREFIX):
        slot = parse_event_id(str.__str__(cursor).removeprefix(_EVENT_PREFIX))
    if slot is None:
        raise InvalidCursorError(
            f"{what} {shown(cursor)} does not come from an event log: "
            "use the cursor of an earlier page, or eid:<event id>"
        )
    return min(slot, MAX_SLOT)


def make_page(
    listing: str,
    reply: Sequence[Any],
    read: Callable[[Sequence[Any]], T],
    cursor: str | None,
) -> Page[T]:
    """A page from a listing script's reply: status, more, rows that begin with their place."""
    rows = reply[2]
    if rows:
        cursor = f"{listing}:{rows[-1][0].decode()}"
    return Page[T].model_construct(
        None, data=[read(row) for row in rows], cursor=cursor, has_more=reply[1] == b"1"
    )


async def read_page(
    ask: Callable[[str, int], Awaitable[Sequence[Any]]], after: str, limit: int
) -> Sequence[Any]:
    """A page whose rows may be too many, or too large, for one script.

    Args:
        ask: calls the listing's script, with the place behind which it begins, and a limit. It may
            find fewer rows than there are; where only what lies behind a place tells whether
            there are more, that is the fourth item of its reply.
        after: the place behind which the page begins, or empty.
        limit: of the page.

    Returns:
        What one script would have replied: status, more, rows.
    """
    rows: list[Any] = []
    while True:
        reply = await ask(after, min(limit - len(rows), ROWS_AT_ONCE))
        rows += reply[2]
        following = reply[3] if len(reply) > _FOLLOWING else b""
        if reply[1] == b"1" and len(rows) < limit:
            following = rows[-1][0]
        if not following:
            return [reply[0], reply[1], rows]
        after = following.decode()


async def ask_all(questions: Sequence[Awaitable[T]]) -> list[T]:
    """Ask all partitions at a time, in the tick of the loop in which one alone is asked."""
    if len(questions) == 1:
        return [await questions[0]]
    return [*await asyncio.gather(*questions)]


def merge(
    replies: Sequence[Sequence[Any]],
    limit: int,
    order: SortOrder = "asc",
    key: Callable[[bytes], Any] = bytes,
) -> Sequence[Any]:
    """The pages of one listing in several partitions as one page of at most `limit` rows.

    A cursor stands for a place in the order of all of them, so that each partition goes on there.

    Args:
        replies: of the listing's script, each as `make_page` takes it.
        limit: of the page.
        order: of the listing.
        key: makes of a row's place what the listing is ordered by.
    """
    if len(replies) == 1:
        return replies[0]
    rows = [row for reply in replies for row in reply[2]]
    rows.sort(key=lambda row: key(row[0]), reverse=order == "desc")
    # A page that was cut short says nothing of what lies behind its end.
    ends = {reply[2][-1][0] for reply in replies if reply[1] == b"1" and reply[2]}
    first_end = next((place for place, row in enumerate(rows, 1) if row[0] in ends), len(rows))
    limit = min(limit, first_end)
    more = len(rows) > limit or any(reply[1] == b"1" for reply in replies)
    return [b"OK", b"1" if more else b"", rows[:limit]]
