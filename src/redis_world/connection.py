"""The only module that talks to redis-py.

Calls that are made in one tick of the event loop share one pipeline: under load a worker sends
few large packets instead of many small ones, and no caller has to know.

A call whose reply does not come is sent again, until the server has answered or the patience of
`retry_timeout` is at its end. Every script finds what an earlier run of the same call has
written, so that nothing is done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
import warnings
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_world.config import WorldConfig
from redis_world.errors import (
    ConfigurationError,
    InvalidInputError,
    NotDurableError,
    ScriptError,
    WorldError,
    WorldUnavailableError,
)
from redis_world.hints import HintHub
from redis_world.keys import SCHEMA, Keys
from redis_world.lua import Argument, Script, ScriptLibrary
from redis_world.memory import SCHEME as MEMORY
from redis_world.memory import memory_client, memory_sync_client
from redis_world.text import utf8

__all__ = ["Command", "Connection", "SyncCaller"]

logger = logging.getLogger(__name__)

Command = tuple[Argument, ...]
Reply = Any

_MIN_VERSIONS: Final = {"redis": (7, 0), "valkey": (8, 0)}
_BLOCKING_TRIES: Final = 3
_ROW: Final = 2
"""Where the arranged row of a script begins, in EVALSHA as in EVAL."""
_MAX_BATCH: Final = 512
"""Commands of one pipeline; what is beyond goes into another one."""

_PASSING_CODES: Final = (
    "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY",
)  # fmt: skip
"""Refusals of a server that starts, changes its role or is busy: it has not run the command."""
_UNAVAILABLE_CODES: Final = (*_PASSING_CODES, "OOM", "MISCONF", "NOREPLICAS", "UNKILLABLE")

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
"""Seconds between two tries: doubled each time, up to the longest."""


class _Request:
    """Some commands in order, answered together."""

    __slots__ = ("commands", "future", "scripts")

    def __init__(
        self,
        commands: list[Command],
        scripts: dict[int, Script],
        future: asyncio.Future[list[Reply]],
    ) -> None:
        self.commands = commands
        self.scripts = scripts
        """Position -> script, for those of the commands that are EVALSHA."""
        self.future = future

    @property
    def is_waited(self) -> bool:
        """Whether it writes what must not be lost."""
        return any(script.waited for script in self.scripts.values())

    def mark_resend(self) -> None:
        """Tell the scripts that they may have run already."""
        for place, script in self.scripts.items():
            if script.resend_at is not None:
                row = list(self.commands[place])
                row[_ROW + script.resend_at] = b"1"
                self.commands[place] = tuple(row)

    def send_source(self) -> None:
        """Send the scripts themselves: the server does not have them."""
        for place, script in self.scripts.items():
            self.commands[place] = ("EVAL", script.source, *self.commands[place][_ROW:])


class _LoopState:
    """What belongs to one event loop: its client, its subscriber, the calls of this tick."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: redis.asyncio.Redis) -> None:
        self.loop = loop
        self.client = client
        self.pending: list[_Request] = []
        self.flushes: set[asyncio.Task[None]] = set()
        self.opening = asyncio.Lock()
        self.opened = False
        self.closing = False
        self.hub: HintHub | None = None
        self.guardian: AsyncGenerator[None, None] | None = None
        """Closes the client with the loop, where nobody else does."""


class Connection:
    """Commands and scripts on one server.

    Args:
        url: where the server is; or
        client: a ready redis-py client, whose server and settings are used; it stays its
            owner's.
        config: the World's options.
        library: the scripts.

    Raises:
        ConfigurationError: there is neither or both of URL and client, the URL is no server's,
            or the client can't be used.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        client: redis.asyncio.Redis | None = None,
        config: WorldConfig,
        library: ScriptLibrary,
    ) -> None:
        if (url is None) == (client is None):
            raise ConfigurationError("a World needs either a URL or a ready client")
        self.config = config
        self.keys = Keys(config.namespace)
        self._library = library
        self._url = url
        self._client = client
        self._state: _LoopState | None = None
        self._clock_offset = 0.0
        self._wait_command = _wait_command(config)
        if client is not None:
            _check_client(client)
        else:
            _check_url(url or "")
        if self.is_memory and config.durability != "memory":
            raise ConfigurationError(
                f"{MEMORY}:// keeps nothing: durability={config.durability!r} needs a server"
            )

    # -- life ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Reach the server, check it, load the scripts and pin the namespace; once per loop.

        Raises:
            ConfigurationError: the server is too old, or the namespace was made otherwise.
            WorldUnavailableError: the server can't be reached.
        """
        state = self._for_this_loop()
        if state.opened:
            return
        async with state.opening:
            if not state.opened:
                if state.guardian is None:
                    state.guardian = _close_with_the_loop(state.client)
                    await anext(state.guardian)
                try:
                    await self._check_server(state)
                    await self._pin(state)
                except BaseException as error:
                    # It connects again at the next try; there may be none.
                    with contextlib.suppress(Exception):
                        await state.client.connection_pool.disconnect()
                    if isinstance(error, Exception):
                        raise _translate(error, where=self.describe()) from error
                    raise
                state.opened = True

    async def aclose(self) -> None:
        """Close what this object opened; a ready client is its owner's. Harmless when closed."""
        state, self._state = self._state, None
        if state is None or state.loop is not asyncio.get_running_loop():
            return
        state.closing = True
        while state.pending or state.flushes:
            self._flush(state)
            await asyncio.gather(*state.flushes, return_exceptions=True)
        if state.hub is not None:
            await state.hub.aclose()
        if state.guardian is not None:
            await state.guardian.aclose()
        else:
            await state.client.aclose()

    @property
    def is_memory(self) -> bool:
        """Whether the server is the embedded one of this process."""
        return self._url is not None and self._url.partition("://")[0] == MEMORY

    @property
    def hub(self) -> HintHub:
        """The hints of the running loop."""
        state = self._for_this_loop()
        if state.hub is None:
            state.hub = HintHub(self._subscriber)
        return state.hub

    # -- calls -----------------------------------------------------------------------------

    async def call(
        self, name: str, keys: Mapping[str, str | bytes], args: Mapping[str, Any]
    ) -> list[Any]:
        """Run one script by its name, with named keys and arguments.

        Returns:
            Its reply: a list whose first item is the status, as bytes.

        Raises:
            WorldUnavailableError: the server did not do it, or nobody knows.
            InvalidInputError: an argument is not valid Unicode text.
        """
        replies = await self.call_then(name, keys, args, ())
        return replies[0]  # type: ignore[no-any-return]

    async def call_then(
        self,
        name: str,
        keys: Mapping[str, str | bytes],
        args: Mapping[str, Any],
        commands: Sequence[Command],
    ) -> list[Reply]:
        """Run one script and, behind it in the same round trip, commands that read."""
        await self.open()
        script = self._library[name]
        row = _encode(("EVALSHA", script.sha, *script.arrange(keys, args)))
        return await self._submit([row, *map(_encode, commands)], {0: script})

    async def execute(self, *commands: Command) -> list[Reply]:
        """Run commands in order, in one round trip."""
        await self.open()
        return await self._submit([*map(_encode, commands)], {})

    def server_time(self) -> int:
        """The server's time in ms, as far as this process knows it."""
        return int(time.monotonic() * 1000 + self._clock_offset)

    def observe_server_time(self, now_ms: int) -> None:
        """Take note of the server's time, as a reply carried it."""
        # Against a clock that nobody sets.
        self._clock_offset = now_ms - time.monotonic() * 1000

    def sync_caller(self) -> SyncCaller:
        """A blocking way to call scripts, with a connection of its own, for another thread."""
        if self._client is not None:
            return SyncCaller(_sync_twin(self._client, self._settings()), self._library)
        assert self._url is not None
        if self.is_memory:
            return SyncCaller(memory_sync_client(self._url), self._library)
        client = redis.Redis.from_url(self._url, **self._settings(), retry=_no_retry_sync())
        return SyncCaller(client, self._library)

    # -- inside ----------------------------------------------------------------------------

    def _for_this_loop(self) -> _LoopState:
        loop = asyncio.get_running_loop()
        state = self._state
        if state is None or state.loop is not loop:
            if state is not None:
                _abandon(state.client)
            state = self._state = _LoopState(loop, self._connect())
        return state

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "socket_timeout": self.config.socket_timeout,
            "socket_connect_timeout": self.config.connect_timeout,
            # Replies of one shape, whatever the server would rather speak.
            "protocol": 2,
        }
        if not (self._url or "").startswith("unix:"):
            settings["socket_keepalive"] = True
        return settings

    def _connect(self) -> redis.asyncio.Redis:
        limits = {"max_connections": self.config.max_connections, "timeout": None}
        if self._client is not None:
            return _client_like(self._client, **limits)
        assert self._url is not None
        if self.is_memory:
            return memory_client(self._url)
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            self._url, retry=_no_retry(), **limits, **self._settings()
        )
        return redis.asyncio.Redis.from_pool(pool)

    def _subscriber(self) -> redis.asyncio.Redis:
        """A client for the subscriber alone: it waits as long as nothing happens."""
        if self._client is not None:
            return _client_like(self._client, socket_timeout=None)
        assert self._url is not None
        if self.is_memory:
            return memory_client(self._url)
        settings = {**self._settings(), "socket_timeout": None}
        return redis.asyncio.Redis.from_url(self._url, retry=_no_retry(), **settings)

    async def _submit(self, commands: list[Command], scripts: dict[int, Script]) -> list[Reply]:
        state = self._for_this_loop()
        request = _Request(commands, scripts, state.loop.create_future())
        if not state.pending:
            state.loop.call_soon(self._flush, state)
        state.pending.append(request)
        return await request.future

    def _flush(self, state: _LoopState) -> None:
        batch: list[_Request] = []
        size = 0
        pending, state.pending = state.pending, []
        for request in pending:
            # A caller that gave up before anything was sent leaves no trace.
            if request.future.cancelled():
                continue
            if batch and size + len(request.commands) > _MAX_BATCH:
                self._start(state, batch)
                batch, size = [], 0
            batch.append(request)
            size += len(request.commands)
        if batch:
            self._start(state, batch)

    def _start(self, state: _LoopState, batch: list[_Request]) -> None:
        task = state.loop.create_task(self._send(state, batch))
        state.flushes.add(task)
        task.add_done_callback(state.flushes.discard)

    async def _send(self, state: _LoopState, batch: list[_Request]) -> None:
        """Send a batch and hand out the replies; runs to its end whatever its callers do."""
        try:
            await self._send_until_answered(state, batch)
        except Exception as error:  # noqa: BLE001 - every caller of the batch gets it
            for request in batch:
                if not request.future.done():
                    request.future.set_exception(_translate(error))

    async def _send_until_answered(self, state: _LoopState, batch: list[_Request]) -> None:
        patience = _Patience(state.loop, self.config.retry_timeout)
        while True:
            batch, error = await self._try(state, batch)
            # Those of callers that gave up meanwhile are not sent again.
            batch = [request for request in batch if not request.future.done()]
            if not batch:
                return
            if state.closing or not await patience.pause():
                raise error
            logger.debug("%d calls are sent again: %s", len(batch), error)

    async def _try(
        self, state: _LoopState, batch: list[_Request]
    ) -> tuple[list[_Request], Exception]:
        """Send a batch once; returns what has to be sent again, and why."""
        left: list[_Request] = []
        reason: Exception = redis.exceptions.ConnectionError("")
        try:
            answered = await self._ask(state, batch)
            bare = [request for request, replies in answered if _lacks_script(replies)]
            if bare:
                # The server lost its scripts, and maybe all: it was started again. EVAL loads
                # them for everybody.
                await self._pin(state)
                for request in bare:
                    request.send_source()
                answered = [pair for pair in answered if pair[0] not in bare]
                answered += await self._ask(state, bare)
            for request, replies in answered:
                passing = next(filter(_is_passing, replies), None)
                if passing is None:
                    _answer(request, replies)
                else:
                    reason = passing
                    left.append(request)
        except (redis.exceptions.RedisError, OSError) as error:
            if not _is_lost(error):
                raise
            reason = error
            left = [request for request in batch if not request.future.done()]
        if left:
            for request in left:
                request.mark_resend()
            # The other connections may lead to a server that is gone, or a primary no more.
            await state.client.connection_pool.disconnect(inuse_connections=False)
        return left, reason

    async def _ask(
        self, state: _LoopState, batch: list[_Request]
    ) -> list[tuple[_Request, list[Reply]]]:
        """Each request of a batch with its replies."""
        commands = [command for request in batch for command in request.commands]
        # What it waits for covers all that the connection has written so far.
        wait = self._wait_command if any(request.is_waited for request in batch) else None
        if wait is not None:
            commands.append(wait)
        replies = iter(await self._round_trip(state, commands))
        answered = [(request, [next(replies) for _ in request.commands]) for request in batch]
        if wait is not None and not _is_reached(next(replies)):
            for request, own in answered:
                if request.is_waited and not any(isinstance(each, Exception) for each in own):
                    self._tell_not_durable(request)
        return answered

    def _tell_not_durable(self, request: _Request) -> None:
        place, seconds = self.config.durability, self.config.durability_timeout
        text = f"no {place} had the write within {seconds} s: it is stored, and may yet be lost"
        if not request.future.done():
            request.future.set_exception(NotDurableError(text))

    @staticmethod
    async def _round_trip(state: _LoopState, commands: list[Command]) -> list[Reply]:
        pipeline = state.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute(raise_on_error=False)

    async def _check_server(self, state: _LoopState) -> None:
        scripts = list(self._library)
        commands: list[Command] = [("TIME",), ("INFO", "server"), ("INFO", "memory")]
        commands += [("SCRIPT", "LOAD", script.source) for script in scripts]
        now, server, memory, *_ = await self._ask_when_ready(state, commands)
        self.observe_server_time(int(now[0]) * 1000 + int(now[1]) // 1000)
        # An embedded server has no INFO, and an ACL may deny it: then nothing is known.
        if isinstance(server, dict):
            _check_version(server)
        if isinstance(memory, dict):
            _check_eviction(memory)
        if self.config.durability == "disk":
            (reply,) = await self._round_trip(state, [("WAITAOF", 1, 0, 1)])
            if isinstance(reply, Exception):
                raise ConfigurationError(
                    "durability='disk' needs Redis 7.2 or Valkey 8 with `appendonly yes`: "
                    f"the server at {self.describe()} says {reply}"
                )

    async def _ask_when_ready(self, state: _LoopState, commands: list[Command]) -> list[Reply]:
        """Wait for a server that starts; one that is not there may be a wrong address."""
        patience = _Patience(state.loop, self.config.retry_timeout)
        while True:
            refusal: Exception | None
            try:
                replies = await self._round_trip(state, commands)
                # INFO may be denied, or not be there.
                needed = [reply for i, reply in enumerate(replies) if commands[i][0] != "INFO"]
                refusal = next((each for each in needed if isinstance(each, Exception)), None)
            except redis.exceptions.RedisError as error:
                refusal = error
            if refusal is None:
                return replies
            if not _is_passing(refusal) or not await patience.pause():
                raise refusal

    async def _pin(self, state: _LoopState) -> None:
        script = self._library["worlds/open"]
        row = script.arrange(
            {"meta": self.keys.meta},
            {
                "schema": str(SCHEMA),
                "partitions": str(self.config.partitions),
                "writer": "redis-world",
            },
        )
        (reply,) = await self._round_trip(state, [("EVAL", script.source, *row)])
        if isinstance(reply, Exception):
            raise reply
        if reply[0] == b"CREATED" and state.opened:
            logger.error(
                "the server at %s has lost namespace %r with all that was in it",
                self.describe(),
                self.config.namespace,
            )
        schema, partitions = int(reply[1]), int(reply[2])
        namespace = self.config.namespace
        if schema != SCHEMA:
            raise ConfigurationError(
                f"namespace {namespace!r} has schema {schema}, this version of redis-world "
                f"writes schema {SCHEMA}: install a version that knows schema {schema}, "
                "or use another namespace"
            )
        if partitions != self.config.partitions:
            raise ConfigurationError(
                f"namespace {namespace!r} was created with partitions={partitions}, not "
                f"{self.config.partitions}: open it with partitions={partitions}, "
                "or use another namespace"
            )

    def describe(self) -> str:
        """The server's address, without its password."""
        if self._url is not None and self.is_memory:
            return self._url
        state = self._for_this_loop()
        kwargs = state.client.connection_pool.connection_kwargs
        return str(kwargs.get("path") or f"{kwargs.get('host')}:{kwargs.get('port')}")


class SyncCaller:
    """Blocking calls of scripts over one connection."""

    def __init__(self, client: redis.Redis, library: ScriptLibrary) -> None:
        self._client = client
        self._library = library

    def call_many(
        self, name: str, calls: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]]
    ) -> list[list[Any]]:
        """Run one script several times in one round trip; tried again a few times.

        Raises:
            WorldUnavailableError: the server did not do it.
        """
        script = self._library[name]
        rows = [script.arrange(keys, args) for keys, args in calls]
        tries = 1
        while True:
            try:
                replies = self._run("EVALSHA", script.sha, rows)
                if _lacks_script(replies):
                    replies = self._run("EVAL", script.source, rows)
                error = next((each for each in replies if isinstance(each, Exception)), None)
            except redis.exceptions.RedisError as lost:
                error = lost
            if error is None:
                return replies
            if tries == _BLOCKING_TRIES or not _is_lost(error):
                raise _translate(error) from error
            tries += 1
            time.sleep(_LONGEST_PAUSE)

    def _run(self, command: str, what: str, rows: list[list[Argument]]) -> list[Any]:
        with self._client.pipeline(transaction=False) as pipeline:
            for row in rows:
                pipeline.execute_command(command, what, *row)  # type: ignore[no-untyped-call]
            return pipeline.execute(raise_on_error=False)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


async def _close_with_the_loop(client: redis.asyncio.Redis) -> AsyncGenerator[None, None]:
    """Close a client at the end of a block that nobody ends but `asyncio.run`.

    A loop that ends closes its asynchronous generators: the one place where connections that
    were never closed can still be.
    """
    try:
        yield
    finally:
        await client.aclose()


def _no_retry() -> AsyncRetry:
    # redis-py sends a command again when its reply is lost, by default ten times. What may be
    # sent twice is for the World to know.
    return AsyncRetry(NoBackoff(), 0)


def _no_retry_sync() -> Retry:
    return Retry(NoBackoff(), 0)


def _check_client(client: object) -> None:
    if not isinstance(client, redis.asyncio.Redis):
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise ConfigurationError(f"a ready client is a redis.asyncio.Redis, not a {kind}")
    options = client.connection_pool.connection_kwargs
    _refuse_decoding(options)
    if not {"host", "path", "server"} & set(options):
        raise ConfigurationError(
            "this client finds its server by itself (a Sentinel's, for example): that is not "
            "supported yet"
        )


def _client_like(client: redis.asyncio.Redis, **settings: Any) -> redis.asyncio.Redis:
    """A client for the server of a ready one, with a pool of our own.

    The ready one's would send commands again by itself, and is its owner's to close.
    """
    pool = client.connection_pool
    kwargs = {**pool.connection_kwargs, "retry": _no_retry(), **settings}
    for name in ("retry_on_error", "retry_on_timeout"):
        kwargs.pop(name, None)
    return redis.asyncio.Redis.from_pool(
        redis.asyncio.BlockingConnectionPool(connection_class=pool.connection_class, **kwargs)
    )


def _check_url(url: str) -> None:
    schemes = (MEMORY, "redis", "rediss", "unix")
    scheme = url.partition("://")[0]
    if "://" not in url or scheme not in schemes:
        known = ", ".join(f"{name}://" for name in schemes)
        raise ConfigurationError(
            f"{_without_secrets(url)!r} is no URL of a server: they begin with one of {known}"
        )
    if scheme == MEMORY:
        return
    try:
        options = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ConfigurationError(
            f"{_without_secrets(url)!r} is no URL of a server: {error}"
        ) from None
    database = urlsplit(url).path.strip("/")
    if scheme != "unix" and database and not database.isdecimal():
        raise ConfigurationError(
            f"{_without_secrets(url)!r} is no URL of a server: {database!r} is no number of a "
            "database"
        )
    _refuse_decoding(dict(options))


def _without_secrets(url: str) -> str:
    """A URL as it may be shown: user, password and options may be anywhere in front or behind."""
    return url.rpartition("@")[2].partition("?")[0]


def _refuse_decoding(options: Mapping[str, Any]) -> None:
    if str(options.get("decode_responses", False)).lower() not in {"false", "0", "no", ""}:
        raise ConfigurationError(
            "decode_responses=True would break binary payloads: make the client without it"
        )


def _check_version(info: Mapping[str, Any]) -> None:
    """Refuse a server without `XADD key 0-*` and friends."""
    name = "valkey" if info.get("valkey_version") else "redis"
    text = str(info.get(f"{name}_version", ""))
    try:
        version = tuple(int(part) for part in text.split(".")[:2])
    except ValueError:
        return
    if version and version < _MIN_VERSIONS[name]:
        raise ConfigurationError(
            f"the server is {name.capitalize()} {text}; redis-world needs Redis 7.0 or Valkey 8.0 "
            "or newer"
        )


def _check_eviction(info: Mapping[str, Any]) -> None:
    policy = info.get("maxmemory_policy")
    if policy is not None and policy != "noeviction":
        text = (
            f"the server's maxmemory-policy is {policy}: when its memory is full it deletes keys "
            "of runs. Set `maxmemory-policy noeviction`"
        )
        logger.warning(text)
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _encode(command: Sequence[Argument]) -> Command:
    """Check arguments here, call by call: an error inside the pipeline would be everybody's."""
    return tuple([part if type(part) is bytes else _encode_argument(part) for part in command])


def _encode_argument(part: Argument) -> Argument:
    if isinstance(part, str):
        return part.encode() if part.isascii() else utf8(part)
    if isinstance(part, bytes | int | float) and not isinstance(part, bool):
        return part
    raise InvalidInputError(f"{part!r} is neither text nor bytes nor a number")


class _Patience:
    """How long, and how often, a call is tried."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._end = loop.time() + seconds
        self._pause = _FIRST_PAUSE

    async def pause(self) -> bool:
        """Wait for the next try; False when there is none."""
        left = self._end - self._loop.time()
        if left <= 0:
            return False
        pause = self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load
        await asyncio.sleep(min(pause, left))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return True


def _wait_command(config: WorldConfig) -> Command | None:
    timeout = math.ceil(config.durability_timeout * 1000)
    match config.durability:
        case "replica":
            return ("WAIT", 1, timeout)
        case "disk":
            return ("WAITAOF", 1, 0, timeout)
    return None


def _is_reached(reply: Reply) -> bool:
    """Whether WAIT or WAITAOF found one that has it all."""
    count = reply[0] if isinstance(reply, list) else reply
    return isinstance(count, int) and count > 0


def _lacks_script(replies: Sequence[Reply]) -> bool:
    return any(isinstance(reply, redis.exceptions.NoScriptError) for reply in replies)


def _has_code(error: Exception, codes: Sequence[str]) -> bool:
    text = str(error)
    return any(text.startswith(code) or isinstance(error, _TYPED.get(code, ())) for code in codes)


def _is_passing(reply: Reply) -> bool:
    """Whether a reply says that the server will do the command, only not now."""
    return isinstance(reply, redis.exceptions.RedisError) and _has_code(reply, _PASSING_CODES)


def _is_lost(error: Exception) -> bool:
    """Whether nobody knows if the commands were run, or they were not, but may be later."""
    if isinstance(error, redis.exceptions.AuthenticationError):
        return False
    lost = redis.exceptions.ConnectionError | redis.exceptions.TimeoutError | OSError
    return isinstance(error, lost) or _is_passing(error)


def _answer(request: _Request, replies: list[Reply]) -> None:
    if request.future.done():
        return
    for reply in replies:
        if isinstance(reply, Exception):
            request.future.set_exception(_translate(reply))
            return
    request.future.set_result(replies)


def _translate(error: BaseException, *, where: str = "") -> WorldError:
    """The World's error for one of redis-py's."""
    at = f" at {where}" if where else ""
    text = str(error)
    if isinstance(error, WorldError):
        return error
    if isinstance(error, redis.exceptions.AuthenticationError):
        return ConfigurationError(f"the server{at} refuses the user or password: {text}")
    if isinstance(error, redis.exceptions.NoPermissionError):
        return ConfigurationError(f"the server{at} denies a command to this user: {text}")
    if isinstance(error, redis.exceptions.TimeoutError):
        return WorldUnavailableError(f"the server{at} did not answer in time ({text})")
    if isinstance(error, redis.exceptions.ConnectionError | OSError):
        hint = ": is it running, and is the URL right?" if where else ""
        return WorldUnavailableError(f"the server{at} can't be reached{hint} ({text})")
    if isinstance(error, TypeError) and where:
        return ConfigurationError(f"the URL has an option that does not exist: {text}")
    if isinstance(error, redis.exceptions.ResponseError):
        if "DB index is out of range" in text:
            return ConfigurationError(f"the server{at} does not have this database: {text}")
        if _has_code(error, _UNAVAILABLE_CODES):
            return WorldUnavailableError(f"the server{at} can't do this now: {text}")
        return ScriptError(f"the server{at} refused a command: {text}")
    return ScriptError(f"{type(error).__name__}: {text}")


# redis-py takes the code off the texts of the errors that it has a class for.
_TYPED: Final[dict[str, type[Exception]]] = {
    "OOM": redis.exceptions.OutOfMemoryError,
    "LOADING": redis.exceptions.BusyLoadingError,
    "READONLY": redis.exceptions.ReadOnlyError,
    "MASTERDOWN": redis.exceptions.MasterDownError,
    "CLUSTERDOWN": redis.exceptions.ClusterDownError,
    "TRYAGAIN": redis.exceptions.TryAgainError,
}


def _sync_twin(client: redis.asyncio.Redis, settings: Mapping[str, Any]) -> redis.Redis:
    """A blocking client for the server of an asyncio one."""
    kwargs = client.connection_pool.connection_kwargs
    if "server" in kwargs:
        import fakeredis

        return fakeredis.FakeRedis(server=kwargs["server"])
    names = ("host", "port", "db", "username", "password", "path", "credential_provider")
    plain = {name: kwargs[name] for name in names if name in kwargs}
    path = plain.pop("path", None)
    if path is not None:
        plain = {"unix_socket_path": path, **plain}
    tls = {name: value for name, value in kwargs.items() if name.startswith("ssl_")}
    secure = issubclass(client.connection_pool.connection_class, redis.asyncio.SSLConnection)
    return redis.Redis(**plain, **(tls if secure else {}), ssl=secure, **settings)


def _abandon(client: redis.asyncio.Redis) -> None:
    """Drop the connections of a loop that is gone: nobody can wait for their farewell."""
    pool = client.connection_pool
    connections = [
        *getattr(pool, "_available_connections", ()),
        *getattr(pool, "_in_use_connections", ()),
    ]
    for connection in connections:
        writer = getattr(connection, "_writer", None)
        transport = getattr(writer, "transport", None)
        with contextlib.suppress(Exception):
            transport.abort()  # type: ignore[union-attr]
        with contextlib.suppress(Exception):
            connection._close()  # noqa: SLF001 - redis-py has no public way without its loop
