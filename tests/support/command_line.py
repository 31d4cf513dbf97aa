"""The command line: in a process of its own, on a terminal or in a pipe, or in this process."""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unittest import mock

from redis_world import cli

__all__ = ["Ended", "environment", "on_a_terminal", "run_here"]


def environment(**more: str) -> dict[str, str]:
    """Without what a developer may have set for himself."""
    own = ("REDIS_WORLD_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**kept, "PYTHONIOENCODING": "utf-8", **more}


def on_a_terminal(command: Sequence[str], *, columns: int, **variables: str) -> tuple[int, str]:
    """Exit code, and what was written, of a command on a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 200, columns, 0, 0))
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**{"TERM": "xterm-256color", **variables}),
    ) as process:
        os.close(theirs)
        pieces = []
        # The end of the terminal's other side is an error on Linux.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65536):
                pieces.append(piece)
        os.close(ours)
    return process.returncode, b"".join(pieces).decode()


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str
    """With what was logged meanwhile."""


def run_here(*arguments: str, **variables: str) -> Ended:
    """Run the command in this process, its output in pipes: a process of its own takes a second.

    What it raises is raised: its user would get a traceback.
    """
    streams = {name: io.TextIOWrapper(io.BytesIO(), "utf-8") for name in ("stdout", "stderr")}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment(**variables), clear=True))
        stack.enter_context(mock.patch.object(sys, "argv", ["redis-world", *arguments]))
        stack.enter_context(mock.patch.object(sys, "stdin", io.StringIO()))
        for name, stream in streams.items():
            stack.enter_context(mock.patch.object(sys, name, stream))
        stack.enter_context(_own_logging())
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = (_read(stream) for stream in streams.values())
    return Ended(code, out, err)


def _read(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


@contextlib.contextmanager
def _own_logging() -> Iterator[None]:
    """What a process of its own has: no other handlers, and levels as they are at first."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    others = {
        name: each.level
        for name, each in logging.root.manager.loggerDict.items()
        if isinstance(each, logging.Logger)
    }
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        for name, before in others.items():
            logging.getLogger(name).setLevel(before)
