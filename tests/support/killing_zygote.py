"""A process that has imported everything, and forks one child for every job it is given.

A Python process takes a second of work to start here; a fork takes milliseconds. Jobs come as
lines on the standard input: a number and the job. What happens to them is told on the standard
output: the number, `pid` or `end`, and the process id or the status that `os.waitpid` gives.
When the input ends, so do all children, and this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NoReturn

from vercel import workflow as sdk
from vercel.workflow._internal import run as sdk_run
from vercel.workflow._internal import runtime

from redis_world.messages import run_of
from redis_world.vercel import VercelWorld, use_redis_world
from redis_world.vercel.log_cache import DEFAULT_BYTES
from redis_world.vercel.outbox import Ahead
from redis_world.worker import Continuation, Handler
from support.killing_points import Job, Killer
from support.killing_registry import flows

LEASE: Final = 1.0
"""Seconds after which the messages of a worker that was killed are another one's."""
CONCURRENCY: Final = 6

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def main() -> None:
    # Whoever is interrupted at a terminal ends this process by its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A child may be asked to stop before it has a handler for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    children: dict[int, int] = {}
    rest = b""
    try:
        while True:
            ready, _, _ = select.select([_STDIN, woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
                _reap(children)
            if _STDIN in ready:
                read = os.read(_STDIN, 65536)
                if not read:
                    return
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    number, wire = json.loads(line)
                    pid = _fork(Job.from_wire(wire))
                    children[pid] = number
                    _tell(number, "pid", pid)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def _reap(children: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            _tell(children.pop(pid), "end", status)


def _tell(number: int, what: str, value: int) -> None:
    os.write(_STDOUT, json.dumps([number, what, value]).encode() + b"\n")


def _fork(job: Job) -> int:
    """Have a child do a job; nothing of an event loop or a client is there yet to be shared."""
    pid = os.fork()
    if pid == 0:
        _be_child(job)
    return pid


def _be_child(job: Job) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), _STDIN)
        os.dup2(_STDERR, _STDOUT)
        if job.point is not None:
            Killer(job.point, job.passage).install()
        if not job.has_outbox:
            _take_outbox_away()
        asyncio.run(_KINDS[job.kind](job))
        code = 0
    except BaseException:  # noqa: BLE001 - it is told, and must not get into the parent's loop
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _take_outbox_away() -> None:
    """Have the runtime's messages sent by calls of their own, as other clients do it."""

    def none(*_args: object) -> None:
        return None

    Ahead.message_for = none  # type: ignore[assignment, method-assign]


# -- jobs ----------------------------------------------------------------------------------


async def _work(job: Job) -> None:
    adapter = use_redis_world()
    runtime.workflow_entrypoint(flows.app)
    if job.forgets:
        for topic, handler in adapter.handlers.items():
            adapter.handlers[topic] = _forgetful(adapter, handler, job.forgets)
    # Every second one replays from the logs that it has kept, the others from Redis alone.
    log_cache = DEFAULT_BYTES if os.getpid() % 2 else 0
    worker = adapter.worker(concurrency=CONCURRENCY, lease=LEASE, log_cache=log_cache)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    await worker.run()
    await adapter.aclose()


def _forgetful(adapter: VercelWorld, handler: Handler, every: int) -> Handler:
    """Acknowledge some messages without handling them: the sweeper has to see to their runs.

    Not those of a run that waits for a hook: it may rest for as long as it likes.
    """
    count = 0

    async def forgets(payload: dict[str, Any], /, **options: Any) -> Continuation | None:
        nonlocal count
        count += 1
        if count % every == 0:
            connection = adapter.world.connection
            hooks = connection.keys.of_run(run_of(payload)).hooks
            if await connection.execute(("EXISTS", hooks)) == [0]:
                return None
        return await handler(payload, **options)

    return forgets


async def _start(job: Job) -> None:
    use_redis_world()
    sdk_run._generate_run_ulid = lambda *_: job.details["ulid"]
    await sdk.start(flows.mixture, *job.details["arguments"])


async def _resume(job: Job) -> None:
    use_redis_world()
    await flows.Approval(by=job.details["by"]).resume(job.details["token"])


_KINDS: Final[Mapping[str, Callable[[Job], Coroutine[Any, Any, None]]]] = {
    "work": _work,
    "start": _start,
    "resume": _resume,
}


if __name__ == "__main__":
    main()
