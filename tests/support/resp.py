"""A server that answers what a test wants, for what real ones can hardly be brought to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from redis_world.keys import SCHEMA
from support.serving import serving

__all__ = ["FakeServer", "Reply", "bulk", "fake_server", "healthy"]

Reply: TypeAlias = bytes | None
"""Bytes as they go over the wire; None: no answer at all."""

OK: Final = b"+OK\r\n"


def bulk(text: str) -> bytes:
    """A bulk string."""
    blob = text.encode()
    return b"$%d\r\n%s\r\n" % (len(blob), blob)


def healthy(
    command: list[bytes], *, server: str = "redis_version:7.0.0", memory: str = ""
) -> Reply:
    """The answers of a server that a World can be opened on."""
    match [command[0].upper(), *command[1:]]:
        case [b"TIME", *_]:
            return b"*2\r\n" + bulk("1700000000") + bulk("0")
        case [b"INFO", b"server", *_]:
            return bulk(f"# Server\r\n{server}\r\n")
        case [b"INFO", *_]:
            return bulk(f"# Memory\r\nmaxmemory_policy:{memory or 'noeviction'}\r\n")
        case [b"SCRIPT", *_]:
            return bulk("0" * 40)
        case [b"EVALSHA" | b"EVAL", *_]:
            return b"*3\r\n" + bulk("OK") + bulk(str(SCHEMA)) + bulk("1")
        case _:
            return OK


@dataclass
class FakeServer:
    """A running fake and what it was sent."""

    url: str
    commands: list[list[bytes]] = field(default_factory=list)

    @property
    def names(self) -> list[bytes]:
        """Upper-case names of the commands that it was sent."""
        return [command[0].upper() for command in self.commands]


@contextlib.asynccontextmanager
async def fake_server(answer: Callable[[list[bytes]], Reply]) -> AsyncIterator[FakeServer]:
    """Listen on a free port of the loopback interface for the length of a block."""
    found = FakeServer("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readline():
                command = []
                for _ in range(int(head[1:])):
                    size = int((await reader.readline())[1:])
                    command.append((await reader.readexactly(size + 2))[:-2])
                found.commands.append(command)
                reply = answer(command)
                if reply is not None:
                    writer.write(reply)
                    await writer.drain()
        writer.close()

    async with serving(serve) as port:
        found.url = f"redis://127.0.0.1:{port}/0"
        yield found
