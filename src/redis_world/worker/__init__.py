"""The worker: takes messages from the queue and calls handlers (contract, section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from redis_world.codec import Duration, to_duration_ms
from redis_world.config import WorldConfig
from redis_world.errors import ConfigurationError, InvalidInputError
from redis_world.values import shown, whole
from redis_world.worker.delivery import (
    Continuation,
    Handler,
    MessageHandler,
    Postpone,
    caller_of,
)
from redis_world.worker.leases import BLOCKED_EXIT_CODE, INTERRUPTED_EXIT_CODE
from redis_world.worker.running import OwnProcess, Running, Settings
from redis_world.world import RedisWorld

__all__ = [
    "BLOCKED_EXIT_CODE",
    "INTERRUPTED_EXIT_CODE",
    "Continuation",
    "Handler",
    "MessageHandler",
    "OwnProcess",
    "Postpone",
    "Worker",
]

_MAX_LEASE_SECONDS: Final = 24 * 3600


class Worker:
    """Delivers the messages of some topics to handlers, in this process and event loop.

    Args:
        world: the World.
        handlers: topic -> handler. A topic is the prefix of its queue names. A handler with one
            parameter gets the whole `Message`.
        concurrency: how many messages are handled at a time, over all topics.
        lease: how long a message is this worker's; a thread extends it while its handler runs. A
            handler whose lease is lost is cancelled.
        max_replay: how long a replay may hold its run, and keep the event loop from turning. A
            replay that hangs for so long loses its lease. One that blocks the loop for so long
            counts as failed, and this worker takes nothing more. Steps, and messages of no run,
            may take as long as they like.
        shutdown_timeout: how long a stopping worker lets its handlers finish, before it
            cancels them and releases their messages.
        sweep_interval: how often it sweeps, at most; None: the World's `sweep_interval`.
        own_process: the process is this worker's alone. A second signal ends it at once (exit
            code 130). So does a replay that blocks the loop for `max_replay`, or a handler that
            blocks it at the stop (exit code 70). None: a second signal falls to the signal
            handlers that were there before.

    Raises:
        ConfigurationError: there is no handler, or the concurrency is not positive.
    """

    def __init__(
        self,
        world: RedisWorld,
        handlers: Mapping[str, Handler | MessageHandler],
        *,
        concurrency: int = 32,
        lease: Duration = 60.0,
        max_replay: Duration = 600.0,
        shutdown_timeout: Duration = 20.0,
        sweep_interval: Duration | None = None,
        own_process: OwnProcess | None = None,
    ) -> None:
        if not isinstance(getattr(world, "config", None), WorldConfig):
            raise ConfigurationError(f"world is a RedisWorld, not {shown(world)}")
        if not isinstance(handlers, Mapping):
            raise ConfigurationError(f"handlers are a mapping, not {shown(handlers)}")
        if not handlers:
            raise ConfigurationError("a worker needs at least one handler")
        try:
            handlers = dict(handlers)
            concurrency = whole(concurrency, "concurrency", 1)
        except InvalidInputError as error:
            raise ConfigurationError(str(error)) from None
        except Exception as error:  # noqa: BLE001 - a mapping of others may raise anything
            raise ConfigurationError(f"handlers can't be read: {shown(str(error))}") from None
        if sweep_interval is None:
            sweep_interval = world.config.sweep_interval
        self._world = world
        self._calls = {topic: caller_of(handler) for topic, handler in handlers.items()}
        self._settings = Settings(
            concurrency=concurrency,
            lease=_positive(lease, "lease"),
            max_replay=_positive(max_replay, "max_replay"),
            shutdown_timeout=to_duration_ms(shutdown_timeout, "shutdown_timeout") / 1000,
            sweep_interval=_positive(sweep_interval, "sweep_interval"),
            own_process=own_process,
        )
        if self._settings.lease > _MAX_LEASE_SECONDS:
            raise ConfigurationError(f"a lease is up to a day, not {shown(lease)}")
        self._running: Running | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Claim nothing more; `run` returns once the handlers have finished. From any thread.

        A worker that does not run ends its next `run` at once.
        """
        # Read once: `run` may return meanwhile, in another thread.
        running = self._running
        if running is not None:
            running.stop()
        else:
            self._is_stopped = True

    async def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop`. It may be called again after it has returned.

        A signal stops all workers of the process, and is passed on to a handler that the program
        has set itself, such as a web server's. A second one falls to the handlers of before. Only
        in the main thread: elsewhere, whoever runs a worker stops it.

        After `shutdown_timeout` handlers are cancelled and messages released. A handler that
        ignores its cancellation is left behind: its task is still there when `run` returns, but
        nothing that it does ends its message.

        Raises:
            ConfigurationError: the World can't be opened, or this worker runs already.
            WorldUnavailableError: the server can't be reached at the start.
        """
        if self._running is not None:
            raise ConfigurationError(
                "this worker runs already: make another Worker, or wait until `run` has returned"
            )
        running = self._running = Running(self._world, self._calls, self._settings)
        if self._is_stopped:
            self._is_stopped = False
            running.stop()
        try:
            await running.work()
        finally:
            self._running = None


def _positive(duration: Duration, what: str) -> float:
    seconds = to_duration_ms(duration, what) / 1000
    if not seconds:
        raise ConfigurationError(f"{what} must be more than nothing")
    return seconds
