"""How values become bytes in Redis: payloads, structured data, times and durations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import cbor2

from redis_world.errors import InvalidEventError, InvalidInputError, WorldError
from redis_world.values import plain_bytes, plain_number, plain_scalar, shown

__all__ = [
    "MAX_BYTES",
    "PLAIN",
    "Duration",
    "decode_data",
    "decode_payload",
    "encode_data",
    "encode_payload",
    "from_ms",
    "is_plain",
    "plain_data",
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

MAX_BYTES: Final = 512 * 1024 * 1024
"""Of one value in Redis."""
_REASON: Final = 200
"""How much of a library's reason an error shows."""

PLAIN: Final = frozenset((str, bytes, int, float, bool, type(None)))
"""What is stored as it is."""
_CODEC_ERRORS = (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_EXACT_MS = 2**32 * 1000
"""Before it a float of seconds is off by less than half a microsecond."""


def encode_data(value: Any, what: str, limit: int | None = None) -> bytes:
    """Encode structured data as CBOR: bytes, datetimes and integers of any size stay exact.

    Args:
        value: of plain types or subclasses of them, which count as their values.
        what: its name, for the error.
        limit: the most bytes that it may have; None: what Redis can hold.

    Raises:
        InvalidEventError: a value has no CBOR form, or one that can't be read back; or it is too
            large.
    """
    is_known = is_plain(value)
    if not is_known:
        value = plain_data(value, what, limit)
    blob, problem = b"", None
    try:
        blob = cbor2.dumps(value)
        if not is_known:
            # The encoder writes some values that the decoder refuses.
            cbor2.loads(blob)
    except _CODEC_ERRORS as error:
        problem = str(error)[:_REASON]
    if problem is not None:
        # Not while the other is handled: it may have a hook's token in it.
        raise InvalidEventError(f"{what} can't be stored: {problem}")
    if limit is not None and len(blob) > limit:
        raise InvalidEventError(f"{what} has {len(blob)} bytes; the limit is {limit}")
    return blob


def is_plain(value: Any) -> bool:
    """Whether all values are of the plain types themselves, and no structure is there twice."""
    kind = type(value)
    if kind in PLAIN:
        return True
    if kind is not dict and kind is not list:
        return False
    # Nearly all event data is flat.
    if kind is dict and PLAIN.issuperset(map(type, value.values())):
        return PLAIN.issuperset(map(type, value))
    level = [value]
    seen: set[int] = set()
    for _ in range(_MAX_DEPTH):
        deeper = []
        for item in level:
            if type(item) is dict:
                if not PLAIN.issuperset(map(type, item)):
                    return False
                item = item.values()  # noqa: PLW2901 - its keys are seen to
            for part in item:
                kind = type(part)
                if kind in PLAIN or (kind is datetime and part.tzinfo is UTC):
                    continue
                if (kind is not dict and kind is not list) or id(part) in seen:
                    return False
                seen.add(id(part))
                deeper.append(part)
        if not deeper:
            return True
        level = deeper
    return False


def plain_data(value: Any, what: str, limit: int | None = None) -> Any:
    """Structured data with the values of subclasses as plain ones, as it will be read back.

    Raises:
        InvalidEventError: it is too large, too deep to be read back, or endless; much deeper, the
            encoder would end the process.
    """
    if is_plain(value):
        return value
    try:
        return _Plain(what, MAX_BYTES if limit is None else limit).take(value, 0).value
    except WorldError:
        raise
    except Exception as error:  # noqa: BLE001 - the classes of others may raise anything
        raise InvalidEventError(f"{what} can't be stored: {str(error)[:_REASON]}") from None


class _Part(NamedTuple):
    value: Any
    size: int
    """The least bytes that it takes."""
    height: int
    """Levels of structures."""


class _Plain:
    """Makes structures of plain values; one that is in many places is made once."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._known: dict[int, _Part | None] = {}
        """By the identity of the original; None for what is being made."""
        self._originals: list[Any] = []
        """Kept alive, or another value would get the identity of one that is gone: a mapping may
        make its values when they are asked for."""

    def take(self, value: Any, depth: int) -> _Part:
        """A value with all that is in it."""
        if not isinstance(value, Mapping | list | tuple | set | frozenset):
            value = plain_scalar(value)
            return _Part(value, len(value) if isinstance(value, str | bytes) else 1, 0)
        part = self._known.get(id(value))
        if depth + (part.height if part else 0) >= _MAX_DEPTH or (
            part is None and id(value) in self._known
        ):
            raise InvalidEventError(
                f"{self._what} can't be stored: it is nested {_MAX_DEPTH} levels deep or more"
            )
        if part is None:
            self._originals.append(value)
            self._known[id(value)] = None
            part = self._known[id(value)] = self._make(value, depth)
        return part

    def _make(self, value: Any, depth: int) -> _Part:
        made: Any
        if isinstance(value, Mapping):
            keys = [_key(key) for key in value]
            parts = [self.take(value[key], depth + 1) for key in value]
            made = dict(zip(keys, (part.value for part in parts), strict=True))
        elif isinstance(value, list | tuple):
            keys = []
            parts = [self.take(each, depth + 1) for each in value]
            made = [part.value for part in parts]
        else:
            keys, parts = [_key(each) for each in value], []
            made = set(keys)
        size = 1 + sum(part.size for part in parts)
        size += sum(len(key) if isinstance(key, str | bytes) else 1 for key in keys)
        if size > self._limit:
            raise InvalidEventError(
                f"{self._what} has {size} bytes or more; the limit is {self._limit}"
            )
        return _Part(made, size, 1 + max((part.height for part in parts), default=0))


def _key(value: Any) -> Any:
    return value if isinstance(value, tuple | frozenset) else plain_scalar(value)


def decode_data(blob: bytes) -> Any:
    """Decode what `encode_data` made.

    Raises:
        WorldError: it is not that; somebody else has written it.
    """
    try:
        return cbor2.loads(blob)
    except _CODEC_ERRORS as error:
        raise WorldError(f"can't read the stored data: {error}") from error


def encode_payload(value: Any, limit: int, what: str) -> bytes:
    """Encode a payload with its tag byte; bytes are kept as they are.

    Raises:
        InvalidEventError: it is larger than `limit` bytes, or has no CBOR form.
    """
    try:
        own = plain_bytes(value)
    except ValueError as error:
        raise InvalidEventError(f"{what}: {error}") from None
    if own is None:
        return _CBOR + encode_data(value, what, limit)
    if len(own) > limit:
        raise InvalidEventError(f"{what} has {len(own)} bytes; the limit is {limit}")
    return _RAW + own


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
    milliseconds = int(value)
    if 0 <= milliseconds < _EXACT_MS:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    return _EPOCH + timedelta(milliseconds=milliseconds)


def to_duration_ms(duration: Duration, what: str) -> int:
    """Whole milliseconds of a duration, rounded up: nothing is ever early.

    Raises:
        InvalidInputError: it is negative, no finite number, or longer than 285,000 years.
    """
    value = duration if type(duration) in (float, int) else plain_number(duration)
    milliseconds: int
    if isinstance(value, timedelta):
        # Whole numbers: the negative of the longest timedelta is none.
        value = plain_scalar(value)
        microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
        milliseconds = -(-microseconds // 1000) if microseconds >= 0 else -1
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInputError(
            f"{what} must be a number of seconds or a timedelta, not {shown(duration)}"
        )
    else:
        try:
            # A nanosecond of slack, for what floats add to decimal fractions.
            milliseconds = math.ceil(value * 1000 - 1e-6)
        except (OverflowError, ValueError):
            raise InvalidInputError(f"{what} must be finite, not {shown(duration)}") from None
        if value < 0:
            milliseconds = -1
    if not 0 <= milliseconds <= _MAX_DURATION_MS:
        raise InvalidInputError(
            f"{what} must be between 0 and 285,000 years, not {shown(duration)}"
        )
    return milliseconds
