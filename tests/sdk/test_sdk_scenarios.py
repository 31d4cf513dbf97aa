"""What users do with the SDK, on every server; bodies of steps run once per attempt."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from vercel import workflow as sdk
from vercel.workflow._internal import world as w

from redis_world.vercel import VercelWorld
from support.sdk import Site, ended, flows, hook_of, settled, until, value_of
from support.sdk_files import bodies, open_gate


def a_name() -> str:
    """A token or a gate that no other test has."""
    return secrets.token_hex(8)


async def log(adapter: VercelWorld, run: sdk.Run[Any]) -> list[Any]:
    return (await adapter.world.events.list(run.run_id)).data


async def count_bodies(adapter: VercelWorld, run: sdk.Run[Any]) -> list[int]:
    """How often each step's body ran, in the order of the steps' creation.

    The log has to tell the same: a start for every body, one end for every step.
    """
    events = await log(adapter, run)
    ids = [event.correlation_id for event in events if event.event_type == "step_created"]
    assert len(ids) == len(set(ids))
    started = Counter(e.correlation_id for e in events if e.event_type == "step_started")
    ended = [e.correlation_id for e in events if e.event_type in ("step_completed", "step_failed")]
    assert sorted(ended) == sorted(ids)
    ran = bodies(run.run_id)
    assert started == ran
    return [ran[step_id] for step_id in ids]


async def test_no_step(adapter: VercelWorld) -> None:
    run = await sdk.start(flows.no_step, 41)
    assert await value_of(adapter, run) == 42
    assert await run.status() == "completed"
    assert [event.event_type for event in await log(adapter, run)] == [
        "run_created",
        "run_started",
        "run_completed",
    ]
    await settled(adapter, run)


async def test_a_failing_workflow(adapter: VercelWorld) -> None:
    run = await sdk.start(flows.fails, "boom")
    assert (await ended(adapter, run)).status == "failed"
    with pytest.raises(sdk.WorkflowRunFailedError, match="boom") as caught:
        await run.return_value()
    assert caught.value.error_code == "USER_ERROR"
    assert isinstance(caught.value.error, ValueError)
    await settled(adapter, run)


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.large)])
async def test_sequential_steps(adapter: VercelWorld, count: int) -> None:
    run = await sdk.start(flows.sequential, count)
    assert await value_of(adapter, run) == count
    assert await count_bodies(adapter, run) == [1] * count
    await settled(adapter, run)


async def test_a_sleep(adapter: VercelWorld) -> None:
    run = await sdk.start(flows.sleeps, 1.0)
    before, after = await value_of(adapter, run)
    assert after - before >= timedelta(seconds=1)
    events = {event.event_type: event for event in await log(adapter, run)}
    resume_at = events["wait_created"].event_data.resume_at
    assert events["wait_completed"].created_at >= resume_at
    await settled(adapter, run)


# Contract: 4.subclasses
async def test_a_sleep_until_a_date(adapter: VercelWorld) -> None:
    """It is of the sandbox's own subclass of datetime, which failed the run for good."""
    moment = datetime.now(UTC) + timedelta(seconds=1)
    run = await sdk.start(flows.sleeps_until, moment.isoformat())
    assert await value_of(adapter, run) == moment.isoformat()
    events = {event.event_type: event for event in await log(adapter, run)}
    stored = events["wait_created"].event_data.resume_at
    assert type(stored) is datetime
    assert stored == moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    assert events["wait_completed"].created_at >= stored
    await settled(adapter, run)


@pytest.mark.parametrize("count", [10, 50])
async def test_a_fan_out(adapter: VercelWorld, count: int) -> None:
    run = await sdk.start(flows.fan_out, count)
    assert await value_of(adapter, run) == list(range(1, count + 1))
    assert await count_bodies(adapter, run) == [1] * count
    await settled(adapter, run)


@pytest.mark.parametrize("count", [10, 50])
async def test_a_fan_out_and_a_slow_step(adapter: VercelWorld, count: int) -> None:
    run = await sdk.start(flows.fan_out_and_in, count)
    assert await value_of(adapter, run) == count * (count + 1) // 2
    assert await count_bodies(adapter, run) == [1] * (count + 1)
    await settled(adapter, run)


async def test_a_step_that_fails_twice(adapter: VercelWorld) -> None:
    run = await sdk.start(flows.retried)
    assert await value_of(adapter, run) == 3
    assert await count_bodies(adapter, run) == [3]
    await settled(adapter, run)


async def test_a_retryable_error_with_a_delay(adapter: VercelWorld) -> None:
    run = await sdk.start(flows.retried_later, 1.5)
    assert await value_of(adapter, run) == 2
    assert await count_bodies(adapter, run) == [2]
    events = await log(adapter, run)
    (retrying,) = (event for event in events if event.event_type == "step_retrying")
    second = [event for event in events if event.event_type == "step_started"][1]
    assert second.created_at >= retrying.event_data.retry_after
    await settled(adapter, run)


async def test_a_step_without_another_try(adapter: VercelWorld) -> None:
    run = await sdk.start(flows.given_up)
    assert "ValueError: no" in await value_of(adapter, run)
    assert await count_bodies(adapter, run) == [1]
    await settled(adapter, run)


async def test_a_hook_resumed_from_outside(adapter: VercelWorld) -> None:
    token = a_name()
    run = await sdk.start(flows.approved, token)
    hook = await hook_of(token)
    assert (hook.run_id, hook.token, hook.metadata) == (run.run_id, token, {"for": token})
    await flows.Approval(by="ann").resume(token)
    assert await value_of(adapter, run) == "ann"
    with pytest.raises(sdk.HookNotFoundError):
        await sdk.get_hook_by_token(token)
    await settled(adapter, run)


async def test_a_hook_resumed_twice_and_disposed(adapter: VercelWorld) -> None:
    token = a_name()
    run = await sdk.start(flows.approved_twice, token)
    hook = await hook_of(token)
    await flows.Approval(by="ann").resume(hook)
    await flows.Approval(by="bob").resume(hook)
    assert await value_of(adapter, run) == ["ann", "bob"]
    assert "hook_disposed" in [event.event_type for event in await log(adapter, run)]
    await settled(adapter, run)


@pytest.mark.parametrize("asks", [True, False])
async def test_two_runs_that_want_one_token(adapter: VercelWorld, asks: bool) -> None:
    token = a_name()
    first = await sdk.start(flows.first_of_a_token, token)
    await hook_of(token)
    flow = flows.first_of_a_token if asks else flows.unaware_of_a_token
    second = await sdk.start(flow, token)
    assert await value_of(adapter, second) == (
        f"taken by {first.run_id}" if asks else f"conflict with {first.run_id}"
    )
    assert await first.status() == "running"
    await flows.Approval(by="ann").resume(token)
    assert await value_of(adapter, first) == "ann"
    # Its end has freed the token.
    third = await sdk.start(flow, token)
    await hook_of(token)
    await flows.Approval(by="bob").resume(token)
    assert await value_of(adapter, third) == "bob"
    await settled(adapter, first, second, third)


async def test_attributes_from_workflow_and_step(adapter: VercelWorld) -> None:
    run = await sdk.start(flows.labelled)
    await value_of(adapter, run)
    assert await run.attributes() == {"phase": "end", "tier": "gold"}
    assert await count_bodies(adapter, run) == [1]
    await settled(adapter, run)


# Contract: 5.attributes
async def test_too_many_attributes_fail_the_run(adapter: VercelWorld, site: Site) -> None:
    run = await sdk.start(flows.too_many_attributes)
    assert (await ended(adapter, run)).status == "failed"
    with pytest.raises(sdk.WorkflowRunFailedError, match="65 attributes") as caught:
        await run.return_value()
    assert caught.value.error_code == "USER_ERROR"
    assert len(await run.attributes()) == 64
    if site.is_memory:
        # The delivery that failed comes once more, after its pause, and finds the run ended.
        await settled(adapter, run)


async def test_streams_are_read_while_they_are_written(adapter: VercelWorld) -> None:
    gate = a_name()
    run = await sdk.start(flows.streamed, gate)
    source = run.readable()
    async with contextlib.aclosing(source):
        assert [await anext(source), await anext(source)] == [{"part": 1}, b"part 2"]
        assert await run.status() == "running"
        assert (await run.stream_info()).done is False
        open_gate(gate)
        assert [value async for value in source] == ["part 3"]
    await value_of(adapter, run)
    assert [value async for value in run.readable(namespace="other", start_index=-2)] == [
        b"part 2",
        "part 3",
    ]
    assert len(await run.list_streams()) == 2
    info = await run.stream_info(namespace="other")
    assert (info.tail_index, info.done) == (2, True)
    await settled(adapter, run)


async def test_a_cancelled_step(adapter: VercelWorld) -> None:
    token = a_name()
    run = await sdk.start(flows.cancelled_step, token)

    async def running() -> bool:
        return bool(bodies(run.run_id))

    await until(running, what="the step")
    await hook_of(token)
    await flows.Approval(by="ann").resume(token)
    assert await value_of(adapter, run) == "cancelled: ann is in a hurry"
    assert await count_bodies(adapter, run) == [1]
    await settled(adapter, run)


async def test_a_terminated_run_with_a_hook(adapter: VercelWorld) -> None:
    token = a_name()
    run = await sdk.start(flows.approved, token)
    hook = await hook_of(token)
    await run.terminate(reason="no longer needed")
    assert await run.status() == "cancelled"
    with pytest.raises(RuntimeError, match="cancelled"):
        await run.return_value()
    with pytest.raises(sdk.HookNotFoundError):
        await flows.Approval(by="ann").resume(token)
    with pytest.raises(sdk.RunExpiredError):
        await flows.Approval(by="ann").resume(hook)
    event = (await log(adapter, run))[-1]
    assert event.event_type == "run_cancelled"
    assert event.event_data.cancel_reason == "no longer needed"
    await run.terminate()
    await settled(adapter, run)


async def test_a_terminated_run_with_a_running_step(adapter: VercelWorld) -> None:
    gate = a_name()
    run = await sdk.start(flows.never_ends, gate)

    async def running() -> bool:
        return bool(bodies(run.run_id))

    await until(running, what="the step")
    await run.terminate()
    open_gate(gate)

    async def step_ended() -> bool:
        last: str = (await log(adapter, run))[-1].event_type
        return last == "step_completed"

    # It may still tell its outcome; nothing follows from it.
    await until(step_ended, what="the end of the step")
    await settled(adapter, run)
    assert await count_bodies(adapter, run) == [1]
    assert await run.status() == "cancelled"


async def test_a_child_run(adapter: VercelWorld) -> None:
    run = await sdk.start(flows.parent, 2)
    assert await value_of(adapter, run) == 2
    await settled(adapter, run)


async def test_a_registry_with_a_namespace(adapter: VercelWorld) -> None:
    run = await sdk.start(flows.order, 5)
    assert await value_of(adapter, run) == "charged 5, charged 6"
    assert await count_bodies(adapter, run) == [1, 1]
    await settled(adapter, run)


@pytest.mark.large
async def test_many_runs_at_once(adapter: VercelWorld) -> None:
    runs = [await sdk.start(flows.sequential, 2) for _ in range(10)]
    others = [await sdk.start(flows.order, number) for number in range(10)]
    assert await asyncio.gather(*(value_of(adapter, run) for run in runs)) == [2] * 10
    assert await asyncio.gather(*(value_of(adapter, run) for run in others)) == [
        f"charged {number}, charged {number + 1}" for number in range(10)
    ]
    every: list[sdk.Run[Any]] = [*runs, *others]
    for run in every:
        assert await count_bodies(adapter, run) == [1, 1]
    await settled(adapter, *every)


# Contract: 7.health checks
@pytest.mark.parametrize("topic", ["__wkf_workflow_", "__orders_wkf_workflow_"])
async def test_a_health_check(adapter: VercelWorld, topic: str) -> None:
    correlation_id = a_name()
    probe = w.HealthCheckPayload(health_check=True, correlation_id=correlation_id)
    await adapter.queue(f"{topic}health_check", probe)
    source: AsyncGenerator[bytes, None] = adapter.streams_get(
        f"wrun_hc_{correlation_id}", f"__health_check__{correlation_id}"
    )
    answer = json.loads(b"".join([chunk async for chunk in source]))
    assert (answer["healthy"], answer["correlationId"]) == (True, correlation_id)


async def test_everything_in_one_run(adapter: VercelWorld) -> None:
    token, gate = a_name(), a_name()
    run = await sdk.start(flows.everything, token, gate)
    await hook_of(token)
    await flows.Approval(by="ann").resume(token)
    source = run.readable()
    async with contextlib.aclosing(source):
        assert await anext(source) == {"part": 1}
        open_gate(gate)
        assert [value async for value in source] == [b"part 2", "part 3"]
    assert await value_of(adapter, run) == {
        "counted": 3,
        "fanned": 55,
        "attempts": 3,
        "late": 2,
        "child": 2,
        "by": "ann",
        "cancelled": "CancelledError",
    }
    assert await run.attributes() == {"phase": "end", "tier": "gold"}
    await settled(adapter, run)
