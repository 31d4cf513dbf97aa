"""Workers that lack a workflow or a step: a deployment that rolls (contract, section 7)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import pytest
import pytest_asyncio
from vercel import workflow as sdk
from vercel.workflow._internal import core, runtime
from vercel.workflow._internal import world as w

from redis_world.testing import check_invariants
from redis_world.vercel import VercelWorld, use_redis_world
from redis_world.vercel.adapter import RegisteredHandler
from redis_world.worker import Handler, Postpone, Worker
from support.backends import Backend
from support.marks import slow
from support.sdk import attach, ended, flows, kept_world, until, value_of
from support.sdk_files import FOLDER

TOPIC: Final = "__wkf_workflow_"
STARTS: Final = ("run_created", "run_started")


@pytest_asyncio.fixture
async def adapter(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> AsyncIterator[VercelWorld]:
    """The SDK's World on a server, with nobody who consumes."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with kept_world():
        adapter = attach(use_redis_world(backend.url, namespace=backend.namespace()))
        yield adapter
        await adapter.aclose()


def handler_of(adapter: VercelWorld, registry: core.Workflows) -> Handler:
    """What the adapter makes of a registry's handler, beside others on the same topic."""
    handler = functools.partial(runtime.workflow_handler, registry=registry, namespace=None)
    return RegisteredHandler(handler, adapter.world)


def lacking(*, workflows: bool = False, steps: bool = False) -> core.Workflows:
    """A registry of an earlier deployment: without workflows, steps, or both."""
    registry = sdk.Workflows(as_vercel_job=False)
    if workflows:
        registry._workflows = flows.app._workflows
    if steps:
        registry._steps = flows.app._steps
    return registry


@contextlib.asynccontextmanager
async def at_work(adapter: VercelWorld, *registries: core.Workflows) -> AsyncIterator[None]:
    """One worker for each registry, for the length of a block."""
    workers = [
        Worker(adapter.world, {TOPIC: handler_of(adapter, registry)}, shutdown_timeout=5.0)
        for registry in registries
    ]
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.run())
        try:
            yield
        finally:
            for worker in workers:
                worker.stop()


async def types(adapter: VercelWorld, run: sdk.Run[Any]) -> list[str]:
    return [event.event_type for event in (await adapter.world.events.list(run.run_id)).data]


# Contract: 7.postpone
@pytest.mark.parametrize("kind", ["a workflow", slow("a step")])
async def test_one_of_twenty_one_workers_knows_it(adapter: VercelWorld, kind: str) -> None:
    """It starts within five seconds, and nobody has failed anything."""
    others = [lacking(workflows=kind == "a step") for _ in range(20)]
    async with at_work(adapter, *others, flows.app):
        run = await sdk.start(flows.sequential, 1)
        assert await value_of(adapter, run) == 1
    began, begun = ("step_created", "step_started") if kind == "a step" else STARTS
    log = (await adapter.world.events.list(run.run_id)).data
    times: dict[str, Any] = {event.event_type: event.created_at for event in log}
    assert times[begun] - times[began] < timedelta(seconds=5)
    assert not {"step_failed", "run_failed", "step_retrying"} & {*await types(adapter, run)}
    steps = (await adapter.world.steps.list(run.run_id)).data
    assert [step.attempt for step in steps] == [1]
    assert (await adapter.world.queue.stats(TOPIC)).dead == 0
    await check_invariants(adapter.world)


# Contract: 7.postpone
@pytest.mark.parametrize("kind", ["a workflow", "a step"])
async def test_what_nobody_knows_waits_and_is_told(adapter: VercelWorld, kind: str) -> None:
    world = adapter.world
    async with at_work(adapter, lacking(workflows=kind == "a step"), lacking()):
        run = await sdk.start(flows.sequential, 1)

        async def is_told() -> bool:
            stats = await world.queue.stats(TOPIC)
            name = flows.add_one.name if kind == "a step" else None
            queue_name = TOPIC + flows.sequential.workflow_id
            told = {(each.queue_name, each.step_name) for each in stats.postponed_names}
            return (queue_name, name) in told

        await until(is_told)
    assert not {"step_failed", "run_failed"} & {*await types(adapter, run)}
    if kind == "a workflow":
        assert await types(adapter, run) == ["run_created"]
    async with at_work(adapter, flows.app):
        assert await value_of(adapter, run) == 1


async def test_the_steps_of_the_sdk_are_known(adapter: VercelWorld) -> None:
    handler = handler_of(adapter, lacking())
    for name in core._builtin_steps:
        payload = {"runId": "wrun_x", "stepId": "s", "stepName": name}
        # It gets as far as the SDK, which looks for the run.
        with pytest.raises(w.WorkflowWorldError):
            await handler(payload, attempt=1, queue_name=TOPIC + "none", message_id="msg_1")
    with pytest.raises(Postpone):
        await handler(
            {"runId": "wrun_x", "stepId": "s", "stepName": "none"},
            attempt=1,
            queue_name=TOPIC + "none",
            message_id="msg_1",
        )


async def test_a_health_check_is_known_by_all(adapter: VercelWorld) -> None:
    handler = handler_of(adapter, lacking())
    payload = {"__healthCheck": True, "correlationId": "c1", "runId": "wrun_x"}
    await handler(payload, attempt=1, queue_name=TOPIC + "health_check", message_id="msg_1")
    assert await adapter.world.streams.list("wrun_hc_c1")


# Contract: 7.postpone
async def test_messages_of_a_run_that_ended_are_done(adapter: VercelWorld) -> None:
    """There is nothing to fail any more, and nobody who might come to know it."""
    world = adapter.world
    run = await sdk.start(flows.sequential, 1)
    await world.runs.cancel_many([run.run_id])
    async with at_work(adapter, lacking()):

        async def is_done() -> bool:
            stats = await world.queue.stats(TOPIC)
            return not (stats.ready or stats.delayed or stats.leased)

        await until(is_done)
    assert (await ended(adapter, run)).status == "cancelled"
