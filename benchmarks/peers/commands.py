"""Commands that install or prepare what a backend needs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peers.base import MissingError

__all__ = ["run"]


def run(
    command: Sequence[str | Path],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    reason: Callable[[str, str], str] | None = None,
    **identity: Any,
) -> str:
    """Output of a command that has to succeed.

    Args:
        command: and its arguments.
        timeout: seconds that it may take.
        environment: variables beside those of this process.
        directory: where it runs.
        reason: takes from its output and its errors what says why it failed; the end of both,
            where there is none.
        identity: `user`, `group` and `extra_groups`, as subprocess has them.

    Raises:
        MissingError: it didn't, or took longer.
    """
    text = " ".join(map(str, command))
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
            **identity,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(f"{text} can't be run: {error}") from error
    if done.returncode != 0:
        told = (reason or _end)(done.stdout, done.stderr)
        raise MissingError(f"{text} failed with {done.returncode}:\n{told}")
    output: str = done.stdout
    return output


def _end(output: str, errors: str) -> str:
    return "\n".join((output + errors).splitlines()[-10:])
