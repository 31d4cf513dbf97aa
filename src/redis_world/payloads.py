"""Large payloads, which scripts answer by reference (lua/lib/log.lua).

A small payload comes with the row that it belongs to. In the place of a large one the row has `>`
and its size: it is read by a command of its own, in a second round trip, so that it does not go
through a script, which costs by the byte.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from redis_world.connection import Connection
from redis_world.models import ResolveData

__all__ = ["LOOKS", "Found", "has_large", "load", "read_run", "with_payloads"]

Found = tuple[str, list[bytes]]
"""A run's id, with slots and payloads of its log by turns, as scripts answer them."""

_REFERENCE: Final = b">"
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""Of payloads in one round trip."""
LOOKS: Final = 3
"""How often rows are read whose payloads are gone when they are asked for."""


def has_large(row: Sequence[bytes]) -> bool:
    """Whether there is a reference among slots and payloads by turns."""
    for payload in row[1::2]:  # noqa: SIM110 - of most rows, which have two, any() takes longer
        if payload[:1] == _REFERENCE:
            return True
    return False


async def load(connection: Connection, found: Iterable[Found]) -> bool:
    """Put large payloads in the place of their references, empty for those that are gone.

    Args:
        connection: to the partitions.
        found: what scripts have answered; changed in place.

    Returns:
        Whether all were there still.
    """
    complete = True
    for some in _portions(found):
        values = await connection.execute(
            *(
                ("HGET", connection.partitions.of(run_id).of_run(run_id).payloads, row[place - 1])
                for run_id, row, place in some
            )
        )
        for (_, row, place), value in zip(some, values, strict=True):
            # Of another size it is that of another run with the same id.
            is_there = value is not None and len(value) == int(row[place][1:])
            row[place] = value if is_there else b""
            complete = complete and is_there
    return complete


def _portions(found: Iterable[Found]) -> Iterator[list[tuple[str, list[bytes], int]]]:
    """The places of references, as many at a time as one round trip should bring."""
    portion: list[tuple[str, list[bytes], int]] = []
    size = 0
    for run_id, row in found:
        for place in range(1, len(row), 2):
            if row[place][:1] != _REFERENCE:
                continue
            length = int(row[place][1:])
            if portion and size + length > _BYTES_AT_ONCE:
                yield portion
                portion, size = [], 0
            portion.append((run_id, row, place))
            size += length
    if portion:
        yield portion


async def with_payloads(
    connection: Connection,
    ask: Callable[[], Awaitable[Sequence[Any]]],
    found: Callable[[Sequence[Any]], Iterable[Found]],
) -> Sequence[Any]:
    """The answer of a script that reads, with its large payloads.

    One that is gone when it is asked for was deleted since the script looked: it looks again.

    Args:
        connection: to the partitions.
        ask: calls the script.
        found: the payloads in its reply.
    """
    reply = await ask()
    for _ in range(LOOKS - 1):
        if await load(connection, found(reply)):
            return reply
        reply = await ask()
    await load(connection, found(reply))
    return reply


async def read_run(
    connection: Connection, run_id: str, resolve_data: ResolveData
) -> Sequence[Any]:
    """The reply of `runs/get`, with large payloads."""
    keys = connection.partitions.of(run_id).of_run(run_id)
    return await with_payloads(
        connection,
        lambda: connection.call(
            "runs/get",
            {"run": keys.run, "attributes": keys.attributes, "events": keys.events},
            {"resolve_data": resolve_data},
        ),
        lambda reply: [(run_id, reply[1][1])] if reply[0] == b"OK" else [],
    )
