"""How values become bytes in Redis: payloads, structured data, times and durations."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import cbor2

from redis_world.errors import InvalidEventError, InvalidInputError

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

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def encode_data(value: Any, what: str) -> bytes:
    """Encode structured data as CBOR: bytes, datetimes and integers of any size stay exact.

    Raises:
        InvalidEventError: a value has no CBOR form.
    """
    try:
        return cbor2.dumps(value)
    except (cbor2.CBOREncodeError, ValueError, TypeError, RecursionError) as error:
        raise InvalidEventError(f"{what} can't be stored: {error}") from None


def decode_data(blob: bytes) -> Any:
    """Decode what `encode_data` made."""
    return cbor2.loads(blob)


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
    return blob[1:] if blob[:1] == _RAW else cbor2.loads(blob[1:])


def to_ms(moment: datetime) -> int:
    """Whole milliseconds since the epoch."""
    return (moment - _EPOCH) // _MILLISECOND


def from_ms(value: bytes | str | float) -> datetime:
    """The UTC time of milliseconds since the epoch."""
    return _EPOCH + timedelta(milliseconds=int(value))


def to_duration_ms(duration: Duration, what: str) -> int:
    """Whole milliseconds of a duration, rounded up: nothing is ever early.

    Raises:
        InvalidInputError: it is negative, or no finite number.
    """
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidInputError(f"{what} is seconds or a timedelta, not {seconds!r}")
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidInputError(f"{what} is a finite duration from 0 up, not {seconds!r}")
    # A microsecond of slack: 0.1 s is 100 ms although its float is a little more.
    return math.ceil(seconds * 1000 - 1e-3)
