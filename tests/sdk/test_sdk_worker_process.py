"""`redis-world worker` processes whose handlers do not end, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import secrets
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from vercel import workflow as sdk

from redis_world import RedisWorld
from redis_world.queue import Message
from redis_world.vercel import VercelWorld, use_redis_world
from redis_world.worker import BLOCKED_EXIT_CODE, INTERRUPTED_EXIT_CODE
from support.backends import Backend, Servers
from support.marks import slow
from support.message_fields import stored
from support.private_servers import ONE
from support.queue_tools import TOPIC
from support.sdk import kept_world, until

FLOWS: Final = textwrap.dedent(
    """
    import asyncio
    import os
    import sys

    from vercel import workflow as sdk

    app = sdk.Workflows(sandbox_policy=sdk.SandboxPolicy(share_sandboxes=True))


    @app.step
    async def begin(name):
        open(os.path.join(os.environ["GATES"], name), "w").close()
        if name == "blocking":
            import time

            time.sleep(2)
        elif name == "blocking for ever":
            import time

            while True:
                time.sleep(0.1)
        elif name == "swallowing":
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass
        elif name == "in a thread":
            import time

            await asyncio.to_thread(time.sleep, 120)
        elif name == "exiting":
            async def leave():
                sys.exit(3)

            await asyncio.gather(leave())
        else:
            await asyncio.Event().wait()


    @app.workflow
    async def one_step(name):
        await begin(name)


    @app.workflow
    async def looping():
        while True:
            pass
    """
)


@dataclass
class Stage:
    """A server, a folder with the workflows, and a namespace."""

    backend: Backend
    folder: Path
    namespace: str
    module: str

    @contextlib.contextmanager
    def adapter(self) -> Iterator[VercelWorld]:
        """The SDK's World in this process, which only starts runs."""
        with kept_world():
            yield use_redis_world(self.backend.url, namespace=self.namespace)

    @contextlib.contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """The command, in a process of its own."""
        command = [sys.executable, "-m", "redis_world", "worker", self.module, *options]
        environment = {
            **os.environ,
            "REDIS_WORLD_URL": self.backend.url,
            "REDIS_WORLD_NAMESPACE": self.namespace,
            "GATES": str(self.folder),
        }
        with (
            self.log.open("ab") as output,
            subprocess.Popen(command, cwd=self.folder, env=environment, stderr=output) as process,
        ):
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    process.send_signal(signal.SIGQUIT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(15)
                process.kill()

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def told(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    async def begun(self, *names: str) -> None:
        async def there() -> bool:
            return all((self.folder / name).exists() for name in names)

        await until(there, what=f"the begin of {names}: {self.told()}")


@pytest.fixture
def stage(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """One server is enough: it is the processes that differ."""
    module = f"flows_{secrets.token_hex(4)}"
    (tmp_path / f"{module}.py").write_text(FLOWS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with servers.backend(ONE).at_work() as backend:
        yield Stage(backend, tmp_path, backend.namespace(), module)


async def ended(process: subprocess.Popen[bytes], stage: Stage, limit: float = 45) -> int:
    try:
        return await asyncio.to_thread(process.wait, limit)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it did not end: {stage.told()}")


async def leased_anew(world: RedisWorld) -> dict[str, Message]:
    """All messages, leased, by their step's name."""
    messages = await world.queue.claim(TOPIC, limit=100)
    return {str(message.payload.get("stepName", "")): message for message in messages}


async def start(stage: Stage, *calls: tuple[str, tuple[Any, ...]]) -> None:
    with stage.adapter() as adapter:
        flows = importlib.import_module(stage.module)
        for name, arguments in calls:
            await sdk.start(getattr(flows, name), *arguments)
        await adapter.aclose()


# Contract: 7.lease, 7.failures
@pytest.mark.slow
async def test_a_looping_workflow_ends_its_process_and_counts_as_failed(stage: Stage) -> None:
    async with stage.backend.world(namespace=stage.namespace) as world:
        await start(stage, ("one_step", ("waiting",)))
        with stage.worker("--max-replay", "1.5") as process:
            await stage.begun("waiting")
            await start(stage, ("looping", ()))
            assert await ended(process, stage) == BLOCKED_EXIT_CODE
        stats = await world.queue.stats(TOPIC)
        # The step beside it is released, and as good as new.
        assert (stats.ready, stats.delayed, stats.leased) == (1, 1, 0)
        (released,) = await world.queue.claim(TOPIC)
        assert (released.is_step, released.attempt, released.failures) == (True, 1, 0)
        due = world.connection.keys.topic(TOPIC, "due")
        ((member,),) = await world.connection.execute(("ZRANGE", due, 0, -1))
        message_id = member.decode().partition("/")[0]
        found = await stored(world, message_id, "failures", "error")
        assert found == ["1", "a replay blocked the event loop for 1.5 s"]
    text = stage.told()
    assert "CRITICAL" in text
    assert "in looping" in text
    assert f"{stage.module}.py" in text


@pytest.mark.slow
async def test_a_blocking_step_may_block_for_longer_than_a_replay(stage: Stage) -> None:
    async with stage.backend.world(namespace=stage.namespace) as world:
        await start(stage, ("one_step", ("blocking",)))
        with stage.worker("--max-replay", "0.5", "--lease", "1") as process:
            await stage.begun("blocking")
            (run,) = (await world.runs.list()).data
            done = await world.runs.wait_for_terminal(run.run_id, timeout=45)
            assert done.status == "completed", stage.told()
            step, *_ = (await world.steps.list(run.run_id)).data
            assert step.attempt == 1
            process.send_signal(signal.SIGTERM)
            assert await ended(process, stage) == 0
    assert "CRITICAL" not in stage.told()


@pytest.mark.slow
async def test_a_looping_workflow_costs_one_of_several_processes_and_is_replaced(
    stage: Stage,
) -> None:
    await start(stage, ("looping", ()))
    with stage.worker("--max-replay", "0.5", "--processes", "2") as process:

        async def told() -> bool:
            assert process.poll() is None, stage.told()
            text = stage.told()
            return (
                f"ended with code {BLOCKED_EXIT_CODE}" in text
                and text.count("worker started") >= 3
            )

        await until(told, what="another process")
        process.send_signal(signal.SIGTERM)
        assert await ended(process, stage) == 0


@pytest.mark.parametrize(
    ("name", "code"),
    [slow("swallowing", 0), slow("in a thread", 0), ("blocking for ever", BLOCKED_EXIT_CODE)],
)
async def test_a_stop_is_kept_whatever_handlers_do(stage: Stage, name: str, code: int) -> None:
    async with stage.backend.world(namespace=stage.namespace) as world:
        await start(stage, ("one_step", (name,)))
        with stage.worker("--shutdown-timeout", "0.5") as process:
            await stage.begun(name)
            process.send_signal(signal.SIGTERM)
            assert await ended(process, stage) == code
        (message,) = (await leased_anew(world)).values()
        assert (message.attempt, message.failures) == (1, 0)


@pytest.mark.parametrize("name", [slow("waiting"), slow("swallowing"), "blocking for ever"])
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, slow(signal.SIGINT)], ids=lambda each: each.name
)
async def test_a_second_signal_ends_it_at_once(
    stage: Stage, name: str, number: signal.Signals
) -> None:
    async with stage.backend.world(namespace=stage.namespace) as world:
        await start(stage, ("one_step", (name,)))
        with stage.worker("--shutdown-timeout", "600") as process:
            await stage.begun(name)
            process.send_signal(signal.SIGTERM)
            # Signals of one number that come together are one.
            await asyncio.sleep(0.5)
            assert process.poll() is None
            process.send_signal(number)
            assert await ended(process, stage) == INTERRUPTED_EXIT_CODE
        (message,) = (await leased_anew(world)).values()
        assert (message.attempt, message.failures) == (1, 0)
    assert "second signal" in stage.told()


@pytest.mark.slow
async def test_a_second_signal_ends_all_processes(stage: Stage) -> None:
    async with stage.backend.world(namespace=stage.namespace) as world:
        await start(stage, ("one_step", ("swallowing",)))
        with stage.worker("--shutdown-timeout", "600", "--processes", "2") as process:
            await stage.begun("swallowing")
            for _ in range(2):
                assert process.poll() is None
                process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.5)
            assert await ended(process, stage) == INTERRUPTED_EXIT_CODE
        (message,) = (await leased_anew(world)).values()
        assert (message.attempt, message.failures) == (1, 0)


@pytest.mark.slow
async def test_a_task_that_exits_fails_its_message_only(stage: Stage) -> None:
    async with stage.backend.world(namespace=stage.namespace) as world:
        await start(stage, ("one_step", ("exiting",)))
        with stage.worker() as process:

            async def failed() -> bool:
                return "delivery.failed" in stage.told() or "SystemExit: 3" in stage.told()

            await until(failed, what="the failure")
            await start(stage, ("one_step", ("waiting",)))
            await stage.begun("waiting")
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            await ended(process, stage)
        # The other one waits for its second try.
        messages = await leased_anew(world)
        assert len(messages) == 1, stage.told()
        (message,) = messages.values()
        assert (message.attempt, message.failures) == (1, 0)
