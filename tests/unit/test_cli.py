"""The command line, as far as it is the worker's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from vercel import workflow as sdk

from redis_world import __version__, cli
from redis_world.cli import processes
from redis_world.cli.processes import supervise
from redis_world.cli.worker import _bytes_of
from redis_world.testing import redis_server
from redis_world.vercel import use_redis_world
from support.backends import Backend
from support.private_servers import any_kind
from support.sdk import TESTS, attach, flows, kept_modules, kept_world, until, value_of
from support.sdk_files import FOLDER
from support.until import wait_until

PASSWORD: Final = "pass-word"
NOBODY: Final = f"redis://user:{PASSWORD}@127.0.0.1:1/0"
"""Where no server is."""

REGISTRY: Final = """
    from vercel import workflow as sdk

    app = sdk.Workflows()
"""

Main = Callable[..., tuple[int, str, str]]
MakeModule = Callable[[str], str]


@pytest.fixture(autouse=True)
def same_world_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("REDIS_WORLD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REDIS_WORLD_URL", "memory://")
    with kept_modules(), kept_world():
        yield


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Run the command in this process; gives exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["redis-world", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return (code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeModule:
    """Write a module into the folder that the command is run in; gives its name."""
    monkeypatch.chdir(tmp_path)

    def make(text: str) -> str:
        name = f"made_{secrets.token_hex(4)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return make


# -- what it says --------------------------------------------------------------------------


def test_version(main: Main) -> None:
    assert main("--version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("command", [["-m", "redis_world"], None], ids=["module", "script"])
def test_it_can_be_run(command: list[str] | None) -> None:
    script = Path(sys.executable).with_name("redis-world")
    whole = [str(script)] if command is None else [sys.executable, *command]
    done = subprocess.run([*whole, "--version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{__version__}\n", "")


def test_help(main: Main) -> None:
    code, out, err = main("--help")
    assert (code, err) == (0, "")
    assert "worker" in out
    code, out, err = main("worker", "--help")
    assert (code, err) == (0, "")
    for word in (
        "--url",
        "--namespace",
        "--partitions",
        "--concurrency",
        "--processes",
        "--lease",
        "--log-format",
        "MODULES",
    ):
        assert word in out


def test_without_a_command_it_shows_its_help(main: Main) -> None:
    _, out, err = main()
    assert "worker" in out + err


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["worker"],
        ["worker", "m", "--concurrency", "0"],
        ["worker", "m", "--partitions", "0"],
        ["worker", "m", "--processes", "0"],
        ["worker", "m", "--lease", "0"],
        ["worker", "m", "--shutdown-timeout", "-1"],
        ["worker", "m", "--log-format", "xml"],
        ["worker", "m", "--log-level", "loud"],
        ["worker", "m", "--no-such-option"],
    ],
    ids=" ".join,
)
def test_wrong_usage(main: Main, arguments: list[str]) -> None:
    code, out, err = main(*arguments)
    assert (code, out) == (2, "")
    assert "Usage" in err
    assert "Traceback" not in err


def assert_one_line(result: tuple[int, str, str], *words: str) -> None:
    """Whatever is the user's to mend is one line on stderr, and exit code 1."""
    code, out, err = result
    assert (code, out) == (1, "")
    assert err.startswith("redis-world: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert PASSWORD not in err
    for word in words:
        assert word in err


@pytest.mark.parametrize("name", ["nomodule", "nopackage.module", "json.nomodule"])
def test_an_unknown_module(main: Main, name: str) -> None:
    assert_one_line(main("worker", name), f"there is no module '{name}'", f"import {name}")


def test_a_module_without_workflows(main: Main, make_module: MakeModule) -> None:
    assert_one_line(main("worker", make_module("")), "handler")


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [("--url", "no url", "no url"), ("--namespace", "{}", "namespace")],
)
def test_a_bad_option(
    main: Main, make_module: MakeModule, option: str, value: str, word: str
) -> None:
    assert_one_line(main("worker", make_module(REGISTRY), option, value), word)


def test_a_server_that_is_not_there(main: Main, make_module: MakeModule) -> None:
    assert_one_line(main("worker", make_module(REGISTRY), "--url", NOBODY), "127.0.0.1:1")


def test_the_url_of_the_environment(
    main: Main, make_module: MakeModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_WORLD_URL", NOBODY)
    assert_one_line(main("worker", make_module(REGISTRY)), "127.0.0.1:1")
    # What is said is stronger than what is in the environment.
    url = "redis://127.0.0.1:2"
    assert_one_line(main("worker", make_module(REGISTRY), "--url", url), "127.0.0.1:2")


def test_a_module_that_raises_keeps_its_traceback(make_module: MakeModule) -> None:
    name = make_module("raise ValueError('boom')")
    command = [sys.executable, "-m", "redis_world", "worker", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" in done.stderr
    assert f"{name}.py" in done.stderr
    assert done.stderr.rstrip().endswith("ValueError: boom")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import nomodule", ModuleNotFoundError),
        ("from json import nothing", ImportError),
        ("raise ModuleNotFoundError('by hand')", ModuleNotFoundError),
    ],
)
def test_an_import_that_fails_in_a_module_is_no_unknown_module(
    make_module: MakeModule, monkeypatch: pytest.MonkeyPatch, text: str, error: type[Exception]
) -> None:
    monkeypatch.setattr(sys, "argv", ["redis-world", "worker", make_module(text)])
    with pytest.raises(error):
        cli.main()


# -- processes -----------------------------------------------------------------------------


def test_options_go_to_the_processes_and_secrets_by_the_environment(
    main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def supervised(*call: Any) -> int:
        calls.append(call)
        return 3

    monkeypatch.setattr("redis_world.cli.worker.supervise", supervised)
    options = ["--url", NOBODY, "--namespace", "n", "--concurrency", "5", "--lease", "7"]
    options += ["--processes", "2", "--shutdown-timeout", "1.5", "--max-replay", "90"]
    options += ["--log-cache", "1 MiB", "--log-format", "json", "--log-level", "debug"]
    options += ["--partitions", "4"]
    assert main("worker", "one", "two", *options)[0] == 3
    ((arguments, count, of_world),) = calls
    expected = ["worker", "one", "two", "--concurrency", "5", "--supervised", "--lease", "7.0"]
    expected += ["--max-replay", "90.0", "--shutdown-timeout", "1.5"]
    expected += ["--log-cache", "1 MiB", "--log-format", "json", "--log-level", "debug"]
    assert arguments == expected
    assert count == 2
    assert of_world == {"url": NOBODY, "namespace": "n", "partitions": "4"}


@pytest.mark.parametrize(
    ("size", "number"),
    [("0", 0), ("64MiB", 64 << 20), ("1 kib", 1024), ("1000", 1000), ("2GB", 2 * 10**9)],
)
def test_a_size(size: str, number: int) -> None:
    assert _bytes_of(size) == number


@pytest.mark.parametrize("size", ["", "much", "-1", "64 MiBs", "nan"])
def test_what_is_no_size_is_told(main: Main, size: str) -> None:
    code, _, error = main("worker", "one", "--url", NOBODY, f"--log-cache={size}")
    assert code == 2
    assert "is not a size" in error


def test_the_processes_get_the_options_of_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[list[str], dict[str, str]]] = []

    class Supervisor:
        def __init__(self, command: list[str], environment: dict[str, str], *_: object) -> None:
            made.append((command, environment))

        def stop(self, *_: object) -> None: ...

        def run(self, count: int) -> int:
            return count

    monkeypatch.setattr(processes, "_Supervisor", Supervisor)
    monkeypatch.setenv("REDIS_WORLD_RETENTION", "P1D")
    monkeypatch.setenv("REDIS_WORLD_NAMESPACE", "other")
    before = signal.getsignal(signal.SIGTERM)
    assert supervise(["worker", "m"], 4, {"url": NOBODY, "namespace": "n"}) == 4
    assert signal.getsignal(signal.SIGTERM) is before
    ((command, environment),) = made
    assert command == [sys.executable, "-m", "redis_world", "worker", "m"]
    assert environment["REDIS_WORLD_URL"] == NOBODY
    assert environment["REDIS_WORLD_NAMESPACE"] == "n"
    assert environment["REDIS_WORLD_RETENTION"] == "P1D"
    assert environment["PATH"] == os.environ["PATH"]


def test_one_that_can_not_start_ends_all(tmp_path: Path) -> None:
    """The first one ends at once; the other ones would go on for ever."""
    program = """
        import os, sys, time

        folder = sys.argv[1]
        try:
            os.close(os.open(folder + "/first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            open(folder + "/" + str(os.getpid()), "w").close()
            while True:
                time.sleep(60)
        while len(os.listdir(folder)) < 3:
            time.sleep(0.01)
        sys.exit(7)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    assert processes._Supervisor(command, os.environ).run(3) == 7
    others = [int(path.name) for path in tmp_path.iterdir() if path.name != "first"]
    assert len(others) == 2
    assert not any(exists(pid) for pid in others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "url", "told"),
    [
        ("import nomodule", "redis://127.0.0.1:1/0", "No module named 'nomodule'"),
        ("", "redis://127.0.0.1:1/0", "no workflows were found"),
        (REGISTRY, "memory://", "a worker needs a server"),
        (REGISTRY, "redis://127.0.0.1:1/0", "127.0.0.1:1 can't be reached"),
    ],
)
def test_processes_that_cannot_start_end_the_command(
    make_module: MakeModule, text: str, url: str, told: str
) -> None:
    """However long each took to find out: on a busy machine that is longer than a moment."""
    name = make_module("import time; time.sleep(0.2)\n" + textwrap.dedent(text))
    command = [sys.executable, "-c", SLOW, "worker", name, "--processes", "2", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert told in done.stderr


SLOW: Final = """
from redis_world import cli
from redis_world.cli import processes
processes._QUICK_SECONDS = 0
cli.main()
"""
"""The command, to which no process that ends seems quick."""


@pytest.mark.slow
def test_an_unknown_module_ends_all_processes(make_module: MakeModule) -> None:
    make_module("")
    command = [sys.executable, "-m", "redis_world", "worker", "nomodule", "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no module 'nomodule'" in done.stderr
    assert "Traceback" not in done.stderr


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def children(pid: int) -> dict[int, str]:
    """The child processes of a process, with their arguments as everybody sees them."""
    return {child: args for child, parent, args in processes_here() if parent == pid}


def processes_here() -> Iterator[tuple[int, int, str]]:
    """Of each process its id, that of its parent, and its arguments."""
    if not Path("/proc/self/stat").exists():
        command = ["ps", "-A", "-o", "pid=,ppid=,args="]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for row in (line.split(maxsplit=2) for line in listing.splitlines()):
            yield int(row[0]), int(row[1]), " ".join(row[2:])
        return
    # Slim images have no ps.
    for folder in Path("/proc").glob("[0-9]*"):
        # It may end meanwhile.
        with contextlib.suppress(OSError):
            # The name of the program before has brackets, and may have spaces.
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            args = (folder / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
            yield int(folder.name), int(parent), args.decode(errors="replace")


@contextlib.contextmanager
def two_workers(url: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The command with two processes, and where its stderr goes."""
    command = [sys.executable, "-m", "redis_world", "worker", flows.__name__, "--processes", "2"]
    environment = {**os.environ, "REDIS_WORLD_URL": url, FOLDER: str(tmp_path)}
    log = tmp_path / "log"
    with (
        log.open("wb") as output,
        # A session of its own, so that it can be interrupted as at a terminal.
        subprocess.Popen(
            command, cwd=TESTS, env=environment, stderr=output, start_new_session=True
        ) as started,
    ):
        try:
            yield started, log
        finally:
            started.kill()


@pytest.fixture(scope="module")
def guarded_url() -> Iterator[str]:
    """A server that wants a password."""
    kind = any_kind()
    with redis_server(kind, args=("--requirepass", PASSWORD)) as server:
        yield f"redis://:{PASSWORD}@{server.host}:{server.port}/0"


@pytest.mark.slow
async def test_a_killed_process_is_replaced(
    guarded_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with two_workers(guarded_url, tmp_path) as (started, log):

        async def two() -> dict[int, str]:
            assert started.poll() is None, log.read_text()
            found = children(started.pid)
            return found if len(found) == 2 else {}

        first = await until(two, what="two processes")
        assert not any(PASSWORD in arguments for arguments in first.values())
        killed = min(first)
        os.kill(killed, signal.SIGKILL)

        async def replaced() -> bool:
            found = await two()
            return bool(found) and killed not in found

        await until(replaced, what="another process")
        adapter = attach(use_redis_world(guarded_url))
        assert await value_of(adapter, await sdk.start(flows.sequential, 2)) == 2
        await adapter.aclose()
        second = children(started.pid)
        started.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(started.wait, 60) == 0
        assert not any(exists(pid) for pid in second)
    text = log.read_text(encoding="utf-8")
    assert f"worker process {killed} ended with code -9" in text
    assert "Traceback" not in text


def test_a_second_signal_to_the_supervisor_is_told_by_its_exit_code() -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    supervisor = processes._Supervisor([sys.executable, "-c", stubborn], os.environ)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(supervisor.run, 1)
        wait_until(lambda: bool(supervisor._processes))
        supervisor.stop()
        supervisor.stop()
        assert ended.result(60) == 130


@pytest.mark.slow
async def test_an_interrupt_at_the_terminal_ends_all(
    guarded_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There every process gets it, and the supervisor's SIGTERM besides."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with two_workers(guarded_url, tmp_path) as (started, log):
        adapter = attach(use_redis_world(guarded_url))

        async def subscribed() -> bool:
            assert started.poll() is None, log.read_text()
            channel = adapter.world.connection.keys.queue_channel("__wkf_workflow_")
            (reply,) = await adapter.world.connection.execute(("PUBSUB", "NUMSUB", channel))
            return int(reply[1]) == 2

        # Both work by now.
        await until(subscribed, what="two workers")
        await adapter.aclose()
        before = children(started.pid)
        os.killpg(started.pid, signal.SIGINT)
        assert await asyncio.to_thread(started.wait, 60) == 0
        assert not any(exists(pid) for pid in before)
    assert "Traceback" not in log.read_text(encoding="utf-8")


def test_a_module_may_bring_its_bootstrap_along(real_backend: Backend, tmp_path: Path) -> None:
    """Its World took the registry, and the worker had none."""
    (tmp_path / "flows.py").write_text(
        "from redis_world.vercel import use_redis_world\n"
        "use_redis_world('memory://somewhere-else')\n"
        "from vercel.workflow import Workflows\n"
        "app = Workflows()\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "redis_world", "worker", "flows"]
    command += ["--url", real_backend.url, "--namespace", real_backend.namespace()]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "worker started on 127.0.0.1:" in line
            assert "topics=__wkf_workflow_" in line
        finally:
            process.terminate()
        assert process.wait(30) == 0


def test_two_registries_on_one_topic(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(
            "from vercel.workflow import Workflows\napp = Workflows()\n", encoding="utf-8"
        )
    done = subprocess.run(
        [sys.executable, "-m", "redis_world", "worker", "one", "two"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("redis-world: two Workflows() have the topic")
    assert done.stderr.count("\n") == 1
