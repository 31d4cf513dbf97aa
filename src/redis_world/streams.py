"""`world.streams`: append-only logs of binary chunks (contract, section 8)."""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final

from redis_world.connection import Connection
from redis_world.errors import InvalidInputError, StreamClosedError
from redis_world.ids import new_request_id
from redis_world.models import StreamChunk, StreamChunksPage, StreamInfo
from redis_world.paging import DEFAULT_LIMIT, check_limit, parse_cursor

__all__ = ["Streams"]

_READ_CHUNKS: Final = 64
"""Chunks of one round trip of a live reader."""
_LOOK_SECONDS: Final = 1.0
"""How often a live reader looks by itself, where a hint was lost."""
_WRITE_CHUNKS: Final = 1000
"""Chunks of one script call; Lua's stack ends at 7,000."""


@dataclass(slots=True, weakref_slot=True)
class _Writer:
    """This process as a writer of one stream: one write at a time, numbered.

    The numbers tell the server a repeated request from a new one. Only in order can they, which
    is what the lock is for.
    """

    name: str = field(default_factory=lambda: secrets.token_hex(8))
    sequence: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Streams:
    """Writes and reads streams. They need no run, and know nothing of its status."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._writers: weakref.WeakValueDictionary[tuple[int, str], _Writer] = (
            weakref.WeakValueDictionary()
        )

    async def write(self, run_id: str, name: str, chunk: bytes) -> None:
        """Append a chunk, creating the stream if need be.

        Raises:
            StreamClosedError: the stream is closed; nothing was stored.
            InvalidInputError: the chunk is not bytes, or too large.
        """
        await self.write_many(run_id, name, [chunk])

    async def write_many(self, run_id: str, name: str, chunks: Sequence[bytes]) -> None:
        """Append chunks in order, in one round trip (a thousand of them each).

        Raises:
            StreamClosedError: the stream is closed; nothing was stored.
            InvalidInputError: a chunk is not bytes, or too large.
        """
        limit = self._connection.config.max_payload_bytes
        rows = []
        for chunk in chunks:
            if not isinstance(chunk, bytes | bytearray | memoryview):
                raise InvalidInputError(f"a chunk is bytes, not {type(chunk).__name__}")
            if len(chunk) > limit:
                raise InvalidInputError(f"a chunk has {len(chunk)} bytes; the limit is {limit}")
            rows.append(bytes(chunk))
        keys = self._keys(run_id, name)
        writer = self._writer(keys["stream"])
        async with writer.lock:
            for start in range(0, len(rows), _WRITE_CHUNKS):
                writer.sequence += 1
                reply = await self._connection.call(
                    "streams/write",
                    keys,
                    {
                        "name": name,
                        "writer": writer.name,
                        "sequence": str(writer.sequence),
                        "chunks": rows[start : start + _WRITE_CHUNKS],
                    },
                )
                if reply[0] == b"CLOSED":
                    raise StreamClosedError(f"stream {name!r} of run {run_id} is closed")

    async def close(self, run_id: str, name: str) -> None:
        """Close a stream, creating it if need be; closing it again changes nothing."""
        await self._connection.call(
            "streams/close",
            self._keys(run_id, name),
            {"name": name, "op": new_request_id()},
        )

    async def read(
        self, run_id: str, name: str, *, start_index: int = 0
    ) -> AsyncGenerator[bytes, None]:
        """Read a stream live, until it is closed.

        A broken connection, or an hour of silence, is no end: it goes on where it was.

        Args:
            run_id: the run.
            name: the stream.
            start_index: the first chunk to give; a negative one counts from the current end,
                clamped at 0.

        Yields:
            The chunks in order; empty ones have an index but are left out.
        """
        keys = self._connection.keys.of_run(run_id)
        stream = keys.stream(name)
        index = await self._start(run_id, name, start_index)
        async with self._connection.hub.subscribe(stream) as hints:
            while True:
                (entries,) = await self._connection.execute(
                    ("XRANGE", stream, f"0-{index + 1}", "+", "COUNT", _READ_CHUNKS)
                )
                for _, (field, chunk) in entries:
                    if field == b"end":
                        return
                    index += 1
                    if chunk:
                        yield chunk
                if len(entries) < _READ_CHUNKS:
                    if await self._is_past_end(run_id, name, index, entries):
                        return
                    await hints.wait(_LOOK_SECONDS)

    async def list(self, run_id: str) -> list[str]:
        """The names of all streams of a run, sorted."""
        streams = self._connection.keys.of_run(run_id).streams
        (names,) = await self._connection.execute(("ZRANGE", streams, 0, -1))
        return [name.decode() for name in names]

    async def get_info(self, run_id: str, name: str) -> StreamInfo:
        """How far a stream has been written: tail index -1, not done, for an unknown one."""
        keys = self._keys(run_id, name)
        reply = await self._connection.call(
            "streams/info", {"stream": keys["stream"], "writers": keys["writers"]}, {}
        )
        return StreamInfo(tail_index=int(reply[1]), done=reply[2] == b"1")

    async def get_chunks(
        self, run_id: str, name: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> StreamChunksPage:
        """Read a page of what is there now, empty chunks included.

        Args:
            run_id: the run.
            name: the stream.
            limit: 1 to 1,000.
            cursor: of an earlier page.

        Raises:
            InvalidCursorError: the cursor is not one of this listing.
        """
        check_limit(limit)
        index = int(parse_cursor("chunks", cursor) or "0")
        keys = self._keys(run_id, name)
        (entries,), info = await asyncio.gather(
            self._connection.execute(
                ("XRANGE", keys["stream"], f"0-{index + 1}", "+", "COUNT", limit + 1)
            ),
            self.get_info(run_id, name),
        )
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
            done=info.done,
        )

    # -- inside ----------------------------------------------------------------------------

    def _keys(self, run_id: str, name: str) -> dict[str, str]:
        keys = self._connection.keys.of_run(run_id)
        return {
            "run": keys.run,
            "streams": keys.streams,
            "stream": keys.stream(name),
            "writers": keys.writers(name),
        }

    def _writer(self, stream: str) -> _Writer:
        place = (id(asyncio.get_running_loop()), stream)
        writer = self._writers.get(place)
        if writer is None:
            writer = self._writers[place] = _Writer()
        return writer

    async def _start(self, run_id: str, name: str, start_index: int) -> int:
        if start_index >= 0:
            return start_index
        info = await self.get_info(run_id, name)
        return max(0, info.tail_index + 1 + start_index)

    async def _is_past_end(
        self, run_id: str, name: str, index: int, entries: Sequence[object]
    ) -> bool:
        """Whether a reader began behind the end marker, which it will never see then."""
        if entries:
            return False
        info = await self.get_info(run_id, name)
        return info.done and index > info.tail_index + 1
