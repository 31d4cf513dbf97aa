"""`redis-world worker` as a process: its log, its signals, its last line."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from vercel import workflow as sdk

from redis_world.testing import Server
from redis_world.vercel import use_redis_world
from support.command_line import environment
from support.marks import slow
from support.private_servers import any_kind, private_server
from support.sdk import kept_world
from support.until import until

MODULE: Final = "worker_process_flows"
FLOWS: Final = """
    from vercel import workflow as sdk

    app = sdk.Workflows()

    @app.step
    async def fork() -> int:
        import multiprocessing, time

        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        return child.exitcode

    @app.step
    async def log() -> int:
        import logging, threading, warnings

        own = logging.getLogger("shop.orders")
        own.warning("two\\nlines", extra={"order": 7, "level": "mine", "what": object()})
        own.info("not \\"hidden\\"", extra={"run_id": "wrun_1"})
        try:
            1 / 0
        except ZeroDivisionError:
            own.exception("failed")
        warnings.warn("old")
        thread = threading.Thread(target=[].pop)
        thread.start()
        thread.join()
        return 1

    @app.step
    async def interrupt() -> int:
        raise KeyboardInterrupt

    @app.workflow
    async def forking() -> int:
        return await fork()

    @app.workflow
    async def logging_() -> int:
        return await log()

    @app.workflow
    async def interrupted() -> int:
        return await interrupt()
"""


class Process:
    """A worker process on a server of its own."""

    def __init__(self, server: Server, process: subprocess.Popen[str], log: Path) -> None:
        self.server = server
        self.process = process
        self._log = log

    async def value_of(self, name: str) -> Any:
        """Run a workflow to its end."""
        run = await self.start(name)
        async with asyncio.timeout(60):
            return await run.return_value()

    async def start(self, name: str) -> sdk.Run[Any]:
        return await sdk.start(getattr(importlib.import_module(MODULE), name))

    async def at_work(self, processes: int) -> None:
        """Wait until so many processes take messages."""
        await until(
            lambda: self._log.read_text(encoding="utf-8").count("worker started") == processes
        )

    async def ended(self) -> tuple[int, list[str]]:
        """Exit code, and the lines of stderr."""
        code = await asyncio.to_thread(self.process.wait, 60)
        return code, self._log.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / f"{MODULE}.py").write_text(textwrap.dedent(FLOWS), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with kept_world():
        yield tmp_path
    sys.modules.pop(MODULE, None)


@contextlib.asynccontextmanager
async def worker(folder: Path, *options: str) -> AsyncIterator[Process]:
    log = folder / "log"
    with private_server(any_kind()) as server, log.open("w") as stderr:
        adapter = use_redis_world(server.url)
        importlib.import_module(MODULE)
        command = [sys.executable, "-m", "redis_world", "worker", MODULE, *options]
        variables = environment(REDIS_WORLD_URL=server.url)
        with subprocess.Popen(  # noqa: ASYNC220 - it begins in the background
            command, cwd=folder, env=variables, stderr=stderr, text=True
        ) as process:
            try:
                yield Process(server, process, log)
            finally:
                process.kill()
                await adapter.aclose()


@pytest.mark.slow
async def test_a_child_that_a_step_forks_can_be_terminated(flows: Path) -> None:
    """It had its parent's handlers, and neither of them ended."""
    async with worker(flows) as started:
        assert await started.value_of("forking") == -signal.SIGTERM
        os.kill(started.process.pid, signal.SIGTERM)
        assert (await started.ended())[0] == 0


@pytest.mark.parametrize("processes", [1, slow(2)])
async def test_each_line_of_a_json_log_parses(flows: Path, processes: int) -> None:
    options = ["--log-format", "json", "--log-level", "info", "--processes", str(processes)]
    async with worker(flows, *options) as started:
        await started.at_work(processes)
        assert await started.value_of("logging_") == 1
        os.kill(started.process.pid, signal.SIGTERM)
        code, lines = await started.ended()
    assert code == 0
    rows = [json.loads(line) for line in lines]
    for row in rows:
        assert datetime.fromisoformat(row["timestamp"]).utcoffset() is not None
        assert row["level"] in {"debug", "info", "warning", "error", "critical"}
        assert row["logger"]
        assert isinstance(row["message"], str)
    told = {row["message"]: row for row in rows}
    two = told["two\nlines"]
    assert (two["order"], two["level"], two["logger"]) == (7, "warning", "shop.orders")
    assert two["what"].startswith("<object object")
    assert told['not "hidden"']["run_id"] == "wrun_1"
    assert "ZeroDivisionError" in told["failed"]["exception"]
    assert any("UserWarning: old" in row["message"] for row in rows)
    assert "pop from empty list" in told["IndexError"]["exception"]
    assert len([row for row in rows if row.get("event") == "worker.started"]) == processes


@pytest.mark.slow
async def test_a_text_log_shows_the_fields(flows: Path) -> None:
    async with worker(flows, "--log-level", "info") as started:
        await started.value_of("logging_")
        os.kill(started.process.pid, signal.SIGTERM)
        code, lines = await started.ended()
    assert code == 0
    assert any(line.endswith('shop.orders: not "hidden" run_id=wrun_1') for line in lines)


LAST_WORDS: Final = {
    "text": lambda line: line.removeprefix("redis-world: "),
    "json": lambda line: json.loads(line)["message"],
}


async def test_a_keyboard_interrupt_of_a_handler_fails_its_message_only(flows: Path) -> None:
    """No user's comes there: signals are the worker's."""
    async with worker(flows) as started:
        await started.start("interrupted")
        assert await started.value_of("forking") == -signal.SIGTERM
        os.kill(started.process.pid, signal.SIGTERM)
        code, lines = await started.ended()
    assert code == 0
    assert any("KeyboardInterrupt" in line for line in lines)


@pytest.mark.parametrize("log_format", ["text", slow("json")])
async def test_the_last_line_when_the_server_wants_a_password(
    flows: Path, log_format: str
) -> None:
    """One was set, or changed, while the worker runs: it can't learn the new one."""
    async with worker(flows, "--log-format", log_format) as started:
        assert await started.value_of("forking")
        with redis.Redis(started.server.host, started.server.port) as admin:
            admin.config_set("requirepass", "secret")
            admin.execute_command("AUTH", "secret")
            admin.client_kill_filter(_type="normal", skipme=True)
            admin.client_kill_filter(_type="pubsub", skipme=True)
            code, lines = await started.ended()
    assert code == 1
    last = LAST_WORDS[log_format](lines[-1])
    assert "requires a password: add it to the URL" in last
    assert not any("secret" in line for line in lines)
