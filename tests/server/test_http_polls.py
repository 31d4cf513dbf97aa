"""Long polls: for messages, and for the ends of runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import cbor2
import pytest

from redis_world import RedisWorld
from redis_world.queue import Message
from redis_world.server import polls
from support import events as e
from support.backends import Backend
from support.commandstats import Counts
from support.http_server import CBOR, Client, Served, serving
from support.queue_tools import NAME, TOPIC

pytestmark = pytest.mark.large

STEPS = "__wkf_step_"


def poll(worker: str = "w1", wait: float = 20, **more: Any) -> dict[str, Any]:
    return {"topics": [TOPIC], "wait": wait, "worker": worker, **more}


async def claimed(client: Client, **arguments: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.value("queue.claim", poll(**arguments)))[
        "messages"
    ]
    return found


async def test_what_is_there_is_claimed_at_once(world: RedisWorld, client: Client) -> None:
    for number in range(5):
        await world.queue.send(NAME, {"number": number})
    first = await claimed(client, limit=3)
    assert [each["payload"]["number"] for each in first] == [0, 1, 2]
    assert [each["payload"]["number"] for each in await claimed(client)] == [3, 4]


async def test_an_empty_poll_ends_at_its_time(client: Client) -> None:
    began = time.monotonic()
    assert await claimed(client, wait=0) == []
    assert time.monotonic() - began < 5
    began = time.monotonic()
    assert await claimed(client, wait=0.5) == []
    assert 0.5 <= time.monotonic() - began < 5


async def test_a_message_ends_the_wait(world: RedisWorld, client: Client) -> None:
    """By its notification: without one the next look would be three seconds away."""
    await claimed(client, wait=0.2)
    for number in range(5):
        polling = asyncio.create_task(claimed(client))
        await asyncio.sleep(0.2)
        sent = time.monotonic()
        await world.queue.send(NAME, {"number": number})
        (message,) = await polling
        assert time.monotonic() - sent < 1
        await client.value("queue.ack", {"handle": message["handle"]})


async def test_a_delayed_message_comes_in_time(world: RedisWorld, client: Client) -> None:
    await world.queue.send(NAME, {"number": 1}, delay=0.5)
    began = time.monotonic()
    assert len(await claimed(client)) == 1
    assert 0.45 <= time.monotonic() - began < 3


async def test_a_message_between_two_polls_is_not_late(world: RedisWorld, client: Client) -> None:
    assert await claimed(client, wait=0.2) == []
    await world.queue.send(NAME, {"number": 1})
    began = time.monotonic()
    assert len(await claimed(client)) == 1
    assert time.monotonic() - began < 1


async def test_a_message_for_a_worker_that_does_not_come_back_goes_to_another(
    world: RedisWorld, client: Client
) -> None:
    """The first one sleeps where the message comes, and polls no more."""
    assert await claimed(client, worker="gone", wait=0.2) == []
    other = asyncio.create_task(claimed(client, worker="here"))
    await asyncio.sleep(0.2)
    sent = time.monotonic()
    await world.queue.send(NAME, {"number": 1})
    assert len(await other) == 1
    assert time.monotonic() - sent < 2


async def test_two_workers_do_not_get_the_same(world: RedisWorld, client: Client) -> None:
    waiting = [asyncio.create_task(claimed(client, worker=f"w{n}", wait=2)) for n in range(4)]
    await asyncio.sleep(0.2)
    for number in range(8):
        await world.queue.send(NAME, {"number": number})
    found = [each for task in waiting for each in await task]
    while more := await claimed(client, worker="w9", wait=0.3):
        found += more
    assert sorted(each["payload"]["number"] for each in found) == [*range(8)]


async def test_several_topics(world: RedisWorld, client: Client) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created("s"))
    waiting = asyncio.create_task(client.value("queue.claim", poll() | {"topics": [TOPIC, STEPS]}))
    await asyncio.sleep(0.2)
    await world.queue.send(f"{STEPS}charge", {"workflowRunId": run_id, "stepId": "s"})
    (message,) = (await waiting)["messages"]
    assert message["payload"] == {"workflowRunId": run_id, "stepId": "s"}


async def test_what_a_client_that_leaves_would_get_is_released(
    backend: Backend, world: RedisWorld, served: Served
) -> None:
    client, body = served.client, cbor2.dumps(poll(lease=600))
    _, writer = await client.open("POST", "/v1/queue.claim", body, {"Content-Type": CBOR})
    await asyncio.sleep(0.2)
    writer.close()
    await world.queue.send(NAME, {"number": 1})
    (message,) = await claimed(client, worker="w2")
    # Whoever left was given nothing, or has given it back.
    assert (message["attempt"], message["failures"]) == (1, 0)


async def test_a_postponed_message_goes_to_others_first(world: RedisWorld, client: Client) -> None:
    await world.queue.send(NAME, {"number": 1})
    (message,) = await claimed(client, worker="w1")
    await client.value("queue.postpone", {"handle": message["handle"], "delay": 30})
    assert await claimed(client, worker="w1", wait=0.3) == []
    (again,) = await claimed(client, worker="w2")
    assert again["messageId"] == message["messageId"]


async def test_a_stop_ends_polls_and_leaves_nothing_leased(
    backend: Backend, world: RedisWorld
) -> None:
    async with serving(backend, namespace=world.config.namespace) as served:
        waiting = [asyncio.create_task(claimed(served.client, worker=f"w{n}")) for n in range(5)]
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await served.stop()
        assert [await task for task in waiting] == [[]] * 5
        assert time.monotonic() - began < 5
    await world.queue.send(NAME, {"number": 1})
    assert (await world.queue.stats(TOPIC)).ready == 1


BAD_POLLS: list[dict[str, Any]] = [
    {"topics": []}, {"topics": [TOPIC] * 9}, {"topics": ["orders"]}, {"limit": 0}, {"limit": 1001},
    {"wait": 21}, {"wait": -1}, {"lease": 0}, {"worker": "a b"}, {"worker": "x" * 65},
    {"worker": 7}, {"wait": float("nan")}, {"lease": float("inf")}, {"more": 1},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_POLLS, ids=repr)
async def test_a_bad_poll_is_refused(client: Client, bad: dict[str, Any]) -> None:
    reply = await client.call("queue.claim", poll() | bad)
    assert (reply.status, reply.value["code"]) == (400, "invalid-input")


async def test_an_idle_worker_costs_little(
    real_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        real_backend.world() as world,
        serving(real_backend, namespace=world.config.namespace) as served,
    ):
        await claimed(served.client, wait=0.2)
        with real_backend.client() as client:
            counts = Counts(client)
            assert await claimed(served.client, wait=4) == []
            # A look when it begins, one when a notification could have been lost, one at the end.
            assert counts.scripts() <= 4


async def test_a_gone_worker_is_forgotten(
    world: RedisWorld, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "_IDLE_SECONDS", 0.2)
    await claimed(served.client, wait=0)
    namespace = served.app._namespaces[world.config.namespace]
    async with asyncio.timeout(20):
        while namespace.polls._listeners:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# -- ends of runs --------------------------------------------------------------------------


async def test_the_end_of_a_run_is_told_at_once(world: RedisWorld, client: Client) -> None:
    run_id = await e.new_run(world)
    waiting = asyncio.create_task(client.value("runs.waitForTerminal", {"runId": run_id}))
    await asyncio.sleep(0.3)
    ended = time.monotonic()
    await e.write(world, run_id, e.run_ended("completed"))
    assert (await waiting)["status"] == "completed"
    assert time.monotonic() - ended < 1


async def test_a_run_that_goes_on_is_told_at_the_time(world: RedisWorld, client: Client) -> None:
    run_id = await e.new_run(world)
    began = time.monotonic()
    run = await client.value("runs.waitForTerminal", {"runId": run_id, "timeout": 0.5})
    assert run["status"] == "running"
    assert 0.5 <= time.monotonic() - began < 5
    reply = await client.call("runs.waitForTerminal", {"runId": run_id, "timeout": 26})
    assert reply.status == 400
    assert (await client.call("runs.waitForTerminal", {"runId": "wrun_none"})).status == 404


async def test_a_stop_tells_the_run_as_it_is(backend: Backend, world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    async with serving(backend, namespace=world.config.namespace) as served:
        call = served.client.value("runs.waitForTerminal", {"runId": run_id})
        waiting = asyncio.create_task(call)
        await asyncio.sleep(0.3)
        await served.stop()
        assert (await waiting)["status"] == "running"


async def test_whoever_leaves_is_noticed(world: RedisWorld, served: Served) -> None:
    run_id = await e.new_run(world)
    body, headers = cbor2.dumps({"runId": run_id}), {"Content-Type": CBOR}
    writers = []
    for _ in range(20):
        _, writer = await served.client.open("POST", "/v1/runs.waitForTerminal", body, headers)
        writers.append(writer)
    async with asyncio.timeout(20):
        while served.app._in_work < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for writer in writers:
            writer.close()
        while served.app._in_work:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_handle_is_good_in_any_process(world: RedisWorld, client: Client) -> None:
    await world.queue.send(NAME, {"number": 1})
    (message,) = await claimed(client)
    assert await world.queue.extend(Message.from_handle(message["handle"]), lease=5)
    assert await client.value("queue.release", {"handle": message["handle"]}) == {"done": True}
