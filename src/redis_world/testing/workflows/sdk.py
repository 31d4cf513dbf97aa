"""Makes a World and a clock those of the SDK, for the length of a test."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime, tzinfo
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from pydantic_core import core_schema
from vercel.queue import DuplicateSubscriptionError
from vercel.workflow._internal import core, duration, py_sandbox, runtime, ulid
from vercel.workflow._internal import run as sdk_run
from vercel.workflow._internal import world as w

from redis_world import vercel
from redis_world.codec import to_ms
from redis_world.vercel import VercelWorld, outbox, pin_redis_world
from redis_world.vercel.adapter import RegisteredHandler, build_codecs
from redis_world.world import RedisWorld

__all__ = ["AppWorld", "installed", "registries"]

_ABORT: Final = re.compile(r"strm_(.+)_system_abort")
"""The stream on which the SDK tells a step to stop."""
_TEST_TOOLS: Final = frozenset({"pytest", "_pytest", "pluggy", "pytest_asyncio"})
"""What modules of tests import: a replay of a workflow that is defined in one needs it, too."""


class AppWorld(VercelWorld):
    """The World of the SDK while a test runs.

    Several registries may have one topic, as where a session tests several programs: a message
    goes to the one that has its workflow.

    Args:
        world: where it stores.
        prepare: awaited before the SDK stores anything.
        on_change: called when the SDK has stored something that a worker has to look at.
        on_cancel: called with the id of a step that is told to stop.
    """

    def __init__(
        self,
        world: RedisWorld,
        prepare: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
        on_cancel: Callable[[str], None],
    ) -> None:
        super().__init__(world)
        self.made: list[core.Workflows] = []
        """The registries that were made while this was the World."""
        self._prepare = prepare
        self._on_change = on_change
        self._on_cancel = on_cancel
        build_codecs()

    def add(self, registry: core.Workflows) -> None:
        """Serve a registry; of several that have a workflow, the one that was added last."""
        namespace = registry.namespace
        self._serve(
            w.get_queue_topic_prefix(namespace),
            functools.partial(runtime.workflow_handler, registry=registry, namespace=namespace),
        )

    def create_queue_handler(
        self, queue_name_prefix: w.QueuePrefix, handler: w.QueueHandler
    ) -> w.HTTPHandler:
        """Serve a registry that is made during the test."""
        answer, registry = self._serve(queue_name_prefix, handler)
        if isinstance(registry, core.Workflows):
            self.made.append(registry)
        return answer

    def _serve(
        self, topic: w.QueuePrefix, handler: w.QueueHandler
    ) -> tuple[w.HTTPHandler, object]:
        """Serve a handler beside those that its topic has already; also gives its registry."""
        before = self.handlers.pop(topic, None)
        answer = super().create_queue_handler(topic, handler)
        added = self.handlers[topic]
        assert isinstance(added, RegisteredHandler)
        earlier = before.handlers if isinstance(before, _Handlers) else []
        self.handlers[topic] = _Handlers(
            [added, *(each for each in earlier if each.registry is not added.registry)]
        )
        return answer, added.registry

    async def queue(self, *args: Any, **options: Any) -> str:
        """Send a message, and have it looked at."""
        await self._prepare()
        message_id = await super().queue(*args, **options)
        self._on_change()
        return message_id

    async def events_create(self, run_id: str | None, data: w.Event) -> w.EventResult:
        """Store an event; the SDK sends a message behind all that others wait for, but one."""
        await self._prepare()
        result = await super().events_create(run_id, data)
        if data.event_type == "run_cancelled":
            self._on_change()
        return result

    async def streams_write_multi(self, run_id: str, name: str, chunks: Sequence[bytes]) -> None:
        """Write to a stream; by one of them a step hears that it has to stop."""
        await super().streams_write_multi(run_id, name, chunks)
        step = _ABORT.fullmatch(name)
        if step is not None:
            self._on_cancel(f"step_{step[1]}")


class _Handlers:
    """The handlers of all registries of one topic."""

    def __init__(self, handlers: Sequence[RegisteredHandler]) -> None:
        self.handlers = handlers

    async def __call__(
        self, payload: dict[str, Any], /, *, attempt: int, queue_name: str, message_id: str
    ) -> w.QueueContinuation | None:
        knowing = (each for each in self.handlers if each.has_code_for(payload, queue_name))
        handler = next(knowing, self.handlers[0])
        return await handler(
            payload, attempt=attempt, queue_name=queue_name, message_id=message_id
        )


def registries() -> list[core.Workflows]:
    """All registries that this process has loaded.

    A replay finds its workflow by the name of its module, so every registry that can run one is
    found in some module, itself or by a workflow.
    """
    found: dict[int, core.Workflows] = {}
    kinds = {*_kinds(core.Workflows), *_kinds(core.Workflow)}
    for module in [*sys.modules.values()]:
        for value in [*getattr(module, "__dict__", {}).values()]:
            # By its type: it may be a proxy that fails when it is asked for its class.
            if type(value) in kinds:
                registry = getattr(value, "_registry", value)
                found[id(registry)] = registry
    if isinstance(w.the_world, VercelWorld):
        for handler in w.the_world.handlers.values():
            registry = getattr(handler, "registry", None)
            if isinstance(registry, core.Workflows):
                found[id(registry)] = registry
    return [*found.values()]


def _kinds(cls: type[Any]) -> Iterator[type[Any]]:
    yield cls
    for each in cls.__subclasses__():
        yield from _kinds(each)


@contextlib.contextmanager
def installed(
    adapter: AppWorld,
    now: Callable[[], datetime],
    pause: Callable[[], Awaitable[None]],
) -> Iterator[None]:
    """Make this the World and the clock of the SDK; at the end all is as it was.

    Args:
        adapter: the World.
        now: the time that the SDK sees.
        pause: awaited by the SDK where it waits for the end of a run.
    """
    clocked = _clocked(now)
    with contextlib.ExitStack() as stack:
        for registry in registries():
            adapter.add(registry)
        stack.enter_context(_chosen(adapter))
        for module in (duration, runtime, outbox):
            stack.enter_context(mock.patch.object(module, "datetime", clocked))
        # The process's own generator never goes back: ids of later tests would be of a future
        # that this one has been to.
        stack.enter_context(mock.patch.object(sdk_run, "_generate_run_ulid", _Generator(now)))
        stack.enter_context(
            mock.patch.object(sdk_run, "asyncio", SimpleNamespace(sleep=lambda _: pause()))
        )
        stack.enter_context(_passed_through())
        yield


class _Generator:
    """Makes ids of runs by another clock."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._generate = ulid.monotonic_factory()

    def __call__(self) -> str:
        return self._generate(to_ms(self._now()))


@contextlib.contextmanager
def _chosen(adapter: AppWorld) -> Iterator[None]:
    """Make it the World of the process, whatever bootstrap modules are imported meanwhile."""
    world, pinned = w.the_world, vercel.pinned_redis_world()
    w.set_world(adapter)
    pin_redis_world(adapter)
    try:
        yield
    finally:
        pin_redis_world(pinned)
        w.set_world(world)
        if world is not None:
            for registry in adapter.made:
                # What was imported during the test belongs to the process from now on.
                with contextlib.suppress(DuplicateSubscriptionError):
                    runtime.workflow_entrypoint(registry)


@contextlib.contextmanager
def _passed_through() -> Iterator[None]:
    served = py_sandbox._PASSTHROUGHS  # noqa: SLF001 - as in `redis_world.vercel.passthrough`
    added = _TEST_TOOLS - served
    served |= added
    try:
        yield
    finally:
        served -= added


def _clocked(now: Callable[[], datetime]) -> type[datetime]:
    """The class `datetime` with another present."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, datetime)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, datetime)

    class Clocked(datetime, metaclass=Meta):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return now().astimezone(tz)

        @classmethod
        def __get_pydantic_core_schema__(cls, *_: object) -> core_schema.CoreSchema:
            """As a plain one: models of steps may name the SDK's own annotations."""
            return core_schema.datetime_schema()

    return Clocked
