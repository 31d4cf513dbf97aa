"""Modules of workflows that import this package, without a word in their sandbox policy."""

from __future__ import annotations

import asyncio
import importlib
import secrets
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from vercel import workflow as sdk
from vercel.workflow._internal import py_sandbox

from redis_world.vercel import VercelWorld
from support.sdk import kept_world

IMPORTS = (
    "import redis",
    "import redis.asyncio as redis",
    "import redis_world",
    "from redis_world import RedisWorld",
    "import redis_world.vercel",
    "from redis_world.errors import WorldError",
    "from redis_world.testing import memory_world",
    "from redis_world.worker import Worker",
    "import bootstrap",
)


@pytest.mark.parametrize("share", [True, False])
async def test_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: bool) -> None:
    name = f"flows_{secrets.token_hex(4)}"
    bootstrap = f"""
        from redis_world.vercel import use_redis_world

        adapter = use_redis_world("memory://{name}")
    """
    text = f"""
        from vercel import workflow as sdk
        {"; ".join(each for each in IMPORTS if each.startswith("import"))}
        {"; ".join(each for each in IMPORTS if each.startswith("from"))}

        app = sdk.Workflows(sandbox_policy=sdk.SandboxPolicy(share_sandboxes={share}))

        @app.step
        async def double(value: int) -> int:
            return 2 * value

        @app.workflow
        async def flow(value: int) -> int:
            return await double(await double(value))
    """
    (tmp_path / "bootstrap.py").write_text(textwrap.dedent(bootstrap), encoding="utf-8")
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with kept_world():
        module: Any = importlib.import_module(name)
        adapter: VercelWorld = sys.modules["bootstrap"].adapter
        worker = adapter.worker()
        working = asyncio.create_task(worker.run())
        run = await sdk.start(module.flow, 3)
        assert (await adapter.world.runs.wait_for_terminal(run.run_id)).status == "completed"
        assert await run.return_value() == 12
        worker.stop()
        await working
        await adapter.aclose()
    del sys.modules[name], sys.modules["bootstrap"]


@pytest.mark.parametrize("statement", IMPORTS[:-1])
def test_a_replay_imports_it(statement: str) -> None:
    with py_sandbox.Sandbox().enter():
        exec(statement, {})


@pytest.mark.slow
def test_also_in_sandboxes_of_before() -> None:
    """Whatever was imported and replayed first: the finder of the sandboxes is made once."""
    code = """
        from vercel.workflow._internal import py_sandbox

        before = py_sandbox.Sandbox()
        import redis_world.vercel
        with before.enter():
            import redis
            import redis_world.vercel
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_workflows_of_this_package_are_replayed_all_the_same() -> None:
    """Those of the demo are to be as a user's are."""
    import redis_world.demo.workflows as of_the_host

    with py_sandbox.Sandbox().enter():
        replayed = importlib.import_module("redis_world.demo.workflows")
    assert replayed is not of_the_host
