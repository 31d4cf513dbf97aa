"""`world.streams` of the reference: append-only logs of chunks (contract, section 8)."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from redis_world.codec import to_duration_ms
from redis_world.errors import InvalidInputError, StreamClosedError
from redis_world.ids import new_request_id
from redis_world.models import StreamChunk, StreamChunksPage, StreamInfo
from redis_world.paging import DEFAULT_LIMIT, check_limit, parse_cursor
from redis_world.testing.reference.request import check_text
from redis_world.testing.reference.state import State, StoredStream

__all__ = ["ReferenceStreams"]

_MAX_CHUNKS: Final = 5_000
"""Chunks of one write."""


class ReferenceStreams:
    """Writes and reads streams. They need no run, and know nothing of its status.

    Without a run a stream goes an hour after its last write.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    async def write(
        self,
        run_id: str,
        name: str,
        chunk: bytes,
        *,
        writer: str | None = None,
        sequence: int | None = None,
    ) -> None:
        """Append a chunk, creating the stream if need be.

        Raises:
            StreamClosedError: the stream is closed; nothing was stored.
            InvalidInputError: the chunk is not bytes, or too large.
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
        """Append chunks in order, all of them or none.

        Raises:
            StreamClosedError: the stream is closed; nothing was stored.
            InvalidInputError: a chunk is not bytes, or too large, or there are more than 5,000;
                or the writer has written with a higher number since.
        """
        if (writer is None) != (sequence is None):
            raise InvalidInputError(f"writer and sequence come together, not {writer}, {sequence}")
        limit = self._state.config.max_payload_bytes
        for chunk in chunks:
            if not isinstance(chunk, bytes | bytearray | memoryview):
                raise InvalidInputError(f"a chunk must be bytes, not a {type(chunk).__name__}")
            if len(chunk) > limit:
                raise InvalidInputError(f"a chunk has {len(chunk)} bytes; the limit is {limit}")
        if len(chunks) > _MAX_CHUNKS:
            raise InvalidInputError(
                f"{len(chunks)} chunks in one write; the limit is {_MAX_CHUNKS}"
            )
        if not chunks:
            return
        stream = self._opened(run_id, name)
        if writer is not None and sequence is not None:
            request = new_request_id()
            last = stream.writers.get(writer, (0, ""))
            if last[1] == request:
                return
            if sequence <= last[0]:
                raise InvalidInputError(f"writer {writer} has written since")
        if stream.done:
            raise StreamClosedError(f"stream {name!r} of run {run_id} is closed")
        if writer is not None and sequence is not None:
            stream.writers[writer] = (sequence, request)
        stream.chunks += [bytes(chunk) for chunk in chunks]
        stream.written_at = self._state.now_ms()
        self._state.changed.ring()

    async def close(self, run_id: str, name: str) -> None:
        """Close a stream, creating it if need be; closing it again changes nothing."""
        stream = self._opened(run_id, name)
        if not stream.done:
            stream.done = True
            stream.written_at = self._state.now_ms()
            self._state.changed.ring()

    async def note_run(self, run_id: str, name: str) -> None:
        """Note that a run writes a stream of this name; the first run that is noted keeps it.

        A note expires after the `retention` of the World, counted from the run's last one.
        """
        check_text(run_id, name)
        if await self.find_run(name) not in (None, run_id):
            return
        retention = self._state.config.retention
        until = None
        if retention is not None:
            until = self._state.now_ms() + to_duration_ms(retention, "retention")
        self._state.stream_runs[name] = run_id, until

    async def find_run(self, name: str) -> str | None:
        """The run that was first noted for a stream of this name, or None."""
        check_text(name)
        run_id, until = self._state.stream_runs.get(name, (None, None))
        return None if until is not None and until <= self._state.now_ms() else run_id

    async def read(
        self, run_id: str, name: str, *, start_index: int = 0, include_empty: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Read a stream live, until it is closed, or its run is removed.

        Args:
            run_id: the run.
            name: the stream.
            start_index: the first chunk to give; a negative one counts from the current end,
                clamped at 0.
            include_empty: also yield empty chunks.

        Yields:
            The chunks in order; empty ones have an index but are left out by default.
        """
        if isinstance(start_index, bool) or not isinstance(start_index, int):
            raise InvalidInputError(f"start_index must be a whole number, not {start_index!r}")
        length = len(self._look(run_id, name).chunks)
        index = start_index if start_index >= 0 else max(0, length + start_index)
        had_run = False
        while True:
            # Asked for before the look: a write in between is not missed.
            changed = self._state.changed.next()
            stream = self._look(run_id, name)
            if had_run and run_id not in self._state.runs:
                return
            had_run = run_id in self._state.runs
            if index < len(stream.chunks):
                chunk = stream.chunks[index]
                index += 1
                if chunk or include_empty:
                    yield chunk
            elif stream.done:
                return
            else:
                await changed.wait()

    async def list(self, run_id: str) -> builtins.list[str]:
        """The names of all streams of a run, sorted."""
        check_text(run_id)
        self._state.forget_orphan_streams()
        return sorted(name for run, name in self._state.streams if run == run_id)

    async def get_info(self, run_id: str, name: str) -> StreamInfo:
        """How far a stream has been written: tail index -1, not done, for an unknown one."""
        stream = self._look(run_id, name)
        return StreamInfo(tail_index=len(stream.chunks) - 1, done=stream.done)

    async def get_chunks(
        self, run_id: str, name: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> StreamChunksPage:
        """Read a page of what is there now, empty chunks included.

        Raises:
            InvalidCursorError: the cursor is not one of this listing.
        """
        check_limit(limit)
        first = int(parse_cursor("chunks", cursor) or "0")
        stream = self._look(run_id, name)
        rest = [
            StreamChunk(index=index, data=chunk)
            for index, chunk in enumerate(stream.chunks)
            if index >= first
        ]
        has_more = len(rest) > limit
        return StreamChunksPage(
            data=rest[:limit],
            # Unlike other listings', the last page has no cursor.
            cursor=f"chunks:{first + limit}" if has_more else None,
            has_more=has_more,
            done=stream.done,
        )

    # -- inside ----------------------------------------------------------------------------

    def _look(self, run_id: str, name: str) -> StoredStream:
        """The stream, or an empty one that is not kept."""
        check_text(run_id, name)
        self._state.forget_orphan_streams()
        if self._has_expired(run_id):
            return StoredStream(done=True)
        return self._state.streams.get((run_id, name), StoredStream())

    def _opened(self, run_id: str, name: str) -> StoredStream:
        """The stream, created if need be."""
        check_text(run_id, name)
        self._state.forget_orphan_streams()
        if self._has_expired(run_id):
            return StoredStream(done=True)
        return self._state.streams.setdefault((run_id, name), StoredStream())

    def _has_expired(self, run_id: str) -> bool:
        """Whether the user data of the run is deleted: its streams are empty and closed then."""
        run = self._state.runs.get(run_id)
        return run is not None and run.has_expired
