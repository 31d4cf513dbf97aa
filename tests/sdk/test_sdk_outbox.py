"""Messages that travel with their events: no crash between the two leaves a run behind."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from vercel import workflow as sdk
from vercel.workflow._internal import world as w

from redis_world import RedisWorld
from redis_world.errors import WorldUnavailableError
from redis_world.queue import Message
from redis_world.testing import check_invariants
from redis_world.vercel import VercelWorld
from redis_world.vercel.outbox import delivery
from support import events as e
from support.marks import slow
from support.sdk import Site, attach, flows, hook_of, idle, settled, value_of
from support.sdk_files import FOLDER


@pytest_asyncio.fixture
async def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VercelWorld]:
    """A World in this process alone."""
    monkeypatch.setenv(FOLDER, str(folder))
    site = Site("memory", f"memory://outbox-{secrets.token_hex(6)}", "outbox")
    async with site.adapter() as adapter:
        yield adapter


@pytest.fixture
def no_sends(here: VercelWorld, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent by a call of its own."""
    sent: list[str] = []
    send = here.world.queue.send

    async def counted(queue_name: str, payload: Any, **options: Any) -> str | None:
        sent.append(queue_name)
        return await send(queue_name, payload, **options)

    monkeypatch.setattr(here.world.queue, "send", counted)
    return sent


async def test_no_message_costs_a_call(here: VercelWorld, no_sends: list[str]) -> None:
    assert await value_of(here, await sdk.start(flows.sequential, 3)) == 3
    assert await value_of(here, await sdk.start(flows.fan_out, 10)) is not None
    await idle(here.world)
    assert no_sends == []


async def test_the_last_event_of_a_delivery_ends_it(
    here: VercelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each step, and of the run: an ack is left for the replays that begin a step."""
    acked: list[str] = []
    ack = here.world.queue.ack

    async def counted(message: Message, **options: Any) -> bool:
        acked.append("step" if message.is_step else "replay")
        return await ack(message, **options)

    monkeypatch.setattr(here.world.queue, "ack", counted)
    assert await value_of(here, await sdk.start(flows.sequential, 3)) == 3
    await idle(here.world)
    assert acked == ["replay"] * 3
    await check_invariants(here.world)


@pytest.mark.parametrize("count", [3, 40])
async def test_a_replay_reads_its_log_with_its_start(
    here: VercelWorld, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    asked: list[str | None] = []
    read = here.world.events.list

    async def counted(run_id: str, **options: Any) -> Any:
        asked.append(options["cursor"])
        return await read(run_id, **options)

    monkeypatch.setattr(here.world.events, "list", counted)
    assert await value_of(here, await sdk.start(flows.sequential, count)) == count
    assert asked == []


async def test_a_log_that_was_read_ahead_is_read_once(here: VercelWorld) -> None:
    """What the same delivery has written, or what came since, is found by a further look."""
    start = w.RunCreatedEventData(deployment_id="", workflow_name="by hand", input=b"")
    created = await here.events_create(None, start.into_event())
    assert created.run is not None
    run_id = created.run.run_id

    async def log() -> list[str]:
        return [event.event_type for event in (await here.events_list(run_id)).data]

    with delivery("__wkf_workflow_x", is_replay=True):
        await here.events_create(run_id, w.RunStartedEvent())
        before = await log()
        await here.world.events.create(run_id, e.step_created("s"))
        assert await log() == [*before, "step_created"]
        await here.events_create(run_id, w.RunStartedEvent())
        data = w.StepCreatedEventData(step_name="s", input=b"")
        await here.events_create(run_id, data.into_event("step_2"))
        assert await log() == [*before, "step_created", "step_created"]


@pytest.mark.parametrize("steps", [100, *map(slow, (940, 1500))])
async def test_a_long_log_that_was_read_ahead_is_read_to_its_end(
    here: VercelWorld, steps: int
) -> None:
    """The second time it is known how long it was."""
    start = w.RunCreatedEventData(deployment_id="", workflow_name="by hand", input=b"")
    created = await here.events_create(None, start.into_event())
    assert created.run is not None
    run_id = created.run.run_id
    for number in range(steps):
        await here.world.events.create(run_id, e.step_created(f"step_{number}"))
    for _ in range(2):
        with delivery("__wkf_workflow_x", is_replay=True):
            await here.events_create(run_id, w.RunStartedEvent())
            found = await whole_log(here, run_id)
        assert found == await whole_log(here, run_id)
        assert len(found) == steps + 2


async def whole_log(here: VercelWorld, run_id: str) -> list[w.Event]:
    """All events, read as the runtime does."""
    found: list[w.Event] = []
    cursor = None
    while True:
        page = await here.events_list(run_id, pagination=w.PaginationOptions(cursor=cursor))
        found += page.data
        cursor = page.cursor
        if not page.has_more:
            return found


async def test_a_start_that_dies_before_it_queues_is_a_start(
    here: VercelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ids: list[str] = []

    async def dies(_queue_name: str, message: Any, **_options: Any) -> str:
        run_ids.append(message.run_id)
        raise WorldUnavailableError("the process is gone")

    with monkeypatch.context() as patch:
        patch.setattr(here, "queue", dies)
        with pytest.raises(WorldUnavailableError):
            await sdk.start(flows.no_step, 1)
    run = sdk.get_run(run_ids[0])
    assert await value_of(here, run) == 2


async def test_a_delivery_that_dies_before_it_queues_its_steps_leaves_none_behind(
    here: VercelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay that follows sees the step and would never queue it again."""
    queue = here.queue
    died: list[str] = []

    async def dies_once(queue_name: str, message: Any, **options: Any) -> str:
        if message.step_id is not None and not died:
            died.append(message.step_id)
            raise WorldUnavailableError("the process is gone")
        return await queue(queue_name, message, **options)

    monkeypatch.setattr(here, "queue", dies_once)
    run = await sdk.start(flows.sequential, 2)
    assert await value_of(here, run) == 2
    assert died
    # What died is tried again later, and finds nothing to do.
    await here.world.sweep()
    log = (await here.world.events.list(run.run_id)).data
    assert [each.event_type for each in log].count("step_created") == 2


async def test_a_resume_that_dies_before_it_queues_wakes_the_run(
    here: VercelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = secrets.token_hex(8)
    run = await sdk.start(flows.approved, token)

    async def dies(*_args: Any, **_options: Any) -> str:
        raise WorldUnavailableError("the process is gone")

    await hook_of(token)
    with monkeypatch.context() as patch:
        patch.setattr(here, "queue", dies)
        with pytest.raises(WorldUnavailableError):
            await flows.Approval(by="ann").resume(token)
    assert await value_of(here, run) == "ann"


async def test_outside_of_a_delivery_only_what_the_runtime_sends_is_sent(
    here: VercelWorld,
) -> None:
    """Somebody who writes a step's events by hand has said nothing of a queue."""
    run = await sdk.start(flows.no_step, 1)
    await settled(here, run)
    created = await here.events_create(
        None,
        w.RunCreatedEventData(deployment_id="", workflow_name="by hand", input=b"").into_event(),
    )
    assert created.run is not None
    run_id = created.run.run_id
    await here.events_create(run_id, w.RunStartedEvent())
    data = w.StepCreatedEventData(step_name="s", input=b"")
    await here.events_create(run_id, data.into_event("step_1"))
    await here.events_create(run_id, w.StepStartedEvent(correlation_id="step_1"))
    await here.events_create(run_id, w.StepCompletedEventData(result=b"").into_event("step_1"))
    stats = await here.world.queue.stats("__wkf_workflow_")
    assert (stats.ready, stats.delayed, stats.leased) == (0, 0, 0)


async def test_a_result_that_is_too_large_ends_its_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replay made it again, until its message was a dead letter and the run left running."""
    monkeypatch.setenv(FOLDER, str(folder))
    world = RedisWorld(f"memory://large-{secrets.token_hex(6)}", max_payload_bytes=2000)
    adapter = attach(VercelWorld(world))
    run_id = (await adapter.events_create(None, created())).run
    assert run_id is not None
    await adapter.events_create(run_id.run_id, w.RunStartedEvent())
    output = w.RunCompletedEventData(output=secrets.token_bytes(3000)).into_event()
    with pytest.raises(w.RunExpiredError):
        await adapter.events_create(run_id.run_id, output)
    run = await adapter.runs_get(run_id.run_id)
    assert (run.status, run.error_code) == ("failed", "USER_ERROR")
    await adapter.aclose()


def created() -> w.RunCreatedEvent:
    return w.RunCreatedEventData(deployment_id="", workflow_name="w", input=b"").into_event()
