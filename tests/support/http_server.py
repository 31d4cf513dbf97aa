"""A server in the test's own event loop, and a client that says exactly what it sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import cbor2
from ulid import ULID

from redis_world.server import Access, App, Limits
from redis_world.server.running import Address, bind, serve
from support.backends import Backend

__all__ = ["Client", "Reply", "Served", "serving"]

CBOR: Final = "application/cbor"
JSON: Final = "application/json"


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        """The body, read."""
        if self.headers.get("content-type") == CBOR:
            return cbor2.loads(self.body)
        return json.loads(self.body)


@dataclass
class Client:
    """Requests to a port of this machine, each over a connection of its own."""

    port: int
    token: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    async def call(self, method: str, arguments: Any = None, **headers: str) -> Reply:
        """Call a method in CBOR."""
        body = cbor2.dumps({} if arguments is None else arguments)
        return await self.send(
            "POST", f"/v1/{method}", body, {"Content-Type": CBOR, **_dashed(headers)}
        )

    async def call_json(self, method: str, arguments: Any, **headers: str) -> Reply:
        """Call a method in JSON."""
        body = json.dumps(arguments).encode()
        return await self.send(
            "POST", f"/v1/{method}", body, {"Content-Type": JSON, **_dashed(headers)}
        )

    async def get(self, method: str, arguments: Mapping[str, Any], **headers: str) -> Reply:
        """Ask by GET."""
        query = urlencode(arguments, doseq=True)
        return await self.send("GET", f"/v1/{method}?{query}", b"", _dashed(headers))

    async def value(self, method: str, arguments: Any = None, **headers: str) -> Any:
        """The result of a call that succeeds."""
        reply = await self.call(method, arguments, **headers)
        assert reply.status == 200, reply.value
        return reply.value

    async def send(
        self, verb: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a request, and read its whole reply."""
        reader, writer = await self.open(verb, target, body, headers)
        try:
            return await read_reply(reader, verb)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def open(
        self, verb: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request; its connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        given = {"Host": "server", **self.headers, **(headers or {})}
        if self.token is not None:
            given.setdefault("Authorization", f"Bearer {self.token}")
        if body or verb == "POST":
            given.setdefault("Content-Length", str(len(body)))
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        writer.write(f"{verb} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body)
        await writer.drain()
        return reader, writer


def _dashed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of a reply."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def read_reply(reader: asyncio.StreamReader, verb: str = "POST") -> Reply:
    """A whole reply."""
    status, headers = await read_head(reader)
    if verb == "HEAD":
        return Reply(status, headers, b"")
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join([part async for part in read_parts(reader)])
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Reply(status, headers, body)


async def read_parts(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The parts of a chunked body, until its end."""
    while True:
        size = int((await reader.readuntil(b"\r\n")).strip(), 16)
        part = await reader.readexactly(size + 2)
        if not size:
            return
        yield part[:-2]


@dataclass(frozen=True)
class Served:
    """A server and a client of it."""

    app: App
    client: Client
    task: asyncio.Task[bool]

    async def stop(self) -> None:
        """Stop it as a signal does."""
        self.app.stopping.set()
        await self.task


@contextlib.asynccontextmanager
async def serving(
    backend: Backend,
    *,
    namespace: str,
    access: Access | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    """Serve the Worlds of a backend; whoever has no tokens gets this namespace."""
    app = App(
        lambda **more: backend.world(**{**options, **more}),
        access=access,
        namespace=namespace,
        limits=limits,
    )
    listening = bind(Address("127.0.0.1", 0))
    client = Client(listening.getsockname()[1])
    task = asyncio.create_task(serve(app, listening, shutdown_timeout=5))
    served = Served(app, client, task)
    try:
        async with asyncio.timeout(30):
            while (await client.send("GET", "/readyz")).status != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield served
    finally:
        await served.stop()
        listening.close()


def request_id() -> str:
    """An id for a request."""
    return str(ULID())
