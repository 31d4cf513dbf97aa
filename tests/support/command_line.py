"""The command line as a person has it: in a process of its own, on a terminal or in a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Sequence

__all__ = ["environment", "on_a_terminal"]


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
