"""The World class of the Python SDK, on a `RedisWorld`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Final

from vercel.queue import DuplicateSubscriptionError
from vercel.workflow._internal import core, runtime
from vercel.workflow._internal import world as w
from vercel.workflow._internal.errors import StepNotRegisteredError
from vercel.workflow._internal.serialization import PayloadEncoder
from vercel.workflow.errors import FatalError

from redis_world import RedisWorld, errors
from redis_world.codec import Duration
from redis_world.messages import Enqueue, run_of, step_of
from redis_world.models import Event, EventResult, Page, ResolveData
from redis_world.paging import DEFAULT_LIMIT, event_cursor
from redis_world.runs import TERMINAL
from redis_world.values import whole
from redis_world.vercel.finalizers import spare_replays
from redis_world.vercel.log_cache import DEFAULT_BYTES, KeptLog, LogCache, weight_of
from redis_world.vercel.outbox import ahead, delivery
from redis_world.vercel.translation import (
    ENDED_AS_CONFLICT,
    ENDED_AS_EXPIRED,
    conflict,
    expired,
    translate,
)
from redis_world.worker import Handler, OwnProcess, Postpone, Worker, current_message

__all__ = ["RegisteredHandler", "VercelWorld", "build_codecs"]

_NOT_STORED: Final = "msg_not_needed"
"""The id of a message that nobody needs: its step is over already."""

_PAGE_EVENTS: Final = 1000
_CANCELLATION_TOKEN: Final = "abrt_"  # noqa: S105 - a prefix, no secret
_NEEDS_PAYLOADS: Final = frozenset({"run_started", "step_started"})
"""The events whose answer the runtime takes payloads from."""
_ALREADY_OVER: Final = (
    errors.StepNotFoundError,
    errors.WaitNotFoundError,
    errors.HookNotFoundError,
)
"""What may be missing only because its run has ended."""
_OF_WORKFLOW: Final = frozenset(
    {
        "attr_set",
        "hook_created",
        "step_created",
        "wait_created",
        "run_completed",
        "run_failed",
    }
)
"""What the workflow's body makes, and would make again at every replay."""
_ENDS_OF_RUNS: Final = frozenset({"run_completed", "run_failed", "run_cancelled"})
_MAX_REASON: Final = 500


class VercelWorld(w.World):
    """The World of `vercel-workflow`, on Redis.

    A `Worker` handles the messages: start it by `worker()` or by the command `redis-world worker`.
    A process that only starts runs needs no worker.
    """

    def __init__(self, world: RedisWorld) -> None:
        self.world = world
        self.logs = LogCache()
        """The logs of runs that this process has replayed lately."""
        self.handlers: dict[str, Handler] = {}
        """Topic -> handler of the registries that this process has loaded."""
        self._is_replaced = False
        """Whether the process has another World by now."""
        self._moved: set[str] = set()
        """The topics whose registries were made for an earlier World of this process."""
        spare_replays()

    def worker(
        self,
        *,
        concurrency: int = 32,
        own_process: OwnProcess | None = None,
        log_cache: int = DEFAULT_BYTES,
        **options: Duration,
    ) -> Worker:
        """Create a worker for all registries of this process; see `Worker`.

        Args:
            concurrency: as in `Worker`.
            own_process: as in `Worker`.
            log_cache: how many bytes of logs this process keeps, so that a replay reads only what
                is new. It is a limit for all workers of the process; 0 keeps none.
            options: as in `Worker`.

        Raises:
            InvalidInputError: an argument is invalid.
            ConfigurationError: this process has no registry for this World, or a later World took
                them over.
        """
        if self._is_replaced and not self.handlers:
            raise errors.ConfigurationError(
                "a later use_redis_world() took over the workflows of this process: call worker() "
                "on the World that it returned"
            )
        build_codecs()
        self.logs.limit = whole(log_cache, "log_cache", 0)
        return Worker(
            self.world,
            self.handlers,
            concurrency=concurrency,
            own_process=own_process,
            **options,
        )

    def take_registries(self, earlier: VercelWorld) -> None:
        """Take over the registries of the earlier World of this process.

        The SDK uses one World per process. A worker of the earlier World would claim its messages
        there, and look for their runs here.
        """
        if earlier is not self:
            for topic, each in earlier.handlers.items():
                self.handlers[topic] = (
                    RegisteredHandler(each.handler, self.world)
                    if isinstance(each, RegisteredHandler)
                    else each
                )
            self._moved.update(earlier.handlers)
            earlier.handlers.clear()
            earlier._is_replaced = True

    async def aclose(self) -> None:
        """Close the `RedisWorld`."""
        await self.world.aclose()

    # -- identity --------------------------------------------------------------------------

    async def get_deployment_id(self) -> str:
        return self.world.config.deployment_id

    def get_environment(self) -> str | None:
        return self.world.config.environment

    # -- queue -----------------------------------------------------------------------------

    async def queue(
        self,
        queue_name: str,
        message: w.QueuePayload,
        *,
        deployment_id: str | None = None,
        idempotency_key: str | None = None,
        delay_seconds: float | None = None,
        headers: dict[str, str] | None = None,
        **_kwargs: Any,
    ) -> str:
        payload = message.model_dump()
        sent = ahead().take(payload, delayed=bool(delay_seconds))
        if sent is not None:
            return sent
        with _translated():
            message_id = await self.world.queue.send(
                queue_name,
                payload,
                delay=delay_seconds or 0.0,
                idempotency_key=idempotency_key,
                headers=headers,
                deployment_id=deployment_id,
            )
        return message_id or _NOT_STORED

    def create_queue_handler(
        self, queue_name_prefix: w.QueuePrefix, handler: w.QueueHandler
    ) -> w.HTTPHandler:
        """Register the handler of a registry. A worker consumes its messages.

        Raises:
            DuplicateSubscriptionError: another registry has this topic. Both would fail each
                other's runs.
        """
        present = None
        if queue_name_prefix not in self._moved:
            present = self.handlers.get(queue_name_prefix)
        if present is not None and _registry_of(present) is not _registry_of(handler):
            raise DuplicateSubscriptionError(
                f"two Workflows() have the topic {queue_name_prefix!r}: give each a different "
                "namespace, Workflows(namespace=...)"
            )
        self.handlers[queue_name_prefix] = RegisteredHandler(handler, self.world)
        self._moved.discard(queue_name_prefix)

        async def http_handler(request: w.HTTPRequest) -> w.HTTPResponse:  # noqa: ARG001
            return w.HTTPResponse.json(
                {"error": "this World has no HTTP queue: run `redis-world worker`"}, status=501
            )

        return http_handler

    # -- storage ---------------------------------------------------------------------------

    async def runs_get(self, run_id: str) -> w.WorkflowRun:
        with _translated():
            run = await self.world.runs.get(run_id)
        found = w.WorkflowRunAdaptor.from_wire(run.to_wire())
        ahead().learn(found)
        return found

    async def steps_get(self, run_id: str, step_id: str) -> w.WorkflowStep:
        with _translated():
            step = await self.world.steps.get(run_id, step_id)
        return w.WorkflowStepAdaptor.from_wire(step.to_wire())

    async def hooks_get_by_token(self, token: str) -> w.Hook:
        with _translated(token=token):
            hook = await self.world.hooks.get_by_token(token)
        return w.Hook.from_wire(hook.to_wire())

    async def events_create(self, run_id: str | None, data: w.Event) -> w.EventResult:
        resolve: ResolveData = "all" if data.event_type in _NEEDS_PAYLOADS else "none"
        here = ahead()
        enqueue = here.message_for(run_id, data, self.get_environment())
        # What the caller writes belongs to the log that it reads then.
        here.log = None
        try:
            if here.is_replay and data.event_type == "run_started" and run_id is not None:
                result, here.log = await self._begin_replay(run_id, data, enqueue)
            else:
                result = await self.world.events.create(
                    run_id,
                    data.model_dump(),
                    resolve_data=resolve,
                    skip_preload=True,
                    enqueue=enqueue,
                    ack=here.ended_by(run_id, data, wakes=enqueue is not None),
                    **_resume(data),
                )
        except errors.WorldError as error:
            raise await self._refusal(run_id or "", data, error) from error
        finally:
            if run_id is not None and data.event_type in _ENDS_OF_RUNS:
                # Whatever came of it: the log of a run that goes on is read again.
                self.logs.forget(run_id)
        if enqueue is not None:
            here.remember(enqueue, result.message_id or _NOT_STORED)
        if here.is_replay:
            here.see(data)
        return _sdk_result(data, result)

    async def _begin_replay(
        self, run_id: str, data: w.Event, enqueue: Enqueue | None
    ) -> tuple[EventResult, tuple[str, w.PaginatedResult[w.Event]]]:
        """Record run_started, and have the log with it: of a kept one only what came since."""
        kept = self.logs.get(run_id)
        try:
            replay = await self.world.events.begin_replay(
                run_id,
                data.model_dump(),
                after=None if kept is None else kept.mark,
                enqueue=enqueue,
            )
        except errors.WorldError:
            self.logs.forget(run_id)
            raise
        wires = [event.to_wire() for event in replay.events]
        events = [w.EventAdaptor.from_wire(wire) for wire in wires]
        weight = sum(map(weight_of, wires))
        if kept is not None and replay.is_continued:
            events = [*kept.events, *events]
            weight += kept.weight
        cursor = None
        if replay.mark is not None:
            cursor = event_cursor(replay.mark.slot)
        if replay.mark is None or _is_to_be_deleted(replay.result):
            self.logs.forget(run_id)
        else:
            self.logs.put(run_id, KeptLog(events, replay.mark, weight))
        # The runtime gets a list of its own.
        page = w.PaginatedResult[w.Event](data=[*events], cursor=cursor, has_more=False)
        return replay.result, (run_id, page)

    async def events_list(
        self, run_id: str, *, pagination: w.PaginationOptions | None = None
    ) -> w.PaginatedResult[w.Event]:
        options = pagination or w.PaginationOptions()
        if options.cursor is None and not options.limit and options.sort_order != "desc":
            # As a replay begins to read.
            begun = ahead().take_log(run_id)
            if begun is not None:
                return _seen(begun)
        with _translated():
            page = await self.world.events.list(
                run_id,
                limit=options.limit or _PAGE_EVENTS,
                cursor=options.cursor,
                sort_order=options.sort_order or "asc",
            )
        return _seen(_sdk_page(page))

    # -- streams ---------------------------------------------------------------------------

    async def streams_write(self, run_id: str, name: str, chunk: bytes) -> None:
        await self.streams_write_multi(run_id, name, [chunk])

    async def streams_write_multi(self, run_id: str, name: str, chunks: Sequence[bytes]) -> None:
        with _translated():
            await self.world.streams.write_many(run_id, name, chunks)

    async def streams_close(self, run_id: str, name: str) -> None:
        with _translated():
            await self.world.streams.close(run_id, name)

    def streams_get(
        self, run_id: str, name: str, start_index: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        return self.world.streams.read(run_id, name, start_index=start_index or 0)

    async def streams_list(self, run_id: str) -> list[str]:
        with _translated():
            return await self.world.streams.list(run_id)

    async def streams_get_chunks(
        self, run_id: str, name: str, *, limit: int | None = None, cursor: str | None = None
    ) -> w.StreamChunksPage:
        with _translated():
            page = await self.world.streams.get_chunks(
                run_id, name, limit=limit or DEFAULT_LIMIT, cursor=cursor
            )
        return w.StreamChunksPage(
            data=[w.StreamChunk(index=chunk.index, data=chunk.data) for chunk in page.data],
            cursor=page.cursor,
            has_more=page.has_more,
            done=page.done,
        )

    async def streams_get_info(self, run_id: str, name: str) -> w.StreamInfo:
        with _translated():
            info = await self.world.streams.get_info(run_id, name)
        return w.StreamInfo(tail_index=info.tail_index, done=info.done)

    # -- refusals --------------------------------------------------------------------------

    async def _refusal(self, run_id: str, data: w.Event, error: errors.WorldError) -> Exception:
        """What the runtime is to be told instead of the World's own error."""
        event_type = data.event_type
        if await self._has_ended(run_id, error):
            if event_type in ENDED_AS_EXPIRED and not _is_cancellation(data):
                return expired(error)
            if event_type in ENDED_AS_CONFLICT or _is_cancellation(data):
                return conflict(error)
        if isinstance(error, errors.InvalidInputError) and _is_of_workflow(data):
            return await self._fail_run(run_id, error)
        return translate(error)

    async def _has_ended(self, run_id: str, error: errors.WorldError) -> bool:
        if isinstance(error, errors.RunExpiredError):
            return True
        if isinstance(error, errors.EntityConflictError):
            return error.reason == "run_terminal"
        if not isinstance(error, _ALREADY_OVER):
            return False
        try:
            run = await self.world.runs.get(run_id, resolve_data="none")
        except errors.WorldError:
            return False
        return run.status in TERMINAL

    async def _fail_run(self, run_id: str, error: errors.WorldError) -> Exception:
        """End a run whose own event was refused as invalid: sending it again can't help."""
        payload = PayloadEncoder().encode_error(FatalError(str(error)[:_MAX_REASON]))
        try:
            await self.world.events.create(
                run_id,
                {
                    "eventType": "run_failed",
                    "eventData": {"error": payload, "errorCode": "USER_ERROR"},
                },
                resolve_data="none",
            )
        except errors.EntityConflictError:
            pass  # somebody else has ended it
        except errors.WorldError as failure:
            return translate(failure)
        return expired(error)


class RegisteredHandler:
    """The handler of a registry. Each call is one delivery."""

    def __init__(self, handler: w.QueueHandler, world: RedisWorld) -> None:
        self.handler = handler
        self.registry = _registry_of(handler)
        self._world = world

    async def __call__(
        self, payload: dict[str, Any], /, *, attempt: int, queue_name: str, message_id: str
    ) -> w.QueueContinuation | None:
        if not self.has_code_for(payload, queue_name) and not await self._has_ended(
            run_of(payload)
        ):
            # The SDK would fail the step, or the run: another worker may know it.
            raise Postpone
        message = current_message()
        if message is not None and message.message_id != message_id:
            message = None
        with delivery(queue_name, is_replay=not step_of(payload), message=message) as here:
            continuation = await self.handler(
                payload, attempt=attempt, queue_name=queue_name, message_id=message_id
            )
            return here.on_time(continuation)

    def has_code_for(self, payload: dict[str, Any], queue_name: str) -> bool:
        """Whether the SDK will find the workflow or the step that a message asks for.

        A message that asks for neither, such as a health check, is the SDK's to judge.
        """
        registry = self.registry
        if not isinstance(registry, core.Workflows) or not run_of(payload):
            return True
        try:
            if step_of(payload):
                registry._get_step(payload["stepName"])  # noqa: SLF001 - the SDK's own look-up
            else:
                name = runtime._workflow_name_from_queue(queue_name)  # noqa: SLF001 - likewise
                registry._get_workflow(name)  # noqa: SLF001 - likewise
        except StepNotRegisteredError:
            return False
        except (KeyError, TypeError):
            # Without a name it is no message of the SDK's making: it says so itself.
            return bool(step_of(payload))
        return True

    async def _has_ended(self, run_id: str) -> bool:
        """Whether the SDK has only to see that nothing is left to do."""
        try:
            run = await self._world.runs.get(run_id, resolve_data="none")
        except errors.RunNotFoundError:
            return False
        return run.status in TERMINAL


@contextlib.contextmanager
def _translated(*, token: str | None = None) -> Iterator[None]:
    """Raise the SDK's errors for those of the World."""
    try:
        yield
    except errors.WorldError as error:
        raise translate(error, token=token) from error


def build_codecs() -> None:
    """Make the SDK read the annotations of its built-in steps now.

    It reads them at the first use and keeps the result. In the sandbox of a replay that fails.
    Then each later replay in this process would get the result of such a step as a plain mapping.
    """
    for step in core._builtin_steps.values():  # noqa: SLF001 - the reason for the upper bound
        with contextlib.suppress(Exception):
            step.codec.dump_return(None)


def _registry_of(handler: object) -> object:
    """The registry that a handler serves: the same one may register itself again."""
    if isinstance(handler, RegisteredHandler):
        handler = handler.handler
    if isinstance(handler, functools.partial):
        return handler.keywords.get("registry", handler)
    return handler


def _resume(data: w.Event) -> dict[str, Any]:
    """The claim of a resume, which an event carries outside of its fields."""
    claim = getattr(data, "_queue_input", None)
    if not isinstance(claim, w.HookResumeInput):
        return {}
    return {
        "resume_id": claim.resume_id,
        "payload_digest": claim.payload_digest,
        "occurred_at": claim.occurred_at(),
    }


def _is_cancellation(data: w.Event) -> bool:
    """Whether it is of the hook by which the runtime cancels a step."""
    if not isinstance(data, w.HookCreatedEvent | w.HookReceivedEvent):
        return False
    return (data.event_data.token or "").startswith(_CANCELLATION_TOKEN)


def _is_to_be_deleted(result: EventResult) -> bool:
    """Whether the user data of the run goes with its end, which may come in another process."""
    return result.run is not None and result.run.attributes.get("$retention") == "0"


def _is_of_workflow(data: w.Event) -> bool:
    """Whether the workflow's body made it, which will make it again at every replay."""
    if isinstance(data, w.AttrSetEvent) and data.event_data.writer.type != "workflow":
        return False
    return data.event_type in _OF_WORKFLOW or _is_cancellation(data)


def _sdk_event(event: Event) -> w.Event:
    return w.EventAdaptor.from_wire(event.to_wire())


def _sdk_page(page: Page[Event]) -> w.PaginatedResult[w.Event]:
    return w.PaginatedResult[w.Event](
        data=[_sdk_event(event) for event in page.data],
        cursor=page.cursor,
        has_more=page.has_more,
    )


def _seen(page: w.PaginatedResult[w.Event]) -> w.PaginatedResult[w.Event]:
    """Note what a replay reads."""
    here = ahead()
    if here.is_replay:
        for event in page.data:
            here.see(event)
    return page


def _sdk_result(data: w.Event, result: EventResult) -> w.EventResult:
    event: w.Event | None = None
    if result.event is not None and result.event.event_type != data.event_type:
        event = _sdk_event(result.event)
    elif result.event is not None:
        stored = result.event
        assert stored.created_at is not None
        props = w.ServerProps(
            run_id=stored.run_id or "",
            event_id=stored.event_id or "",
            created_at=stored.created_at,
            resume_id=stored.resume_id,
        )
        event = data.model_copy(update={"server_props": props})
    run, step = result.run, result.step
    return w.EventResult(
        event=event,
        run=None if run is None else w.WorkflowRunAdaptor.from_wire(run.to_wire()),
        step=None if step is None else w.WorkflowStepAdaptor.from_wire(step.to_wire()),
        hook=None if result.hook is None else w.Hook.from_wire(result.hook.to_wire()),
    )
