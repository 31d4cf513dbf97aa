"""Signals that a worker borrows, and the processes that are forked meanwhile."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Final

import pytest

from support.marks import slow

PREPARE: Final = """
    import asyncio, multiprocessing, os, signal, subprocess, sys, time
    from redis_world.signals import stopped_by_signals

    stops = []
"""


def run(program: str) -> str:
    """Run a program in a process of its own, which forks as it likes; its stdout."""
    text = textwrap.dedent(PREPARE) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", text],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


FORKS: Final = {
    "os.fork": """
        def fork():
            pid = os.fork()
            if not pid:
                child()
            return pid
    """,
    "multiprocessing": """
        def fork():
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            return process.pid
    """,
}


@pytest.mark.parametrize(
    ("how", "number", "place"),
    [
        ("os.fork", "SIGTERM", "main"),
        slow("os.fork", "SIGINT", "main"),
        ("os.fork", "SIGTERM", "thread"),
        slow("multiprocessing", "SIGTERM", "main"),
    ],
)
def test_a_forked_process_ends_by_a_signal(how: str, number: str, place: str) -> None:
    """Its parent's handlers would stop nothing in it, and it would live for ever."""
    program = textwrap.dedent(FORKS[how]) + textwrap.dedent(f"""
        r, w = os.pipe()

        def child():
            try:
                os.write(w, b"x")
                # Python sees a signal that comes right before a sleep behind it.
                while True:
                    time.sleep(0.01)
            except KeyboardInterrupt:
                os._exit(1)

        async def work():
            with stopped_by_signals(lambda: stops.append(1)):
                # As asyncio has it where a loop takes signals itself.
                asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stops.append, 2)
                pid = await asyncio.to_thread(fork) if {place == "thread"} else fork()
                assert os.read(r, 1) == b"x"
                os.kill(pid, signal.{number})
                while os.waitpid(pid, os.WNOHANG) == (0, 0):
                    await asyncio.sleep(0.01)
                assert stops == []
                os.kill(os.getpid(), signal.{number})
                await asyncio.sleep(0)
                assert stops == [1], "the parent has them still"

        asyncio.run(work())
        print("done")
        sys.stdout.flush()
        # Without the hooks at the end: the child was reaped behind multiprocessing's back.
        os._exit(0)
    """)
    assert run(program) == "done\n"


@pytest.mark.slow
def test_a_signal_right_behind_the_fork_is_not_lost() -> None:
    """As of `start(); terminate(); join()`: the parent's handler would swallow it."""
    program = """
        with stopped_by_signals(stops.append):
            for _ in range(200):
                process = multiprocessing.get_context("fork").Process(
                    target=time.sleep, args=(50,)
                )
                process.start()
                process.terminate()
                process.join()
                assert process.exitcode == -signal.SIGTERM, process.exitcode
            assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
        print("done")
    """
    assert run(program) == "done\n"


def test_a_preexec_fn_has_the_handlers_of_before() -> None:
    program = """
        def before():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

        with stopped_by_signals(stops.append):
            subprocess.run(["true"], preexec_fn=before, check=True)
        print("done")
    """
    assert run(program) == "done\n"


@pytest.mark.parametrize(
    ("before", "number", "expected"),
    [
        ("signal.signal(signal.SIGTERM, mine)", "SIGTERM", "mine"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "SIGTERM", "signal.SIG_IGN"),
        slow("signal.signal(signal.SIGINT, mine)", "SIGINT", "mine"),
        # A loop's own: it would be called in a process where that loop does not run.
        ("loop.add_signal_handler(signal.SIGTERM, print)", "SIGTERM", "signal.SIG_DFL"),
        slow(
            "loop.add_signal_handler(signal.SIGINT, print)", "SIGINT", "signal.default_int_handler"
        ),
        slow("None", "SIGINT", "signal.default_int_handler"),
        slow("None", "SIGTERM", "signal.SIG_DFL"),
    ],
)
def test_a_forked_process_has_the_handlers_of_before(
    before: str, number: str, expected: str
) -> None:
    program = f"""
        def mine(*_): ...

        async def work():
            loop = asyncio.get_running_loop()
            {before}
            with stopped_by_signals(stops.append), stopped_by_signals(stops.append):
                pid = os.fork()
                if not pid:
                    try:
                        assert signal.getsignal(signal.{number}) == {expected}
                        assert signal.set_wakeup_fd(-1) == -1
                        with stopped_by_signals(lambda: stops.append(3)):
                            os.kill(os.getpid(), signal.{number})
                        assert stops == [3], "a child may borrow them, too"
                    except BaseException as error:
                        print(repr(error), file=sys.stderr)
                        os._exit(1)
                    os._exit(0)
                assert os.waitpid(pid, 0) == (pid, 0)

        asyncio.run(work())
        print("done")
    """
    assert run(program) == "done\n"


def test_a_child_that_leaves_the_block_leaves_it_quietly() -> None:
    program = """
        with stopped_by_signals(stops.append):
            pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0) == (pid, 0)
            print("done")
    """
    assert run(program) == "done\n"


def test_a_fork_beside_no_worker_changes_nothing() -> None:
    program = """
        def mine(*_): ...
        signal.signal(signal.SIGTERM, mine)
        pid = os.fork()
        if not pid:
            os._exit(int(signal.getsignal(signal.SIGTERM) is not mine))
        assert os.waitpid(pid, 0) == (pid, 0)
        print("done")
    """
    assert run(program) == "done\n"
