"""The logs that a worker keeps: those used last, within their bytes."""

from __future__ import annotations

import gc
import tracemalloc
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from vercel.workflow._internal import world as w

from redis_world.codec import decode_data, encode_data
from redis_world.events.log import LogMark
from redis_world.vercel.log_cache import KeptLog, LogCache, weight_of

EVENT: Any = SimpleNamespace()


def log(events: int = 1, size: int = 0) -> KeptLog:
    weight = events * weight_of({"eventType": "run_started"}) + size
    return KeptLog(cast(Any, [EVENT] * events), LogMark(events, (b"op",)), weight)


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


WRITER: Final = {"type": "workflow"}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "a step": {
        "eventType": "step_created",
        "correlationId": "step_01",
        "eventData": {"stepName": "step//app.flows//charge", "input": b"i" * 50},
    },
    "a large payload": {
        "eventType": "step_completed",
        "correlationId": "step_01",
        "eventData": {"stepName": "step//app.flows//charge", "result": b"r" * 100_000},
    },
    "a wait": {"eventType": "wait_completed", "correlationId": "wait_01"},
    "few attributes": {
        "eventType": "attr_set",
        "correlationId": "attr_01",
        "eventData": {"changes": [{"key": "k", "value": "v"}], "writer": WRITER},
    },
    "many attributes": {
        "eventType": "attr_set",
        "correlationId": "attr_01",
        "eventData": {
            "changes": [{"key": f"key{number}", "value": "1"} for number in range(64)],
            "writer": WRITER,
        },
    },
    "a context": {
        "eventType": "run_created",
        "eventData": {
            "deploymentId": "",
            "workflowName": "workflow//app.flows//checkout",
            "input": b"",
            "executionContext": {
                f"part{number}": [number, {"name": f"it{number}"}] for number in range(100)
            },
        },
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_its_weight_is_about_what_it_takes(kind: str) -> None:
    """Structured data takes many times what its text does."""

    def read() -> tuple[w.Event, int]:
        # As it comes from Redis: nothing of it is there already.
        data = decode_data(encode_data(KINDS[kind], "event"))
        now = datetime.now(tz=UTC)
        wire = {**data, "runId": "wrun_01", "eventId": "evnt_01", "createdAt": now}
        return w.EventAdaptor.from_wire(wire), weight_of(wire)

    read()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = [read() for _ in range(100)]
    gc.collect()
    taken = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    tracemalloc.stop()
    assert 0.6 < taken / kept[0][1] < 1.4
