"""The demo, as a person runs it: in a pipe, on a terminal, with worker processes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from redis_world.demo.lines import PlainView
from redis_world.demo.run import View, run_demo
from redis_world.demo.story import Entry, Story
from redis_world.demo.view import LiveView
from redis_world.errors import ConfigurationError, WorldError
from redis_world.ids import event_id
from redis_world.models import Event, RunCreatedEvent, RunFailedEvent, StepCreatedEvent
from redis_world.models.events import RunCreatedData, RunFailedData, StepCreatedData
from support.backends import Backend, Servers
from support.command_line import environment
from support.private_servers import ONE

GO_ON = "redis-world demo --url redis://localhost:6379/0 --processes 2"
LETTER = [
    "Dear Ada,",
    r"thank you for order A-\w+: 3 lamps for 59.70 EUR.",
    "Your bank answered the third call, and charged your card once.",
    "Mia approved the order, and the parcel leaves today.",
    "Yours, the workflow",
]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "redis_world", "demo", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, env=environment()
    )


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if text in line:
            return lines
    raise AssertionError(f"{text!r} never came: {lines}")


def pids_of(line: str) -> list[int]:
    found = re.search(r"worker processes (\d+) and (\d+)$", line)
    assert found is not None, line
    return [int(pid) for pid in found.groups()]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def server(servers: Servers) -> Iterator[Backend]:
    """One kind of server is enough here: what the demo does is tested on all of them."""
    backend = servers.backend(ONE)
    yield backend
    assert not backend.clear(), "keys outside of the test's namespaces"


@pytest.fixture(scope="module")
def result() -> subprocess.CompletedProcess[str]:
    """The demo, once, for all tests of what it prints."""
    return run()


@pytest.fixture
def lines(result: subprocess.CompletedProcess[str]) -> list[str]:
    return result.stdout.splitlines()


class TestInAPipe:
    def test_it_ends_well(self, result: subprocess.CompletedProcess[str]) -> None:
        assert result.returncode == 0, result.stderr
        assert not result.stderr
        lines = result.stdout.splitlines()
        assert lines[-1].startswith("next, on a server: ")
        assert lines[-1].endswith(GO_ON)
        assert re.fullmatch(
            r"result: order A-(\w+) for 59.70 EUR, payment P-\1, approved by Mia", lines[-2]
        )

    def test_it_has_no_control_characters(self, result: subprocess.CompletedProcess[str]) -> None:
        assert result.stdout.isascii()
        assert result.stdout.replace("\n", "").isprintable()

    def test_it_names_the_run_and_who_works(self, lines: list[str]) -> None:
        assert re.fullmatch(r"run wrun_\w{26}, a worker in this process", lines[0])

    def test_it_tells_all_that_happens_in_order(self, lines: list[str]) -> None:
        story = [line[11:] for line in lines if re.match(r" *\d+\.\d{3} s  ", line)]
        expected = [
            r"run fulfil created",
            r"run started",
            r"attributes: order=A-\w+, phase=checking",
            r"step check_stock created",
            r"step check_stock started \(attempt 1\)",
            r"step check_stock completed \(.* s, 1 attempt\)",
            r"attributes: phase=approval",
            r"hook approve-A-\w+ waits for an answer",
            r"the manager reads it",
            r"Mia, the manager, approves",
            r"hook approve-A-\w+ answered \(approved, by Mia\)",
            r"hook approve-A-\w+ disposed",
            r"step charge_card started \(attempt 1\)",
            r"step charge_card will be retried \(attempt 1 failed: no answer\)",
            r"step charge_card started \(attempt 2\)",
            r"step charge_card will be retried \(attempt 2 failed: no answer\)",
            r"step charge_card started \(attempt 3\)",
            r"step charge_card completed \(.* s, 3 attempts\)",
            r"sleep started \(until .* s\)",
            r"sleep ended \(.* s\)",
            r"step write_letter started \(attempt 1\)",
            r"attributes: letter_words=35 \(by step write_letter\)",
            r"step write_letter completed \(.* s, 1 attempt\)",
            r"attributes: phase=done",
            r"run completed",
        ]
        rest = iter(story)
        for pattern in expected:
            assert any(re.fullmatch(pattern, line) for line in rest), pattern

    def test_it_reads_the_stream(self, lines: list[str]) -> None:
        text = [line.partition("stream: ")[2] for line in lines if "  stream: " in line]
        assert len(text) == len(LETTER)
        assert all(map(re.fullmatch, LETTER, text))

    def test_the_steps_in_parallel_begin_before_one_is_completed(self, lines: list[str]) -> None:
        text = "\n".join(lines)
        begins = [text.index(f"step {name} started") for name in ("check_stock", "check_fraud")]
        assert max(*begins, text.index("step compute_price started")) < text.index(
            "step check_stock completed"
        )

    def test_the_event_log_is_dense(self, lines: list[str]) -> None:
        title = lines.index("event log (34 events, no gaps):")
        log = lines[title + 1 : -2]
        assert [int(line.split()[0]) for line in log] == list(range(1, 35))
        assert re.fullmatch(r" +1 +0\.000 s  run_created     fulfil", log[0])
        assert log[-1].endswith("  run_completed")


class TestOnATerminal:
    @pytest.mark.parametrize("width", [80, 120])
    def test_the_table_is_drawn(self, width: int) -> None:
        code, output = self.on_terminal(width)
        assert code == 0, output
        assert "\x1b[" in output, "it is drawn with colours"
        text = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", output)
        # Of what was written over itself, the last.
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        assert max(map(len, lines)) <= width
        # From the last picture on.
        last = max(place for place, line in enumerate(lines) if "─ redis-world demo ─" in line)
        final = lines[last:]
        for pattern in (
            r"│ wrun_\w{26} +✓ completed +\d+\.\d s │",
            r"│ ✓  step check_stock +completed +1 +\S+ s │",
            r"│ ✓  hook approve-A-\w+ +completed  approved, by Mia +\S+ s │",
            r"│ ✓  step charge_card +completed +3 +\S+ s │",
            r"│ ✓  sleep +completed +\S+ s │",
            r"│ attributes  order=A-\w+  phase=done  letter_words=35 +│",
            *(rf"│ │ {line} +│ │" for line in LETTER),
            r"event log: 34 events, no gaps *",
            r" +34 +run_completed +\+\S+ s *",
            r"✓ result: order .* approved by Mia *",
            rf"next, on a server: .*{re.escape(GO_ON)}",
        ):
            assert any(re.fullmatch(pattern, line) for line in final), (pattern, final)
        # And it was seen while it ran.
        assert "retrying  no answer" in text
        assert "waiting  the manager reads it" in text

    def on_terminal(self, width: int) -> tuple[int, str]:
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        process = subprocess.Popen(
            command(),
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env=environment(TERM="xterm-256color"),
        )
        os.close(follower)
        output = b""
        # A terminal that everybody has left ends by an error, not by an end of file.
        with contextlib.suppress(OSError):
            while chunk := os.read(leader, 65536):
                output += chunk
        os.close(leader)
        return process.wait(), output.decode()


class Killer(PlainView):
    """Kills so many of the workers when an event of a type comes."""

    def __init__(self, *, count: int, at: str) -> None:
        self.output = io.StringIO()
        super().__init__(self.output)
        self._count = count
        self._at_event = at

    def happened(self, entry: Entry) -> None:
        super().happened(entry)
        if entry.event_type == self._at_event:
            for pid in pids_of(self.output.getvalue().splitlines()[0])[: self._count]:
                os.kill(pid, signal.SIGKILL)


class TestWithWorkerProcesses:
    def test_they_do_the_work_and_end(self, server: Backend) -> None:
        result = run("--url", server.url, "--namespace", server.namespace(), "--processes", "2")
        lines = result.stdout.splitlines()
        assert result.returncode == 0, result.stderr
        assert lines[-1].startswith("result: order A-")
        assert "event log (34 events, no gaps):" in lines
        assert not any(map(is_alive, pids_of(lines[0])))

    async def test_one_of_them_is_killed(self, server: Backend) -> None:
        view = Killer(count=1, at="wait_created")
        options = {"url": server.url, "namespace": server.namespace()}
        assert await run_demo(options, 2, view)
        assert "result: order A-" in view.output.getvalue()

    async def test_all_of_them_are_killed(self, server: Backend) -> None:
        view = Killer(count=2, at="hook_created")
        options = {"url": server.url, "namespace": server.namespace()}
        with pytest.raises(WorldError, match=r"all workers have ended\. Last log line: .*worker"):
            await run_demo(options, 2, view)
        assert "run cancelled" in view.output.getvalue()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_it_is_interrupted(self, server: Backend, number: signal.Signals) -> None:
        arguments = ["--url", server.url, "--namespace", server.namespace(), "--processes", "2"]
        with running(*arguments) as process:
            lines = lines_until(process, "waits for an answer")
            process.send_signal(number)
            rest, errors = process.communicate()
        assert process.returncode == 1
        assert errors == "interrupted\n"
        assert "run cancelled" in rest
        assert not any(map(is_alive, pids_of(lines[0])))


def test_it_is_interrupted_while_it_works_itself() -> None:
    with running() as process:
        lines_until(process, "stream: Dear Ada,")
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    assert process.returncode == 1
    assert errors == "interrupted\n"
    assert "run cancelled" in rest
    assert rest.splitlines()[-1].endswith(GO_ON)


def test_a_server_that_is_not_there_is_one_line() -> None:
    result = run("--url", "redis://127.0.0.1:1/0")
    assert result.returncode == 1
    assert not result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("redis-world: the server at 127.0.0.1:1 can't be reached")


@pytest.mark.parametrize("arguments", [(), ("--url", "memory://x")])
def test_processes_cannot_share_the_embedded_store(arguments: tuple[str, ...]) -> None:
    result = run("--processes", "2", *arguments)
    assert result.returncode == 1
    assert not result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("redis-world: worker processes need a server")


async def test_processes_cannot_share_it_when_called_either() -> None:
    with pytest.raises(ConfigurationError, match="worker processes need a server"):
        await run_demo({}, 1, PlainView(io.StringIO()))


@pytest.mark.parametrize("kind", ["lines", "picture"])
async def test_it_can_be_called(kind: str) -> None:
    output = io.StringIO()
    view: View = PlainView(output)
    if kind == "picture":
        view = LiveView(Console(file=output, force_terminal=True, width=90))
    assert await run_demo({"url": f"memory://{kind}", "namespace": "demo"}, 0, view)
    assert "result: " in output.getvalue()


class TestARunThatFails:
    def story(self) -> Story:
        story = Story("wrun_1", "nobody")
        data = RunCreatedData(deployment_id="", workflow_name="workflow//app//fulfil")
        events: list[Event] = [
            RunCreatedEvent(event_data=data),
            StepCreatedEvent(
                correlation_id="step_1", event_data=StepCreatedData(step_name="step//app//charge")
            ),
            RunFailedEvent(event_data=RunFailedData(error=b'devl["it broke"]')),
        ]
        begin = datetime(2026, 1, 1, tzinfo=UTC)
        for place, event in enumerate(events):
            about = {
                "event_id": event_id(1 + 2 * place),
                "created_at": begin + timedelta(seconds=place),
            }
            story.add(event.model_copy(update=about))
        return story

    def test_what_is_told(self) -> None:
        story = self.story()
        assert story.status == "failed"
        assert story.ended
        assert not story.dense
        assert story.now() == 2.0

    def test_lines(self) -> None:
        output = io.StringIO()
        view = PlainView(output)
        with view.begin(self.story()):
            pass
        view.end("it broke", expected=False)
        assert "event log (3 events, WITH GAPS):" in output.getvalue()
        assert output.getvalue().endswith("result: it broke (NOT AS EXPECTED)\n")

    def test_picture(self) -> None:
        output = io.StringIO()
        view = LiveView(Console(file=output, width=80, force_terminal=True, color_system=None))
        with view.begin(self.story()):
            view.tick()
        view.end("it broke", expected=False)
        assert "✗ failed" in output.getvalue()
        assert "✗ result: it broke (not as expected)" in output.getvalue()
