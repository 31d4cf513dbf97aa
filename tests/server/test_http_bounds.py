"""What no request may do: too much, too slowly, too deep, or elsewhere. Nothing is stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import cbor2
import pytest

from redis_world import RedisWorld
from redis_world.server import Limits, protocol
from redis_world.server.methods import METHODS
from redis_world.server.wire import MAX_DEPTH
from support import events as e
from support.backends import Backend
from support.http_server import CBOR, JSON, Client, Served, read_reply, serving
from support.queue_tools import TOPIC

pytestmark = pytest.mark.large

LIMIT: Final = 100_000
PUBLIC: Final = ("/livez", "/readyz", "/openapi.json")
ERROR_KEYS: Final = {"status", "code", "message", "retryAfter", "reason"}


@pytest.fixture
async def small(backend: Backend, world: RedisWorld) -> AsyncIterator[Served]:
    """A server that takes small bodies."""
    limits = Limits(body=LIMIT)
    async with serving(backend, namespace=world.config.namespace, limits=limits) as served:
        yield served


def created(size: int = 0) -> dict[str, Any]:
    return {
        "runId": None,
        "event": e.event("run_created", deploymentId="d", workflowName="w", input=b"x" * size),
    }


async def test_a_body_that_is_too_large_is_not_even_read(backend: Backend, small: Served) -> None:
    before = backend.dump()
    headers = {"Content-Type": CBOR, "Content-Length": str(LIMIT + 1)}
    reader, writer = await small.client.open("POST", "/v1/events.create", b"", headers)
    # Nothing of it has been sent, and the answer is there.
    reply = await read_reply(reader)
    assert (reply.status, reply.value["code"]) == (413, "too-large")
    writer.close()
    reply = await small.client.call("events.create", created(LIMIT))
    assert reply.status == 413
    assert backend.dump() == before
    assert (await small.client.call("events.create", created(LIMIT - 1000))).status == 200


async def test_a_body_of_unknown_length_is_bounded(backend: Backend, small: Served) -> None:
    before = backend.dump()
    headers = {"Content-Type": CBOR, "Transfer-Encoding": "chunked"}
    reader, writer = await asyncio.open_connection("127.0.0.1", small.client.port)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST /v1/events.create HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
    for _ in range(LIMIT // 1000 + 1):
        writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    reply = await read_reply(reader)
    assert reply.status == 413
    writer.close()
    assert backend.dump() == before


ROUTES: Final = [*sorted(METHODS), "queue.claim", "streams.read", "server.info"]
GETTABLE: Final = {name for name, m in METHODS.items() if m.has_get} | {
    "streams.read",
    "server.info",
}


@pytest.mark.parametrize("verb", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_only_the_methods_of_a_route(client: Client, verb: str) -> None:
    for route in ROUTES:
        if verb == "GET" and route in GETTABLE:
            continue
        reply = await client.send(verb, f"/v1/{route}")
        assert (reply.status, reply.value["code"]) == (405, "method-not-allowed"), route
        allowed = "POST, GET, HEAD" if route in GETTABLE else "POST"
        assert reply.headers["allow"] == allowed
    for path in PUBLIC:
        if verb != "GET":
            reply = await client.send(verb, path)
            assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


PATHS: Final = [
    "/", "/v1", "/v1/", "/v1/runs", "/v1/runs.", "/v1/.get", "/v1/runs.get/", "/v1//runs.get",
    "/v1/RUNS.GET", "/v2/runs.get", "/v1/../v1/runs.get", "/v1/runs%2eget%00",
    "/v1/%2e%2e/runs.get", "/livez/", "/LIVEZ", "//livez", "/v1/__class__", "/v1/runs.get;x",
    "/v1/redis", "/etc/passwd", "/v1/" + "x" * 5000, "/v1/é", "*",
    "http://elsewhere/v1/runs.nothing",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
async def test_other_paths_are_not_found(client: Client, path: str) -> None:
    reply = await client.send("POST", path.encode().decode("latin-1"))
    assert reply.status in (400, 404)
    assert b"Traceback" not in reply.body
    if reply.headers["content-type"] in (CBOR, JSON):
        assert {*reply.value} <= ERROR_KEYS


@pytest.mark.parametrize("given", ["text/plain", "multipart/form-data", "application/xml", "x"])
async def test_other_media_types_are_refused(client: Client, given: str) -> None:
    reply = await client.send("POST", "/v1/runs.list", b"{}", {"Content-Type": given})
    assert (reply.status, reply.value["code"]) == (415, "unsupported-media-type")


def deep(levels: int) -> bytes:
    return b"\x81" * levels + b"\x00"


BODIES: Final[dict[str, tuple[str, bytes]]] = {
    "no CBOR": (CBOR, b"\xff"),
    "half of it": (CBOR, cbor2.dumps(created(100))[:-50]),
    "deep CBOR": (CBOR, deep(MAX_DEPTH + 1)),
    "very deep CBOR": (CBOR, deep(90_000)),
    "an endless one": (CBOR, b"\x9f" * 50_000),
    "a huge length": (CBOR, b"\x5b" + b"\xff" * 8),
    "a huge array": (CBOR, b"\x9b" + b"\x7f" * 8),
    "a regular expression": (CBOR, cbor2.dumps(cbor2.CBORTag(35, "(a+)+$"))),
    "a reference to itself": (CBOR, bytes.fromhex("d81c81d81d00")),
    "a decimal": (CBOR, bytes.fromhex("c4821a7fffffff01")),
    "an unknown tag": (CBOR, cbor2.dumps(cbor2.CBORTag(4711, "x"))),
    "a list": (CBOR, cbor2.dumps([1])),
    "a text": (CBOR, cbor2.dumps("x")),
    "numbers for names": (CBOR, cbor2.dumps({1: 2})),
    "bytes for names": (CBOR, cbor2.dumps({b"runId": "x"})),
    "no JSON": (JSON, b"{"),
    "no UTF-8": (JSON, b'{"runId": "\xff"}'),
    "deep JSON": (JSON, b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)),
    "very deep JSON": (JSON, b"[" * 99_000),
    "a huge number": (JSON, b'{"limit": ' + b"9" * 90_000 + b"}"),
    "not a number": (JSON, b'{"limit": NaN}'),
    "bad base64": (JSON, b'{"chunk": {"base64": "!"}}'),
    "another name": (JSON, b'{"runID": "x"}'),
    "a list for a text": (JSON, b'{"runId": ["x"]}'),
    "nothing": (JSON, b"null"),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_bad_body_is_refused_and_nothing_is_stored(
    backend: Backend, client: Client, name: str
) -> None:
    media_type, body = BODIES[name]
    before = backend.dump()
    for method in ("events.create", "runs.get", "streams.write", "queue.claim"):
        reply = await client.send("POST", f"/v1/{method}", body, {"Content-Type": media_type})
        assert (reply.status, reply.value["code"]) == (400, "invalid-input"), reply.value
        assert reply.headers["content-type"] == media_type
        assert {*reply.value} <= ERROR_KEYS
    assert backend.dump() == before


async def test_a_structure_is_stored_as_deep_as_a_body_may_be(client: Client) -> None:
    value: Any = b"x"
    for _ in range(MAX_DEPTH - 20):
        value = [value]
    result = await client.value("events.create", created() | {"event": event_with(value)})
    assert result["event"]["eventData"]["input"] == value


def event_with(value: Any) -> dict[str, Any]:
    return e.event("run_created", deploymentId="d", workflowName="w", input=value)


QUERIES: Final = ["runId=%ff", "runId", "limit=x&runId=a", "a=b&runId=c", "runId=a&runId=b",
                  "&".join(f"x{i}=1" for i in range(2000)), "runId=a&limit=1e99"]  # fmt: skip


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
async def test_a_bad_query_is_refused(client: Client, query: str) -> None:
    reply = await client.send("GET", f"/v1/events.list?{query}")
    if query != "runId":
        assert (reply.status, reply.value["code"]) == (400, "invalid-input")


ZERO: Final = "0" * 26
BAD_HEADERS: Final = [
    {"Request-Id": "x"}, {"Request-Id": "U" * 26},
    {"Request-Id": ZERO, "Request-Attempt": "0"}, {"Request-Id": ZERO, "Request-Attempt": "x"},
    {"Request-Id": ZERO, "Request-Attempt": "-1"},
    {"Request-Id": ZERO, "Request-Attempt": "9" * 30},
]  # fmt: skip


@pytest.mark.parametrize("headers", BAD_HEADERS, ids=range(len(BAD_HEADERS)))
async def test_a_bad_request_id_is_refused(
    backend: Backend, client: Client, headers: dict[str, str]
) -> None:
    before = backend.dump()
    for method, given in (("events.create", created()), ("queue.claim", {"topics": [TOPIC]})):
        body = cbor2.dumps(given)
        reply = await client.send("POST", f"/v1/{method}", body, {"Content-Type": CBOR, **headers})
        assert (reply.status, reply.value["code"]) == (400, "invalid-input")
    assert backend.dump() == before


# -- slow and large ------------------------------------------------------------------------


async def test_headers_that_are_too_large(client: Client) -> None:
    reply = await client.send("GET", "/livez", headers={"X": "x" * protocol.MAX_HEADER_BYTES})
    assert reply.status == 431
    assert (reply.value["status"], reply.value["code"]) == (431, "headers-too-large")
    many = {f"X-{i}": "x" * 100 for i in range(900)}
    assert (await client.send("GET", "/livez", headers=many)).status == 431
    assert (await client.send("GET", "/livez", headers={"X": "x" * 60_000})).status == 200


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nX", b"POST /v1/x"])
async def test_slow_headers(client: Client, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(sent)
    reply = await read_reply(reader)
    assert reply.status == 408
    assert (reply.value["status"], reply.value["code"]) == (408, "timeout")
    assert await reader.read() == b""
    writer.close()


async def test_a_slow_body(
    backend: Backend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "BODY_SECONDS", 0.2)
    before = backend.dump()
    headers = {"Content-Type": CBOR, "Content-Length": "1000"}
    reader, writer = await client.open("POST", "/v1/events.create", b"\xa2", headers)
    assert (await read_reply(reader)).status == 408
    writer.close()
    assert backend.dump() == before


async def test_a_body_that_ends_in_the_middle(backend: Backend, client: Client) -> None:
    before = backend.dump()
    body = cbor2.dumps(created(100))
    headers = {"Content-Type": CBOR, "Content-Length": str(len(body))}
    _, writer = await client.open("POST", "/v1/events.create", body[:-1], headers)
    writer.close()
    await writer.wait_closed()
    assert (await client.send("GET", "/readyz")).status == 200
    assert backend.dump() == before


async def test_requests_behind_each_other_on_one_connection(client: Client) -> None:
    """Also where they come in one piece."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
    for _ in range(3):
        assert json.loads((await read_reply(reader)).body) == {"status": "alive"}
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await read_reply(reader)).status == 200
    writer.close()


async def test_an_error_inside_is_told_without_its_text(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(served.app, "_namespace", fail)
    reply = await served.client.call("runs.list")
    assert (reply.status, reply.value["code"]) == (500, "WorkflowWorldError")
    assert b"secret" not in reply.body
    (record,) = [each for each in caplog.records if getattr(each, "event", "") == "request.failed"]
    assert record.__dict__["error_id"] in reply.value["message"]
