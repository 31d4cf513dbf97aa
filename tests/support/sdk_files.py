"""What steps and tests tell each other across processes: by files in one folder."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Final

from vercel.workflow import get_step_metadata

FOLDER: Final = "REDIS_WORLD_TEST_FOLDER"
"""Names the folder, to workers too."""


def _folder() -> Path:
    return Path(os.environ[FOLDER])


def note_body() -> None:
    """Note that the body of a step runs. A short append is one write: no line gets lost."""
    step = get_step_metadata()
    with (_folder() / step.run_id).open("a", encoding="utf-8") as notes:
        notes.write(f"{step.step_id}\n")


def bodies(run_id: str) -> Counter[str]:
    """How often the body of each step of a run ran, by the step's id."""
    path = _folder() / run_id
    if not path.exists():
        return Counter()
    return Counter(path.read_text(encoding="utf-8").split())


def open_gate(name: str) -> None:
    """Let the steps go on that wait at this gate."""
    (_folder() / name).touch()


async def gate_opened(name: str) -> None:
    """Wait at a gate."""
    while not (_folder() / name).exists():  # noqa: ASYNC110 - it is opened by another process
        await asyncio.sleep(0.02)
