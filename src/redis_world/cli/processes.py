"""Several processes of one command: started, watched, and ended together."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from redis_world.cli.logs import report
from redis_world.config import ENVIRONMENT_PREFIX
from redis_world.errors import ConfigurationError, WorldError
from redis_world.signals import HURRYING, stopped_by_signals
from redis_world.worker import BLOCKED_EXIT_CODE, INTERRUPTED_EXIT_CODE

__all__ = ["NOT_STARTED_EXIT_CODE", "starting", "supervise"]

logger = logging.getLogger(__name__)

NOT_STARTED_EXIT_CODE: Final = 78
"""Of a supervised process that could not start: another one could not either."""
_RESTART_SECONDS: Final = 1.0
_QUICK_SECONDS: Final = 5.0
"""A process that ends sooner than that did not get to work at all."""
_POLL_SECONDS: Final = 0.1
_HURRY_SECONDS: Final = 10.0
"""How long processes may take to end at once."""


@contextlib.contextmanager
def starting(*, is_supervised: bool) -> Iterator[None]:
    """Tell the supervisor by the exit code that this process could not start.

    The time that it took does not tell: imports take long where a machine is busy.
    """
    try:
        yield
    except Exception as error:
        if not is_supervised:
            raise
        if isinstance(error, WorldError):
            report(str(error), event="failed")
        else:
            traceback.print_exc()
        sys.exit(NOT_STARTED_EXIT_CODE)


def supervise(
    arguments: Sequence[str],
    count: int,
    options: Mapping[str, str],
    *,
    descriptors: Sequence[int] = (),
    what: str = "worker",
) -> int:
    """Run `redis-world` with these arguments in so many processes until SIGTERM or SIGINT.

    A process that dies is started again; one that can't even start ends them all. A second signal
    ends them at once.

    Args:
        arguments: of the command.
        count: how many processes.
        options: of the World. They travel by the environment: a URL may hold a password, which
            everybody sees who lists processes.
        descriptors: files that the processes inherit.
        what: what the log calls them.

    Returns:
        The exit code: 0 after a stop, 130 after a second signal, else that of the process that
        could not start.
    """
    if not HURRYING:
        raise ConfigurationError(
            "--processes needs Linux or macOS: on this system, start the command several times"
        )
    environment = {ENVIRONMENT_PREFIX + name.upper(): value for name, value in options.items()}
    supervisor = _Supervisor(
        [sys.executable, "-m", "redis_world", *arguments],
        {**os.environ, **environment},
        descriptors,
        what,
    )
    with stopped_by_signals(supervisor.stop):
        return supervisor.run(count)


class _Supervisor:
    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int] = (),
        what: str = "worker",
    ) -> None:
        self._what = what
        self._command = command
        self._environment = environment
        self._descriptors = descriptors
        self._processes: dict[subprocess.Popen[bytes], float] = {}
        self._stopping = False
        self._deadline: float | None = None

    def stop(self) -> None:
        """Ask all to end; called again, to end at once."""
        # A terminal and some service managers send their signals to all processes: SIGTERM may
        # reach one twice for a single stop.
        number = signal.SIGQUIT if self._stopping else signal.SIGTERM
        if self._stopping and self._deadline is None:
            self._deadline = time.monotonic() + _HURRY_SECONDS
        self._stopping = True
        for process in self._processes:
            process.send_signal(number)

    def run(self, count: int) -> int:
        for _ in range(count):
            self._start()
        try:
            code = self._watch()
        finally:
            for process in self._processes:
                process.terminate()
            self._wait()
        is_hurried = self._deadline is not None
        return INTERRUPTED_EXIT_CODE if is_hurried and code == 0 else code

    def _watch(self) -> int:
        """Replace dead processes until a signal comes, or it is of no use."""
        while not self._stopping:
            time.sleep(_POLL_SECONDS)
            code = self._replace_dead()
            if code is not None:
                return code
        return 0

    def _wait(self) -> None:
        """Wait for the end of all; those that should end at once do not get for ever."""
        for process in self._processes:
            while process.poll() is None:
                if self._deadline is not None and time.monotonic() > self._deadline:
                    process.kill()
                time.sleep(_POLL_SECONDS)

    def _start(self) -> None:
        # Not in a session of its own: Ctrl-C at a terminal reaches all of them.
        process = subprocess.Popen(  # noqa: S603 - our own command
            self._command, env=self._environment, pass_fds=self._descriptors
        )
        self._processes[process] = time.monotonic()

    def _replace_dead(self) -> int | None:
        """Start dead processes again; returns an exit code when that is of no use."""
        for process, since in list(self._processes.items()):
            code = process.poll()
            if code is None or self._stopping:
                continue
            del self._processes[process]
            if code == NOT_STARTED_EXIT_CODE:
                return 1
            is_quick = time.monotonic() - since < _QUICK_SECONDS
            if code > 0 and code != BLOCKED_EXIT_CODE and is_quick:
                return code
            logger.warning(
                "%s process %d ended with code %d",
                self._what,
                process.pid,
                code,
                extra={"event": "process.ended", "pid": process.pid, "code": code},
            )
            time.sleep(_RESTART_SECONDS)
            if not self._stopping:
                self._start()
        return None
