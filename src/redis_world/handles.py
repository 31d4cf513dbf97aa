"""Handles: what a leased message is known by in another process, as one text."""

from __future__ import annotations

import base64
import json
import re
from typing import Final, NamedTuple, get_type_hints

from redis_world.errors import InvalidInputError
from redis_world.ids import MAX_SLOT
from redis_world.values import shown

__all__ = ["Handle", "no_handle", "pack_handle", "unpack_handle"]

_VERSION: Final = 1
_LETTERS: Final = re.compile(r"[A-Za-z0-9_-]+")


class Handle(NamedTuple):
    """The fields of a handle, in their order; names and times as Redis has them."""

    partition: int
    queue_name: str
    message_id: str
    receipt: str
    run_id: str
    step_id: str
    step_name: str
    key: str
    attempt: int
    failures: int
    postponed: int
    enqueued_at: int
    due_at: int


_TYPES: Final = tuple(get_type_hints(Handle).values())


def pack_handle(handle: Handle) -> str:
    """A handle as letters, digits, `-` and `_`."""
    packed = json.dumps([_VERSION, *handle], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def unpack_handle(text: str) -> Handle:
    """The fields of a handle.

    Raises:
        InvalidInputError: it is not a handle, or one of another version.
    """
    if not isinstance(text, str) or not _LETTERS.fullmatch(text):
        raise no_handle(text)
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, RecursionError):
        raise no_handle(text) from None
    if not isinstance(found, list) or found[:1] != [_VERSION]:
        raise no_handle(text)
    fields = found[1:]
    if tuple(map(type, fields)) != _TYPES:
        raise no_handle(text)
    if not all(0 <= each <= MAX_SLOT for each in fields if isinstance(each, int)):
        raise no_handle(text)
    return Handle(*fields)


def no_handle(text: object) -> InvalidInputError:
    """The error for what is not a handle."""
    return InvalidInputError(f"handle must be that of a leased message, not {shown(text)}")
