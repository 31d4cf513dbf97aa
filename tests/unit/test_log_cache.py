"""The logs that a worker keeps: those used last, within their bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from redis_world.events.log import LogMark
from redis_world.vercel.log_cache import KeptLog, LogCache

EVENT: Any = SimpleNamespace()


def log(events: int = 1, size: int = 0) -> KeptLog:
    return KeptLog(cast(Any, [EVENT] * events), LogMark(events, (b"op",)), size)


ONE = log().weight


def test_what_was_put_last_is_got() -> None:
    cache = LogCache()
    assert cache.get("r") is None
    for each in (log(1), log(2)):
        cache.put("r", each)
        assert cache.get("r") is each
        assert cache.weight == each.weight
    cache.forget("r")
    cache.forget("r")
    assert (cache.get("r"), cache.weight) == (None, 0)


def test_those_that_are_used_stay() -> None:
    cache = LogCache(3 * ONE)
    for name in "abc":
        cache.put(name, log())
    assert cache.get("a") is not None
    cache.put("d", log())
    assert [name for name in "abcd" if cache.get(name)] == ["a", "c", "d"]
    assert cache.weight == 3 * ONE


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_it_is_bounded_by_bytes_not_by_runs(size: int) -> None:
    cache = LogCache(1_000_000)
    for number in range(3000):
        cache.put(f"r{number}", log(1 + number % 7, size))
        assert cache.weight <= cache.limit
    assert cache.weight > 0.8 * cache.limit


def test_one_that_is_too_large_is_not_kept() -> None:
    cache = LogCache(2 * ONE)
    cache.put("a", log())
    cache.put("b", log(3))
    assert cache.get("b") is None
    assert cache.get("a") is not None
    # What was there of it is old by now.
    cache.put("a", log(3))
    assert (cache.get("a"), cache.weight) == (None, 0)


def test_a_lower_limit_holds_at_once() -> None:
    cache = LogCache(10 * ONE)
    for name in "abcdef":
        cache.put(name, log())
    cache.limit = 2 * ONE
    assert [name for name in "abcdef" if cache.get(name)] == ["e", "f"]
    cache.limit = 0
    cache.put("a", log())
    assert cache.weight == 0
