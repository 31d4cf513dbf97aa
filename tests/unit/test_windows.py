"""Without what only POSIX systems have: the package is imported, and says what does not work."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from support.command_line import environment

PROGRAM = """
import asyncio, importlib, os, pkgutil, signal, socket, sys
import redis_world

def import_all(*left_out):
    names = ["redis_world"]
    for found in pkgutil.walk_packages(redis_world.__path__, "redis_world."):
        if not found.name.endswith("__main__") and found.name not in left_out:
            names.append(found.name)
    return [importlib.import_module(name) for name in names]

# What others import stays as it is; it has versions for Windows of its own.
# The SDK bears the registry of the demo only once.
count = len(import_all("redis_world.demo.workflows")) + 1
for name in [*sys.modules]:
    if name.partition(".")[0] == "redis_world":
        del sys.modules[name]

# asyncio of Windows does without it, ours does not.
pair, family = socket.socketpair, socket.AF_UNIX
socket.socketpair = lambda *_: pair(family)

KEPT = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"}
for name in dir(signal):
    if name.startswith("SIG") and name not in KEPT:
        delattr(signal, name)
for module, names in {
    signal: "alarm setitimer getitimer pthread_sigmask pthread_kill sigpending sigwait "
    "sigwaitinfo sigtimedwait siginterrupt pause ITIMER_REAL ITIMER_VIRTUAL ITIMER_PROF",
    os: "fork forkpty register_at_fork getuid geteuid getgid getegid getgroups getpgid getpgrp "
    "killpg setsid setuid setgid wait wait3 wait4 waitid WNOHANG WIFEXITED WEXITSTATUS uname "
    "sched_setaffinity sched_yield posix_spawn posix_spawnp mkfifo nice "
    "getloadavg sysconf confstr openpty login_tty ttyname ctermid chown lchown chroot fchmod "
    "fchown sendfile preadv pwritev statvfs fstatvfs pread pwrite",
    socket: "AF_UNIX SO_REUSEPORT CMSG_LEN SCM_RIGHTS send_fds recv_fds",
    asyncio: "open_unix_connection start_unix_server",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in "fcntl termios tty pty resource grp pwd syslog posix crypt curses readline".split():
    sys.modules[name] = None
asyncio.AbstractEventLoop.add_signal_handler = asyncio.BaseEventLoop.add_signal_handler = None
sys.platform = "win32"

redis_world = importlib.import_module("redis_world")
assert len(import_all()) == count > 100, count

from redis_world import RedisWorld
from redis_world.cli.processes import supervise
from redis_world.errors import ConfigurationError
from redis_world.testing import ServerUnavailableError, memory_world, redis_server
from redis_world.worker import OwnProcess, Worker

def refused(kind, call, words):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)

refused(ConfigurationError, lambda: RedisWorld("unix:///run/redis.sock"), "need Linux or macOS")
refused(ConfigurationError, lambda: supervise(["worker"], 2, {}), "needs Linux or macOS")
refused(ServerUnavailableError, lambda: redis_server().__enter__(), "need Linux or macOS")

async def main():
    async with memory_world() as world:
        handled = asyncio.Event()

        async def handle(payload, *, attempt, queue_name, message_id):
            handled.set()

        worker = Worker(world, {"__wkf_workflow_": handle}, own_process=OwnProcess())
        working = asyncio.create_task(worker.run())
        await world.queue.send("__wkf_workflow_a", {})
        await asyncio.wait_for(handled.wait(), 60)
        worker.stop()
        await working

asyncio.run(main())
print("all is well")
"""


@pytest.mark.slow
def test_everything_is_imported_and_used_without_posix() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all is well\n"
