"""What callers pass, as plain values: any subclass of a type counts as its value.

A `datetime` may be pandas' or that of a sandbox, a number numpy's, a text an enumeration's. What
is stored and compared is the value alone, so each is turned into its plain type where it comes in.
What is of a plain type already is given back as it is, at the cost of one comparison.
"""

from __future__ import annotations

import contextlib
import operator
import re
import reprlib
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from numbers import Integral, Rational, Real
from typing import Any, Final, TypeVar

from redis_world.errors import InvalidInputError

__all__ = [
    "flag",
    "items",
    "plain_bytes",
    "plain_moment",
    "plain_number",
    "plain_scalar",
    "shown",
    "text",
    "whole",
]

T = TypeVar("T")

_SHOWN_LENGTH: Final = 80
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_PARTS: Final[tuple[Any, ...]] = (timedelta.days, timedelta.seconds, timedelta.microseconds)

_CREDENTIALS: Final = re.compile(r"//.*@", re.DOTALL)
"""Of a URL; greedy, since a password may have any character."""


class _Short(reprlib.Repr):
    """Short representations that tell no password of a URL, which may be in the wrong place."""

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(_CREDENTIALS.sub("//***@", x), level)

    def repr_bytes(self, x: bytes, _: int) -> str:
        return f"{len(x)} bytes"

    repr_bytearray = repr_bytes

    def repr_instance(self, x: object, _: int) -> str:
        found = _CREDENTIALS.sub("//***@", repr(x))
        half = self.maxother // 2
        return found if len(found) <= self.maxother else f"{found[:half]}...{found[-half:]}"


_short = _Short()
_short.maxstring = _short.maxother = _short.maxlong = 60
_short.maxlevel = 2


def shown(value: object) -> str:
    """A value as an error shows it: short, whatever it is."""
    try:
        found = _short.repr(value)
    except Exception:  # noqa: BLE001 - its own __repr__ may raise anything
        found = f"a {type(value).__name__}"
    if len(found) > _SHOWN_LENGTH:
        found = f"{found[:_SHOWN_LENGTH]}..."
    return found.encode("utf-8", "backslashreplace").decode()


def text(
    value: object,
    what: str,
    limit: int | None = None,
    *,
    error: type[InvalidInputError] = InvalidInputError,
    secret: bool = False,
) -> str:
    """Check a text.

    Args:
        value: the text, of any subclass of str.
        what: the parameter, for the error.
        limit: the most bytes that it may have as UTF-8; None: any number.
        error: what is raised.
        secret: whether no error may show it.

    Raises:
        InvalidInputError: it is no text, has lone surrogates, or is too long.
    """
    if type(value) is not str:
        if not isinstance(value, str):
            found = f"a {type(value).__name__}" if secret else shown(value)
            raise error(f"{what} must be a string, not {found}")
        value = str.__str__(value)
    size = len(value)
    if not value.isascii():
        # Not an exception, which would keep a secret in its context.
        size = len(value.encode(errors="surrogatepass"))
        if _SURROGATE.search(value):
            found = "the value" if secret else shown(value)
            raise error(f"{what}: {found} is not valid Unicode text")
    if limit is not None and size > limit:
        raise error(f"{what} has {size} bytes; the limit is {limit}")
    return value


def whole(
    value: object,
    what: str,
    low: int | None,
    high: int | None = None,
    *,
    error: type[InvalidInputError] = InvalidInputError,
) -> int:
    """Check a whole number.

    Raises:
        InvalidInputError: it is none, or out of range.
    """
    number = value if type(value) is int else plain_number(value)
    if type(number) is int and (low is None or low <= number) and (high is None or number <= high):
        return number
    allowed = (
        "" if low is None else f" of at least {low}" if high is None else f" from {low} to {high}"
    )
    raise error(f"{what} must be a whole number{allowed}, not {shown(value)}")


def items(
    values: Iterable[T], what: str, *, error: type[InvalidInputError] = InvalidInputError
) -> list[T]:
    """What is given as several, in a list.

    Raises:
        InvalidInputError: it is no list, nor anything else that can be gone through; or is one
            text or one value of bytes, whose items nobody means.
    """
    if not isinstance(values, str | bytes | bytearray | memoryview | Mapping):
        # The iterators of others may raise anything.
        with contextlib.suppress(Exception):
            return [*values]
    raise error(f"{what} must be a list, not {shown(values)}")


def flag(value: object, what: str) -> bool:
    """Check what is either True or False.

    Raises:
        InvalidInputError: it is neither.
    """
    found = value if type(value) is bool else plain_number(value)
    if type(found) is bool:
        return found
    raise InvalidInputError(f"{what} must be True or False, not {shown(value)}")


def plain_bytes(value: object) -> bytes | None:
    """The bytes that a value is, or None where it is no bytes.

    Raises:
        InvalidInputError: a memoryview that can't be read.
    """
    if type(value) is bytes:
        return value
    if isinstance(value, bytes):
        # Not bytes(), which asks the subclass.
        return b"".join((value,))
    if isinstance(value, bytearray):
        return bytes(memoryview(value))
    if isinstance(value, memoryview):
        try:
            return value.tobytes()
        except (ValueError, NotImplementedError) as error:
            raise InvalidInputError(f"can't read the memoryview: {error}") from None
    return None


def plain_moment(value: datetime) -> datetime:
    """A point in time as a plain datetime.

    Its time zone becomes a fixed offset: those of a library may be stored by no other.

    Raises:
        ValueError: it has no time zone, or is none, as pandas' NaT.
    """
    try:
        offset = value.utcoffset()
        moment = datetime(
            *(value.year, value.month, value.day, value.hour, value.minute, value.second),
            value.microsecond,
            tzinfo=None if offset is None else UTC if not offset else timezone(offset),
        )
        if offset is not None and offset.seconds % 60:
            # No format of dates has offsets of seconds.
            moment = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{shown(value)} must be within the years 1 to 9999 in UTC") from None
    except Exception as error:  # noqa: BLE001 - a time zone may raise anything
        problem = str(error)[:_SHOWN_LENGTH]
        raise ValueError(f"{shown(value)} is not a valid date: {problem}") from None
    if offset is None:
        raise ValueError(f"{shown(value)} needs a time zone")
    return moment


def plain_scalar(value: Any) -> Any:
    """A value of a subclass as one of the plain type; anything else as it is.

    Raises:
        ValueError: a date that is no point in time.
    """
    found: Any = value
    if isinstance(value, bool) or value is None:
        pass
    elif isinstance(value, str):
        found = str.__str__(value)
    elif isinstance(value, bytes | bytearray | memoryview):
        found = plain_bytes(value)
    elif isinstance(value, datetime):
        found = plain_moment(value)
    elif isinstance(value, timedelta):
        # What it is as a timedelta: a library's own `days` may leave out its months.
        found = timedelta(*(part.__get__(value) for part in _PARTS))
    elif isinstance(value, date):
        found = date(value.year, value.month, value.day)
    else:
        found = plain_number(value)
    return found


def plain_number(value: Any) -> Any:
    """A number, or True or False, as one of the plain type; anything else as it is."""
    found: Any = value
    if isinstance(value, bool):
        pass
    elif isinstance(value, int):
        found = int.__index__(value)
    elif isinstance(value, float):
        found = float.__float__(value)
    else:
        # A number that can't be told stays what it is, and is refused as that.
        with contextlib.suppress(Exception):
            if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
                found = bool(value)
            elif isinstance(value, Integral):
                found = operator.index(value)
            elif isinstance(value, Real) and not isinstance(value, Rational):
                found = float(value)
    return found
