"""The commands that look into a World and manage it: in a pipe, on a terminal, as JSON."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pytest
from vercel.workflow._internal.serialization import PayloadEncoder
from vercel.workflow._internal.streams import encode_value

from redis_world import RedisWorld
from support.backends import Backend, Servers
from support.command_line import environment, run_here
from support.events import (
    attr_set,
    hook_created,
    lazy_start,
    new_run,
    run_ended,
    step_completed,
    step_failed,
    step_retrying,
    step_started,
    wait_created,
    write,
)
from support.private_servers import ONE

TOPIC: Final = "__wkf_workflow_"
WORKFLOW: Final = "workflow//app.orders//fulfil"
TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
SPAN: Final = r"(\d+ min )?\d+(\.\d\d)? s"
SECONDS: Final = 30.0
"""After which what a test waits for will not come any more."""

encode: Final = PayloadEncoder().encode

Change = Callable[[RedisWorld], Any]


@dataclass(frozen=True)
class Store:
    """A namespace on a server, and what is in it."""

    url: str
    namespace: str
    done: str = ""
    """A completed run with a step that was retried, and a stream."""
    live: str = ""
    """A running one with a hook, a sleep and a running step."""
    failed: str = ""

    @property
    def options(self) -> list[str]:
        return ["--url", self.url, "--namespace", self.namespace]

    def use(self, change: Change, **options: Any) -> Any:
        """Do something in the World."""

        async def inside() -> Any:
            async with RedisWorld(self.url, namespace=self.namespace, **options) as world:
                return await change(world)

        return asyncio.run(inside())


async def fill(world: RedisWorld) -> dict[str, str]:
    done = await new_run(world, workflowName=WORKFLOW, input=encode([{"item": "lamp"}]))
    error = PayloadEncoder().encode_error(ValueError("no\nanswer"))
    await write(
        world,
        done,
        attr_set({"phase": "paid"}, "attr_1"),
        lazy_start("step_1", stepName="step//app.orders//charge", input=encode({"args": [3]})),
        step_retrying("step_1", error=error),
        step_started("step_1"),
        step_completed("step_1", result=encode("P-1")),
    )
    await world.streams.write_many(done, "letter", [encode_value("Dear "), encode_value("Ada")])
    await world.streams.close(done, "letter")
    await write(world, done, run_ended("completed") | {"eventData": {"output": encode({"n": 1})}})
    live = await new_run(world, workflowName=WORKFLOW)
    token = "approve\t\x1b[31m"
    await write(
        world,
        live,
        hook_created("hook_1", token, metadata=b"\x00" * 7),
        wait_created("wait_1"),
        lazy_start("step_1", stepName="step//app.orders//pack"),
    )
    await world.streams.write_many(live, "log", [b"one\n", b"\x00\xff"])
    failed = await new_run(world, "failed")
    return {"done": done, "live": live, "failed": failed}


@pytest.fixture(scope="module")
def backend_of_module(servers: Servers) -> Iterator[Backend]:
    """One kind of server is enough here: what is read is tested on all of them."""
    backend = servers.backend(ONE)
    yield backend
    assert not backend.clear(), "keys outside of the test's namespaces"


@pytest.fixture(scope="module")
def store(backend_of_module: Backend) -> Store:
    """A store that no test changes."""
    empty = Store(backend_of_module.url, backend_of_module.namespace())
    return Store(empty.url, empty.namespace, **empty.use(fill))


@pytest.fixture
def own(backend_of_module: Backend) -> Store:
    """An empty store of the test's own."""
    store = Store(backend_of_module.url, backend_of_module.namespace())
    store.use(RedisWorld.open)
    return store


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "redis_world", *arguments]


def run(
    store: Store, *arguments: str, code: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a pipe; it has to end with this code.

    In this process, which is far faster, unless Python itself has to start with some variables.
    """
    whole = command(*arguments, *store.options)
    if more:
        done = subprocess.run(
            whole,
            capture_output=True,
            text=True,
            check=False,
            env=environment(**more),
            stdin=subprocess.DEVNULL,
            timeout=SECONDS,
        )
    else:
        ended = run_here(*arguments, *store.options)
        done = subprocess.CompletedProcess(whole, ended.code, ended.out, ended.err)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def lines(store: Store, *arguments: str) -> list[list[str]]:
    """The fields of the lines of a command that has nothing to remark."""
    done = run(store, *arguments)
    assert not done.stderr
    assert done.stdout.replace("\n", "").replace("\t", "").isprintable()
    return [line.split("\t") for line in done.stdout.splitlines()]


def objects(store: Store, *arguments: str) -> list[Any]:
    """The lines of a command that prints one JSON object for each."""
    done = run(store, *arguments)
    assert not done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def document(store: Store, *arguments: str) -> Any:
    done = run(store, *arguments, "--json")
    assert done.stdout.count("\n") == 1, "one document in one line"
    return json.loads(done.stdout)


def refusal(store: Store, *arguments: str, code: int = 1) -> str:
    """What a command says that writes one line to stderr and nothing else."""
    done = run(store, *arguments, code=code)
    assert not done.stdout
    assert done.stderr.startswith("redis-world: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, store: Store, *arguments: str, width: int = 80) -> None:
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        self._process = subprocess.Popen(
            command(*arguments, *store.options),
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env=environment(TERM="xterm-256color"),
        )
        os.close(follower)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.output = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._leader)

    @property
    def text(self) -> str:
        """What was written, without colours and the like."""
        return re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", self.output).replace("\r\n", "\n")

    def read_until(self, pattern: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"{pattern!r} did not come: {self.text}"
            assert self._read(), f"{pattern!r} did not come: {self.text}"

    def press(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Read what is left; the exit code."""
        while self._read():
            pass
        return self._process.wait(SECONDS)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._leader], [], [], SECONDS)
        assert ready, f"nothing more came: {self.text}"
        # A terminal that everybody has left ends by an error, not by an end of file.
        with contextlib.suppress(OSError):
            if chunk := os.read(self._leader, 65536):
                # A character may come in two parts.
                self.output += self._decoder.decode(chunk)
                return True
        return False


def on_terminal(store: Store, *arguments: str, width: int = 80, code: int = 0) -> list[str]:
    """The lines that a command draws."""
    with Terminal(store, *arguments, width=width) as terminal:
        assert terminal.end() == code, terminal.text
    found = terminal.text.splitlines()
    wide = [line for line in found if len(line) > width]
    assert not wide
    return [line.strip() for line in found if line.strip()]


def assert_has(found: Sequence[str], *patterns: str) -> None:
    for pattern in patterns:
        assert any(re.fullmatch(pattern, line) for line in found), (pattern, found)


# -- runs ----------------------------------------------------------------------------------


class TestRuns:
    def test_lines(self, store: Store) -> None:
        newest, live, done = lines(store, "inspect", "runs")
        assert done[:3] == [store.done, "completed", WORKFLOW]
        assert all(re.fullmatch(TIME, moment) for moment in done[3:6])
        assert re.fullmatch(r"\d+\.\d{3}", done[6])
        assert done[7:] == ["", "phase=paid"]
        assert (live[0], live[1], live[5]) == (store.live, "running", "")
        assert (newest[0], newest[1], newest[7]) == (store.failed, "failed", "E1")

    def test_json(self, store: Store) -> None:
        found = document(store, "inspect", "runs")
        assert [each["runId"] for each in found["data"]] == [store.failed, store.live, store.done]
        assert found["hasMore"] is False
        done = found["data"][2]
        assert done["input"] == [{"item": "lamp"}]
        assert done["output"] == {"n": 1}
        assert done["attributes"] == {"phase": "paid"}
        assert re.fullmatch(TIME, done["createdAt"])
        # Not written by the SDK.
        assert found["data"][1]["input"] == {"bytes": 2}

    @pytest.mark.parametrize("width", [80, 120])
    def test_table(self, store: Store, width: int) -> None:
        found = on_terminal(store, "inspect", "runs", width=width)
        attributes = r" +phase=paid" if width == 120 else ""
        assert_has(
            found,
            r"run +status +workflow +created +time.*",
            rf"{store.done}  ✓ completed  fulfil +\d+ \w+ ago +{SPAN}{attributes}",
            rf"{store.live}  ● running    fulfil +\d+ \w+ ago +{SPAN}",
            rf"{store.failed}  ✗ failed     w +\d+ \w+ ago +{SPAN}",
        )

    def test_filters(self, store: Store) -> None:
        def ids(*arguments: str) -> list[str]:
            return [row[0] for row in lines(store, "inspect", "runs", *arguments)]

        assert ids("--status", "failed") == [store.failed]
        assert ids("--status", "failed", "--status", "running") == [store.failed, store.live]
        assert ids("--workflow", WORKFLOW) == [store.live, store.done]
        assert ids("--workflow", WORKFLOW, "--status", "completed") == [store.done]
        assert ids("--oldest-first") == [store.done, store.live, store.failed]

    def test_pages(self, store: Store) -> None:
        first = run(store, "inspect", "runs", "--limit", "2")
        assert len(first.stdout.splitlines()) == 2
        found = re.fullmatch(r"there are more runs: add --cursor (\S+), or --all\n", first.stderr)
        assert found is not None
        (rest,) = lines(store, "inspect", "runs", "--cursor", found[1])
        assert rest[0] == store.done
        assert len(lines(store, "inspect", "runs", "--limit", "1", "--all")) == 3
        part = run(store, "inspect", "runs", "--limit", "2", "--json")
        assert json.loads(part.stdout)["cursor"] == found[1]
        assert part.stderr == first.stderr

    def test_a_short_name_of_a_workflow_is_explained(self, store: Store) -> None:
        done = run(store, "inspect", "runs", "--workflow", "fulfil")
        assert not done.stdout
        assert "workflow//<module>//<function>" in done.stderr

    def test_none(self, own: Store) -> None:
        assert lines(own, "inspect", "runs") == []
        assert on_terminal(own, "inspect", "runs") == [
            f"no such runs in namespace '{own.namespace}'"
        ]

    def test_it_does_not_end_by_an_error_when_its_reader_does(self, own: Store) -> None:
        async def many(world: RedisWorld) -> None:
            for _ in range(3000):
                await new_run(world, "pending")

        own.use(many)
        arguments = command("inspect", "runs", "--all", *own.options)
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""

    def test_watch(self, own: Store) -> None:
        first = own.use(new_run)
        with Terminal(own, "inspect", "runs", "--watch") as terminal:
            terminal.read_until(rf"{first}  ● running .*\n(.*\n)*.*1 runs; Ctrl-C ends it")
            second = own.use(lambda world: new_run(world, "pending"))
            terminal.read_until(rf"{second}  ○ pending .*\n(.*\n)*.*2 runs; Ctrl-C ends it")
            terminal.interrupt()
            assert terminal.end() == 0
        assert "Traceback" not in terminal.text

    def test_watch_as_json_gives_what_is_new(self, own: Store) -> None:
        first = own.use(new_run)
        arguments = command("inspect", "runs", "--watch", "--json", *own.options)
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as process:
            try:
                assert process.stdout is not None

                def item() -> tuple[str, str]:
                    assert process.stdout is not None
                    found = json.loads(process.stdout.readline())
                    return found["runId"], found["status"]

                assert item() == (first, "running")
                second = own.use(new_run)
                assert item() == (second, "running")
                own.use(lambda world: write(world, first, run_ended("completed")))
                assert item() == (first, "completed")
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=SECONDS)
            finally:
                process.kill()
        assert (process.returncode, out, err) == (0, b"", b"")


# -- one run -------------------------------------------------------------------------------


class TestRun:
    @pytest.mark.parametrize("width", [80, 120])
    def test_table(self, store: Store, width: int) -> None:
        found = on_terminal(store, "inspect", "run", store.done, width=width)
        assert_has(
            found,
            rf"run +{store.done}",
            rf"status +✓ completed  {SPAN}",
            rf"workflow +{WORKFLOW}",
            rf"created +{TIME}  \d+ \w+ ago",
            r"events +9",
            r"attributes  phase=paid",
            r'input +\[\{"item": "lamp"\}\]',
            r'output +\{"n": 1\}',
            rf"✓ completed  step charge +2 +{SPAN}  .*█.*",
            r"stream  letter  2 chunks, closed",
        )

    def test_table_of_a_live_one(self, store: Store) -> None:
        found = on_terminal(store, "inspect", "run", store.live)
        assert_has(
            found,
            rf"status +● running  {SPAN}",
            r"input +<2 bytes>",
            r"◷ waiting  hook approve\\t\\x1b\[… +.* s  ░+",
            r"◷ waiting  sleep \d+ d \d\d h +.* s  ░+",
            r"● running  step pack +1 .* s  █+",
            r"stream  log  2 chunks, open",
        )

    def test_lines(self, store: Store) -> None:
        found = lines(store, "inspect", "run", store.done)
        kinds = [row[0] for row in found]
        assert kinds == [
            *("run", "attribute", "input", "output", "step", "attempt", "attempt", "stream")
        ]
        assert found[0][1:4] == [store.done, "completed", WORKFLOW]
        assert found[2] == ["input", '[{"item": "lamp"}]']
        assert found[4][1:4] == ["step_1", "step//app.orders//charge", "completed"]
        assert found[4][6] == "2"
        assert [row[1:4] for row in found[5:7]] == [
            ["step_1", "1", "retried"],
            ["step_1", "2", "completed"],
        ]
        assert found[7] == ["stream", "letter", "2", "closed"]

    def test_lines_of_a_live_one(self, store: Store) -> None:
        hook, sleep, step, attempt, stream = lines(store, "inspect", "run", store.live)[2:]
        assert hook[:4] == ["hook", "hook_1", r"approve\t\x1b[31m", "waiting"]
        assert sleep[:4] == ["sleep", "wait_1", "", "waiting"]
        assert sleep[5:] == ["", "2040-01-01T00:00:00.000Z"]
        assert step[:4] == ["step", "step_1", "step//app.orders//pack", "running"]
        assert attempt[:4] == ["attempt", "step_1", "1", "running"]
        assert stream == ["stream", "log", "2", "open"]

    def test_json(self, store: Store) -> None:
        found = document(store, "inspect", "run", store.live)
        assert found["run"]["runId"] == store.live
        assert [each["stepId"] for each in found["steps"]] == ["step_1"]
        assert [each["token"] for each in found["hooks"]] == ["approve\t\x1b[31m"]
        assert found["hooks"][0]["metadata"] == {"bytes": 7}
        assert [each["waitId"] for each in found["waits"]] == [f"{store.live}-wait_1"]
        assert found["streams"] == [{"name": "log", "tailIndex": 1, "done": False}]
        assert [each["kind"] for each in found["timeline"]] == ["hook", "sleep", "step"]
        assert (found["events"], found["hasMore"]) == (6, False)
        done = document(store, "inspect", "run", store.done)
        assert [each["outcome"] for each in done["timeline"][0]["attempts"]] == [
            "retried",
            "completed",
        ]

    @pytest.mark.parametrize("width", [80, 120])
    def test_a_failure_has_its_traceback(self, own: Store, width: int) -> None:
        def fail(text: str) -> None:
            try:
                int(text)
            except ValueError as error:
                raise RuntimeError(f"outer {text}") from error

        def raised(text: str) -> bytes:
            with pytest.raises(RuntimeError) as caught:
                fail(text)
            return PayloadEncoder().encode_error(caught.value)

        async def change(world: RedisWorld) -> str:
            run_id = await new_run(world, workflowName=WORKFLOW)
            for number in range(5):
                step = f"step_{number}"
                await write(world, run_id, lazy_start(step, stepName=f"step//a//f{number}"))
                await write(world, run_id, step_failed(step, error=raised(f"of {step}")))
            await write(world, run_id, lazy_start("again", stepName="step//a//again"))
            await write(world, run_id, step_retrying("again", error=raised("[/red]\x1b[2J")))
            return run_id

        run_id = own.use(change)
        live = on_terminal(own, "inspect", "run", run_id, width=width)
        # Brackets are no markup, escapes no commands.
        assert_has(live, r"error of step again", r"RuntimeError: outer \[/red\]\\x1b\[2J")
        ended = run_ended("failed") | {"eventData": {"error": raised("of the run")}}
        own.use(lambda world: write(world, run_id, ended))
        shown = on_terminal(own, "inspect", "run", run_id, width=width)
        place = shown.index("error of the run")
        assert shown[place + 1] == "Traceback (most recent call last):"
        part = shown[place : shown.index("error of step f3")]
        assert_has(
            part,
            r'File ".*test_inspect.*',
            r"ValueError: invalid literal .*: 'of the run'",
            r"The above exception was the direct cause of the following exception:",
        )
        assert part[-1] == "RuntimeError: outer of the run"
        # The newest ones; the others are counted.
        assert_has(shown, r"error of step f4", r"RuntimeError: outer of step_4")
        assert "error of step f1" not in shown
        assert any(
            re.fullmatch(r"\d+ more steps failed: see `inspect steps`", row) for row in shown
        )
        # A program has it all, a line has its name and message.
        found = document(own, "inspect", "run", run_id)
        assert found["run"]["error"]["stack"].startswith("Traceback")
        assert ["error", "RuntimeError: outer of the run"] in lines(own, "inspect", "run", run_id)

    def test_what_is_not_shown_is_counted(self, store: Store) -> None:
        done = run(store, "inspect", "run", store.live, "--limit", "1")
        assert (
            done.stderr
            == "2 more steps, sleeps and hooks are not shown: raise --limit, or add --all\n"
        )
        assert "step_1" not in done.stdout
        assert not run(store, "inspect", "run", store.live, "--limit", "1", "--all").stderr

    def test_watch(self, own: Store) -> None:
        run_id = own.use(new_run)
        with Terminal(own, "inspect", "run", run_id, "--watch") as terminal:
            terminal.read_until(r"● running .*\n(.*\n)*.*Ctrl-C ends it")
            own.use(lambda world: write(world, run_id, lazy_start(), run_ended("failed")))
            terminal.read_until(r"✗ failed .*  E1 *\n(.*\n)*.* step s .*\n(.*\n)*.*Ctrl-C ends it")
            terminal.interrupt()
            assert terminal.end() == 0

    def test_without_the_sdk_payloads_are_told_by_their_size(
        self, store: Store, tmp_path: Path
    ) -> None:
        (tmp_path / "vercel").mkdir()
        text = "raise ModuleNotFoundError('No module named vercel', name='vercel')\n"
        (tmp_path / "vercel" / "__init__.py").write_text(text, encoding="utf-8")
        done = run(store, "inspect", "run", store.done, PYTHONPATH=str(tmp_path))
        size = len(encode([{"item": "lamp"}]))
        assert f"input\t<{size} bytes>\n" in done.stdout


# -- its parts -----------------------------------------------------------------------------


class TestParts:
    def test_events(self, store: Store) -> None:
        """One JSON object for each line, as a list of them in one document has it."""
        found = objects(store, "inspect", "events", store.done)
        assert [(each["eventType"], each.get("correlationId")) for each in found] == [
            ("run_created", None),
            ("run_started", None),
            ("attr_set", "attr_1"),
            ("step_created", "step_1"),
            ("step_started", "step_1"),
            ("step_retrying", "step_1"),
            ("step_started", "step_1"),
            ("step_completed", "step_1"),
            ("run_completed", None),
        ]
        assert all(re.fullmatch(TIME, each["createdAt"]) for each in found)
        assert found[5]["eventData"]["error"] == {"name": "ValueError", "message": "no\nanswer"}
        assert found[7]["eventData"]["result"] == "P-1"
        assert found == document(store, "inspect", "events", store.done)["data"]
        first = run(store, "inspect", "events", store.done, "--limit", "2")
        assert [json.loads(line) for line in first.stdout.splitlines()] == found[:2]
        assert first.stderr.startswith("there are more events: add --cursor ")
        own_bytes = objects(store, "inspect", "events", store.failed)
        assert own_bytes[-1]["eventData"]["error"] == {"bytes": 3}

    def test_events_of_one_step(self, store: Store) -> None:
        arguments = ("inspect", "events", store.done, "--correlation-id", "step_1")
        found = objects(store, *arguments)
        assert [each["eventType"] for each in found] == [
            *("step_created", "step_started", "step_retrying", "step_started", "step_completed")
        ]
        assert objects(store, *arguments, "--newest-first") == found[::-1]

    def test_events_as_json(self, store: Store) -> None:
        done = run(store, "inspect", "events", store.done, "--json", "--limit", "4")
        found = json.loads(done.stdout)
        assert [each["eventType"] for each in found["data"]][2:] == ["attr_set", "step_created"]
        assert found["data"][3]["eventData"]["input"] == {"args": [3]}
        assert found["hasMore"] is True
        assert found["cursor"] in done.stderr
        rest = document(store, "inspect", "events", store.done, "--cursor", found["cursor"])
        assert rest["data"][0]["eventType"] == "step_started"
        assert rest["data"][1]["eventData"]["error"]["message"] == "no\nanswer"

    @pytest.mark.parametrize("width", [80, 120])
    def test_table_of_events(self, store: Store, width: int) -> None:
        assert_has(
            on_terminal(store, "inspect", "events", store.done, width=width),
            r"slot +time  event +what",
            r'1  \+0\.000 s  run_created     \[\{"item": "lamp"\}\]',
            r"3  \+\d+\.\d{3} s  attr_set        phase=paid",
            r'4  \+\d+\.\d{3} s  step_created    charge  \{"args": \[3\]\}',
            r"6  \+\d+\.\d{3} s  step_retrying   charge  ValueError: no\\nanswer",
            r'8  \+\d+\.\d{3} s  step_completed  charge  "P-1"',
        )

    def test_steps(self, store: Store) -> None:
        (step,) = lines(store, "inspect", "steps", store.done)
        assert step[:4] == ["step_1", "completed", "step//app.orders//charge", "2"]
        assert all(re.fullmatch(TIME, moment) for moment in step[4:7])
        assert step[7:] == ["", '{"args": [3]}', '"P-1"', r"ValueError: no\nanswer"]
        (step,) = document(store, "inspect", "steps", store.done)["data"]
        assert (step["stepId"], step["attempt"], step["output"]) == ("step_1", 2, "P-1")

    @pytest.mark.parametrize("width", [80, 120])
    def test_table_of_steps(self, store: Store, width: int) -> None:
        identity = r"step_1  " if width == 120 else ""
        assert_has(
            on_terminal(store, "inspect", "steps", store.done, width=width),
            rf'{identity}✓ completed  charge +2  {SPAN}  "P-1"',
        )

    def test_hooks(self, store: Store) -> None:
        expected = [r"approve\t\x1b[31m", store.live, "hook_1"]
        for arguments in ([], [store.live]):
            (hook,) = lines(store, "inspect", "hooks", *arguments)
            assert hook[:3] == expected
            assert hook[4:] == ["", "", "<7 bytes>"]
        assert lines(store, "inspect", "hooks", store.done) == []
        (hook,) = document(store, "inspect", "hooks")["data"]
        assert (hook["hookId"], hook["runId"]) == ("hook_1", store.live)
        assert_has(
            on_terminal(store, "inspect", "hooks", width=120),
            rf"approve\\t\\x1b\[31m +{store.live} +\d+ \w+ ago +<7 bytes>",
        )

    def test_none(self, store: Store) -> None:
        for part in ("steps", "hooks", "streams"):
            (text,) = on_terminal(store, "inspect", part, store.failed)
            assert text.startswith(f"run {store.failed} has no ")

    @pytest.mark.parametrize("part", ["run", "events", "steps", "hooks", "streams"])
    def test_an_unknown_run(self, store: Store, part: str) -> None:
        assert '"wrun_nobody" not found' in refusal(store, "inspect", part, "wrun_nobody")
        assert '"wrun_nobody" not found' in refusal(
            store, "inspect", part, "wrun_nobody", "--json"
        )


# -- streams -------------------------------------------------------------------------------


def raw(store: Store, *arguments: str) -> bytes:
    whole = command("inspect", "streams", *arguments, *store.options)
    return subprocess.run(whole, capture_output=True, check=True, env=environment()).stdout


async def is_followed(world: RedisWorld, run_id: str, name: str) -> None:
    """Wait until somebody reads a stream live."""
    channel = world.connection.keys.of_run(run_id).stream(name)
    deadline = time.monotonic() + SECONDS
    while True:
        (reply,) = await world.connection.execute(("PUBSUB", "NUMSUB", channel))
        if int(reply[1]):
            return
        assert time.monotonic() < deadline, "nobody follows it"
        await asyncio.sleep(0.02)


class TestStreams:
    def test_the_list(self, store: Store) -> None:
        assert lines(store, "inspect", "streams", store.done) == [["letter", "2", "closed"]]
        assert document(store, "inspect", "streams", store.live)["data"] == [
            {"name": "log", "tailIndex": 1, "done": False}
        ]
        assert_has(
            on_terminal(store, "inspect", "streams", store.done),
            r"stream  chunks  state",
            r"letter +2  closed",
        )

    def test_chunks_come_as_they_are(self, store: Store) -> None:
        assert raw(store, store.live, "log") == b"one\n\x00\xff"
        letter = encode_value("Dear ") + encode_value("Ada")
        assert raw(store, store.done, "letter") == letter
        assert raw(store, store.done, "letter", "--follow") == letter

    def test_chunks_as_json(self, store: Store) -> None:
        assert document(store, "inspect", "streams", store.done, "letter") == {
            "data": [{"index": 0, "data": "Dear "}, {"index": 1, "data": "Ada"}],
            "done": True,
        }
        found = document(store, "inspect", "streams", store.live, "log")
        assert found["data"] == [
            {"index": 0, "data": {"bytes": 4}},
            {"index": 1, "data": {"bytes": 2}},
        ]
        assert found["done"] is False
        done = run(store, "inspect", "streams", store.done, "letter", "--json", "--follow")
        assert done.stdout == '{"data": "Dear "}\n{"data": "Ada"}\n'

    def test_more_than_a_page(self, own: Store) -> None:
        run_id = own.use(new_run)
        chunks = [b"%d\n" % i for i in range(2500)]
        own.use(lambda world: world.streams.write_many(run_id, "long", chunks))
        assert raw(own, run_id, "long") == b"".join(chunks)
        assert len(document(own, "inspect", "streams", run_id, "long")["data"]) == 2500

    def test_following_one_that_is_yet_to_come(self, own: Store) -> None:
        run_id = own.use(new_run)
        whole = command("inspect", "streams", run_id, "new", "--follow", *own.options)
        with subprocess.Popen(whole, stdout=subprocess.PIPE, env=environment()) as process:
            try:
                assert process.stdout is not None
                own.use(lambda world: is_followed(world, run_id, "new"))
                own.use(lambda world: world.streams.write(run_id, "new", b"first"))
                # It comes while the stream is open.
                assert process.stdout.read(5) == b"first"
                own.use(lambda world: world.streams.write(run_id, "new", b" second"))
                own.use(lambda world: world.streams.close(run_id, "new"))
                assert process.stdout.read() == b" second"
                assert process.wait(SECONDS) == 0
            finally:
                process.kill()

    def test_ctrl_c_ends_it(self, own: Store) -> None:
        run_id = own.use(new_run)
        own.use(lambda world: world.streams.write(run_id, "log", b"first"))
        with Terminal(own, "inspect", "streams", run_id, "log", "--follow") as terminal:
            terminal.read_until("first")
            terminal.interrupt()
            assert terminal.end() == 0
        assert terminal.text == "first"

    def test_a_stream_without_a_run(self, own: Store) -> None:
        own.use(lambda world: world.streams.write("wrun_hc_1", "answer", b"well"))
        assert lines(own, "inspect", "streams", "wrun_hc_1") == [["answer", "1", "open"]]
        assert raw(own, "wrun_hc_1", "answer") == b"well"

    def test_an_unknown_stream(self, store: Store) -> None:
        text = refusal(store, "inspect", "streams", store.done, "nothing")
        assert "has no stream 'nothing'" in text

    def test_follow_what(self, store: Store) -> None:
        text = refusal(store, "inspect", "streams", store.done, "--follow", code=2)
        assert "--follow needs the NAME" in text


# -- the queue -----------------------------------------------------------------------------


async def send(world: RedisWorld, count: int = 1, *, topic: str = TOPIC) -> list[str]:
    sent = [await world.queue.send(f"{topic}w", {"n": n}) for n in range(count)]
    return [each for each in sent if each is not None]


async def letters(world: RedisWorld, count: int = 1, *, topic: str = TOPIC) -> list[str]:
    """Dead letters, in a World of max_failures=2: the second failure is too much."""
    sent = await send(world, count, topic=topic)
    for _ in range(2):
        for message in await world.queue.claim(topic, limit=count):
            assert await world.queue.retry(message, error="it\tbroke", delay=0)
    assert (await world.queue.stats(topic)).dead == count
    return sent


def dead(store: Store, count: int = 1, *, topic: str = TOPIC) -> list[str]:
    found: list[str] = store.use(lambda world: letters(world, count, topic=topic), max_failures=2)
    return found


OTHER: Final = "__other_wkf_workflow_"


class TestQueue:
    def test_counts(self, own: Store) -> None:
        async def change(world: RedisWorld) -> None:
            await letters(world, 1)
            await send(world, 3)
            await world.queue.send(f"{TOPIC}w", {}, delay=1000)
            await world.queue.claim(TOPIC, limit=1)
            await send(world, 1, topic=OTHER)

        own.use(change, max_failures=2)
        other, usual = lines(own, "inspect", "queue")
        assert other[:6] == [OTHER, "1", "0", "0", "0", "0"]
        assert usual[:6] == [TOPIC, "2", "1", "1", "0", "1"]
        assert float(usual[6]) >= 0
        assert [row[0] for row in lines(own, "inspect", "queue", OTHER)] == [OTHER]
        found = document(own, "inspect", "queue", TOPIC)["data"][0]
        age = found.pop("oldestDueAge")
        assert age >= 0
        counts = {"ready": 2, "delayed": 1, "leased": 1, "held": 0, "dead": 1}
        none = {"postponed": 0, "longestPostponed": 0.0, "postponedNames": []}
        assert found == {"topic": TOPIC, **counts, **none}
        for width in (80, 120):
            assert_has(
                on_terminal(own, "inspect", "queue", width=width),
                r"topic +ready  delayed  leased  held  dead  oldest due +p.*",
                rf"{TOPIC} +2 +1 +1 +0 +1 +{SPAN}",
            )

    def test_what_nobody_knows(self, own: Store) -> None:
        async def change(world: RedisWorld) -> None:
            await world.queue.send(f"{TOPIC}refund", {})
            (message,) = await world.queue.claim(TOPIC)
            await world.queue.postpone(message, 3600)

        own.use(change)
        (row,) = lines(own, "inspect", "queue")
        assert (row[7], row[9]) == ("1", f"{TOPIC}refund")
        assert float(row[8]) >= 0
        found = document(own, "inspect", "queue", TOPIC)["data"][0]
        (name,) = found["postponedNames"]
        assert (name["queueName"], name["stepName"]) == (f"{TOPIC}refund", None)
        shown = on_terminal(own, "inspect", "queue", width=120)
        assert_has(shown, r".* oldest due +postponed", rf".* 1 for {SPAN}: {TOPIC}refund")

    def test_nothing_was_ever_sent(self, own: Store) -> None:
        assert lines(own, "inspect", "queue") == []
        (text,) = on_terminal(own, "inspect", "queue")
        assert text.startswith("no message was ever sent in namespace")

    def test_what_is_no_topic(self, own: Store) -> None:
        assert "topic must be __wkf_workflow_" in refusal(own, "inspect", "queue", "orders")

    def test_watch(self, own: Store) -> None:
        own.use(send)
        with Terminal(own, "inspect", "queue", "--watch") as terminal:
            terminal.read_until(rf"{TOPIC} +1 .*\n(.*\n)*.*Ctrl-C ends it")
            own.use(send)
            terminal.read_until(rf"{TOPIC} +2 .*\n(.*\n)*.*Ctrl-C ends it")
            terminal.interrupt()
            assert terminal.end() == 0


class TestDeadLetters:
    def test_the_list(self, own: Store) -> None:
        first, second = dead(own, 2)
        (third,) = dead(own, topic=OTHER)
        found = lines(own, "dead", "list")
        assert {row[0] for row in found} == {first, second, third}
        assert found[0][0] == third, "topic by topic"
        row = next(row for row in found if row[0] == first)
        assert row[1:3] == [f"{TOPIC}w", ""]
        assert re.fullmatch(TIME, row[3])
        assert row[4:] == ["max_failures", "2", r"it\tbroke", '{"n": 0}']
        assert len(lines(own, "dead", "list", TOPIC)) == 2
        letter = document(own, "dead", "list", OTHER)["data"][0]
        assert (letter["messageId"], letter["lastError"]) == (third, "it\tbroke")
        assert letter["payload"] == {"n": 0}
        assert re.fullmatch(TIME, letter["diedAt"])
        for width in (80, 120):
            assert_has(
                on_terminal(own, "dead", "list", width=width),
                rf"{first} +\d+ \w+ ago +2  it\\tbroke",
            )

    def test_pages(self, own: Store) -> None:
        dead(own, 3)
        dead(own, 2, topic=OTHER)
        part = run(own, "dead", "list", "--limit", "1")
        assert len(part.stdout.splitlines()) == 2, "one of each topic"
        found = re.fullmatch(
            rf"there are more dead letters: add {OTHER} --cursor (\S+) or "
            rf"{TOPIC} --cursor (\S+), or --all\n",
            part.stderr,
        )
        assert found is not None
        assert len(lines(own, "dead", "list", TOPIC, "--cursor", found[2])) == 2
        assert len(lines(own, "dead", "list", "--limit", "1", "--all")) == 5
        text = refusal(own, "dead", "list", "--cursor", found[2], code=2)
        assert "--cursor needs the TOPIC" in text

    def test_none(self, own: Store) -> None:
        assert lines(own, "dead", "list") == []
        assert on_terminal(own, "dead", "list") == [
            f"no dead letters in namespace '{own.namespace}'"
        ]

    def test_redrive_some(self, own: Store) -> None:
        first, second = dead(own, 2)
        done = run(own, "dead", "redrive", first, "msg_nothing", code=1)
        assert done.stdout == f"{first}\tredriven\t\nmsg_nothing\tnot found\t\n"
        stats = own.use(lambda world: world.queue.stats(TOPIC))
        assert (stats.ready, stats.dead) == (1, 1)
        assert document(own, "dead", "redrive", second)["data"] == [
            {"messageId": second, "outcome": "redriven", "sentAs": second}
        ]

    def test_redrive_what_stands_for_another_message_now(self, own: Store) -> None:
        async def change(world: RedisWorld) -> list[str | None]:
            run_id = await new_run(world)

            async def again() -> str | None:
                payload = {"runId": run_id}
                return await world.queue.send(f"{TOPIC}w", payload, idempotency_key="k")

            old = await again()
            for _ in range(2):
                (message,) = await world.queue.claim(TOPIC)
                await world.queue.retry(message, delay=0)
            return [old, await again()]

        old, new = own.use(change, max_failures=2)
        assert old != new
        assert lines(own, "dead", "redrive", old) == [[old, "redriven", new]]

    def test_redrive_all(self, own: Store) -> None:
        dead(own, 2)
        dead(own, topic=OTHER)
        assert lines(own, "dead", "redrive", "--all", "--topic", OTHER) == [
            [OTHER, "redriven", "1"]
        ]
        assert document(own, "dead", "redrive", "--all")["data"] == [
            {"topic": OTHER, "redriven": 0},
            {"topic": TOPIC, "redriven": 2},
        ]
        assert own.use(lambda world: world.queue.stats(TOPIC)).ready == 2

    @pytest.mark.parametrize(
        "arguments", [[], ["msg_1", "--all"], ["msg_1", "--topic", TOPIC]], ids=" ".join
    )
    def test_redrive_what(self, own: Store, arguments: list[str]) -> None:
        refusal(own, "dead", "redrive", *arguments, code=2)

    def test_purge(self, own: Store) -> None:
        dead(own, 2)
        dead(own, topic=OTHER)
        assert lines(own, "dead", "purge", OTHER, "--yes") == [[OTHER, "purged", "1"]]
        assert own.use(lambda world: world.queue.stats(TOPIC)).dead == 2
        assert document(own, "dead", "purge", "--yes")["data"] == [
            {"topic": OTHER, "purged": 0},
            {"topic": TOPIC, "purged": 2},
        ]
        assert own.use(lambda world: world.queue.stats(TOPIC)).dead == 0

    def test_purge_asks_first(self, own: Store) -> None:
        dead(own, 2)
        for form in ([], ["--json"]):
            text = refusal(own, "dead", "purge", *form, code=2)
            assert "Delete 2 dead letters for good?" in text
            assert "add --yes" in text
        for answer, code, left in (("n\n", 1, 2), ("y\n", 0, 0)):
            with Terminal(own, "dead", "purge") as terminal:
                terminal.read_until(r"Delete 2 dead letters for good\? \[y/N\]")
                terminal.press(answer)
                assert terminal.end() == code
            assert own.use(lambda world: world.queue.stats(TOPIC)).dead == left

    @pytest.mark.parametrize("options", [[], ["--yes"]], ids=["asking", "yes"])
    def test_purge_asks_about_nothing(self, own: Store, options: list[str]) -> None:
        """Neither on a terminal nor without one; it says that there is nothing."""
        arguments = ("dead", "purge", *options)
        done = run(own, *arguments)
        assert (done.stdout, done.stderr) == ("", "no dead letters to delete\n")
        assert on_terminal(own, *arguments) == ["no dead letters to delete"]
        own.use(send)
        done = run(own, *arguments)
        assert (done.stdout, done.stderr) == (
            f"{TOPIC}\tpurged\t0\n",
            "no dead letters to delete\n",
        )
        assert document(own, *arguments)["data"] == [{"topic": TOPIC, "purged": 0}]


# -- cancel --------------------------------------------------------------------------------


class TestCancel:
    def test_what_becomes_of_each(self, own: Store) -> None:
        async def change(world: RedisWorld) -> list[str]:
            return [await new_run(world, status) for status in ("running", "pending", "failed")]

        running, pending, failed = own.use(change)
        ids = [running, pending, failed, "wrun_nobody"]
        done = run(own, "cancel", *ids, "--reason", "no need", code=1)
        found = [line.split("\t") for line in done.stdout.splitlines()]
        assert [row[:2] for row in found] == [
            [running, "cancelled"],
            [pending, "cancelled"],
            [failed, "ended"],
            ["wrun_nobody", "not found"],
        ]
        assert found[2][2] == "it is failed"
        assert not done.stderr

        async def look(world: RedisWorld) -> tuple[str, Any]:
            log = await world.events.list(running)
            return (await world.runs.get(running)).status, log.data[-1].to_wire()["eventData"]

        assert own.use(look) == ("cancelled", {"cancelReason": "no need"})
        assert document(own, "cancel", running, running)["data"] == [
            {"runId": running, "outcome": "cancelled before"}
        ]

    def test_json_of_a_refusal(self, own: Store) -> None:
        done = run(own, "cancel", "wrun_nobody", "--json", code=1)
        (found,) = json.loads(done.stdout)["data"]
        assert found == {
            "runId": "wrun_nobody",
            "outcome": "not found",
            "message": "the run does not exist",
        }

    def test_table(self, own: Store) -> None:
        run_id = own.use(new_run)
        found = on_terminal(own, "cancel", run_id, "wrun_nobody", code=1)
        assert found[0] == f"{run_id}  cancelled"
        assert found[1].startswith("wrun_nobody  not found")

    def test_a_reason_that_is_too_long(self, own: Store) -> None:
        run_id = own.use(new_run)
        refusal(own, "cancel", run_id, "--reason", "x" * 513)
        assert own.use(lambda world: world.runs.get(run_id)).status == "running"


# -- prune ---------------------------------------------------------------------------------


class TestPrune:
    @pytest.fixture
    def ids(self, own: Store) -> list[str]:
        """A running run, and a finished one of each kind."""

        async def change(world: RedisWorld) -> list[str]:
            states = ("running", "completed", "failed", "cancelled")
            return [await new_run(world, status) for status in states]

        return list(own.use(change))

    def left(self, own: Store) -> set[str]:
        async def look(world: RedisWorld) -> set[str]:
            return {run.run_id for run in (await world.runs.list()).data}

        return set(own.use(look))

    def test_in_a_pipe(self, own: Store, ids: list[str]) -> None:
        assert run(own, "prune", "--older-than", "1h").stdout == "removed\t0\n"
        assert run(own, "prune", "--older-than", "1h", "--yes").stdout == "removed\t0\n"
        assert run(own, "prune", "--older-than", "0s", "--dry-run").stdout == "found\t3\n"
        assert self.left(own) == {*ids}
        arguments = ("prune", "--older-than", "0s", "--status", "failed", "--yes")
        assert run(own, *arguments, "--status", "cancelled").stdout == "removed\t2\n"
        assert self.left(own) == {*ids[:2]}
        assert document(own, "prune", "--older-than", "0s", "--yes") == {
            "removed": 1,
            "found": 1,
            "dryRun": False,
        }
        assert self.left(own) == {ids[0]}

    def test_on_a_terminal(self, own: Store, ids: list[str]) -> None:
        assert "3 runs would be deleted" in "\n".join(
            on_terminal(own, "prune", "--older-than", "0s", "--dry-run")
        )
        shown = "\n".join(on_terminal(own, "prune", "--older-than", "0s", "--yes"))
        assert "3 runs deleted" in shown
        assert self.left(own) == {ids[0]}

    def test_it_asks_first(self, own: Store, ids: list[str]) -> None:
        for form in ([], ["--json"]):
            text = refusal(own, "prune", "--older-than", "0s", *form, code=2)
            assert "Delete 3 runs for good" in text
            assert "add --yes" in text
        for answer, code, left in (("\n", 1, {*ids}), ("n\n", 1, {*ids}), ("y\n", 0, {ids[0]})):
            with Terminal(own, "prune", "--older-than", "0s", width=120) as terminal:
                terminal.read_until(r"Delete 3 runs for good.*\? \[y/N\]")
                assert self.left(own) == {*ids}
                terminal.press(answer)
                assert terminal.end() == code
            assert self.left(own) == left

    @pytest.mark.parametrize("options", [[], ["--yes"], ["--dry-run"]], ids=" ".join)
    def test_it_asks_about_nothing(self, own: Store, options: list[str]) -> None:
        """Neither on a terminal nor without one; it says that there is nothing."""
        own.use(new_run)
        arguments = ("prune", "--older-than", "0s", *options)
        assert on_terminal(own, *arguments) == ["No runs to delete"]
        word = "found" if options == ["--dry-run"] else "removed"
        assert run(own, *arguments).stdout == f"{word}\t0\n"
        assert document(own, *arguments)["removed"] == 0

    @pytest.mark.parametrize("age", ["soon", "7", "-1d", "1y", "99999999999999w"])
    def test_no_age(self, own: Store, age: str) -> None:
        assert "age" in run(own, "prune", "--older-than", age, code=2).stderr

    def test_no_status(self, own: Store) -> None:
        arguments = ("prune", "--older-than", "1d", "--status", "running")
        assert "is not the status of a finished run" in refusal(own, *arguments, code=2)


# -- errors --------------------------------------------------------------------------------

COMMANDS: Final = [
    *(["inspect", "runs"], ["inspect", "run", "r"], ["inspect", "events", "r"]),
    *(["inspect", "steps", "r"], ["inspect", "hooks"], ["inspect", "streams", "r"]),
    *(["inspect", "queue"], ["cancel", "r"], ["dead", "list"]),
    *(["dead", "redrive", "m"], ["dead", "purge", "--yes"], ["prune", "--older-than", "1d"]),
]


class TestErrors:
    @pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
    def test_an_embedded_store(self, arguments: list[str]) -> None:
        text = refusal(Store("memory://x", "n"), *arguments, code=2)
        assert "an embedded store exists only inside its own process" in text

    def test_no_url_is_told(self) -> None:
        done = subprocess.run(
            command("inspect", "runs"), capture_output=True, check=False, env=environment()
        )
        assert done.returncode == 1
        assert b"REDIS_WORLD_URL" in done.stderr

    @pytest.mark.parametrize("arguments", [["inspect", "runs"], ["cancel", "r"]], ids=" ".join)
    def test_a_server_that_is_not_there(self, arguments: list[str]) -> None:
        text = refusal(Store("redis://:pass-word@127.0.0.1:1/0", "n"), *arguments)
        assert "127.0.0.1:1 can't be reached" in text
        assert "pass-word" not in text

    @pytest.mark.parametrize("arguments", [["runs"], ["run", "r"], ["queue"]], ids=" ".join)
    def test_watching_in_a_pipe(self, store: Store, arguments: list[str]) -> None:
        text = refusal(store, "inspect", *arguments, "--watch", code=2)
        assert "--watch needs a terminal" in text

    def test_a_cursor_of_another_list(self, store: Store) -> None:
        assert "does not come from this listing" in refusal(
            store, "inspect", "runs", "--cursor", "steps:1"
        )

    @pytest.mark.parametrize(
        "arguments",
        [
            ["inspect", "runs", "--limit", "0"],
            ["inspect", "runs", "--status", "sleeping"],
            ["inspect", "run"],
            ["cancel"],
        ],
        ids=" ".join,
    )
    def test_wrong_usage(self, store: Store, arguments: list[str]) -> None:
        assert "Usage" in run(store, *arguments, code=2).stderr

    @pytest.mark.parametrize("group", ["inspect", "dead"])
    def test_help(self, group: str) -> None:
        text = subprocess.run(
            command(group, "--help"), capture_output=True, text=True, check=True, env=environment()
        ).stdout
        names = [each[1] for each in COMMANDS if each[0] == group]
        assert names
        assert all(re.search(rf"\b{name}\b", text) for name in names)

    def test_an_encoding_that_lacks_a_letter(self, own: Store) -> None:
        own.use(lambda world: new_run(world, workflowName="größe-漢"))
        done = run(own, "inspect", "runs", PYTHONIOENCODING="ascii")
        assert r"gr\xf6\xdfe-\u6f22" in done.stdout
        data = json.loads(run(own, "inspect", "runs", "--json", PYTHONIOENCODING="ascii").stdout)
        assert data["data"][0]["workflowName"] == "größe-漢"
