"""How busy this process and the server were, and which of them is the limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from redis_world.bench.figures import Spread

__all__ = ["Busy", "Usage"]

_FULL: Final = 0.85
"""Cores from which a thread counts as busy all the time: some goes to whoever else is there."""
_EQUAL: Final = 0.1
"""Cores by which two differ that are alike."""


@dataclass(frozen=True)
class Usage:
    """CPU time of the server up to a moment, in seconds; in a cluster, of one master.

    Attributes:
        total: of all its threads.
        main: of the thread that runs commands; of all threads where the server does not tell.
    """

    total: float
    main: float


@dataclass(frozen=True)
class Busy:
    """CPU in use while 64 callers wrote events, in cores: 1.0 is one core all the time.

    Attributes:
        process: the CPU of this process, which has one event loop.
        server: the CPU of the server, or of all masters of a cluster; None: it is embedded in this
            process, or does not report it.
        server_main: the CPU of the thread that runs commands; in a cluster, of the busiest master.
        is_memory: whether the server is the embedded store.
    """

    process: Spread
    server: Spread | None = None
    server_main: Spread | None = None
    is_memory: bool = False

    @property
    def limit(self) -> str:
        """The limit: `process`, `server`, `both`, `neither` or `unknown`."""
        if self.is_memory:
            return "process"
        process = self.process.median
        if self.server_main is None:
            return "process" if process >= _FULL else "unknown"
        server = self.server_main.median
        if max(process, server) < _FULL:
            return "neither"
        if min(process, server) >= _FULL and abs(process - server) <= _EQUAL:
            return "both"
        return "process" if process > server else "server"

    @property
    def sentence(self) -> str:
        """The limit in a sentence."""
        process = f"{self.process.median:.2f}"
        if self.is_memory:
            return (
                f"This process is the limit: with the embedded store it does all the work, on "
                f"{process} cores."
            )
        if self.server_main is None:
            known = f"used {process} cores; the server does not report its CPU use."
            if self.limit == "process":
                return f"This process is the limit: it {known}"
            return f"The limit is unknown: this process {known}"
        server = f"{self.server_main.median:.2f}"
        figures = f"this process used {process} cores, the server's main thread {server}"
        match self.limit:
            case "process":
                return f"This process is the limit: {figures}. More processes would do more."
            case "server":
                return f"The server is the limit: {figures}."
            case "both":
                return f"This process and the server are at their limits: {figures}."
        return (
            f"Neither is the limit: {figures}. The time goes to the network, or to other programs "
            "on these machines."
        )

    def document(self) -> dict[str, Any]:
        """The same as a JSON document."""
        return {
            "processCores": self.process.document(),
            "serverCores": None if self.server is None else self.server.document(),
            "serverMainThreadCores": (
                None if self.server_main is None else self.server_main.document()
            ),
            "limit": self.limit,
            "text": self.sentence,
        }
