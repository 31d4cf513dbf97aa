"""A request whose reply was lost is sent again, to another process, and happens once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import cbor2
import pytest

from redis_world import RedisWorld
from redis_world.server.methods import METHODS
from redis_world.testing import check_invariants
from support import events as e
from support.backends import Backend
from support.http_cases import CASES, prepare
from support.http_server import CBOR, Client, request_id, serving
from support.queue_tools import NAME, TOPIC, content

pytestmark = pytest.mark.slow

WRITES: Final = sorted(name for name, method in METHODS.items() if not method.has_get)
COUNTING: Final = ("queue.redrive", "queue.purgeDeadLetters")
"""They look for letters first, and find none when they are repeated."""


@pytest.fixture
async def two(backend: Backend, world: RedisWorld) -> AsyncIterator[tuple[Client, Client]]:
    """Two servers of one namespace, as two processes behind one address."""
    namespace = world.config.namespace
    async with (
        serving(backend, namespace=namespace) as one,
        serving(backend, namespace=namespace) as other,
    ):
        yield one.client, other.client


@pytest.mark.parametrize("name", WRITES)
async def test_a_repetition_changes_nothing_and_answers_the_same(
    backend: Backend, world: RedisWorld, two: tuple[Client, Client], name: str
) -> None:
    arguments = CASES[name](await prepare(world))
    request = request_id()
    first = await two[0].call(name, arguments, Request_Id=request)
    assert first.status == 200, first.value
    before = backend.dump()
    again = await two[1].call(name, arguments, Request_Id=request, Request_Attempt="2")
    # A lease is extended from now on, whenever that is.
    assert backend.dump() == before or name == "queue.extend"
    if name not in COUNTING:
        assert (again.status, again.value) == (first.status, first.value)


async def test_a_refusal_is_repeated(world: RedisWorld, two: tuple[Client, Client]) -> None:
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.step_created("s"))
    request, arguments = request_id(), {"runId": run_id, "event": e.step_created("s")}
    first = await two[0].call("events.create", arguments, Request_Id=request)
    again = await two[1].call("events.create", arguments, Request_Id=request, Request_Attempt="2")
    assert (again.status, again.value) == (first.status, first.value)
    assert (again.status, again.value["reason"]) == (409, "duplicate")


async def test_a_run_is_created_once_without_an_id(
    world: RedisWorld, two: tuple[Client, Client]
) -> None:
    request = request_id()
    created = e.event("run_created", deploymentId="d", workflowName="w", input=b"")
    arguments = {"runId": None, "event": created}
    runs = [
        await client.value(
            "events.create", arguments, Request_Id=request, Request_Attempt=str(attempt)
        )
        for attempt, client in enumerate((*two, *two), start=1)
    ]
    assert len({each["run"]["runId"] for each in runs}) == 1
    assert len((await world.runs.list()).data) == 1


async def test_a_claim_is_repeated_with_the_same_messages(
    world: RedisWorld, two: tuple[Client, Client]
) -> None:
    for number in range(5):
        await world.queue.send(NAME, {"number": number})
    request = request_id()
    arguments = {"topics": [TOPIC], "limit": 3, "worker": "w1"}
    first = await two[0].value("queue.claim", arguments, Request_Id=request)
    again = await two[1].value("queue.claim", arguments, Request_Id=request, Request_Attempt="2")
    assert again == first
    stats = await world.queue.stats(TOPIC)
    assert (stats.leased, stats.ready) == (3, 2)


async def test_requests_without_an_id_are_requests_of_their_own(
    world: RedisWorld, two: tuple[Client, Client]
) -> None:
    run_id = await e.new_run(world)
    for client in two:
        await client.value("streams.write", {"runId": run_id, "name": "s", "chunk": b"x"})
    assert (await world.streams.get_info(run_id, "s")).tail_index == 1


async def test_bursts_whose_replies_are_lost(
    world: RedisWorld, two: tuple[Client, Client]
) -> None:
    """Every connection is cut at once after its request; the repetition has the answer."""
    run_id = await e.new_run(world)

    async def write(number: int) -> str:
        arguments = {
            "runId": run_id,
            "event": e.step_created(f"s{number}"),
            "enqueue": {"queueName": NAME, "payload": content(number, run_id)},
        }
        body, request = cbor2.dumps(arguments), request_id()
        headers = {"Content-Type": CBOR, "Request-Id": request}
        _, writer = await two[0].open("POST", "/v1/events.create", body, headers)
        if number % 2:
            await asyncio.sleep(0.001 * (number % 7))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        result: dict[str, Any] = await two[1].value(
            "events.create", arguments, Request_Id=request, Request_Attempt="2"
        )
        return str(result["messageId"])

    sent = await asyncio.gather(*(write(number) for number in range(60)))
    assert len({*sent}) == 60
    log = await e.log(world, run_id)
    assert sorted(
        each.correlation_id or "" for each in log if each.event_type == "step_created"
    ) == (sorted(f"s{number}" for number in range(60)))
    await check_invariants(world)


async def test_a_client_that_leaves_before_its_reply(world: RedisWorld, client: Client) -> None:
    """What it asked for is done, or not, and the server goes on."""
    run_id = await e.new_run(world)
    body = cbor2.dumps({"runId": run_id, "event": e.step_created("s")})
    _, writer = await client.open("POST", "/v1/events.create", body, {"Content-Type": CBOR})
    writer.transport.abort()
    assert (await client.send("GET", "/readyz")).status == 200
