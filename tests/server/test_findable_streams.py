"""Streams that readers find by their name alone, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from redis_world.connection import sender
from redis_world.lua import default_library
from redis_world.server.app import App
from redis_world.testing import check_invariants
from support.backends import Backend

RUN = "wrun_one"
BYTES = {"base64": "MQ=="}
WRITES: dict[str, dict[str, Any]] = {
    "streams.write": {"chunk": BYTES},
    "streams.writeMany": {"chunks": [BYTES, BYTES]},
    "streams.close": {},
}


class Client:
    """Asks an application, without a network."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def post(self, method: str, **arguments: Any) -> tuple[int, Any]:
        return await self._ask("POST", method, body=json.dumps(arguments).encode())

    async def get(self, method: str, **arguments: str) -> tuple[int, Any]:
        return await self._ask("GET", method, query=urlencode(arguments))

    async def _ask(
        self, verb: str, method: str, *, query: str = "", body: bytes = b""
    ) -> tuple[int, Any]:
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": verb,
            "path": f"/v1/{method}",
            "query_string": query.encode(),
            "headers": [(b"content-type", b"application/json"), (b"accept", b"application/json")],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        reply = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(reply) if reply else None


@pytest_asyncio.fixture
async def client(backend: Backend) -> AsyncIterator[Client]:
    namespace = backend.namespace()
    app = App(backend.world, namespace=namespace)
    yield Client(app)
    async with backend.world(namespace=namespace) as world:
        await check_invariants(world)
    await app.aclose()


@pytest.mark.parametrize("method", WRITES)
async def test_a_findable_write_is_found_by_its_name(client: Client, method: str) -> None:
    name = "a b/ü"
    where = {"runId": RUN, "name": name}
    status, _ = await client.post(method, **where, **WRITES[method], findable=True)
    assert status == 200
    assert await client.get("streams.find", name=name) == (200, {"runId": RUN})
    assert await client.post("streams.find", name=name) == (200, {"runId": RUN})
    # The write has happened, too.
    _, info = await client.get("streams.getInfo", **where)
    chunks = {"streams.write": 1, "streams.writeMany": 2, "streams.close": 0}[method]
    assert info == {"tailIndex": chunks - 1, "done": method == "streams.close"}


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("more", [{}, {"findable": False}])
async def test_any_other_write_is_not(client: Client, method: str, more: dict[str, bool]) -> None:
    status, _ = await client.post(method, runId=RUN, name="out", **WRITES[method], **more)
    assert status == 200
    assert await client.get("streams.find", name="out") == (200, {"runId": None})


async def test_the_first_run_of_a_name_is_found(client: Client) -> None:
    for run_id in (RUN, "wrun_other"):
        status, _ = await client.post(
            "streams.write", runId=run_id, name="out", chunk=BYTES, findable=True
        )
        assert status == 200
    assert await client.get("streams.find", name="out") == (200, {"runId": RUN})


async def test_a_refused_write_answers_its_error(client: Client) -> None:
    """It is the write's, not that of a part of the request."""
    await client.post("streams.close", runId=RUN, name="out")
    status, failure = await client.post(
        "streams.write", runId=RUN, name="out", chunk=BYTES, findable=True
    )
    assert (status, failure["message"]) == (409, f"stream 'out' of run {RUN} is closed")


async def test_a_findable_write_is_one_round_trip(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Opens the World, which loads its scripts.
    await client.get("streams.find", name="out")
    names = ("streams/write", "streams/note_run")
    scripts = {default_library()[name].sha.encode(): name for name in names}
    original = sender.round_trip
    seen: list[set[str]] = []

    async def round_trip(
        client: Any, commands: Sequence[sender.Command], *packed: Any
    ) -> list[sender.Reply]:
        found = {scripts[command[1]] for command in commands if command[1] in scripts}
        seen.extend([found] if found else [])
        return await original(client, commands, *packed)

    monkeypatch.setattr(sender, "round_trip", round_trip)
    await client.post("streams.write", runId=RUN, name="out", chunk=BYTES, findable=True)
    assert seen == [{*names}]
