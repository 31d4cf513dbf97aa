"""Packages that can't be installed beside redis-world, and our programs that use them.

Several of them want another redis-py than redis-world and each other, so each has a virtual
environment of its own, in a folder that outlives the benchmark.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from peers.base import Sample
from peers.commands import run

__all__ = ["PROGRAMS", "Ask", "ProgramError", "environment", "program", "sample"]

PROGRAMS: Final = Path(__file__).resolve().parent / "programs"
ROOT: Final = Path(__file__).resolve().parents[2] / ".venv-peers"
INSTALL_TIMEOUT: Final = 600.0
ANSWER_TIMEOUT: Final = 600.0
START_TIMEOUT: Final = 120.0
STOP_TIMEOUT: Final = 30.0

Ask: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends a program one request, and waits for its answer."""


class ProgramError(RuntimeError):
    """A program ended, or did not answer; the text has the end of what it wrote to stderr."""


def environment(name: str, requirements: Sequence[str]) -> Path:
    """The interpreter of an environment that has these packages, made where it is missing.

    Args:
        name: of the folder that holds it.
        requirements: with exact versions. It is made anew when they, or our own interpreter,
            are others than last time.

    Raises:
        MissingError: they can't be installed.
    """
    folder = ROOT / name
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    wanted = "\n".join([sys.version, *requirements])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    ROOT.mkdir(exist_ok=True)
    # No part of the repository, for git and for what looks after its code.
    (ROOT / ".gitignore").write_text("*\n", encoding="utf-8")
    run([sys.executable, "-m", "venv", "--clear", str(folder)], timeout=INSTALL_TIMEOUT)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, *requirements], timeout=INSTALL_TIMEOUT, reason=_without_warnings)
    # Last, so that an installation that was broken off is not taken for a whole one.
    stamp.write_text(wanted, encoding="utf-8")
    return python


def _without_warnings(output: str, errors: str) -> str:
    lines = (output + errors).splitlines()
    return "\n".join([line for line in lines if not line.startswith("WARNING")][-5:])


@contextlib.contextmanager
def program(python: Path, name: str, *arguments: str) -> Iterator[Ask]:
    """Run one of our programs; it is asked and answers in lines of JSON.

    It says `{}` once it is ready, and ends when its standard input does.

    Raises:
        ProgramError: it ended before it was ready, or was not ready in time.
    """
    # Without buffers: what it has written must be there when it is killed.
    command = [str(python), "-u", str(PROGRAMS / name), *arguments]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdin is not None
        assert process.stdout is not None
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        pipe = process.stdin

        def ask(request: dict[str, Any]) -> dict[str, Any]:
            try:
                pipe.write(json.dumps(request).encode() + b"\n")
                pipe.flush()
            except OSError as error:
                raise ProgramError(f"{name} has ended:\n{_tail(errors)}") from error
            return answer(ANSWER_TIMEOUT)

        def answer(timeout: float) -> dict[str, Any]:
            try:
                line = lines.get(timeout=timeout)
            except queue.Empty:
                raise ProgramError(
                    f"{name} did not answer for {timeout:g} s:\n{_tail(errors)}"
                ) from None
            if not line:
                raise ProgramError(f"{name} has ended:\n{_tail(errors)}")
            answered: dict[str, Any] = json.loads(line)
            return answered

        try:
            answer(START_TIMEOUT)
            yield ask
        finally:
            _stop(process, pipe)
            reader.join(STOP_TIMEOUT)
            process.stdout.close()


def sample(answer: dict[str, Any]) -> Sample:
    """What a program has measured."""
    return Sample(answer["count"], answer["seconds"], answer["latencies"])


def _read(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(b"")


def _stop(process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
    # It may have ended already, with something unread.
    with contextlib.suppress(OSError):
        pipe.close()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(errors: IO[bytes]) -> str:
    # By a descriptor's own position: the program goes on writing at the end.
    size = os.fstat(errors.fileno()).st_size
    text = os.pread(errors.fileno(), 4000, max(0, size - 4000))
    return "\n".join(text.decode(errors="replace").splitlines()[-20:])
