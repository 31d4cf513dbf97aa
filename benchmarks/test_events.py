"""What an event costs: each of the sixteen types, 64 at a time, each in a run of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, get_args

import pytest
from peers.base import event

from conftest import AT_ONCE, SIZES, Bench, Wire, run_data
from redis_world.ids import IdFactory
from redis_world.models import CreateEvent, EventResult

RESUME_AT: Final = datetime(2040, 1, 1, tzinfo=UTC)
DATA: Final = b"x" * 1_000

ids = IdFactory()


@dataclass(frozen=True, slots=True)
class Case:
    """An event, and those that its run has to have before."""

    event: Wire
    before: tuple[Wire, ...]
    """Empty: the event creates its run."""
    variant: str = ""
    options: Wire = field(default_factory=dict)

    @property
    def event_type(self) -> str:
        return str(self.event["eventType"])

    @property
    def name(self) -> str:
        return f"{self.event_type}-{self.variant}" if self.variant else self.event_type


CREATED: Final = event("run_created", **run_data())
BARE: Final[Wire] = {"skip_preload": True}
RUNNING: Final = (CREATED, event("run_started"))
STEP: Final = (*RUNNING, event("step_created", "step", stepName="s", input=DATA))
STARTED: Final = (*STEP, event("step_started", "step"))
HOOK: Final = (*RUNNING, event("hook_created", "hook", token="", metadata=DATA))
WAIT: Final = (*RUNNING, event("wait_created", "wait", resumeAt=RESUME_AT))
ATTRIBUTES: Final[Wire] = {
    "changes": [{"key": f"key_{number}", "value": "x" * 100} for number in range(4)],
    "writer": {"type": "workflow"},
}


CASES: Final = [
    *(Case(event("run_created", **run_data(size)), (), f"{size}") for size in SIZES),
    Case(event("run_started"), (CREATED,), options=BARE),
    Case(event("run_started", **run_data(1_000)), (), "resilient", BARE),
    Case(event("run_started"), (CREATED,), "preload"),
    Case(event("run_completed", output=DATA), RUNNING),
    Case(event("run_failed", error=DATA, errorCode="E"), RUNNING),
    Case(event("run_cancelled"), RUNNING),
    Case(event("attr_set", "attributes", **ATTRIBUTES), RUNNING),
    *(
        Case(event("step_created", "step", stepName="s", input=b"x" * size), RUNNING, f"{size}")
        for size in SIZES
    ),
    Case(event("step_started", "step"), STEP),
    Case(event("step_started", "step", stepName="s", input=DATA), RUNNING, "lazy"),
    *(
        Case(event("step_completed", "step", result=b"x" * size), STARTED, f"{size}")
        for size in SIZES
    ),
    Case(event("step_failed", "step", error=DATA), STARTED),
    Case(event("step_retrying", "step", error=DATA, retryAfter=RESUME_AT), STARTED),
    Case(HOOK[-1], RUNNING),
    Case(event("hook_received", "hook", payload=DATA), HOOK),
    Case(event("hook_received", "hook", payload=DATA), HOOK, "resume_id", {"resume_id": "r"}),
    Case(event("hook_disposed", "hook"), HOOK),
    Case(WAIT[-1], RUNNING),
    Case(event("wait_completed", "wait"), WAIT),
]
"""A number behind a type is the bytes of the payload, which has 1,000 elsewhere."""


def of_run(some: Wire, run_id: str) -> Wire:
    """The event itself; that of a hook with a token which no other run has."""
    if some["eventType"] != "hook_created":
        return some
    return {**some, "eventData": {**some["eventData"], "token": run_id}}


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_event(bench: Bench, case: Case) -> None:
    world = bench.world
    bench.benchmark.group = f"{case.event_type}, {AT_ONCE} at a time"

    async def new_run() -> str:
        run_id = ids.run_id(world.connection.server_time())
        for each in case.before:
            # Bare: the log that a run_started brings is of no use here.
            await world.events.create(run_id, of_run(each, run_id), **BARE)
        return run_id

    async def prepare() -> list[tuple[str, Wire]]:
        run_ids = await asyncio.gather(*(new_run() for _ in range(AT_ONCE)))
        return [(run_id, of_run(case.event, run_id)) for run_id in run_ids]

    async def create(rows: list[tuple[str, Wire]]) -> list[EventResult]:
        return await asyncio.gather(
            *(world.events.create(run_id, some, **case.options) for run_id, some in rows)
        )

    results = bench.measure(create, prepare)
    events = [result.event for result in results if result.event is not None]
    assert {some.event_type for some in events} == {case.event_type}
    assert len({some.run_id for some in events}) == AT_ONCE
    page = bench.run(world.events.list(events[-1].run_id or "", sort_order="desc", limit=1))
    assert page.data[0].event_id == events[-1].event_id


def test_every_type_has_a_benchmark() -> None:
    types = {model.model_fields["event_type"].default for model in get_args(CreateEvent)}
    assert {case.event_type for case in CASES} == types
