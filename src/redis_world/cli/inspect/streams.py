"""`redis-world inspect streams`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from redis_world import RedisWorld
from redis_world.cli.inspect.common import Json, RunId, commands, refuse, with_world
from redis_world.cli.inspect.output import Column, Listing, Output, writing
from redis_world.cli.inspect.payloads import chunk_payload
from redis_world.cli.options import Namespace, Url
from redis_world.errors import WorldError
from redis_world.models import Page, StreamChunk

__all__ = ["Stream", "read_streams", "streams"]

_PAGE: Final = 1000


@dataclass(frozen=True)
class Stream:
    """A stream of a run.

    Attributes:
        chunks: how many were written.
        done: whether it is closed.
    """

    name: str
    chunks: int
    done: bool

    def to_wire(self) -> dict[str, Any]:
        """With the wire's names."""
        return {"name": self.name, "tailIndex": self.chunks - 1, "done": self.done}


_LISTING: Final = Listing[Stream](
    "streams",
    [
        Column("stream", lambda each: each.name, lambda each: each.name),
        Column("chunks", lambda each: str(each.chunks), lambda each: str(each.chunks), right=True),
        Column(
            "state",
            lambda each: "closed" if each.done else "open",
            lambda each: Text("closed", "dim") if each.done else Text("open", "cyan"),
        ),
    ],
    Stream.to_wire,
)


@commands.command()
def streams(
    run_id: RunId,
    name: Annotated[
        str | None, typer.Argument(help="Name of a stream. Default: list the run's streams.")
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Wait for new chunks until the stream is closed, or Ctrl-C."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the streams of a run, or print the chunks of one stream.

    Chunks are printed as raw bytes, with nothing between them. A chunk that
    the Python SDK wrote begins with its length. With --json, chunks are
    decoded: one document, or with --follow one line for each chunk.

    Fields of the list in a pipe: name, number of chunks, open or closed.
    """
    output = Output.choose(as_json=as_json)
    if name is None:
        if follow:
            refuse("--follow needs the NAME of a stream: add it after the run id")
        with_world(url, namespace, partial(_list, output, run_id))
        return
    with contextlib.suppress(KeyboardInterrupt):
        work = _items if as_json else _raw
        with_world(url, namespace, partial(work, output, run_id, name, follow=follow))


async def read_streams(world: RedisWorld, run_id: str) -> list[Stream]:
    """The streams of a run."""
    found = []
    for name in await world.streams.list(run_id):
        info = await world.streams.get_info(run_id, name)
        found.append(Stream(name, info.tail_index + 1, info.done))
    return found


async def _list(output: Output, run_id: str, world: RedisWorld) -> None:
    found = await read_streams(world, run_id)
    if not found:
        # A stream needs no run; where there is neither it is a wrong id.
        await world.runs.get(run_id, resolve_data="none")
    page = Page[Stream].model_construct(None, data=found, cursor=None, has_more=False)
    output.show(_LISTING, page, none=f"run {run_id} has no streams")


async def _raw(
    _output: Output, run_id: str, name: str, world: RedisWorld, *, follow: bool
) -> None:
    await _check(world, run_id, name, follow=follow)
    if follow:
        async for chunk in world.streams.read(run_id, name):
            _write(chunk)
        return
    async for each in _chunks(world, run_id, name):
        _write(each.data)


async def _items(
    output: Output, run_id: str, name: str, world: RedisWorld, *, follow: bool
) -> None:
    await _check(world, run_id, name, follow=follow)
    if follow:
        # Empty chunks are left out here, so that nobody knows the index of the others.
        async for chunk in world.streams.read(run_id, name):
            output.item({"data": chunk_payload(chunk)})
        return
    data = [
        {"index": each.index, "data": chunk_payload(each.data)}
        async for each in _chunks(world, run_id, name)
    ]
    info = await world.streams.get_info(run_id, name)
    output.document({"data": data, "done": info.done})


async def _chunks(world: RedisWorld, run_id: str, name: str) -> AsyncGenerator[StreamChunk, None]:
    """What is there now."""
    cursor = None
    while True:
        page = await world.streams.get_chunks(run_id, name, limit=_PAGE, cursor=cursor)
        for chunk in page.data:
            yield chunk
        if not page.has_more:
            return
        cursor = page.cursor


async def _check(world: RedisWorld, run_id: str, name: str, *, follow: bool) -> None:
    """Refuse a stream that there is not, and that nobody can be waiting for.

    Raises:
        RunNotFoundError: there is neither a stream nor a run.
        WorldError: the run has no such stream.
    """
    if name in await world.streams.list(run_id):
        return
    await world.runs.get(run_id, resolve_data="none")
    if not follow:
        raise WorldError(f"run {run_id} has no stream {name!r}")


def _write(chunk: bytes) -> None:
    with writing():
        sys.stdout.buffer.write(chunk)
        # At once: somebody may be waiting for it.
        sys.stdout.buffer.flush()
