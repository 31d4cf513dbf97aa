"""Namespaces at their limits, filled fast by the scripts that a World fills them with.

What a World has called once is called again thousands of times over one pipeline, with other ids
in the same places. So whatever lies there the scripts themselves have written.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pytest
import redis

from redis_world import RedisWorld
from redis_world.connection import Connection
from redis_world.ids import new_request_id
from redis_world.lua import Script
from support.events import new_run_id

__all__ = ["MARK", "Filler", "numbered", "tokens"]

MARK: Final = "MARKMARK"
"""Stands in the names of what is repeated for its number, which is as long."""
_AT_ONCE: Final = 1000

Row = tuple[Script, list[bytes]]
Names = Mapping[str, str]
"""What stands in the first call -> what stands in its place."""


def numbered(count: int) -> Iterator[Names]:
    """So many items of which only the number differs."""
    return ({MARK: f"{number:0{len(MARK)}}"} for number in range(count))


def tokens(text: str, items: Iterable[Names]) -> Iterator[Names]:
    """The same items, with a token each that has the mark in it, or a run's id."""
    for names in items:
        token = text
        for old, new in names.items():
            token = token.replace(old, new)
        yield {**names, _hash(text): _hash(token)}


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Filler:
    """Does again what a World has done once.

    Args:
        world: an open World.
        client: of the same server.
        monkeypatch: of the test.
    """

    def __init__(
        self, world: RedisWorld, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.world = world
        self._client = client
        self._rows: list[Row] | None = None
        original = Connection.run
        filler = self

        async def run(
            connection: Connection, name: str, words: Sequence[Any], *more: Any
        ) -> list[Any]:
            if filler._rows is not None:
                script = connection.script(name)
                filler._rows.append((script, [_bytes(len(script.keys)), *map(_bytes, words)]))
            return await original(connection, name, words, *more)

        monkeypatch.setattr(Connection, "run", run)

    async def learn(self, *acts: Callable[[], Awaitable[Any]]) -> list[Row]:
        """Do something, and remember which scripts that has called."""
        rows: list[Row] = []
        self._rows = rows
        try:
            for act in acts:
                await act()
        finally:
            self._rows = None
        return rows

    def repeat(self, rows: Sequence[Row], items: Iterable[Names]) -> int:
        """Call the scripts again for each of these items; how many there were."""
        templates = [_Template(script, row) for script, row in rows]
        count = 0
        rest = iter(items)
        while some := list(itertools.islice(rest, _AT_ONCE)):
            with self._client.pipeline(transaction=False) as pipeline:
                for names in some:
                    pairs = [(old.encode(), new.encode()) for old, new in names.items()]
                    for template in templates:
                        pipeline.execute_command(  # type: ignore[no-untyped-call]
                            *template.filled(pairs)
                        )
                replies: list[Any] = pipeline.execute()
            # With several partitions the first look at a new hook says that it lacks its token.
            assert {reply[0] for reply in replies} <= {b"OK", b"UNRESERVED"}
            count += len(some)
        return count

    async def fill(self, items: Iterable[Names], *acts: Callable[[], Awaitable[Any]]) -> int:
        """Do something once with the mark, and once more for each of these items."""
        return 1 + self.repeat(await self.learn(*acts), items)

    async def runs(
        self,
        count: int,
        make: Callable[[], Awaitable[str]],
        *,
        token: str | None = None,
    ) -> list[str]:
        """So many runs, as one that is made; a token of theirs has that one's id for the mark."""
        made: list[str] = []

        async def act() -> None:
            made.append(await make())

        rows = await self.learn(act)
        ids = [new_run_id() for _ in range(count - 1)]
        items: Iterable[Names] = ({made[0]: run_id} for run_id in ids)
        if token is not None:
            items = tokens(token.replace(MARK, made[0]), items)
        self.repeat(rows, items)
        return [*made, *ids]


class _Template:
    """One call, with the places in it that differ from item to item."""

    def __init__(self, script: Script, row: list[bytes]) -> None:
        self._row: list[bytes] = [b"EVALSHA", script.sha.encode(), *row]
        begin = 3 + len(script.keys)
        if script.resend_at is not None:
            names = [*script.args]
            names.insert(script.resend_at - 1 - len(script.keys), "resend")
        else:
            names = [*script.args]
        self._op = begin + names.index("op") if "op" in names else None
        self._message = begin + names.index("message_id") if "message_id" in names else None

        self._changing: list[int] | None = None

    def filled(self, pairs: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        row = [*self._row]
        if self._changing is None:
            # The same for all items, which differ in what stands in these places.
            self._changing = [
                place for place, part in enumerate(row) if any(old in part for old, _ in pairs)
            ]
        for place in self._changing:
            for old, new in pairs:
                row[place] = row[place].replace(old, new)
        if self._op is not None:
            row[self._op] = new_request_id().encode()
        if self._message is not None:
            row[self._message] = b"msg_" + new_run_id().removeprefix("wrun_").encode()
        return row


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    return str(value).encode()
