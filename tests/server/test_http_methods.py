"""Every method answers as the World itself does, in CBOR and in JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import cbor2
import pytest

from redis_world import RedisWorld
from redis_world.queue import Message
from redis_world.server.methods import METHODS
from support import events as e
from support.backends import Backend
from support.http_cases import CASES, TOKEN, Prepared, prepare
from support.http_server import Client, serving
from support.queue_tools import NAME, TOPIC, claim_one, content

pytestmark = pytest.mark.large


def test_every_method_has_a_case() -> None:
    assert {*CASES} == {*METHODS}


def plain(value: Any) -> Any:
    """A value of CBOR as JSON has it."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z"
    return value


READS: Final = sorted(name for name, method in METHODS.items() if method.has_get)


@pytest.mark.parametrize("name", READS)
async def test_a_read_is_the_same_by_each_way(
    world: RedisWorld, client: Client, name: str
) -> None:
    arguments = CASES[name](await prepare(world))
    in_cbor = await client.call(name, arguments)
    assert in_cbor.status == 200, in_cbor.value
    in_json = await client.call_json(name, plain(arguments))
    by_get = await client.get(name, arguments)
    assert in_json.headers["content-type"] == by_get.headers["content-type"] == "application/json"
    assert in_json.value == plain(in_cbor.value)
    assert without_ages(by_get.value) == without_ages(in_json.value)
    again = await client.call(name, arguments, Accept="application/json")
    assert without_ages(again.value) == without_ages(in_json.value)


def without_ages(value: Any) -> Any:
    return {k: v for k, v in value.items() if "Age" not in k} if isinstance(value, dict) else value


Direct = Callable[[RedisWorld, Prepared], Awaitable[Any]]
DIRECT: Final[dict[str, Direct]] = {
    "events.get": lambda w, p: w.events.get(p["run"], e.event_id(1)),
    "events.list": lambda w, p: w.events.list(p["run"], limit=2, sort_order="desc"),
    "runs.get": lambda w, p: w.runs.get(p["run"]),
    "runs.list": lambda w, _: w.runs.list(status=["running", "pending"], limit=5),
    "steps.get": lambda w, p: w.steps.get(p["run"], "step_1"),
    "steps.list": lambda w, p: w.steps.list(p["run"]),
    "waits.get": lambda w, p: w.waits.get(p["run"], "wait_1"),
    "waits.list": lambda w, p: w.waits.list(p["run"]),
    "hooks.get": lambda w, p: w.hooks.get("hook_1", run_id=p["run"]),
    "hooks.getByToken": lambda w, _: w.hooks.get_by_token(TOKEN),
    "hooks.list": lambda w, _: w.hooks.list(),
    "streams.getInfo": lambda w, p: w.streams.get_info(p["run"], "out"),
    "streams.getChunks": lambda w, p: w.streams.get_chunks(p["run"], "out", limit=2),
}


@pytest.mark.parametrize("name", DIRECT)
async def test_a_read_is_the_worlds_own(world: RedisWorld, client: Client, name: str) -> None:
    prepared = await prepare(world)
    direct = await DIRECT[name](world, prepared)
    answer = await client.value(name, CASES[name](prepared))
    assert answer == cbor2.loads(cbor2.dumps(direct.to_wire()))


@pytest.mark.parametrize("name", sorted({*METHODS} - {*READS}))
@pytest.mark.parametrize("as_json", [False, True])
async def test_a_write_is_accepted_in_each_format(
    world: RedisWorld, client: Client, name: str, as_json: bool
) -> None:
    arguments = CASES[name](await prepare(world))
    reply = await (
        client.call_json(name, plain(arguments)) if as_json else client.call(name, arguments)
    )
    assert reply.status == 200, reply.value


async def test_what_writes_do(world: RedisWorld, client: Client) -> None:
    prepared = await prepare(world)
    run_id = prepared["run"]
    created = await client.value("events.create", CASES["events.create"](prepared))
    assert created["event"] == (await world.events.list(run_id)).data[-1].to_wire()
    assert created["step"]["status"] == "running"
    batch = await client.value("events.createBatch", CASES["events.createBatch"](prepared))
    assert [each["status"] for each in batch["results"]] == [200, 409]
    cancelled = await client.value("runs.cancelMany", CASES["runs.cancelMany"](prepared))
    assert [each["outcome"] for each in cancelled["results"]] == ["cancelled", "not_found"]
    sent = await client.value("queue.sendMany", CASES["queue.sendMany"](prepared))
    assert sent["results"][1]["error"]["code"] == "invalid-input"
    assert sent["results"][1]["retryable"] is False
    await client.value("streams.write", CASES["streams.write"](prepared))
    page = await world.streams.get_chunks(run_id, "out")
    assert [chunk.data for chunk in page.data] == [b"a", b"", b"b", b"c"]


@pytest.mark.parametrize("end", ["ack", "retry", "release", "postpone", "extend"])
async def test_a_lease_is_ended_by_its_handle(world: RedisWorld, client: Client, end: str) -> None:
    prepared = await prepare(world)
    name = f"queue.{end}"
    assert await client.value(name, CASES[name](prepared)) == {"done": True}
    done = await client.value(name, CASES[name](prepared))
    assert done == {"done": end == "extend"}


async def test_a_claimed_message_is_there_whole(world: RedisWorld, client: Client) -> None:
    run_id = await e.new_run(world)
    payload = content(1, run_id) | {"input": b"\x00", "at": datetime(2030, 1, 2, tzinfo=UTC)}
    message_id = await world.queue.send(NAME, payload, headers={"a": "b"}, deployment_id="d")
    (message,) = (await client.value("queue.claim", {"topics": [TOPIC]}))["messages"]
    assert message["messageId"] == message_id
    assert message["payload"] == payload
    assert (message["headers"], message["deploymentId"]) == ({"a": "b"}, "d")
    assert (message["attempt"], message["failures"], message["postponed"]) == (1, 0, 0)
    assert await world.queue.ack(Message.from_handle(message["handle"]))


async def test_counts_name_what_was_postponed(world: RedisWorld, client: Client) -> None:
    run_id = await e.new_run(world)
    await world.queue.send(NAME, content(1, run_id))
    assert await world.queue.postpone(await claim_one(world), 60)
    stats = await client.value("queue.stats", {"topic": TOPIC})
    assert (stats["delayed"], stats["postponed"]) == (1, 1)
    (name,) = stats["postponedNames"]
    assert (name["queueName"], name["stepName"]) == (NAME, None)
    assert name["age"] >= 0


# -- values --------------------------------------------------------------------------------

PAYLOADS: Final = [b"", b"\x00\xff" * 10, "", "text", None, 0, 1.5, {"a": [b"x", None]}]


@pytest.mark.parametrize("payload", PAYLOADS, ids=repr)
async def test_payloads_stay_what_they_are(
    world: RedisWorld, client: Client, payload: Any
) -> None:
    run_id = await e.new_run(world)
    await client.value(
        "events.create", {"runId": run_id, "event": e.step_created("s", input=payload)}
    )
    stored = await client.value("steps.get", {"runId": run_id, "stepId": "s"})
    assert stored["input"] == payload
    assert type(stored["input"]) is type(payload)
    in_json = await client.get("steps.get", {"runId": run_id, "stepId": "s"})
    assert in_json.value["input"] == plain(payload)


async def test_an_absent_payload_stays_absent(world: RedisWorld, client: Client) -> None:
    created = e.event("run_created", deploymentId="d", workflowName="w")
    result = await client.value("events.create", {"runId": None, "event": created})
    assert "input" not in result["run"]
    assert "input" not in result["event"]["eventData"]
    run = await world.runs.get(result["run"]["runId"])
    assert "input" not in run.to_wire()


async def test_event_data_that_became_empty_is_an_empty_map(
    world: RedisWorld, client: Client
) -> None:
    """The schemas of the SDK want one, except where there never is any."""
    run_id = await e.new_run(world)
    await e.write(world, run_id, e.lazy_start("s"), e.step_completed("s"), e.wait_created("w"))
    await e.write(world, run_id, e.wait_completed("w"), e.run_ended("completed"))
    page = await client.value("events.list", {"runId": run_id, "resolveData": "none"})
    without = {each["eventType"] for each in page["data"] if "eventData" not in each}
    assert without <= {"run_started", "step_started", "wait_completed"}
    completed = next(each for each in page["data"] if each["eventType"] == "step_completed")
    assert isinstance(completed["eventData"], dict)


async def test_numbers_dates_and_tags_of_other_encoders(world: RedisWorld, client: Client) -> None:
    run_id = await e.new_run(world)
    at = datetime(2030, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
    event = e.step_created("s", input=cbor2.CBORTag(64, b"bytes")) | {"gone": cbor2.undefined}
    body = cbor2.dumps(
        {
            "runId": run_id,
            "event": event,
            # As a client writes that has one type of number.
            "eventCount": 5_000_000_000.0,
            "occurredAt": at,
            "resumeId": cbor2.undefined,
        },
        datetime_as_timestamp=True,
    )  # fmt: skip
    reply = await client.send(
        "POST", "/v1/events.create", body, {"Content-Type": "application/cbor"}
    )
    assert reply.status == 200, reply.value
    assert reply.value["step"]["input"] == b"bytes"
    assert reply.value["event"]["occurredAt"] == at


async def test_twenty_megabytes(world: RedisWorld, client: Client) -> None:
    run_id, payload = await e.new_run(world), bytes(range(256)) * 80_000
    result = await client.value(
        "events.create", {"runId": run_id, "event": e.step_created("s", input=payload)}
    )
    assert result["step"]["input"] == payload
    assert (await client.value("steps.get", {"runId": run_id, "stepId": "s"}))["input"] == payload


@pytest.mark.parametrize("name", ["", "a/b", "é🙂 ?&#%2e", "\x00", "x" * 500, "..", "=&=;"])
async def test_odd_names(world: RedisWorld, client: Client, name: str) -> None:
    run_id = await e.new_run(world)
    await client.value("streams.write", {"runId": run_id, "name": name, "chunk": b"x"})
    assert await client.value("streams.list", {"runId": run_id}) == [name]
    by_get = await client.get("streams.getInfo", {"runId": run_id, "name": name})
    assert by_get.value == {"tailIndex": 0, "done": False}


async def test_a_run_is_started_with_its_stored_event(world: RedisWorld, client: Client) -> None:
    run_id = await e.new_run(world)
    for skips in (False, True):
        result = await client.value(
            "events.create",
            {"runId": run_id, "event": e.event("run_started"), "skipPreload": skips},
        )
        assert result["event"]["eventId"] == e.event_id(2)


async def test_info_tells_versions_and_namespace(world: RedisWorld, client: Client) -> None:
    info = await client.value("server.info")
    assert info["namespace"] == world.config.namespace
    assert (info["protocol"], info["specVersion"], info["role"]) == (1, 7, "app")
    reply = await client.get("server.info", {})
    assert reply.value == info
    assert reply.headers["redis-world-server"] == info["version"]


async def test_a_namespace_is_taken_with_its_partitions(backend: Backend) -> None:
    namespace = backend.namespace()
    async with backend.world(namespace=namespace, partitions=3):
        pass
    async with serving(backend, namespace=namespace, partitions=1) as served:
        runs = await served.client.value("runs.list")
        assert runs == {"data": [], "cursor": None, "hasMore": False}
        health = await served.client.send("GET", "/livez")
        assert json.loads(health.body) == {"status": "alive"}
