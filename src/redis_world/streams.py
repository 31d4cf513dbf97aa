"""`world.streams`: append-only logs of binary chunks (contract, section 8)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import time
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import count
from typing import Final

from redis_world.codec import to_duration_ms
from redis_world.connection import Connection
from redis_world.errors import (
    InvalidInputError,
    StreamClosedError,
    WorldUnavailableError,
    shown_id,
)
from redis_world.hints import Subscription
from redis_world.ids import MAX_SLOT, new_request_id, process_id
from redis_world.models import StreamChunk, StreamChunksPage, StreamInfo
from redis_world.paging import DEFAULT_LIMIT, check_limit, parse_cursor
from redis_world.values import flag, items, plain_bytes, shown, text, whole

__all__ = ["Streams"]

logger = logging.getLogger(__name__)

_READ_CHUNKS: Final = 64
"""Chunks of one round trip of a live reader."""
_LOOK_SECONDS: Final = 1.0
"""How often a live reader polls that has no subscription."""
_WRITER: Final = re.compile("[0-9a-f]{8,32}")
_MAX_CHUNKS: Final = 5_000
"""Chunks of one write: the server does nothing else meanwhile."""


class _Writer:
    """An event loop as a writer.

    Its writes are numbered, by which the server tells a repeated request from a new one. Only in
    order it can: hence a lock for each stream.
    """

    def __init__(self) -> None:
        self.name = secrets.token_hex(4)
        self.sequence = count(1)
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def rename(self) -> None:
        """Write under another name from now on."""
        self.name = secrets.token_hex(4)

    def lock(self, stream: str) -> asyncio.Lock:
        """What one write of a stream at a time holds."""
        lock = self._locks.get(stream)
        if lock is None:
            lock = self._locks[stream] = asyncio.Lock()
        return lock


class Streams:
    """Writes and reads streams. They work without a run, and with a run of any status.

    A stream without a run expires an hour after its last write.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # One for each event loop: those of several threads write at once, each in its own order.
        self._writers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Writer] = (
            weakref.WeakKeyDictionary()
        )

    async def write(
        self,
        run_id: str,
        name: str,
        chunk: bytes,
        *,
        writer: str | None = None,
        sequence: int | None = None,
    ) -> None:
        """Append a chunk. Creates the stream if it does not exist.

        Args:
            run_id: the run.
            name: the stream.
            chunk: up to `max_payload_bytes`.
            writer: see `write_many`.
            sequence: see `write_many`.

        Raises:
            StreamClosedError: the stream is closed; nothing was stored.
            InvalidInputError: the chunk is too large, or is not bytes.
        """
        await self.write_many(run_id, name, [chunk], writer=writer, sequence=sequence)

    async def write_many(
        self,
        run_id: str,
        name: str,
        chunks: Sequence[bytes],
        *,
        writer: str | None = None,
        sequence: int | None = None,
    ) -> None:
        """Append chunks in order, all of them or none, in one round trip.

        Args:
            run_id: the run.
            name: the stream.
            chunks: up to 5,000.
            writer: the writer for whom this World writes, 8 to 32 hex digits. None: the World
                itself, which sends a write again after a lost reply, but can't tell that a caller
                repeats one.
            sequence: with `writer`, the number of this write among its writes to the stream.
                Numbers rise; a repetition of a write has its number, in the same `request_scope`.

        Raises:
            StreamClosedError: the stream is closed; nothing was stored.
            InvalidInputError: a chunk is not bytes, or too large, or there are more than 5,000; or
                the writer has written with a higher number since. Nothing was stored.
        """
        origin = _origin(writer, sequence)
        limit = self._connection.config.max_payload_bytes
        rows = []
        for given in items(chunks, "chunks"):
            chunk = plain_bytes(given)
            if chunk is None:
                raise InvalidInputError(f"a chunk must be bytes, not {shown(given)}")
            if len(chunk) > limit:
                raise InvalidInputError(f"a chunk has {len(chunk)} bytes; the limit is {limit}")
            rows.append(chunk)
        run_id, name = self._names(run_id, name)
        if not rows:
            return
        if len(rows) > _MAX_CHUNKS:
            raise InvalidInputError(f"{len(rows)} chunks in one write; the limit is {_MAX_CHUNKS}")
        keys = self._keys(run_id, name)
        if origin is None:
            reply = await self._write_as_itself(keys, name, rows)
        else:
            reply = await self._write(origin, keys, name, rows)
        if reply[0] == b"STALE":
            raise InvalidInputError(
                f"sequence {sequence}: writer {writer} has written a later one, or another "
                f"request with this number, to stream {shown_id(name)!r}"
            )
        if reply[0] == b"CLOSED":
            raise StreamClosedError(
                f"stream {shown_id(name)!r} of run {shown_id(run_id)} is closed"
            )

    async def _write_as_itself(
        self, keys: Mapping[str, str], name: str, chunks: Sequence[bytes]
    ) -> Sequence[object]:
        writer = self._writer()
        async with writer.lock(keys["stream"]):
            while True:
                origin = (process_id() + writer.name, next(writer.sequence))
                reply = await self._write(origin, keys, name, chunks)
                if reply[0] != b"STALE":
                    return reply
                # This process is a copy of another one, which has written meanwhile.
                writer.rename()

    async def _write(
        self, origin: tuple[str, int], keys: Mapping[str, str], name: str, chunks: Sequence[bytes]
    ) -> Sequence[object]:
        writer, sequence = origin
        return await self._connection.call(
            "streams/write",
            keys,
            {
                "name": name,
                "writer": writer,
                "sequence": str(sequence),
                "op": new_request_id(),
                "chunks": chunks,
            },
        )

    async def close(self, run_id: str, name: str) -> None:
        """Close a stream. Creates it if it does not exist; closing it again changes nothing."""
        run_id, name = self._names(run_id, name)
        await self._connection.call(
            "streams/close",
            self._keys(run_id, name),
            {"name": name, "op": new_request_id()},
        )

    async def note_run(self, run_id: str, name: str) -> None:
        """Note that a run writes a stream of this name, for readers that know only the name.

        The first run that is noted for a name keeps it. Its note expires after the `retention` of
        the World, counted from its last note; another run can have the name then. Without a
        `retention` it never expires. It needs neither the run nor the stream.

        Args:
            run_id: the run.
            name: the stream.
        """
        run_id, name = self._names(run_id, name)
        retention = self._connection.config.retention
        await self._connection.call(
            "streams/note_run",
            {"note": self._connection.partitions.of(name).stream_run(name)},
            {
                "run_id": run_id,
                "retention": ""
                if retention is None
                else str(to_duration_ms(retention, "retention")),
            },
        )

    async def find_run(self, name: str) -> str | None:
        """Find the run that was first noted for a stream of this name; see `note_run`.

        The run may be gone, or its user data: its streams are empty then.

        Returns:
            The id of the run. None: no run was noted, or its note has expired.
        """
        name = text(name, "name", self._connection.config.max_name_bytes)
        key = self._connection.partitions.of(name).stream_run(name)
        (run_id,) = await self._connection.execute(("GET", key))
        return None if run_id is None else run_id.decode()

    async def read(
        self, run_id: str, name: str, *, start_index: int = 0, include_empty: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Read a stream live, until it is closed.

        After a broken connection, or an hour of silence, it continues where it was. It also ends
        when the run is removed or its user data is deleted.

        Args:
            run_id: the run.
            name: the stream.
            start_index: the index of the first chunk. A negative one counts from the current end,
                clamped at 0.
            include_empty: also yield empty chunks, so that a reader can count indexes.

        Yields:
            The chunks in order. Empty chunks have an index but are left out by default.
        """
        run_id, name = self._names(run_id, name)
        start_index = whole(start_index, "start_index", None)
        include_empty = flag(include_empty, "include_empty")
        keys = self._connection.partitions.of(run_id).of_run(run_id)
        stream = keys.stream(name)
        index = await self._start(run_id, name, min(start_index, MAX_SLOT))
        # Until it has seen a chunk it may stand behind the end marker, which it would never see.
        may_be_past_end = index > 0
        had_run = False
        async with contextlib.AsyncExitStack() as stack:
            hints: Subscription | None = None
            interrupted: float | None = None
            while True:
                try:
                    # The run behind the chunks: what is read of an expired one is not shown.
                    entries, run = await self._connection.execute(
                        ("XRANGE", stream, f"0-{index + 1}", "+", "COUNT", _READ_CHUNKS),
                        ("HMGET", keys.run, "status", "expired_at"),
                    )
                    if run[1] is not None or (had_run and run[0] is None):
                        return
                    had_run = run[0] is not None
                    is_over = (
                        not entries
                        and may_be_past_end
                        and await self._is_past_end(run_id, name, index)
                    )
                except WorldUnavailableError as error:
                    if interrupted is None:
                        interrupted = time.monotonic()
                        _tell("interrupted", run_id, name, error=error)
                    await asyncio.sleep(_LOOK_SECONDS)
                    continue
                if interrupted is not None:
                    _tell("resumed", run_id, name, seconds=time.monotonic() - interrupted)
                    interrupted = None
                if is_over:
                    return
                for _, (field, chunk) in entries:
                    if field == b"end":
                        return
                    index += 1
                    may_be_past_end = False
                    if chunk or include_empty:
                        yield chunk
                if len(entries) == _READ_CHUNKS:
                    continue
                if hints is None:
                    # Whoever is there to the end needs none. Nobody tells of what came before it:
                    # that the next look finds.
                    hub = self._connection.hub
                    subscribed = hub.subscribe(stream, hears_losses=True)
                    hints = await stack.enter_async_context(subscribed)
                else:
                    await hints.wait(hub.rest(hints, _LOOK_SECONDS))

    async def list(self, run_id: str) -> list[str]:
        """The names of all streams of a run, sorted."""
        run_id = text(run_id, "run_id", self._connection.config.max_name_bytes)
        keys = self._connection.partitions.of(run_id)
        of_run = keys.of_run(run_id)
        names: list[str] = []
        after = b""
        while True:
            reply = await self._connection.call(
                "streams/list",
                {"run": of_run.run, "streams": of_run.streams},
                {"base": keys.base, "run_id": run_id, "after": after},
            )
            names += [name.decode() for name in reply[1]]
            after = reply[2]
            if not after:
                return names

    async def get_info(self, run_id: str, name: str) -> StreamInfo:
        """Read the length of a stream. An unknown one has tail index -1 and is not done."""
        run_id, name = self._names(run_id, name)
        keys = self._keys(run_id, name)
        reply = await self._connection.call("streams/info", _info_keys(keys), {})
        return StreamInfo(tail_index=int(reply[1]), done=reply[2] == b"1")

    async def get_chunks(
        self, run_id: str, name: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> StreamChunksPage:
        """Read a page of the current chunks, including empty ones.

        Args:
            run_id: the run.
            name: the stream.
            limit: 1 to 1,000.
            cursor: the cursor of an earlier page.

        Raises:
            InvalidCursorError: the cursor does not come from this listing.
        """
        run_id, name = self._names(run_id, name)
        limit = check_limit(limit)
        index = int(parse_cursor("chunks", cursor) or "0")
        keys = self._keys(run_id, name)
        # The state first: what is done then is complete in what is read behind it. The run last:
        # what is read of an expired one is not shown.
        info, entries, expired_at = await self._connection.call_then(
            "streams/info",
            _info_keys(keys),
            {},
            [
                ("XRANGE", keys["stream"], f"0-{index + 1}", "+", "COUNT", limit + 1),
                ("HGET", keys["run"], "expired_at"),
            ],
        )
        if expired_at is not None:
            return StreamChunksPage(data=[], cursor=None, has_more=False, done=True)
        data = [
            StreamChunk(index=index + place, data=chunk)
            for place, (_, (kind, chunk)) in enumerate(entries)
            if kind != b"end"
        ]
        more = len(data) > limit
        return StreamChunksPage(
            data=data[:limit],
            cursor=f"chunks:{index + limit}" if more else None,
            has_more=more,
            done=info[2] == b"1",
        )

    # -- inside ----------------------------------------------------------------------------

    def _names(self, run_id: str, name: str) -> tuple[str, str]:
        limit = self._connection.config.max_name_bytes
        return text(run_id, "run_id", limit), text(name, "name", limit)

    def _keys(self, run_id: str, name: str) -> dict[str, str]:
        keys = self._connection.partitions.of(run_id).of_run(run_id)
        return {
            "run": keys.run,
            "streams": keys.streams,
            "stream": keys.stream(name),
            "writers": keys.writers(name),
        }

    def _writer(self) -> _Writer:
        loop = asyncio.get_running_loop()
        writer = self._writers.get(loop)
        if writer is None:
            writer = self._writers[loop] = _Writer()
        return writer

    async def _start(self, run_id: str, name: str, start_index: int) -> int:
        if start_index >= 0:
            return start_index
        info = await self.get_info(run_id, name)
        return max(0, info.tail_index + 1 + start_index)

    async def _is_past_end(self, run_id: str, name: str, index: int) -> bool:
        """Whether a reader stands behind the end marker."""
        info = await self.get_info(run_id, name)
        return info.done and index > info.tail_index + 1


def _origin(writer: str | None, sequence: int | None) -> tuple[str, int] | None:
    """Whose write it is, and which; None for the World's own."""
    if writer is None and sequence is None:
        return None
    if writer is None or sequence is None:
        raise InvalidInputError(
            "writer and sequence must be given together, not writer "
            f"{shown(writer)} and sequence {shown(sequence)}"
        )
    if not isinstance(writer, str) or not _WRITER.fullmatch(writer):
        raise InvalidInputError(f"writer must be 8 to 32 hex digits, not {shown(writer)}")
    return writer, whole(sequence, "sequence", 1, MAX_SLOT)


def _tell(
    what: str, run_id: str, name: str, *, error: Exception | None = None, seconds: float = 0.0
) -> None:
    """Log that a reader lost the server, once, and that it continues."""
    logger.log(
        logging.INFO if error is None else logging.WARNING,
        "stream reader %s%s",
        what,
        f" after {seconds:.1f} s" if error is None else f": {error}",
        extra={
            "event": f"stream.{what}",
            "run_id": shown_id(run_id),
            "stream": shown_id(name),
            "seconds": round(seconds, 1),
        },
    )


def _info_keys(keys: Mapping[str, str]) -> dict[str, str]:
    return {name: keys[name] for name in ("run", "stream", "writers")}
