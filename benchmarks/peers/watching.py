"""What rounds take of a backend's server, whoever its clients are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from redis import Redis

from peers.base import Round, Sample
from redis_world.testing import Server

__all__ = ["Look", "Usage", "of_process", "of_redis", "watched"]

_TIMEOUT: Final = 60.0
_PROC: Final = Path("/proc")


class Usage(NamedTuple):
    """What a server has taken until now.

    Attributes:
        seconds: of processors; None where that can't be known.
        commands: that were run, those inside scripts among them; None where they aren't counted.
    """

    seconds: float | None
    commands: int | None


Look: TypeAlias = Callable[[], Usage]


@contextmanager
def of_redis(server: Server) -> Iterator[Look]:
    """Look at a Redis or Valkey, by a connection of its own."""
    with closing(Redis(host=server.host, port=server.port, socket_timeout=_TIMEOUT)) as client:

        def look() -> Usage:
            cpu, stats = client.info("cpu"), client.info("commandstats")
            # Those of these looks are none of the backend's.
            calls = sum(
                of["calls"] for name, of in stats.items() if not name.startswith("cmdstat_info")
            )
            return Usage(float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]), calls)

        yield look


def of_process(pid: int) -> Look:
    """Look at a process and its children, such as a PostgreSQL; on Linux alone."""

    def look() -> Usage:
        ticks = 0
        try:
            for folder in _PROC.iterdir():
                if folder.name.isdecimal():
                    ticks += _ticks(folder, pid)
        except OSError:
            return Usage(None, None)
        return Usage(ticks / os.sysconf("SC_CLK_TCK"), None)

    return look


def _ticks(folder: Path, pid: int) -> int:
    """Of a process, if it is this one, with what its ended children took, or a child of it."""
    try:
        text = (folder / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0  # it has ended meanwhile: its parent has what it took
    # The name of the program is in brackets, and may have blanks in it.
    words = text.rpartition(")")[2].split()
    parent, user, system, ended_user, ended_system = (int(words[at]) for at in (1, 11, 12, 13, 14))
    if int(folder.name) == pid:
        return user + system + ended_user + ended_system
    return user + system if parent == pid else 0


def watched(measure: Round, look: Look) -> Round:
    """Rounds whose samples have what they took of the server."""

    def round_(count: int) -> Sample:
        before = look()
        sample = measure(count)
        after = look()
        return replace(
            sample,
            server=_between(before.seconds, after.seconds),
            commands=_between(before.commands, after.commands),
        )

    return round_


def _between(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
