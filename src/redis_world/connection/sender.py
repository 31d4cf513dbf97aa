"""Sends calls: those of one tick in one pipeline, and again until they are answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

import hiredis
import redis.asyncio
import redis.exceptions

from redis_world.config import WorldConfig
from redis_world.connection.redis_errors import (
    first_refusal,
    is_elsewhere,
    is_lost,
    is_passing,
    lacks_script,
    mark,
    reason_of,
    translate,
)
from redis_world.connection.wires import WirePool
from redis_world.errors import (
    InvalidInputError,
    NotDurableError,
    WorldClosedError,
    WorldUnavailableError,
)
from redis_world.lua import Argument, Script
from redis_world.requests import current_request
from redis_world.text import utf8
from redis_world.values import shown

__all__ = ["Command", "Patience", "Reply", "Sender", "encode", "round_trip"]

logger = logging.getLogger(__name__)

Command = tuple[Argument, ...]
Reply = Any
HandOver = Callable[["list[Request]", Exception, "Patience"], "Awaitable[list[Request]]"]

_ROW: Final = 2
"""Where the arranged row of a script begins, in EVALSHA as in EVAL."""
_MAX_BATCH: Final = 512
"""Commands of one pipeline; what is beyond goes into another one."""
_ANSWERED_AT_ONCE: Final = 16
"""Requests. Callers that are all answered in one tick all ask in the next one, for ever: the
server waits while they work, and they wait while it does."""
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
"""Seconds between two tries: doubled each time, up to the longest."""
_FIRST_TIMEOUT: Final = 0.5
"""Seconds that the first try may take, doubled each time: a connection that a firewall dropped
without a word must not hold up a message for all of `socket_timeout`."""
_SECONDS_PER_MIB: Final = 1.0
_SECONDS_PER_COMMAND: Final = 0.005
"""What a try of many bytes, or of many commands, may take besides: a server and a client that are
busy with five hundred of them are not silent."""
_SCANNED_AT_ONCE: Final = 1000
_LAG: Final = 0.05
"""Seconds by which a timer must be late for the loop to count as blocked; and a moment."""


class Request:
    """Some commands in order, answered together."""

    __slots__ = ("commands", "future", "packed", "scripts", "sender", "slot")

    def __init__(
        self,
        commands: list[Command],
        scripts: dict[int, Script],
        future: asyncio.Future[list[Reply]],
        slot: int | None,
    ) -> None:
        self.commands = commands
        self.packed = pack(commands)
        """The commands as they travel."""
        self.scripts = scripts
        """Position -> script, for those of the commands that are EVALSHA."""
        self.future = future
        self.slot = slot
        """Of its keys, in a cluster."""
        self.sender: Sender | None = None
        """Who sends it at present."""

    @property
    def is_waited(self) -> bool:
        """Whether it writes what must not be lost."""
        return any(script.waited for script in self.scripts.values())

    def mark_resend(self) -> None:
        """Tell the scripts that they may have run already."""
        for place, script in self.scripts.items():
            if script.resend_at is not None:
                row = list(self.commands[place])
                # Behind its keys, which may be more than those of its header.
                extra = int(row[_ROW]) - len(script.keys)
                row[_ROW + script.resend_at + extra] = b"1"
                self.commands[place] = tuple(row)
        self.packed = pack(self.commands)

    def send_source(self) -> None:
        """Send the scripts themselves: the server does not have them."""
        for place, script in self.scripts.items():
            self.commands[place] = ("EVAL", script.source, *self.commands[place][_ROW:])
        self.packed = pack(self.commands)


class Sender:
    """The calls of one event loop on their way to the server.

    Args:
        client: a client of the running loop.
        config: the World's options.
        restore: called when the server has lost its scripts: it may have lost more.
        hand_over: called after a failure with what has to be sent again; what stays here.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        config: WorldConfig,
        restore: Callable[[], Awaitable[None]],
        hand_over: HandOver | None = None,
    ) -> None:
        self._hand_over = hand_over
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._config = config
        self._restore = restore
        self._wait_command = _wait_command(config)
        self._pending: list[Request] = []
        self._batches: set[asyncio.Task[None]] = set()
        self._closing = False

    async def submit(
        self,
        commands: list[Command],
        scripts: dict[int, Script],
        slot: int | None = None,
    ) -> list[Reply]:
        """Send commands in order, with whatever else is sent in this tick of the loop.

        Args:
            commands: what is asked.
            scripts: position -> script, for those of the commands that are EVALSHA.
            slot: of their keys, in a cluster.

        Raises:
            InvalidInputError: there is an argument that can't be sent; nothing was.
        """
        request = Request(commands, scripts, self._loop.create_future(), slot)
        caller = current_request()
        if caller is not None and caller.is_repeated:
            request.mark_resend()
        request.sender = self
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(request)
        return await request.future

    def take(self, requests: list[Request], patience: Patience) -> None:
        """Go on with what another sender could not bring to its end."""
        for request in requests:
            request.sender = self
        self._start(requests, patience)

    async def finish(self) -> None:
        """Wait for what is under way; what has to be sent again by now fails."""
        self._closing = True
        while self._pending or self._batches:
            self._flush()
            batches = [*self._batches]
            if batches:
                # If this is cancelled, the calls are not.
                await asyncio.wait(batches)
            # Not left to their callbacks: to wait for what is done already gives the loop no
            # turn to call them, and this would never end.
            self._batches.difference_update(batches)

    def _flush(self) -> None:
        batch: list[Request] = []
        size = 0
        pending, self._pending = self._pending, []
        for request in pending:
            # A caller that gave up before anything was sent leaves no trace.
            if request.future.cancelled():
                continue
            if batch and size + len(request.commands) > _MAX_BATCH:
                self._start(batch)
                batch, size = [], 0
            batch.append(request)
            size += len(request.commands)
        if batch:
            self._start(batch)

    def _start(self, batch: list[Request], patience: Patience | None = None) -> None:
        task = self._loop.create_task(self._send(batch, patience))
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    async def _send(self, batch: list[Request], patience: Patience | None) -> None:
        """Send a batch and hand out the replies; runs to its end whatever its callers do."""
        try:
            await self._send_until_answered(batch, patience)
        except asyncio.CancelledError:
            # As `asyncio.run` does at its end, with callers that may wait for it.
            self._fail(batch, WorldClosedError("the event loop ended the call"))
            raise
        except Exception as error:  # noqa: BLE001 - every caller of the batch gets it
            self._fail(batch, self._translated(error))

    def _translated(self, error: Exception) -> Exception:
        return translate(mark(error, self._client.connection_pool))

    def _fail(self, batch: list[Request], error: Exception) -> None:
        for request in batch:
            # What was handed over meanwhile is another one's.
            if request.sender is self and not request.future.done():
                request.future.set_exception(error)

    async def _send_until_answered(self, batch: list[Request], patience: Patience | None) -> None:
        if patience is None:
            patience = Patience(self._config.retry_timeout)
        seconds = _FIRST_TIMEOUT
        while True:
            batch, error = await self._try(batch, seconds if patience.left() > seconds else None)
            seconds *= 2
            # Those of callers that gave up meanwhile are not sent again.
            batch = [request for request in batch if not request.future.done()]
            if not batch:
                return
            if self._closing or not await patience.pause():
                if self._hand_over is not None and is_elsewhere(error):
                    raise WorldUnavailableError(
                        "the cluster moves the keys of this call to another node and has not "
                        f"finished: {error}. Try again later"
                    ) from error
                raise error
            if self._hand_over is not None:
                batch = await self._hand_over(batch, error, patience)
                if not batch:
                    return
            logger.debug(
                "retrying %d calls: %s",
                len(batch),
                reason_of(error),
                extra={"event": "redis.resent", "count": len(batch)},
            )

    async def _try(
        self, batch: list[Request], seconds: float | None
    ) -> tuple[list[Request], Exception]:
        """Send a batch once; returns what has to be sent again, and why."""
        left: list[Request] = []
        reason: Exception = redis.exceptions.ConnectionError("")
        deadline = (
            contextlib.nullcontext()
            if seconds is None
            else _Deadline(seconds, batch, self._client.connection_pool)
        )
        try:
            with deadline:
                answered = await self._ask_with_scripts(batch)
            for place, (request, replies) in enumerate(answered):
                if place and place % _ANSWERED_AT_ONCE == 0:
                    # Those who have theirs may send on while the others get theirs.
                    await asyncio.sleep(0)
                refusal = first_refusal(replies)
                passing = (
                    None
                    if refusal is None
                    else next(filter(self._may_be_done_later, replies), None)
                )
                if passing is None:
                    self._answer(request, replies, refusal)
                else:
                    reason = passing
                    left.append(request)
        except (redis.exceptions.RedisError, OSError) as error:
            if not is_lost(error):
                raise
            reason = error
            left = [request for request in batch if not request.future.done()]
        if left:
            for request in left:
                request.mark_resend()
            # The other connections may lead to a server that is gone, or a primary no more.
            await self._client.connection_pool.disconnect(inuse_connections=False)
        return left, reason

    def _answer(self, request: Request, replies: list[Reply], refusal: Exception | None) -> None:
        if request.future.done():
            return
        if refusal is None:
            request.future.set_result(replies)
        else:
            request.future.set_exception(self._translated(refusal))

    def _may_be_done_later(self, reply: Reply) -> bool:
        """Whether the server has not run the command, and it, or another node, may yet."""
        return is_passing(reply) or (self._hand_over is not None and is_elsewhere(reply))

    async def _ask_with_scripts(self, batch: list[Request]) -> list[tuple[Request, list[Reply]]]:
        """Ask, and send the scripts themselves where the server lost them: EVAL keeps them."""
        answered = await self._ask(batch)
        bare = [request for request, replies in answered if lacks_script(replies)]
        if bare:
            # It was started again, and may have lost everything.
            await self._restore()
            for request in bare:
                request.send_source()
            answered = [pair for pair in answered if pair[0] not in bare]
            answered += await self._ask(bare)
        return answered

    async def _ask(self, batch: list[Request]) -> list[tuple[Request, list[Reply]]]:
        """Each request of a batch with its replies."""
        commands = [command for request in batch for command in request.commands]
        packed = [request.packed for request in batch]
        wait = self._wait_command
        if wait is not None and not any(request.is_waited for request in batch):
            wait = None
        if wait is not None:
            # Waiting covers what its own connection has written, and all before it. A call that
            # finds itself done, by an earlier try or a rival, would write and wait for nothing.
            waiting = [("HSET", _waited_key(batch), "waited", "1"), wait]
            commands += waiting
            packed.append(pack(waiting))
        replies = await round_trip(self._client, commands, packed)
        answered, first = [], 0
        for request in batch:
            end = first + len(request.commands)
            answered.append((request, replies[first:end]))
            first = end
        if wait is None:
            return answered
        waited = replies[-1]
        if is_passing(waited):
            # The master is one no more: its successor may not have the writes.
            return [(request, [waited] if request.is_waited else own) for request, own in answered]
        if not _is_reached(waited):
            for request, own in answered:
                if request.is_waited and not any(isinstance(each, Exception) for each in own):
                    self._tell_not_durable(request, own[0])
        return answered

    def _tell_not_durable(self, request: Request, reply: Reply) -> None:
        who = "a replica" if self._config.durability == "replica" else "the disk"
        seconds = self._config.durability_timeout
        if reply[0] == b"OK":
            text = (
                f"{who} did not confirm the write within {seconds} s: it is stored, "
                "and may yet be lost"
            )
        else:
            # A refusal has stored nothing, but who believes it may rely on what others have.
            text = (
                f"{who} did not confirm the earlier writes within {seconds} s: what its answer, "
                f"{reply[0].decode()}, rests on may yet be lost"
            )
        if not request.future.done():
            request.future.set_exception(NotDurableError(text))


async def round_trip(
    client: redis.asyncio.Redis,
    commands: Sequence[Command],
    packed: Sequence[bytes] | None = None,
) -> list[Reply]:
    """Send commands once, packed already or not; their replies in order, errors among them."""
    pool = client.connection_pool
    if isinstance(pool, WirePool):
        try:
            replies = await pool.ask(commands, packed)
        except (redis.exceptions.RedisError, OSError) as error:
            mark(error, pool)
            raise
        for place, (command, reply) in enumerate(zip(commands, replies, strict=True)):
            if isinstance(reply, Exception):
                if isinstance(reply, redis.exceptions.ConnectionError):
                    # A server that is starting, or knows no such user, has answered all alike.
                    raise mark(reply, pool)
            # Of commands in bytes replies are raw, as redis-py has it, too.
            elif isinstance(command[0], str):
                replies[place] = _as_redis_py(client, command[0], reply)
        return replies
    # The embedded server.
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return await pipeline.execute(raise_on_error=False)


async def scan(client: redis.asyncio.Redis, pattern: str) -> AsyncGenerator[list[bytes], None]:
    """The keys of one node that match, some at a time, maybe none, and maybe more than once."""
    cursor = 0
    while True:
        command = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED_AT_ONCE)
        (reply,) = await round_trip(client, [command])
        if isinstance(reply, Exception):
            raise reply
        yield reply[1]
        cursor = int(reply[0])
        if cursor == 0:
            return


def _as_redis_py(client: redis.asyncio.Redis, name: str, reply: Reply) -> Reply:
    callback = client.response_callbacks.get(name)
    return reply if callback is None else callback(reply)


class Patience:
    """How long, and how often, a call is tried."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds
        self._pause = _FIRST_PAUSE

    def left(self) -> float:
        """Seconds until it is at its end."""
        return self._end - self._loop.time()

    async def pause(self) -> bool:
        """Wait for the next try; False when there is none."""
        left = self.left()
        if left <= 0:
            return False
        pause = self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load
        await asyncio.sleep(min(pause, left))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return True


class _Deadline:
    """Ends a try that takes too long, inside of its block, with redis-py's TimeoutError.

    A replay may block the loop for longer than a try may take, while the reply lies there:
    then the try is given its time once more, and always a moment to take what has come.

    Nor is it silence when a long reply comes slowly: as long as there are bytes that arrive, the
    try goes on. Else such a call would be sent again and again, and never be answered.
    """

    def __init__(
        self, seconds: float, batch: Sequence[Request], pool: redis.asyncio.ConnectionPool
    ) -> None:
        size = sum([len(each.packed) for each in batch])
        count = sum([len(each.commands) for each in batch])
        self._seconds = seconds + size / 2**20 * _SECONDS_PER_MIB + count * _SECONDS_PER_COMMAND
        self._loop = asyncio.get_running_loop()
        self._is_last_moment = False
        self._cancellations = 0
        self._pool = pool
        self._seen_at = 0.0

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._wait(self._seconds)

    def _wait(self, seconds: float) -> None:
        self._end = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._end, self._expire)

    def _expire(self) -> None:
        was_blocked = self._loop.time() - self._end > _LAG
        if was_blocked or self._is_answered():
            self._is_last_moment = False
            self._wait(self._seconds)
        elif not self._is_last_moment:
            self._is_last_moment = True
            self._wait(_LAG)
        elif self._task is not None:
            # Again and again: the client may swallow a cancellation that meets a reply.
            self._cancellations += 1
            self._task.cancel()
            self._wait(_LAG)

    def _is_answered(self) -> bool:
        """Whether more of the answer has come since the last look."""
        if not isinstance(self._pool, WirePool):
            return False
        seen_at, self._seen_at = self._seen_at, self._pool.received_at(self._task)
        return self._seen_at > seen_at

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self._task is None:
            return
        for _turn in range(self._cancellations):
            self._task.uncancel()
        if self._cancellations and kind is asyncio.CancelledError:
            raise redis.exceptions.TimeoutError(f"no reply within {self._seconds:.1f} s")


def _waited_key(batch: Sequence[Request]) -> Argument:
    """A key of the node that a batch goes to, for what is written only to be waited for."""
    request = next(request for request in batch if request.is_waited)
    key = request.commands[min(request.scripts)][_ROW + 1]
    tag, brace, rest = (key if isinstance(key, bytes) else str(key).encode()).partition(b"}")
    version = rest.split(b":")[1]
    return tag + brace + b":" + version + b":waited"


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


def pack(commands: Sequence[Command]) -> bytes:
    """Commands as they travel.

    They are packed call by call: an error inside the pipeline would be everybody's.

    Raises:
        InvalidInputError: there is an argument that can't be sent.
    """
    try:
        if len(commands) == 1:
            return hiredis.pack_command(commands[0])  # type: ignore[arg-type, no-any-return]
        return b"".join([hiredis.pack_command(command) for command in commands])  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        for command in commands:
            encode(command)
        raise


def encode(command: Sequence[Argument]) -> Command:
    """The same, as bytes where it is text: then redis-py leaves the replies as they are."""
    return tuple([part if type(part) is bytes else _encode_argument(part) for part in command])


def _encode_argument(part: Argument) -> Argument:
    if isinstance(part, str):
        return part.encode() if part.isascii() else utf8(part)
    if isinstance(part, bytes | int | float) and not isinstance(part, bool):
        return part
    raise InvalidInputError(f"an argument must be text, bytes or a number, not {shown(part)}")
