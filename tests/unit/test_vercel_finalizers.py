"""Garbage collections that interrupt a replay."""

from __future__ import annotations

import contextlib
import gc
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

import pytest
from vercel.workflow._internal import py_sandbox

from redis_world.testing import memory_world
from redis_world.vercel import VercelWorld

MODULES: Final = 400


class Heir:
    """Garbage in a cycle: a collection ends it, and it imports something, and leaves an heir."""

    heirs: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        if self.heirs:
            importlib.import_module(self.heirs.pop())
            type(self)()


@contextlib.contextmanager
def collections_all_the_time() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(5, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Modules that the process has loaded, as they are loaded anew in every sandbox."""
    folder = tmp_path / "imported_in_replays"
    folder.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    names = [f"{folder.name}.m{number}" for number in range(MODULES)]
    (folder / "__init__.py").touch()
    for name in names:
        (folder / f"{name.rpartition('.')[2]}.py").touch()
        importlib.import_module(name)
    yield names
    Heir.heirs.clear()
    for name in [folder.name, *names]:
        del sys.modules[name]


async def test_finalizers_that_import_do_not_break_the_imports_of_a_replay(
    names: list[str],
) -> None:
    # Since 3.12 Python itself has frozen something.
    before = gc.get_freeze_count()
    async with memory_world() as world:
        VercelWorld(world)
        Heir.heirs[:] = names[::2]
        with py_sandbox.Sandbox().enter(), collections_all_the_time():
            for name in names[1::2]:
                Heir()
                importlib.import_module(name)
        assert len(Heir.heirs) < MODULES / 4, "few finalizers had their turn"
        assert gc.get_freeze_count() <= before


REPLAYS_AND_FINALIZERS: Final = """
import asyncio, gc
from vercel.workflow._internal import py_sandbox
from redis_world.testing import memory_world
from redis_world.vercel import VercelWorld

class Heir:
    turns = 0
    over = False

    def __init__(self):
        self.me = self

    def __del__(self):
        if not self.over:
            Heir.turns += 1
            py_sandbox._host_import("json")
            Heir()

async def main():
    async with memory_world() as world:
        VercelWorld(world)
        sandbox = py_sandbox.Sandbox(run_cleanups=False)
        for threshold in (1, 2, 3, 4):
            gc.set_threshold(threshold, 10, 10)
            for number in range(400):
                if number < 100:
                    Heir()
                with sandbox.enter():
                    pass
            gc.set_threshold(700, 10, 10)
    Heir.over = True
    assert Heir.turns > 1_000, "few finalizers had their turn"

asyncio.run(main())
"""


def test_finalizers_that_import_do_not_lose_the_variables_of_a_replay() -> None:
    """In a process of its own, which would crash."""
    arguments = [sys.executable, "-X", "faulthandler", "-c", REPLAYS_AND_FINALIZERS]
    ended = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
