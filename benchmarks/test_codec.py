"""What it costs to turn values into bytes and back, and events into models and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from peers.base import event
from pytest_benchmark.fixture import BenchmarkFixture

from conftest import SIZES, Wire, run_data
from redis_world.codec import decode_data, decode_payload, encode_data, encode_payload
from redis_world.models import RunCreatedEvent, StepCompletedEvent, StepCreatedEvent

ROUNDS: Final = 20
ITERATIONS: Final = 50
LIMIT: Final = 1_000_000

Measure = Callable[..., Any]


@pytest.fixture
def measure(benchmark: BenchmarkFixture) -> Measure:
    """Measure a call; its last result."""

    def pedantic(target: Callable[..., Any], *args: Any) -> Any:
        return benchmark.pedantic(
            target, args=args, rounds=ROUNDS, iterations=ITERATIONS, warmup_rounds=1
        )

    return pedantic


def raw(size: int) -> bytes:
    return b"x" * size


def structure(size: int) -> Wire:
    """JSON-like values which take about so many bytes as CBOR."""
    rows: list[Wire] = []
    while len(encode_data(rows, "rows")) < size - 10:
        number = len(rows)
        rows.append({"id": number, "name": f"item {number}", "price": number / 4, "tags": ["a"]})
    return {"rows": rows}


VALUES: Final = [raw, structure]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", VALUES)
@pytest.mark.benchmark(group="encode a payload, by bytes")
def test_encode_payload(measure: Measure, make: Callable[[int], Any], size: int) -> None:
    value = make(size)
    assert decode_payload(measure(encode_payload, value, LIMIT, "payload")) == value


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", VALUES)
@pytest.mark.benchmark(group="decode a payload, by bytes")
def test_decode_payload(measure: Measure, make: Callable[[int], Any], size: int) -> None:
    value = make(size)
    assert measure(decode_payload, encode_payload(value, LIMIT, "payload")) == value


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.benchmark(group="encode the data of an event, by bytes")
def test_encode_data(measure: Measure, size: int) -> None:
    data = {"workflowName": "bench", "executionContext": structure(size)}
    assert decode_data(measure(encode_data, data, "data")) == data


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.benchmark(group="decode the data of an event, by bytes")
def test_decode_data(measure: Measure, size: int) -> None:
    data = {"workflowName": "bench", "executionContext": structure(size)}
    assert measure(decode_data, encode_data(data, "data")) == data


def run_created(size: int) -> Wire:
    return event("run_created", **run_data(size), executionContext=structure(size))


def step_created(size: int) -> Wire:
    return event("step_created", "step", stepName="s", input=raw(size))


def step_completed(size: int) -> Wire:
    return event("step_completed", "step", result=structure(size))


EVENTS: Final = [
    pytest.param(RunCreatedEvent, run_created, id="run_created"),
    pytest.param(StepCreatedEvent, step_created, id="step_created"),
    pytest.param(StepCompletedEvent, step_completed, id="step_completed"),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("model", "make"), EVENTS)
@pytest.mark.benchmark(group="an event from the wire's mapping, by bytes")
def test_from_wire(measure: Measure, model: Any, make: Callable[[int], Wire], size: int) -> None:
    wire = make(size)
    assert measure(model.from_wire, wire).to_wire() == wire


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("model", "make"), EVENTS)
@pytest.mark.benchmark(group="an event to the wire's mapping, by bytes")
def test_to_wire(measure: Measure, model: Any, make: Callable[[int], Wire], size: int) -> None:
    wire = make(size)
    assert measure(model.from_wire(wire).to_wire) == wire
