"""Values that no parameter, or hardly any, can take."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final, NoReturn

__all__ = ["LIMIT", "values"]

LIMIT: Final = 1000
"""`max_payload_bytes` of the World that is asked."""


class Hostile:
    """What can't even be shown."""

    def __repr__(self) -> NoReturn:
        raise RuntimeError("no repr")

    __str__ = __repr__
    __hash__ = None  # type: ignore[assignment]


class HostileMapping(Mapping[str, Any]):
    """What breaks when it is looked at."""

    def __getitem__(self, key: str) -> NoReturn:
        raise RuntimeError("no item")

    def __iter__(self) -> NoReturn:
        raise RuntimeError("no items")

    def __len__(self) -> int:
        return 1


class HostileZone(tzinfo):
    """A time zone that nobody can ask."""

    def utcoffset(self, _: datetime | None) -> NoReturn:
        raise RuntimeError("no offset")

    dst = tzname = utcoffset


class NotATime(datetime):
    """A date that is none, as pandas has one."""

    def utcoffset(self) -> NoReturn:
        raise ValueError("NaT")

    @property
    def year(self) -> Any:
        return float("nan")


@numbers.Real.register
class HostileNumber:
    """A number that does not tell which."""

    def __float__(self) -> NoReturn:
        raise RuntimeError("no number")


def _items() -> Iterator[int]:
    yield 1
    raise RuntimeError("no more")


def values() -> dict[str, Any]:
    """Some of every kind, by what they are."""
    endless: list[Any] = []
    endless.append(endless)
    itself: dict[str, Any] = {}
    itself["self"] = itself
    deep: Any = "x"
    for _ in range(2000):
        deep = [deep]
    wide: Any = "x"
    for _ in range(40):
        wide = [wide, wide]
    return {
        "None": None,
        "True": True,
        "zero": 0,
        "a number": 5,
        "a negative number": -1,
        "a huge number": 10**5000,
        "a huge negative number": -(10**400),
        "a float": 1.5,
        "nan": float("nan"),
        "inf": float("inf"),
        "a decimal": Decimal("1.5"),
        "complex": 1 + 2j,
        "a hostile number": HostileNumber(),
        "no text": "",
        "text": "3",
        "a lone surrogate": "a\ud800b",
        "long text": "x" * (LIMIT + 1),
        "long text of wide characters": "\U0001f600" * LIMIT,
        "bytes": b"\xff",
        "many bytes": b"x" * (LIMIT + 1),
        "a stepped memoryview": memoryview(b"abcdef")[::2],
        "a released memoryview": _released(),
        "no list": [],
        "a list": ["x"],
        "an endless list": endless,
        "a deep list": deep,
        "a list of 2^40": wide,
        "a tuple": ("x", 1),
        "a set": {1},
        "a generator": _items(),
        "no dict": {},
        "a dict": {"x": 1},
        "a dict of numbers": {1: 2},
        "a dict of itself": itself,
        "a mapping that breaks": HostileMapping(),
        "a naive date": datetime(2030, 1, 1),
        "a date out of range": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
        "a date without an offset": datetime(2030, 1, 1, tzinfo=HostileZone()),
        "no date": NotATime(2030, 1, 1, tzinfo=UTC),
        "the longest time": timedelta.max,
        "the shortest time": timedelta.min,
        "an object": object(),
        "a hostile object": Hostile(),
        "a function": values,
        "a class": dict,
    }


def _released() -> memoryview:
    view = memoryview(b"x")
    view.release()
    return view
