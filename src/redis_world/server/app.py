"""The ASGI application of `redis-world serve` (docs/http.md)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

import cbor2

from redis_world import __version__
from redis_world.errors import InvalidInputError, NamespaceNotFoundError, WorldError
from redis_world.ids import new_request_id
from redis_world.keys import meta_key
from redis_world.messages import Message
from redis_world.outages import Outage
from redis_world.refusals import SPEC_VERSION
from redis_world.requests import request_scope
from redis_world.scatter import complete
from redis_world.server.access import Access, Role, Token
from redis_world.server.arguments import (
    ClaimArguments,
    NoArguments,
    ReadArguments,
    parse_arguments,
)
from redis_world.server.failures import RequestError, failure_of
from redis_world.server.methods import METHODS, READ, Method, call, check_cancel, message_to_wire
from redis_world.server.polls import Poll, Polls
from redis_world.server.push import Pusher, PushOptions
from redis_world.server.wire import CBOR, CBOR_SEQUENCE, JSON, decode, encode
from redis_world.values import shown
from redis_world.worker.sweeping import sweep_by_turns
from redis_world.world import RedisWorld

__all__ = ["App", "Limits"]

logger = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PROTOCOL: Final = b"1"
MIN_CLIENTS: Final = {"redis-world-typescript": (0, 1, 0)}
"""The oldest release of each package that this server works with."""

_OCTETS: Final = "application/octet-stream"
_KEEP_ALIVE_SECONDS: Final = 15.0
"""Of silence in a live stream, after which something is sent, for proxies that count it."""
_READY_SECONDS: Final = 3.0
_END_SECONDS: Final = 30.0
"""How long a pusher may take to end: its worker gives its handlers 20 s."""
_OPEN_SECONDS: Final = 5.0
"""How often namespaces of new tokens are looked for."""
_RETRY_SECONDS: Final = 1
"""What a request is told to wait when there are too many."""
_VERSION: Final = re.compile(r"([A-Za-z0-9_.-]{1,64})/(\d{1,6})\.(\d{1,6})\.(\d{1,6})")
_MAX_QUERY_FIELDS: Final = 1200
_STREAMS_READ: Final = "streams.read"
_CLAIM: Final = "queue.claim"
_INFO: Final = "server.info"


@dataclass(frozen=True)
class Limits:
    """What a request may take.

    Attributes:
        body: bytes of a request's body.
        requests: requests in work at a time, of all tokens together.
    """

    body: int = 68 * 1024 * 1024
    requests: int = 2048


@dataclass(frozen=True, slots=True)
class _Namespace:
    """An opened namespace."""

    world: RedisWorld
    polls: Polls
    sweeping: asyncio.Task[None]


@dataclass(frozen=True, slots=True)
class _Request:
    """A request with the token that it has shown."""

    scope: Scope
    receive: Receive
    send: Send
    headers: dict[bytes, bytes]
    token: Token
    media_type: str
    """Of the reply."""


class App:
    """The application. It keeps no state but that of running requests: all is in Redis.

    Args:
        make_world: makes the World of a namespace. `partitions=None` takes the namespace as it
            is, without creating it.
        access: the tokens; None lets every request do everything in `namespace`.
        namespace: that of requests without tokens.
        limits: what a request may take.
        push: where messages of `namespace` are pushed to; None: its app polls.
    """

    def __init__(
        self,
        make_world: Callable[..., RedisWorld],
        *,
        access: Access | None = None,
        namespace: str = "world",
        limits: Limits | None = None,
        push: PushOptions | None = None,
    ) -> None:
        self._make_world = make_world
        self._access = access
        self._limits = limits or Limits()
        self._push = push
        # Without tokens: one that everybody has.
        self._open = Token("", namespace, Role.APP, self._limits.requests)
        self._namespaces: dict[str, _Namespace] = {}
        self._opening = asyncio.Lock()
        self._in_work = 0
        self.stopping = asyncio.Event()
        """Set when the server stops: polls and live streams end."""

    # -- life ------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close all Worlds, after the last request."""
        self.stopping.set()
        namespaces, self._namespaces = [*self._namespaces.values()], {}
        for each in namespaces:
            each.sweeping.cancel()
            await each.polls.aclose()
            await each.world.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            raise RuntimeError(f"{scope['type']} is not served")

    async def _live(self, receive: Receive, send: Send) -> None:
        tasks: list[asyncio.Task[None]] = []
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                tasks.append(asyncio.create_task(self._keep_open(), name="keep open"))
                if self._push is not None:
                    tasks.append(asyncio.create_task(self._push_to(self._push), name="push"))
                await send({"type": "lifespan.startup.complete"})
            else:
                await _end(tasks)
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # -- requests --------------------------------------------------------------------------

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        media_type = JSON
        try:
            headers = dict(scope["headers"])
            media_type = _reply_type(headers, scope["method"])
            if await self._answer_publicly(scope, send, media_type):
                return
            await self._answer_privately(scope, receive, send, headers, media_type)
        except WorldError as error:
            await _send_failure(send, error, media_type)
        except _Gone:
            logger.debug("the client went away", extra={"event": "request.abandoned"})
        except Exception:
            # The client gets no more of it: a text may have what is not meant for it.
            error_id = new_request_id()
            logger.exception(
                "a request failed (%s)",
                error_id,
                extra={"event": "request.failed", "path": scope["path"], "error_id": error_id},
            )
            failure = RequestError(
                500, "WorkflowWorldError", f"internal error {error_id}: see the server's log"
            )
            await _send_failure(send, failure, media_type)

    async def _answer_publicly(self, scope: Scope, send: Send, media_type: str) -> bool:
        """Answer what needs no token; whether it was that."""
        path = scope["path"]
        if path not in ("/livez", "/readyz", "/openapi.json"):
            return False
        if scope["method"] not in ("GET", "HEAD"):
            raise _not_allowed(scope["method"], ["GET", "HEAD"])
        if path == "/livez":
            await _send_value(send, {"status": "alive"}, media_type)
        elif path == "/readyz":
            await self._check_ready()
            await _send_value(send, {"status": "ready"}, media_type)
        else:
            from redis_world.server.openapi import document

            await _send_value(send, document(), JSON)
        return True

    async def _check_ready(self) -> None:
        if self.stopping.is_set():
            raise RequestError(503, "unavailable", "the server stops", retry_after=_RETRY_SECONDS)
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await complete([self._look_at(name) for name in self._names])
        except TimeoutError:
            raise RequestError(
                503, "unavailable", "Redis does not answer", retry_after=_RETRY_SECONDS
            ) from None

    async def _look_at(self, name: str) -> None:
        namespace = await self._namespace(name)
        await namespace.world.connection.execute(("EXISTS", meta_key(name)))

    async def _answer_privately(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: dict[bytes, bytes],
        media_type: str,
    ) -> None:
        token = self._authenticate(headers)
        _check_client(headers)
        request = _Request(scope, receive, send, headers, token, media_type)
        name = _method_name(scope["path"])
        known = METHODS.get(name)
        roles = READ if known is None else known.roles
        if name == _CLAIM:
            roles = frozenset({Role.APP})
        elif known is None and name not in (_STREAMS_READ, _INFO):
            raise RequestError(404, "unknown-method", f"there is no method {name[:100]!r}")
        _check_http_method(scope["method"], has_get=name in _READABLE)
        if self._access is not None and token.role not in roles:
            raise RequestError(
                403, "forbidden", f"a token of the role {token.role} may not call {name}"
            )
        self._begin_work(token)
        try:
            arguments = await self._arguments(request)
            await self._do(request, name, known, arguments)
        finally:
            token.in_work -= 1
            self._in_work -= 1

    def _authenticate(self, headers: dict[bytes, bytes]) -> Token:
        """The token of a request.

        Raises:
            RequestError: there is none, or it is not valid.
        """
        if self._access is None:
            return self._open
        scheme, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        token = self._access.find(secret.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise RequestError(
                401,
                "unauthorized",
                "a valid token is needed: Authorization: Bearer <token>",
                headers=[(b"www-authenticate", b"Bearer")],
            )
        return token

    def _begin_work(self, token: Token) -> None:
        """Count a request that is in work.

        Raises:
            RequestError: there are too many.
        """
        if token.in_work >= token.requests or self._in_work >= self._limits.requests:
            raise RequestError(
                429,
                "throttled",
                f"{token.in_work} requests of this token and {self._in_work} in all are in work",
                retry_after=_RETRY_SECONDS,
            )
        token.in_work += 1
        self._in_work += 1

    async def _arguments(self, request: _Request) -> Any:
        """The arguments of a request, as they were sent."""
        if request.scope["method"] == "POST":
            media_type = _body_type(request.headers)
            body = await self._body(request)
            return decode(body, media_type) if body else {}
        fields: dict[str, Any] = {}
        try:
            pairs = parse_qsl(
                request.scope["query_string"].decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_MAX_QUERY_FIELDS,
            )
        except ValueError as error:
            raise InvalidInputError(f"the query is malformed: {error}") from None
        for name, value in pairs:
            if name in fields:
                known = fields[name]
                fields[name] = [*known, value] if isinstance(known, list) else [known, value]
            else:
                fields[name] = value
        return fields

    async def _body(self, request: _Request) -> bytes:
        """Read the body, unless it is too large: then it is not even read."""
        length = request.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._limits.body:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > self._limits.body:
                raise self._too_large()
            if not message.get("more_body"):
                return b"".join([*parts, part]) if parts else part
            parts.append(part)

    def _too_large(self) -> RequestError:
        return RequestError(
            413,
            "too-large",
            f"a body may have {self._limits.body} bytes",
            headers=[(b"connection", b"close")],
        )

    async def _do(self, request: _Request, name: str, method: Method | None, value: Any) -> None:
        token = request.token
        if method is not None:
            arguments = parse_arguments(method.arguments, value)
            if name == "events.create" and self._access is not None and token.role != Role.APP:
                check_cancel(arguments)
            namespace = await self._namespace(token.namespace)
            with _scope_of(request.headers):
                calling = call(method, namespace.world, arguments)
                if name == "runs.waitForTerminal":
                    calling = self._until_stopped(calling, namespace.world, arguments)
                    result = await _unless_gone(request.receive, calling)
                else:
                    result = await calling
            await _send_value(request.send, result, request.media_type)
        elif name == _CLAIM:
            await self._claim(request, parse_arguments(ClaimArguments, value))
        elif name == _STREAMS_READ:
            await self._read_stream(request, parse_arguments(ReadArguments, value))
        else:
            parse_arguments(NoArguments, value)
            await _send_value(request.send, self._info(token), request.media_type)

    def _info(self, token: Token) -> dict[str, Any]:
        return {
            "version": __version__,
            "protocol": int(PROTOCOL),
            "namespace": token.namespace,
            "role": str(token.role),
            "specVersion": SPEC_VERSION,
            "minClients": {
                name: ".".join(map(str, version)) for name, version in MIN_CLIENTS.items()
            },
        }

    async def _namespace(self, name: str) -> _Namespace:
        """The World of a namespace, opened."""
        namespace = self._namespaces.get(name)
        if namespace is None:
            async with self._opening:
                namespace = self._namespaces.get(name)
                if namespace is None:
                    namespace = self._begin(await self._open_world(name))
                    self._namespaces[name] = namespace
        return namespace

    def _begin(self, world: RedisWorld) -> _Namespace:
        # Apps that only use the server have nobody else who sweeps.
        sweeping = sweep_by_turns(world, new_request_id(), world.config.sweep_interval)
        task = asyncio.create_task(sweeping, name=f"sweep {world.config.namespace}")
        return _Namespace(world, Polls(world, self.stopping), task)

    async def _keep_open(self) -> None:
        """Open all namespaces that there are tokens for, so that they are swept."""
        outage = Outage(lambda: "Redis")
        while True:
            found = await asyncio.gather(
                *map(self._namespace, self._names), return_exceptions=True
            )
            errors = [each for each in found if isinstance(each, WorldError)]
            if errors:
                outage.failed("open", errors[0])
            else:
                outage.succeeded("open")
            await asyncio.sleep(_OPEN_SECONDS)

    async def _push_to(self, options: PushOptions) -> None:
        """Push until the server stops; while Redis is away it begins again and again."""
        name = self._open.namespace
        while not self.stopping.is_set():
            try:
                world = (await self._namespace(name)).world
                pusher = Pusher(world, options, lambda: self._secrets_of(name))
                ending = asyncio.create_task(self._stop_at_the_end(pusher))
                try:
                    await pusher.run()
                finally:
                    ending.cancel()
            except WorldError as error:
                logger.error(  # noqa: TRY400 - the text tells what happened
                    "can't push: %s", error, extra={"event": "push.failed"}
                )
                await asyncio.sleep(_OPEN_SECONDS)

    async def _stop_at_the_end(self, pusher: Pusher) -> None:
        await self.stopping.wait()
        pusher.stop()

    def _secrets_of(self, namespace: str) -> list[str]:
        if self._access is None:
            return []
        return self._access.secrets_of(namespace, Role.APP)

    @property
    def _names(self) -> list[str]:
        """The namespaces that requests may ask for."""
        return [self._open.namespace] if self._access is None else self._access.namespaces

    async def _open_world(self, name: str) -> RedisWorld:
        """The namespace as it is; a missing one is created as the options of the server say."""
        world = self._make_world(namespace=name, partitions=None)
        try:
            return await world.open()
        except NamespaceNotFoundError:
            await world.aclose()
        except BaseException:
            await world.aclose()
            raise
        world = self._make_world(namespace=name)
        try:
            return await world.open()
        except BaseException:
            await world.aclose()
            raise

    # -- what takes long -------------------------------------------------------------------

    async def _until_stopped(
        self, calling: Awaitable[Any], world: RedisWorld, arguments: Any
    ) -> Any:
        """Wait for the end of a run, but not for longer than the server runs."""
        waiting = asyncio.ensure_future(calling)
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            run = await world.runs.get(arguments.run_id, resolve_data=arguments.resolve_data)
            return run.to_wire()
        finally:
            for task in (waiting, stopping):
                task.cancel()

    async def _claim(self, request: _Request, arguments: ClaimArguments) -> None:
        namespace = await self._namespace(request.token.namespace)
        request_id, attempt = _request_id(request.headers)
        poll = Poll(
            topics=tuple(dict.fromkeys(arguments.topics)),
            limit=arguments.limit,
            lease=arguments.lease,
            worker=arguments.worker or new_request_id(),
            ends_at=time.monotonic() + arguments.wait,
            request_id=request_id,
            attempt=attempt,
        )
        messages = await _unless_gone(
            request.receive, namespace.polls.poll(poll), _releasing(namespace.world)
        )
        value = {"messages": [message_to_wire(message) for message in messages]}
        headers = [(b"connection", b"close")] if self.stopping.is_set() else []
        await _send_value(request.send, value, request.media_type, headers)

    async def _read_stream(self, request: _Request, arguments: ReadArguments) -> None:
        namespace = await self._namespace(request.token.namespace)
        media_type = _stream_type(request.headers)
        is_sequence = media_type == CBOR_SEQUENCE
        chunks = namespace.world.streams.read(
            arguments.run_id,
            arguments.name,
            start_index=arguments.start_index,
            include_empty=is_sequence,
        )
        await _send_chunks(request, chunks, media_type, self.stopping, is_sequence=is_sequence)


_READABLE: Final = frozenset(
    {*(name for name, method in METHODS.items() if method.has_get), _STREAMS_READ, _INFO}
)


class _Gone(Exception):  # noqa: N818 - no error: the client does not wait any longer
    """The client went away."""


# -- parts of requests ---------------------------------------------------------------------


def _method_name(path: str) -> str:
    prefix, _, name = path[1:].partition("/")
    if prefix != "v1" or not name or "/" in name:
        raise RequestError(404, "unknown-method", "methods are at /v1/<group>.<method>")
    return name


def _check_http_method(method: str, *, has_get: bool) -> None:
    allowed = ["POST", "GET", "HEAD"] if has_get else ["POST"]
    if method not in allowed:
        raise _not_allowed(method, allowed)


def _not_allowed(method: str, allowed: Iterable[str]) -> RequestError:
    text = ", ".join(allowed)
    return RequestError(
        405,
        "method-not-allowed",
        f"{method} is not allowed here: {text}",
        headers=[(b"allow", text.encode())],
    )


def _types(header: bytes) -> list[str]:
    """The media types of a header, without their parameters."""
    parts = header.decode("latin-1").split(",")
    return [part.partition(";")[0].strip().lower() for part in parts if part.strip()]


def _body_type(headers: dict[bytes, bytes]) -> str:
    types = _types(headers.get(b"content-type", b"")) or [CBOR]
    if types[0] not in (CBOR, JSON):
        raise RequestError(
            415, "unsupported-media-type", f"a body must be {CBOR} or {JSON}, not {types[0][:100]}"
        )
    return types[0]


def _reply_type(headers: dict[bytes, bytes], method: str) -> str:
    """What the request accepts, else what it is itself, else what its HTTP method is for."""
    for each in _types(headers.get(b"accept", b"")):
        if each in (CBOR, JSON):
            return each
    if method == "POST":
        types = _types(headers.get(b"content-type", b""))
        return JSON if types[:1] == [JSON] else CBOR
    return JSON


def _stream_type(headers: dict[bytes, bytes]) -> str:
    accepted = _types(headers.get(b"accept", b""))
    return CBOR_SEQUENCE if CBOR_SEQUENCE in accepted else _OCTETS


def _request_id(headers: dict[bytes, bytes]) -> tuple[str | None, int]:
    """The id of a request, and which try it is."""
    request_id = headers.get(b"request-id")
    attempt = headers.get(b"request-attempt", b"1")
    if not attempt.isdigit() or not 1 <= int(attempt[:7]) <= 1_000_000:
        given = attempt.decode("latin-1")
        raise InvalidInputError(f"Request-Attempt must be a number from 1, not {shown(given)}")
    if request_id is None:
        return None, 1
    return request_id.decode("latin-1"), int(attempt)


def _scope_of(headers: dict[bytes, bytes]) -> AbstractContextManager[None]:
    request_id, attempt = _request_id(headers)
    if request_id is None:
        return contextlib.nullcontext()
    return request_scope(request_id, attempt=attempt)


def _check_client(headers: dict[bytes, bytes]) -> None:
    """Refuse a package that is too old for this server.

    Raises:
        RequestError: it is.
    """
    given = headers.get(b"redis-world-client")
    if given is None:
        return
    text = given.decode("latin-1")
    match = _VERSION.match(text)
    if match is None:
        raise InvalidInputError(
            f"Redis-World-Client must be <name>/<major>.<minor>.<patch>, not {shown(text)}"
        )
    name = match[1]
    oldest = MIN_CLIENTS.get(name)
    version = tuple(map(int, match.groups()[1:]))
    if oldest is not None and version < oldest:
        raise RequestError(
            400,
            "client-too-old",
            f"{name} {'.'.join(map(str, version))} is too old for this server ({__version__}): "
            f"upgrade {name} to {'.'.join(map(str, oldest))} or later",
        )


# -- replies -------------------------------------------------------------------------------

Headers: TypeAlias = "list[tuple[bytes, bytes]]"

_OWN_HEADERS: Final = [
    (b"redis-world-server", __version__.encode()),
    (b"cache-control", b"no-store"),
]


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """End tasks of the application: what is pushed has finished by itself, or is given up."""
    for task in tasks:
        if task.get_name() != "push":
            task.cancel()
    if tasks := [*tasks]:
        await asyncio.wait(tasks, timeout=_END_SECONDS)
    for task in tasks:
        task.cancel()


async def _send_value(
    send: Send, value: Any, media_type: str, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    await _send_body(send, 200, encode(value, media_type), media_type, headers)


async def _send_body(
    send: Send,
    status: int,
    body: bytes,
    media_type: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (b"content-type", media_type.encode()),
            (b"content-length", b"%d" % len(body)),
            *_OWN_HEADERS,
            *headers,
        ],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})


async def _send_failure(send: Send, error: WorldError, media_type: str) -> None:
    headers: Headers = [*getattr(error, "headers", ())]
    failure = failure_of(error)
    if "retryAfter" in failure:
        headers.append((b"retry-after", str(failure["retryAfter"]).encode()))
    await _send_body(send, error.status, encode(failure, media_type), media_type, headers)


async def _unless_gone(
    receive: Receive,
    calling: Awaitable[Any],
    undo: Callable[[Any], Awaitable[None]] | None = None,
) -> Any:
    """Wait for what takes long, while the client waits for it, too.

    Args:
        receive: tells when the client goes away.
        calling: what it waits for; cancelled if the client goes away.
        undo: given the result that nobody waits for any longer.

    Raises:
        _Gone: the client went away.
    """
    doing = asyncio.ensure_future(calling)
    going = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({doing, going}, return_when=asyncio.FIRST_COMPLETED)
        if not going.done():
            return await doing
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})
        if undo is not None and not doing.cancelled() and doing.exception() is None:
            await undo(doing.result())
        raise _Gone
    finally:
        going.cancel()
        doing.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _releasing(world: RedisWorld) -> Callable[[list[Message]], Awaitable[None]]:
    """Releases the messages of a claim whose client went away."""

    async def release(messages: list[Message]) -> None:
        with contextlib.suppress(WorldError):
            await complete([world.queue.release(message) for message in messages])

    return release


async def _send_chunks(
    request: _Request,
    chunks: AsyncGenerator[bytes, None],
    media_type: str,
    stopping: asyncio.Event,
    *,
    is_sequence: bool,
) -> None:
    """Send a live stream until it is closed, its reader leaves, or the server stops."""
    send = request.send
    going: asyncio.Future[Any] = asyncio.ensure_future(_until_gone(request.receive))
    ending: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
    nexts: asyncio.Future[Any] | None = None
    is_started = False
    try:
        while True:
            nexts = nexts or asyncio.ensure_future(anext(chunks))
            done, _ = await asyncio.wait(
                {nexts, going, ending},
                timeout=_KEEP_ALIVE_SECONDS if is_started else 0.05,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if going in done:
                raise _Gone
            if nexts in done:
                # An error before the first chunk is an answer of its own.
                chunk, is_over = _result_of(nexts)
                nexts = None
            elif ending in done:
                break
            else:
                chunk, is_over = None, False
            if not is_started:
                is_started = True
                headers = [(b"content-type", media_type.encode()), *_OWN_HEADERS]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            if is_over:
                break
            part = _part(chunk, is_sequence=is_sequence)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if not is_started:
            headers = [(b"content-type", media_type.encode()), *_OWN_HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        is_closed = not ending.done()
        last = cbor2.dumps(None) if is_sequence and is_closed else b""
        if is_sequence or is_closed:
            await send({"type": "http.response.body", "body": last})
        else:
            # Only a broken reply tells a reader of plain bytes that the stream goes on.
            raise _Gone
    finally:
        for task in (going, ending, nexts):
            if task is not None:
                task.cancel()
        if nexts is not None:
            await asyncio.wait({nexts})
        await chunks.aclose()


def _result_of(nexts: asyncio.Future[Any]) -> tuple[bytes | None, bool]:
    """The next chunk, and whether there is none."""
    error = nexts.exception()
    if isinstance(error, StopAsyncIteration):
        return None, True
    return nexts.result(), False


def _part(chunk: bytes | None, *, is_sequence: bool) -> bytes:
    """A chunk as the reply has it; None after a silence."""
    if not is_sequence:
        return chunk or b""
    return cbor2.dumps(cbor2.undefined if chunk is None else chunk)
