"""What README says of `share_sandboxes`: one import per process, and state that runs share."""

from __future__ import annotations

import asyncio
import importlib
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from vercel.workflow import start

from redis_world.vercel import use_redis_world
from support.backends import Backend
from support.sdk import kept_world, value_of

WORKFLOWS: Final = """\
import functools

import {host}
from vercel.workflow import SandboxPolicy, Workflows

{host}.imports.append(1)
app = Workflows(
    namespace="{namespace}",
    sandbox_policy=SandboxPolicy(
        share_sandboxes={share}, passthrough_modules=frozenset({{"{host}"}})
    ),
)
seen = []


class Last:
    name = ""


@functools.lru_cache
def first(key):
    return Last.name


@app.step
async def seen_by_a_step() -> list[str]:
    return seen


@app.workflow
async def remember(name: str) -> list[list[str]]:
    seen_here = list(seen)
    last, Last.name = Last.name, name
    cached = first("key")
    seen.append(name)
    return [seen_here, [last], [cached], await seen_by_a_step()]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules, which are forgotten again."""
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def modules(folder: Path, *, share: bool) -> tuple[ModuleType, ModuleType]:
    """A module of the process, and one of workflows that the SDK imports again."""
    key = secrets.token_hex(4)
    (folder / f"host_{key}.py").write_text("imports = []\n", encoding="utf-8")
    (folder / f"flows_{key}.py").write_text(
        WORKFLOWS.format(host=f"host_{key}", share=share, namespace=f"sandbox{key}"),
        encoding="utf-8",
    )
    return importlib.import_module(f"host_{key}"), importlib.import_module(f"flows_{key}")


async def outcome(backend: Backend, folder: Path, *, share: bool) -> tuple[list[Any], int]:
    """What two runs, one after the other, have seen of each other; and how often was imported."""
    with kept_world():
        adapter = use_redis_world(backend.url, namespace=backend.namespace())
        host, flows = modules(folder, share=share)
        worker = adapter.worker(shutdown_timeout=5.0)
        working = asyncio.create_task(worker.run())
        try:
            values = [await value_of(adapter, await start(flows.remember, name)) for name in "ab"]
        finally:
            worker.stop()
            await working
            await adapter.aclose()
        return values, len(host.imports)


async def test_each_replay_imports_the_module_by_default(backend: Backend, folder: Path) -> None:
    values, imports = await outcome(backend, folder, share=False)
    assert values == [[[], [""], ["a"], []], [[], [""], ["b"], []]]
    # By the process itself, and by two replays of each run: before and after its step.
    assert imports >= 5


async def test_runs_share_the_modules_of_a_shared_sandbox(backend: Backend, folder: Path) -> None:
    values, imports = await outcome(backend, folder, share=True)
    # Variables, class attributes and caches; even the earlier replay of the same run is seen.
    assert values == [[["a"], ["a"], ["a"], []], [["a", "a", "b"], ["b"], ["a"], []]]
    assert imports == 2
