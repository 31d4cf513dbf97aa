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
    current_message,
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
    "current_message",
]

_MAX_LEASE_SECONDS: Final = 24 * 3600


class Worker:
    """Delivers the messages of some topics to handlers, in this process and event loop.

    Args:
        world: the World.
        handlers: topic -> handler. A topic is the prefix of its queue names. A handler with one
            parameter gets the whole `Message`.
        concurrency: how many messages are handled at a time, over all topics.
        lease: how long a claimed message belongs to this worker. A thread extends the lease while
            the handler runs. A handler whose lease is lost is cancelled.
        max_replay: how long a replay may run, and how long it may block the event loop. A replay
            that runs longer loses its lease. A replay that blocks the loop longer counts as
            failed, and the worker claims nothing more. Steps, and messages without a run, have no
            limit.
        shutdown_timeout: how long a stopping worker lets its handlers finish. Then it cancels them
            and releases their messages.
        sweep_interval: how often the worker sweeps, at most, as long as the workers of the
            namespace elect it for that; None: the World's `sweep_interval`.
        own_process: the process runs nothing but this worker. A second signal ends the process at
            once (exit code 130). So does a replay that blocks the loop for `max_replay`, or a
            handler that blocks it during the stop (exit code 70). None: a second signal goes to
            the signal handlers that were set before.

    Raises:
        ConfigurationError: there is no handler, or an option is invalid.
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
            raise ConfigurationError(f"world must be a RedisWorld, not {shown(world)}")
        if not isinstance(handlers, Mapping):
            raise ConfigurationError(f"handlers must be a mapping, not {shown(handlers)}")
        if not handlers:
            raise ConfigurationError(
                "handlers is empty: a worker needs a handler for at least one topic"
            )
        try:
            handlers = dict(handlers)
            concurrency = whole(concurrency, "concurrency", 1)
        except InvalidInputError as error:
            raise ConfigurationError(str(error)) from None
        except Exception as error:  # noqa: BLE001 - a mapping of others may raise anything
            raise ConfigurationError(f"can't read handlers: {shown(str(error))}") from None
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
            raise ConfigurationError(f"lease must be at most one day, not {shown(lease)}")
        self._running: Running | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Stop claiming. `run` returns once the handlers have finished. Call it from any thread.

        If the worker is not running, its next `run` returns at once.
        """
        # Read once: `run` may return meanwhile, in another thread.
        running = self._running
        if running is not None:
            running.stop()
        else:
            self._is_stopped = True

    async def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop`. You may call it again after it has returned.

        A signal stops all workers of the process. The worker then passes it on to the program's
        own signal handler, such as a web server's. A second signal goes to the handlers that were
        set before. Signals work in the main thread only: in other threads, call `stop`.

        After `shutdown_timeout` the worker cancels the handlers and releases their messages. A
        handler that ignores its cancellation keeps running when `run` returns, but can no longer
        end its message.

        Raises:
            ConfigurationError: the World can't be opened, or this worker is already running.
            WorldUnavailableError: the server can't be reached at startup.
        """
        if self._running is not None:
            raise ConfigurationError(
                "this worker is already running: create another one, or wait until `run` returns"
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
        raise ConfigurationError(f"{what} must be more than 0, not {shown(duration)}")
    return seconds
