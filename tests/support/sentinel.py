"""A master and its replica that Sentinels watch, and failovers between them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self, cast

import redis

from redis_world.testing import Server, redis_server, servers
from redis_world.testing.ports import free_port
from support.private_servers import ONE, here
from support.until import wait_until

SENTINELS: Final = 3
SERVICE: Final = "orders"

_HOST: Final = "127.0.0.1"
_QUORUM: Final = 2
_CALM: Final = (0.2, 5.0)
"""Seconds of tests at work between two failovers."""
_TICK: Final = 0.02
_SYNC_AT_ONCE: Final = ("--repl-diskless-sync-delay", "0")
_DOWN_AFTER: Final = 500
"""Milliseconds of silence after which a master counts as dead, while one is being killed."""
_NEVER_DOWN: Final = 3_600_000
"""The same at all other times: a busy machine is silent for half a second now and then, and a
failover that nobody asked for would meet those who look behind the World's back."""
_TILT: Final = 90.0
"""Seconds: a Sentinel that was held up itself does nothing for thirty."""
_ASK_AGAIN: Final = 5.0
_ONE_MUST_HAVE_COME: Final = 30.0
"""Seconds."""
_PERIODS: Final = {"info-period": 100, "publish-period": 500}
"""Milliseconds, for Sentinels that notice changes faster than they are used to. Four of the second
have to be longer than a failover: after those the other Sentinels take it back."""


class Guarded:
    """A master, its replica and the Sentinels that decide which of them is the master."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.master = stack.enter_context(redis_server(here(ONE), args=_SYNC_AT_ONCE))
        self.replica = self._start_replica()
        self.ports = stack.enter_context(_sentinels(self.master))
        self.wait_until_sound()

    @property
    def url(self) -> str:
        """The Sentinels', for a World."""
        nodes = ",".join(f"{_HOST}:{port}" for port in self.ports)
        return f"redis+sentinel://{nodes}/{SERVICE}"

    def client(self) -> redis.Redis:
        """A client of the server that is the master now."""
        return redis.Redis.from_url(self.master.url)

    def wait_until_sound(self) -> None:
        """Wait for Sentinels that know each other and the replica, which has everything."""
        wait_until(lambda: all(self._is_known_to(port) for port in self.ports), _TILT)
        wait_until(self._is_in_sync)

    def fail_over(self, *, gently: bool = True) -> None:
        """Ask the Sentinels for a failover: master and replica change places."""
        with self._held_still(gently=gently) as old:
            self.master, self.replica = self.replica, self.master
            asked_at = -_ASK_AGAIN

            def is_over() -> bool:
                nonlocal asked_at
                if self._names_the_master(self.ports[0]):
                    return True
                # One that is under way may be given up.
                if time.monotonic() - asked_at > _ASK_AGAIN and self._is_failover_taken():
                    asked_at = time.monotonic()
                return False

            wait_until(is_over, _TILT)
            self._wait_for_the_master()
            if gently:
                # A Sentinel would say so, but not to a server that holds its commands back.
                old.replicaof(self.master.host, self.master.port)
                _execute(old, "CLIENT", "UNPAUSE")
        self.wait_until_sound()

    def kill_master(self, *, gently: bool = True) -> None:
        """Kill the master; the Sentinels notice, and a new replica takes its place."""
        with self._held_still(gently=gently), self.watched():
            os.kill(self.master.pid, signal.SIGKILL)
            self.master = self.replica
            self._wait_for_the_master()
        self.replica = self._start_replica()
        # They would wait for the dead one for ever.
        for port in self.ports:
            with contextlib.closing(redis.Redis(port=port)) as client:
                client.sentinel_reset(SERVICE)
        self.wait_until_sound()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Let the Sentinels replace a master that says nothing for a moment."""
        self._set_down_after(_DOWN_AFTER)
        yield
        self._set_down_after(_NEVER_DOWN)

    # -- inside ----------------------------------------------------------------------------

    def _start_replica(self) -> Server:
        follow = ("--replicaof", f"{self.master.host} {self.master.port}")
        return self._stack.enter_context(redis_server(here(ONE), args=(*follow, *_SYNC_AT_ONCE)))

    @contextlib.contextmanager
    def _held_still(self, *, gently: bool) -> Iterator[redis.Redis]:
        """Let the replica have all that was ever answered, and nothing more be written.

        Without it a failover loses what was not waited for: claims are not, in any durability.
        The contract allows that, and tests of something else do not look for it.
        """
        with contextlib.closing(self.client()) as client:
            if gently:
                _execute(client, "CLIENT", "PAUSE", 60_000, "WRITE")
                wait_until(self._is_in_sync)
            yield client

    def _set_down_after(self, milliseconds: int) -> None:
        for port in self.ports:
            with contextlib.closing(redis.Redis(port=port)) as client:
                name = "down-after-milliseconds"
                _execute(client, "SENTINEL", "SET", SERVICE, name, milliseconds)

    def _is_in_sync(self) -> bool:
        with (
            contextlib.closing(self.client()) as master,
            contextlib.closing(redis.Redis.from_url(self.replica.url)) as replica,
        ):
            told: Any = replica.info("replication")
            here: Any = master.info("replication")
        return (
            told["role"] == "slave"
            and told["master_port"] == self.master.port
            and told["master_link_status"] == "up"
            and int(here["connected_slaves"]) == 1
            and here["master_repl_offset"] == told["slave_repl_offset"]
        )

    def _is_known_to(self, port: int) -> bool:
        """Whether a Sentinel sees what is there, and nothing wrong with it."""
        with contextlib.closing(redis.Redis(port=port)) as client:
            master: Any = client.sentinel_master(SERVICE)
            replicas: Any = client.sentinel_slaves(SERVICE)
        return (
            (master["port"], master["flags"]) == (self.master.port, "master")
            and [(each["port"], each["flags"]) for each in replicas]
            == [(self.replica.port, "slave")]
            and replicas[0]["master-link-status"] == "ok"
            and int(master["num-other-sentinels"]) == SENTINELS - 1
        )

    def _is_failover_taken(self) -> bool:
        """Ask for a failover; a Sentinel that has not seen enough of the replica refuses."""
        with contextlib.closing(redis.Redis(port=self.ports[0])) as client:
            try:
                _execute(client, "SENTINEL", "FAILOVER", SERVICE)
            except redis.ResponseError as error:
                if not str(error).startswith(("NOGOODSLAVE", "INPROG")):
                    raise
                return False
        return True

    def _wait_for_the_master(self) -> None:
        wait_until(lambda: all(self._names_the_master(port) for port in self.ports), _TILT)

    def _names_the_master(self, port: int) -> bool:
        with contextlib.closing(redis.Redis(port=port)) as client:
            address: Any = client.sentinel_get_master_addr_by_name(SERVICE)
        return address is not None and int(address[1]) == self.master.port


class Failovers:
    """Failovers at random moments, but never while somebody looks behind the World's back."""

    def __init__(self, guarded: Guarded) -> None:
        self.guarded = guarded
        self.count = 0
        self._state = threading.Condition()
        self._lookers = 0
        self._is_failing_over = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="failovers", daemon=True)
        self.error: BaseException | None = None
        self.is_used = False
        """Whether a test is at work: others need not wait for failovers that meet nobody."""
        self._used_seconds = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        if self._used_seconds > _ONE_MUST_HAVE_COME:
            assert self.count, "there was no failover"

    def client(self) -> redis.Redis:
        """A client of the master; there is no failover until it is closed."""
        with self._state:
            self._state.wait_for(lambda: not self._is_failing_over)
            if self.error is not None:
                raise AssertionError("no failover since then") from self.error
            self._lookers += 1
        return _Looking.from_master(self)

    def allow(self) -> None:
        """One client less stands in the way."""
        with self._state:
            self._lookers -= 1
            self._state.notify_all()

    def _rest(self, seconds: float) -> bool:
        """Wait until tests were at work for so long; False when all is over."""
        while seconds > 0:
            if self._stop.wait(_TICK):
                return False
            if self.is_used:
                seconds -= _TICK
                self._used_seconds += _TICK
        return True

    def _run(self) -> None:
        while self._rest(random.uniform(*_CALM)):
            with self._state:
                if not self._state.wait_for(lambda: self._lookers == 0, timeout=1.0):
                    continue
                self._is_failing_over = True
            try:
                if self.count % 2:
                    self.guarded.kill_master()
                else:
                    self.guarded.fail_over()
                self.count += 1
            except BaseException as error:  # noqa: BLE001 - for those who end this thread
                self.error = error
                return
            finally:
                with self._state:
                    self._is_failing_over = False
                    self._state.notify_all()


class _Looking(redis.Redis):
    """A client that keeps the master where it is while it is open."""

    failovers: Failovers | None = None

    @classmethod
    def from_master(cls, failovers: Failovers) -> _Looking:
        client = cast(_Looking, cls.from_url(failovers.guarded.master.url))
        client.failovers = failovers
        return client

    def close(self) -> None:
        super().close()
        failovers, self.failovers = self.failovers, None
        if failovers is not None:
            failovers.allow()


@contextlib.contextmanager
def guarded_server() -> Iterator[Guarded]:
    """A master, a replica and three Sentinels for the length of a block."""
    with contextlib.ExitStack() as stack:
        yield Guarded(stack)


@contextlib.contextmanager
def _sentinels(master: Server) -> Iterator[list[int]]:
    """Sentinels that watch a master; their ports."""
    binary, _ = servers._find(master.kind)
    processes, ports = [], [free_port() for _ in range(SENTINELS)]
    with tempfile.TemporaryDirectory(prefix="rw-") as folder:
        try:
            for port in ports:
                place = Path(folder) / str(port)
                place.mkdir()
                settings = [
                    f"port {port}",
                    f"bind {_HOST}",
                    f"dir {place}",
                    f"sentinel monitor {SERVICE} {master.host} {master.port} {_QUORUM}",
                    f"sentinel down-after-milliseconds {SERVICE} {_NEVER_DOWN}",
                    f"sentinel failover-timeout {SERVICE} 3000",
                ]
                (place / "sentinel.conf").write_text("\n".join(settings) + "\n", encoding="utf-8")
                command = [str(binary), str(place / "sentinel.conf"), "--sentinel"]
                with (place / "log").open("wb") as log:
                    processes.append(
                        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                    )
            for port in ports:
                wait_until(lambda port=port: _answers(port))  # type: ignore[misc]
                with contextlib.closing(redis.Redis(port=port)) as client:
                    for name, value in _PERIODS.items():
                        _execute(client, "SENTINEL", "DEBUG", name, value)
            yield ports
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _execute(client: redis.Redis, *command: str | int) -> None:
    client.execute_command(*command)  # type: ignore[no-untyped-call]


def _answers(port: int) -> bool:
    with contextlib.closing(redis.Redis(port=port)) as client, contextlib.suppress(Exception):
        return bool(client.ping())
    return False
