"""How values become bytes in Redis: payloads, structured data, times and durations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import cbor2

from redis_world.errors import InvalidEventError, InvalidInputError, WorldError

__all__ = [
    "Duration",
    "decode_data",
    "decode_payload",
    "encode_data",
    "encode_payload",
    "from_ms",
    "to_duration_ms",
    "to_ms",
]

Duration = float | int | timedelta
"""Seconds, or a timedelta."""

# A payload's first byte says what follows: None, an absent payload, "" and b"" are four things.
_RAW = b"\x00"
_CBOR = b"\x01"

_MAX_DURATION_MS = 9 * 10**15
"""Beyond it milliseconds are not exact in Redis."""

_MAX_DEPTH = 300
"""Levels of nested structures; the decoder reads 400, and what surrounds them counts too."""

_STRUCTURES = (dict, list, tuple, set, frozenset)
_PLAIN = (str, bytes, int, float, type(None))
_CODEC_ERRORS = (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def encode_data(value: Any, what: str) -> bytes:
    """Encode structured data as CBOR: bytes, datetimes and integers of any size stay exact.

    Raises:
        InvalidEventError: a value has no CBOR form, or one that can't be read back.
    """
    is_plain = _check_structure(value, what)
    try:
        blob = cbor2.dumps(value)
        if not is_plain:
            # The encoder writes some values that the decoder refuses.
            cbor2.loads(blob)
    except _CODEC_ERRORS as error:
        raise InvalidEventError(f"{what} can't be stored: {error}") from None
    return blob


def _check_structure(value: Any, what: str) -> bool:
    """Whether all values are of the plain types.

    Raises:
        InvalidEventError: it is too deep to be read back, or endless; much deeper, the encoder
            would end the process.
    """
    is_plain = True
    level = [value]
    for _ in range(_MAX_DEPTH):
        # Each structure once per level, or one that is in many places takes ages.
        deeper: dict[int, Any] = {}
        for item in level:
            if isinstance(item, dict):
                inside: Iterable[Any] = (*item.keys(), *item.values())
            elif isinstance(item, list | tuple | set | frozenset):
                inside = item
            else:
                is_plain = is_plain and isinstance(item, _PLAIN)
                continue
            for part in inside:
                if isinstance(part, _STRUCTURES):
                    deeper[id(part)] = part
                elif not isinstance(part, _PLAIN):
                    is_plain = False
        if not deeper:
            return is_plain
        level = list(deeper.values())
    raise InvalidEventError(f"{what} can't be stored: it is nested {_MAX_DEPTH} levels or more")


def decode_data(blob: bytes) -> Any:
    """Decode what `encode_data` made.

    Raises:
        WorldError: it is not that; somebody else has written it.
    """
    try:
        return cbor2.loads(blob)
    except _CODEC_ERRORS as error:
        raise WorldError(f"stored data can't be read: {error}") from error


def encode_payload(value: Any, limit: int, what: str) -> bytes:
    """Encode a payload with its tag byte; bytes are kept as they are.

    Raises:
        InvalidEventError: it is larger than `limit` bytes, or has no CBOR form.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        blob = _RAW + value
    else:
        blob = _CBOR + encode_data(value, what)
    if len(blob) > limit + 1:
        raise InvalidEventError(f"{what} has {len(blob) - 1} bytes; the limit is {limit}")
    return blob


def decode_payload(blob: bytes) -> Any:
    """Decode what `encode_payload` made."""
    return blob[1:] if blob[:1] == _RAW else decode_data(blob[1:])


def to_ms(moment: datetime) -> int:
    """Whole milliseconds since the epoch."""
    return (moment - _EPOCH) // _MILLISECOND


@lru_cache(maxsize=1024)
def from_ms(value: bytes | str | float) -> datetime:
    """The UTC time of milliseconds since the epoch.

    The same times come again and again: an event's own is that of what it has changed.
    """
    return _EPOCH + timedelta(milliseconds=int(value))


def to_duration_ms(duration: Duration, what: str) -> int:
    """Whole milliseconds of a duration, rounded up: nothing is ever early.

    Raises:
        InvalidInputError: it is negative, no finite number, or longer than 285,000 years.
    """
    if isinstance(duration, timedelta):
        milliseconds = -(-duration // _MILLISECOND)
    elif isinstance(duration, bool) or not isinstance(duration, int | float):
        raise InvalidInputError(f"{what} is seconds or a timedelta, not {duration!r}")
    else:
        try:
            # A nanosecond of slack, for what floats add to decimal fractions.
            milliseconds = math.ceil(duration * 1000 - 1e-6)
        except (OverflowError, ValueError):
            raise InvalidInputError(f"{what} is not finite: {duration!r}") from None
    if milliseconds < 0 or milliseconds > _MAX_DURATION_MS or duration != abs(duration):
        raise InvalidInputError(f"{what} is from 0 to 285,000 years, not {duration!r}")
    return milliseconds
