"""Messages that are pushed to an app: signed, judged by its answers, never lost."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import cbor2
import pytest

from redis_world import RedisWorld
from redis_world.errors import ConfigurationError
from redis_world.queue import topic_of
from redis_world.server.push import Pusher, PushOptions
from redis_world.server.signing import is_signed, sign
from support.backends import Backend
from support.ports import reserved_port
from support.queue_tools import NAME, TOPIC, content, start_run, wake
from support.until import until

pytestmark = pytest.mark.slow

SECRETS = ["an-old-token-of-the-app", "a-new-token-of-the-app"]
STEP_NAME = "__wkf_step_charge"


@dataclass
class StubApp:
    """An app's routes: what it got, and what it answers."""

    url: str = ""
    answers: list[tuple[int, bytes, dict[str, str]]] = field(default_factory=list)
    """In order; the last one for ever."""
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                pairs = (line.partition(":") for line in lines)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.got.append((first.split()[1], headers, body))
                await self.hold.wait()
                status, answer, more = (
                    self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                )
                extra = "".join(f"{name}: {value}\r\n" for name, value in more.items())
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-length: {len(answer)}\r\n{extra}\r\n".encode()
                    + answer
                )
                await writer.drain()

    def payloads(self) -> list[dict[str, Any]]:
        return [cbor2.loads(body) for _, _, body in self.got]


@pytest.fixture
async def app() -> AsyncIterator[StubApp]:
    stub = StubApp(answers=[(200, b"{}", {})])
    stub.hold.set()
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
    stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield stub
    server.close()
    for writer in stub.writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def pushing(world: RedisWorld, url: str, **options: Any) -> AsyncIterator[Pusher]:
    pusher = Pusher(world, PushOptions(url, **options), lambda: SECRETS)
    running = asyncio.create_task(pusher.run())
    try:
        yield pusher
    finally:
        pusher.stop()
        await running


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition that the server is asked for."""
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - it is another process that changes
            await asyncio.sleep(0.01)


async def is_empty(world: RedisWorld, name: str = NAME) -> bool:
    stats = await world.queue.stats(topic_of(name))
    return not (stats.ready or stats.delayed or stats.leased or stats.held or stats.dead)


async def test_a_message_is_pushed_whole_signed_and_acked(world: RedisWorld, app: StubApp) -> None:
    run_id = await start_run(world)
    payload = content(1, run_id) | {"input": b"\x00\xff", "nested": [None, {"a": 1.5}]}
    headers = {"traceparent": "00-1"}
    async with pushing(world, f"{app.url}/"):
        message_id = await world.queue.send(NAME, payload, headers=headers, deployment_id="d1")
        await eventually(lambda: is_empty(world))
    ((path, sent, body),) = app.got
    assert path == "/.well-known/workflow/v1/flow"
    assert sent["content-type"] == "application/cbor"
    assert cbor2.loads(body) == {
        "queueName": NAME,
        "messageId": message_id,
        "attempt": 1,
        "postponed": 0,
        "payload": payload,
        "headers": headers,
        "deploymentId": "d1",
    }
    for secret in SECRETS:
        assert is_signed(sent["redis-world-signature"], body, [secret], time.time())
    assert not is_signed(sent["redis-world-signature"], body, ["another token"], time.time())


async def test_steps_of_older_clients_have_a_route_of_their_own(
    world: RedisWorld, app: StubApp
) -> None:
    run_id = await start_run(world)
    await world.events.create(
        run_id,
        {
            "eventType": "step_created",
            "correlationId": "s1",
            "eventData": {"stepName": "charge", "input": b""},
        },
    )
    async with pushing(world, app.url):
        await world.queue.send(STEP_NAME, {"workflowRunId": run_id, "stepId": "s1"})
        await eventually(lambda: is_empty(world, STEP_NAME))
    assert [path for path, _, _ in app.got] == ["/.well-known/workflow/v1/step"]


async def test_a_continuation_comes_after_its_time(world: RedisWorld, app: StubApp) -> None:
    run_id = await start_run(world)
    app.answers = [
        (200, b'{"timeoutSeconds": 0}', {}),
        (200, b'{"timeoutSeconds": 0.3}', {}),
        (200, b"", {}),
    ]
    async with pushing(world, app.url):
        began = time.monotonic()
        await world.queue.send(NAME, wake(run_id))
        await eventually(lambda: is_empty(world))
        assert time.monotonic() - began >= 0.3
    assert len({each["messageId"] for each in app.payloads()}) == 3


NO_CONTINUATIONS = [
    b"not JSON", b"[]", b'{"timeoutSeconds": "5"}', b'"x"', b"{}", b'{"timeoutSeconds": -1}',
    b'{"timeoutSeconds": true}', b'{"timeoutSeconds": 1e99}', b"\xff", b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("answer", NO_CONTINUATIONS, ids=range(len(NO_CONTINUATIONS)))
async def test_what_is_no_continuation_acks(
    world: RedisWorld, app: StubApp, answer: bytes
) -> None:
    app.answers = [(200, answer, {})]
    async with pushing(world, app.url):
        await world.queue.send(NAME, content(1))
        await eventually(lambda: is_empty(world))
    assert len(app.got) == 1


@pytest.mark.parametrize("status", [404, 503])
async def test_an_app_that_is_not_there_yet_gets_it_later(
    world: RedisWorld, app: StubApp, status: int
) -> None:
    app.answers = [(status, b"", {"retry-after": "0"}), (200, b"{}", {})]
    async with pushing(world, app.url):
        await world.queue.send(NAME, content(1))
        await eventually(lambda: is_empty(world))
    # Neither try counts as failed, and only the one that was handled as an attempt.
    assert [(each["attempt"], each["postponed"]) for each in app.payloads()] == [(1, 0), (1, 1)]


async def test_retry_after_is_kept(world: RedisWorld, app: StubApp) -> None:
    app.answers = [(503, b"", {"retry-after": "3600"})]
    async with pushing(world, app.url):
        await world.queue.send(NAME, content(1))
        await eventually(lambda: postponed(world))
    date = email.utils.formatdate(time.time() + 7200, usegmt=True)
    app.answers = [(503, b"", {"retry-after": date})]
    async with pushing(world, app.url):
        await world.queue.send(NAME, content(2))

        async def both() -> bool:
            return (await world.queue.stats(TOPIC)).postponed == 2

        await eventually(both)
    assert len(app.got) == 2


async def postponed(world: RedisWorld) -> bool:
    stats = await world.queue.stats(TOPIC)
    return stats.postponed == 1 and stats.delayed == 1


@pytest.mark.parametrize("status", [409, 410, 422])
async def test_an_answer_that_stays_the_same_acks_with_a_warning(
    world: RedisWorld, app: StubApp, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    app.answers = [(status, b"gone", {})]
    async with pushing(world, app.url):
        await world.queue.send(NAME, content(1))
        await eventually(lambda: is_empty(world))
    (record,) = [each for each in caplog.records if getattr(each, "event", "") == "push.refused"]
    assert (record.levelname, record.__dict__["status"]) == ("WARNING", status)
    assert len(app.got) == 1


@pytest.mark.parametrize("status", [500, 400, 401, 302])
async def test_other_answers_are_failures(world: RedisWorld, app: StubApp, status: int) -> None:
    app.answers = [(status, b"it broke", {"location": "http://127.0.0.1:1/"})]
    async with pushing(world, app.url):
        await world.queue.send(NAME, content(1))

        async def failed() -> bool:
            stats = await world.queue.stats(TOPIC)
            return stats.delayed == 1 and stats.postponed == 0

        await eventually(failed)
    assert len(app.got) == 1


async def test_an_app_that_cannot_be_reached_costs_no_attempt(world: RedisWorld) -> None:
    with reserved_port() as port:
        async with pushing(world, f"http://127.0.0.1:{port}"):
            await world.queue.send(NAME, content(1))
            await eventually(lambda: postponed(world))


async def test_at_most_so_many_are_with_the_app(world: RedisWorld, app: StubApp) -> None:
    app.hold.clear()
    for number in range(7):
        await world.queue.send(NAME, {"number": number})
    async with pushing(world, app.url, concurrency=3):
        await until(lambda: len(app.got) == 3)
        await asyncio.sleep(0.2)
        assert len(app.got) == 3
        app.hold.set()
        await eventually(lambda: is_empty(world))
    assert len(app.got) == 7


async def test_a_namespace_of_queues_is_pushed(backend: Backend, app: StubApp) -> None:
    async with backend.world() as world, pushing(world, app.url, queue_namespace="shop"):
        await world.queue.send("__shop_wkf_workflow_w", content(1))
        await eventually(lambda: is_empty(world, "__shop_wkf_workflow_w"))
    assert len(app.got) == 1


BAD_TARGETS = [
    "", "app.example.com", "ftp://app", "http://", "http://user:pass@app", "http://app/?a=b",
    "http://app/#x", "http://[", "http://app:99999999",
]  # fmt: skip


@pytest.mark.parametrize("target", BAD_TARGETS)
def test_a_bad_target_is_refused(target: str) -> None:
    with pytest.raises(ConfigurationError, match="--push"):
        PushOptions(target)


def test_a_bad_queue_namespace_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="queue namespace"):
        PushOptions("http://app", queue_namespace="Shop!")


# -- signatures ----------------------------------------------------------------------------

Change = Callable[[str], str]
CHANGES: dict[str, Change] = {
    "another time": lambda header: header.replace("t=1000", "t=1001"),
    "no signature": lambda header: header.partition(",")[0],
    "another signature": lambda header: header[:-1] + ("0" if header[-1] != "0" else "1"),
    "empty": lambda _: "",
    "more behind it": lambda header: header + ",v2=x",
    "upper case": str.upper,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_signature_is_refused(change: str) -> None:
    header = sign(b"body", ["secret"], 1000)
    assert is_signed(header, b"body", ["other", "secret"], 1000)
    assert not is_signed(CHANGES[change](header), b"body", ["other", "secret"], 1000)


def test_a_signature_is_of_its_body_and_its_time() -> None:
    header = sign(b"body", ["secret"], 1000.9)
    assert is_signed(header, b"body", ["secret"], 1300)
    assert is_signed(header, b"body", ["secret"], 700)
    assert not is_signed(header, b"body", ["secret"], 1301)
    assert not is_signed(header, b"body", ["secret"], 699)
    assert not is_signed(header, b"body2", ["secret"], 1000)
    assert not is_signed(header, b"body", [], 1000)
