"""The code in the documents runs as written.

Each block runs in a folder of its own, in processes as a user would start them. Files that the
document names in the first comment of a block (`# bootstrap.py`) lie there. A block that contains
tests runs with pytest, any other block of Python as a program; commands run in a shell, against a
private server in place of the one at localhost:6379. Requests by curl go to a `redis-world serve`
on it, and must succeed.

A block of a language that this does not know fails, as does a command that can't run; what is left
out is listed below.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.testing.ports import free_port
from support.backends import Backend, Servers
from support.command_line import environment
from support.events import event, hook_created, step_created, wait_created, write
from support.until import wait_until

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
    if "node_modules" not in path.parts
)
PATIENCE: Final = 200.0
"""Seconds for one command; below the time limit of a test, so that the output is shown."""

SKIPPED: Final = {
    "make demo": "installs first; `redis-world demo` runs as it is written below",
    "git clone <this repository> && cd redis-world": "needs the network",
    "make test": "would run this test again",
    "make check": "would run this test again",
    ".venv/bin/pre-commit install": "changes the checkout",
    "docker compose up -d --wait redis7": "needs Docker; the private server takes its place",
    "pip install 'redis-world[vercel]'": "needs the network",
    "pip install 'redis-world[vercel]' pytest": "needs the network",
    "pip install 'redis-world[server]'": "needs the network",
}
"""Commands that do not run here, and why. Each must still be in a document."""
SHORTER: Final = {"redis-world bench": "redis-world bench --seconds 1"}
"""Commands that take half a minute as they are written, and what runs in their place. The quick
part of the tests has no time for that either."""
STATUSES: Final = {"redis-world doctor": (0, 1)}
"""Commands that may end with a status other than 0: the private server is worth a warning."""
DRAWINGS: Final = ("mermaid", "text")
BESIDE: Final = ("redis-world worker ", "redis-world serve ")
"""Commands that run until they are stopped."""

_FENCE: Final = re.compile(r"^```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME: Final = re.compile(r"# (?P<name>[\w/]+\.py)\b")
_PRINTS: Final = re.compile(r"^asyncio\.run\(main\(\)\)  # (?P<output>.+)$", re.MULTILINE)
_TESTS: Final = re.compile(r"^(?:async )?def test_", re.MULTILINE)
_URL: Final = "redis://localhost:6379/0"
_RUN: Final = "wrun_..."
_LETTER: Final = "msg_01J00000000000000000000000"


@dataclass(frozen=True)
class Block:
    """A piece of code in a document."""

    document: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> str | None:
        """The file that it is, where it says so."""
        found = _NAME.match(self.text)
        return found["name"] if found and self.language == "python" else None

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, without their comments."""
        lines = [re.sub(r"(?:^|\s+)#.*$", "", line) for line in self.text.splitlines()]
        return [line for line in lines if line]


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    document = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    return [
        Block(document, text.count("\n", 0, found.start()) + 1, found["language"], found["text"])
        for found in _FENCE.finditer(text)
    ]


BLOCKS: Final = [block for path in DOCUMENTS for block in blocks_of(path)]


class Runner:
    """A folder, a server, and what a user does there."""

    def __init__(self, folder: Path, backend: Backend, *, is_quick: bool = False) -> None:
        self.is_quick = is_quick
        self.folder = folder
        self.backend = backend
        self.run_id = asyncio.run(self._create_run())
        (folder / ".venv").symlink_to(sys.prefix)
        path = os.pathsep.join([f"{sys.prefix}/bin", os.environ["PATH"]])
        # A user's programs know nothing of the settings of this session.
        self.environment = environment(PATH=path)
        self.environment.pop("CI", None)

    async def _create_run(self) -> str:
        """A run, for commands that are given one."""
        data = {"deploymentId": "", "workflowName": "workflow//app.workflows//checkout"}
        async with RedisWorld(self.backend.url) as world:
            created = await world.events.create(
                None, {"eventType": "run_created", "eventData": data}
            )
        assert created.run is not None
        return created.run.run_id

    def write(self, blocks: list[Block]) -> None:
        """Lay down the files that a document has."""
        for block in blocks:
            if block.name is not None:
                path = self.folder / block.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self.here(block.text), encoding="utf-8")
            elif block.language == "text" and block.text.startswith("# token"):
                (self.folder / "tokens.txt").write_text(block.text, encoding="utf-8")

    def here(self, text: str) -> str:
        """The text with this server, and this run."""
        letter = self.environment.get("LETTER", _LETTER)
        if "streams.read" in text:
            text = text.replace("name=out", "name=closed")
        text = text.replace(_URL, self.backend.url).replace(_LETTER, letter)
        return text.replace(_RUN, self.run_id)

    def run(self, block: Block) -> str:
        """Run a block; returns what it prints."""
        match block.language:
            case "python":
                return self.run_python(block)
            case "sh" if block.text.startswith("curl "):
                return self.run_requests(block.text)
            case "sh" | "bash" | "console":
                return self.run_commands(block.commands)
            case "":
                return self.run_redis_commands(block.commands)
            case language if language in DRAWINGS:
                return ""
        raise AssertionError(f"{block.document}:{block.line}: nobody runs {block.language!r}")

    def run_python(self, block: Block) -> str:
        name = block.name or "program.py"
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(self.here(block.text), encoding="utf-8")
        if _TESTS.search(block.text):
            pytest_ = "python -m pytest -q -p no:cacheprovider -W ignore -o asyncio_mode=auto"
            return self.command(f"{pytest_} {shlex.quote(name)}")
        if block.name is not None:
            # A module is imported; a program runs by the command that the document has for it.
            module = name.removesuffix(".py").replace("/", ".")
            if "__main__" in block.text or "asyncio.run(" in block.text:
                return self.command(f"python -m py_compile {name}")
            has_bootstrap = name != "bootstrap.py" and (self.folder / "bootstrap.py").exists()
            first = "import bootstrap; " if has_bootstrap else ""
            return self.command(f"python -c '{first}import {module}'")
        output = self.command(f"python {name}")
        expected = _PRINTS.search(block.text)
        assert expected is None or output.strip() == expected["output"]
        return output

    def run_commands(self, commands: list[str]) -> str:
        """Run commands one after the other; a worker runs beside those that follow it."""
        output = ""
        for place, command in enumerate(commands):
            if command in SKIPPED or (self.is_quick and command in SHORTER):
                continue
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                self.environment[name] = self.here(value)
            elif command.startswith(BESIDE):
                with self.beside(command):
                    return output + self.run_commands(commands[place + 1 :])
            else:
                output += self.command(SHORTER.get(command, command))
        return output

    def run_requests(self, text: str) -> str:
        """Run requests to a server, on which there is all that they name."""
        port = free_port()
        named = asyncio.run(self.fill_for_requests())
        self.environment |= {"URL": f"http://127.0.0.1:{port}", "AUTH": "Accept: */*", **named}
        with self.beside(f"redis-world serve --url {self.backend.url} --port {port}"):
            # An answer that tells of an error fails the command.
            return self.command(
                text.replace("curl ", "curl --silent --show-error --fail-with-body ", 1)
            )

    async def fill_for_requests(self) -> dict[str, str]:
        """A step, a wait, a hook, a closed stream, a leased message and a dead letter."""
        queue, payload = "__wkf_workflow_w", {"number": 1}
        async with RedisWorld(self.backend.url, max_failures=1) as world:
            await write(
                world, self.run_id, event("run_started"), step_created("step_9"),
                wait_created("wait_1"), hook_created("hook_1", "approve-1"),
            )  # fmt: skip
            await world.queue.send(queue, payload)
            (dead,) = await world.queue.claim("__wkf_workflow_")
            await world.queue.retry(dead)
            await world.queue.send(queue, payload)
            (leased,) = await world.queue.claim("__wkf_workflow_")
            # Where a block reads the stream it is closed; where it writes, it is not.
            await world.streams.write_many(self.run_id, "out", [b"a", b"b"])
            await world.streams.write(self.run_id, "closed", b"a")
            await world.streams.close(self.run_id, "closed")
        return {"RUN": self.run_id, "HANDLE": leased.handle, "LETTER": dead.message_id}

    def run_redis_commands(self, commands: list[str]) -> str:
        client: Any = self.backend.client()
        with contextlib.closing(client):
            return "".join(str(client.execute_command(*shlex.split(each))) for each in commands)

    def command(self, text: str) -> str:
        done = subprocess.run(
            ["sh", "-euc", self.here(text)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        allowed = next((STATUSES[each] for each in STATUSES if text.startswith(each)), (0,))
        assert done.returncode in allowed, f"{text}\n{done.stdout}"
        return done.stdout

    @contextlib.contextmanager
    def beside(self, text: str) -> Iterator[None]:
        """A command in another terminal; it ends in good order when it is asked to."""
        log = self.folder / "beside.log"
        is_server = text.startswith("redis-world serve ")
        if is_server and "--port" not in text:
            text += " --port 0"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                shlex.split(self.here(text)),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            ) as process,
        ):
            try:
                if is_server:
                    # Until then a signal would end it in another way.
                    wait_until(
                        lambda: b"serving on" in log.read_bytes() or process.poll() is not None
                    )
                yield
                process.send_signal(signal.SIGTERM)
                process.wait(PATIENCE)
            finally:
                process.kill()
        assert process.returncode == 0, log.read_text(encoding="utf-8", errors="replace")


@pytest.fixture
def runner(tmp_path: Path, servers: Servers, request: pytest.FixtureRequest) -> Iterator[Runner]:
    backend = servers.backend("valkey9")
    backend.clear()
    yield Runner(tmp_path, backend, is_quick=request.config.getoption("--quick"))
    with backend.client() as client:
        for user in client.acl_users():
            if user != "default":
                client.acl_deluser(user)
    backend.clear()


def named(block: Block) -> str:
    return f"{block.document}:{block.line}"


def marked(block: Block) -> Any:
    """A parameter of its own; what a newcomer tries first is of the quick part."""
    marks = [pytest.mark.quick] if block.document == "README.md" else []
    return pytest.param(block, id=named(block), marks=marks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", [marked(each) for each in BLOCKS])
def test_a_block_runs(block: Block, runner: Runner) -> None:
    runner.write([each for each in BLOCKS if each.document == block.document])
    runner.run(block)


def test_what_the_sdks_example_returns(runner: Runner) -> None:
    """The start snippet gets the result from the workers of the command line."""
    readme = [block for block in BLOCKS if block.document == "README.md"]
    runner.write(readme)
    (block,) = (block for block in readme if "redis-world worker" in block.text)
    assert runner.run(block).splitlines() == ["charged o-1"]


@pytest.mark.quick
def test_no_example_of_the_readme_sleeps_for_long() -> None:
    """Whoever tries one out waits for its end."""
    sleeps = [
        call.args[0].value
        for block in BLOCKS
        if block.document == "README.md" and block.language == "python"
        for call in ast.walk(ast.parse(block.text))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name | ast.Attribute)
        and (call.func.id if isinstance(call.func, ast.Name) else call.func.attr) == "sleep"
        and isinstance(call.args[0], ast.Constant)
    ]
    assert sleeps
    assert all(isinstance(each, int | float) and each <= 5 for each in sleeps), sleeps


@pytest.mark.quick
def test_every_program_of_a_document_is_started() -> None:
    """A named file that nothing imports or runs would be checked by nobody."""
    for block in BLOCKS:
        if block.name is not None and "asyncio.run(" in block.text:
            commands = [
                c for each in BLOCKS if each.document == block.document for c in each.commands
            ]
            assert f"python {block.name}" in commands, named(block)


@pytest.mark.quick
def test_nothing_is_left_out_in_vain() -> None:
    commands = {command for block in BLOCKS for command in block.commands}
    assert {*SKIPPED, *SHORTER} <= commands


@pytest.mark.quick
def test_all_documents_with_code_are_here() -> None:
    assert {block.document for block in BLOCKS} >= {"README.md", "docs/testing.md"}


OTHER_OUTPUT: Final = """\
import asyncio
async def main():
    print(1)
asyncio.run(main())  # 2
"""


class TestItFails:
    """What this module is for: a block that does not run."""

    @staticmethod
    def block(language: str, text: str) -> Block:
        return Block("README.md", 1, language, text)

    @pytest.mark.parametrize(
        ("language", "text"),
        [
            ("python", "await start()\n"),
            ("python", "import redis_world.no_such_module\n"),
            ("python", "def test_it():\n    assert False\n"),
            ("python", "# app.py\nimport redis_world.no_such_module\n"),
            ("python", OTHER_OUTPUT),
            ("sh", "redis-world no-such-command\n"),
            ("sh", "true\nno-such-program  # with a comment\ntrue\n"),
            ("", "NOSUCHCOMMAND\n"),
            ("rust", "fn main() {}\n"),
        ],
    )
    def test_a_block_that_does_not_run(self, language: str, text: str, runner: Runner) -> None:
        (runner.folder / "bootstrap.py").touch()
        with pytest.raises(Exception, match=r".") as caught:
            runner.run(self.block(language, text))
        assert not isinstance(caught.value, subprocess.TimeoutExpired)

    def test_blocks_are_found_with_their_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "x.md"
        path.write_text("a\n\n```sh\nls  # it\n```\n\n```python\n# a/b.py, first\n```\n")
        first, second = blocks_of(path)
        assert (first.line, first.language, first.commands) == (3, "sh", ["ls"])
        assert (second.line, second.name) == (7, "a/b.py")
