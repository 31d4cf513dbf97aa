"""Cutting pages out of listings (contract, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from redis_world.models import Event, Page, ResolveData, SortOrder
from redis_world.paging import (
    check_limit,
    check_order,
    event_cursor,
    parse_cursor,
    parse_event_cursor,
)
from redis_world.testing.reference.state import StoredEvent
from redis_world.testing.reference.views import event_view

__all__ = ["make_page", "page_of_log"]

S = TypeVar("S")
T = TypeVar("T")


def make_page(
    listing: str,
    items: Iterable[S],
    *,
    place: Callable[[S], Any],
    view: Callable[[S], T],
    limit: int,
    cursor: str | None,
    sort_order: SortOrder = "asc",
    show: Callable[[Any], str] = str,
    parse: Callable[[str], Any] = str,
) -> Page[T]:
    """Cut a page out of a listing.

    Args:
        listing: its name, which its cursors begin with.
        items: all there is, in any order.
        place: where an item stands in the listing.
        view: an item as the caller reads it.
        limit: 1 to 1,000.
        cursor: of an earlier page: the listing's name and the place of its last item.
        sort_order: of the places.
        show: a place as a cursor has it; `parse` is the way back.
        parse: a place from a cursor.
    """
    after = parse_cursor(listing, cursor)
    check_limit(limit)
    is_descending = check_order(sort_order) == "desc"
    found = sorted(items, key=place, reverse=is_descending)
    if after:
        last = parse(after)
        found = [x for x in found if (place(x) < last if is_descending else place(x) > last)]
    page = found[:limit]
    if page:
        cursor = f"{listing}:{show(place(page[-1]))}"
    return Page[T].model_construct(
        None, data=[view(item) for item in page], cursor=cursor, has_more=len(found) > limit
    )


def page_of_log(
    run_id: str,
    events: Sequence[StoredEvent],
    limit: int | None,
    cursor: str | None,
    sort_order: SortOrder,
    resolve_data: ResolveData,
) -> Page[Event]:
    """Cut a page out of a log: its cursors are of events, and without a limit it is all."""
    is_descending = check_order(sort_order) == "desc"
    last = None if cursor is None else parse_event_cursor(cursor)
    if limit is not None:
        check_limit(limit)
    found = [
        event
        for event in (reversed(events) if is_descending else events)
        if last is None or (event.slot < last if is_descending else event.slot > last)
    ]
    page = found[:limit]
    return Page[Event].model_construct(
        None,
        data=[event_view(run_id, event, resolve_data) for event in page],
        cursor=event_cursor(page[-1].slot) if page else cursor,
        has_more=len(found) > len(page),
    )
