"""The methods of the HTTP interface: name, role, arguments, result (docs/http.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic.alias_generators import to_camel

from redis_world.errors import InvalidInputError, WorldError
from redis_world.messages import DeadLetter, Enqueue, FollowUp, Message, backoff
from redis_world.models import (
    BaseEvent,
    BatchResult,
    CancelManyResult,
    Event,
    EventResult,
    Hook,
    Page,
    Run,
    Step,
    StreamChunksPage,
    StreamInfo,
    Wait,
)
from redis_world.models.base import Model
from redis_world.scatter import complete
from redis_world.server import arguments as a
from redis_world.server.access import Role
from redis_world.server.failures import RequestError, failure_of
from redis_world.world import RedisWorld

__all__ = ["METHODS", "Method", "call", "check_cancel", "message_to_wire"]

Call = Callable[[RedisWorld, Any], Awaitable[Any]]

_WITHOUT_DATA: Final = frozenset(
    ("run_started", "run_cancelled", "step_started", "hook_disposed", "wait_completed")
)
"""Events that may be without `eventData`; the clients' schemas want at least an empty map in all
others."""
_SENT_AT_ONCE: Final = 64
"""Messages of one request on their way to Redis at the same time: one pipeline of them."""


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        name: `<group>.<method>`.
        roles: those of the tokens that may call it.
        arguments: what it takes.
        call: does it.
        result: the model of its result, for the OpenAPI document; None: described in the text.
        summary: what it does, in a line.
        has_get: whether GET may ask for it, too: it changes nothing, and has no secret in it.
    """

    name: str
    roles: frozenset[Role]
    arguments: type[a.Arguments]
    call: Call
    result: Any
    summary: str
    has_get: bool


METHODS: Final[dict[str, Method]] = {}

READ: Final = frozenset(Role)
APP: Final = frozenset({Role.APP})
OPERATE: Final = frozenset({Role.OPERATE})


def _method(
    name: str,
    roles: frozenset[Role],
    arguments: type[a.Arguments],
    result: Any = None,
    *,
    get: bool = False,
) -> Callable[[Call], Call]:
    def add(call: Call) -> Call:
        summary = (call.__doc__ or "").strip().splitlines()[0]
        METHODS[name] = Method(name, roles, arguments, call, result, summary, get)
        return call

    return add


def _given(args: a.Arguments, *without: str) -> dict[str, Any]:
    """The optional arguments that a request has; null is as good as none."""
    return {
        name: value
        for name in args.model_fields_set
        if name not in without and (value := getattr(args, name)) is not None
    }


# -- results -------------------------------------------------------------------------------


def _event_to_wire(event: BaseEvent) -> dict[str, Any]:
    wire = event.to_wire()
    if "eventData" not in wire and wire["eventType"] not in _WITHOUT_DATA:
        wire["eventData"] = {}
    return wire


def _to_wire(value: Any) -> Any:
    if isinstance(value, Page):
        wire = {
            "data": [_to_wire(each) for each in value.data],
            "cursor": value.cursor,
            "hasMore": value.has_more,
        }
        return wire | {"done": value.done} if isinstance(value, StreamChunksPage) else wire
    if isinstance(value, EventResult | BatchResult):
        return _result_to_wire(value)
    if isinstance(value, BaseEvent):
        return _event_to_wire(value)
    return value.to_wire() if isinstance(value, Model) else value


def _result_to_wire(result: EventResult | BatchResult) -> dict[str, Any]:
    wire = result.to_wire()
    for each in (wire, *wire.get("results", ())):
        for event in (each.get("event"), *(each.get("events") or ())):
            if event and "eventData" not in event and event["eventType"] not in _WITHOUT_DATA:
                event["eventData"] = {}
    return wire


def message_to_wire(message: Message) -> dict[str, Any]:
    """A leased message as a reply has it."""
    wire: dict[str, Any] = {
        "messageId": message.message_id,
        "queueName": message.queue_name,
        "payload": message.payload,
        "attempt": message.attempt,
        "failures": message.failures,
        "postponed": message.postponed,
        "enqueuedAt": message.enqueued_at,
        "dueAt": message.due_at,
        "handle": message.handle,
    }
    optional = {
        "headers": message.headers,
        "deploymentId": message.deployment_id,
        "idempotencyKey": message.idempotency_key,
        "postponedSince": message.postponed_since,
    }
    return wire | {name: value for name, value in optional.items() if value is not None}


def _letter_to_wire(letter: DeadLetter) -> dict[str, Any]:
    fields = asdict(letter)
    return _in_camel_case({name: value for name, value in fields.items() if value is not None})


# -- events --------------------------------------------------------------------------------


def _enqueue(args: a.EnqueueArguments | None) -> Enqueue | None:
    if args is None:
        return None
    return Enqueue(
        queue_name=args.queue_name,
        payload=args.payload,
        delay=args.delay,
        idempotency_key=args.idempotency_key,
        headers=args.headers,
        deployment_id=args.deployment_id,
    )


@_method("events.create", APP | OPERATE, a.CreateArguments, EventResult)
async def _create(world: RedisWorld, args: a.CreateArguments) -> Any:
    """Record one event and update its entity."""
    options = _given(args, "run_id", "event", "enqueue", "ack")
    if args.enqueue is not None:
        options["enqueue"] = _enqueue(args.enqueue)
    if args.ack is not None:
        options["ack"] = Message.from_handle(args.ack)
    return _result_to_wire(await world.events.create(args.run_id, args.event, **options))


@_method("events.createBatch", APP, a.CreateBatchArguments, BatchResult)
async def _create_batch(world: RedisWorld, args: a.CreateBatchArguments) -> Any:
    """Record several events of one run in order, each with its own outcome."""
    options = _given(args, "run_id", "events", "enqueue")
    result = await world.events.create_batch(
        args.run_id, args.events, enqueue=_enqueue(args.enqueue), **options
    )
    return _result_to_wire(result)


@_method("events.get", READ, a.EventArguments, Event, get=True)
async def _get_event(world: RedisWorld, args: a.EventArguments) -> Any:
    """Read one event."""
    return await world.events.get(args.run_id, args.event_id, resolve_data=args.resolve_data)


@_method("events.list", READ, a.OfRunArguments, Page[Event], get=True)
async def _list_events(world: RedisWorld, args: a.OfRunArguments) -> Any:
    """List the log of a run; without a limit all of the rest."""
    return await world.events.list(args.run_id, **_given(args, "run_id"))


@_method("events.listByCorrelationId", READ, a.CorrelationArguments, Page[Event], get=True)
async def _list_correlated(world: RedisWorld, args: a.CorrelationArguments) -> Any:
    """List the events of one step, hook or wait."""
    return await world.events.list_by_correlation_id(
        args.run_id, args.correlation_id, **_given(args, "run_id", "correlation_id")
    )


# -- runs, steps, waits and hooks -----------------------------------------------------------


@_method("runs.get", READ, a.RunArguments, Run, get=True)
async def _get_run(world: RedisWorld, args: a.RunArguments) -> Any:
    """Read a run."""
    return await world.runs.get(args.run_id, resolve_data=args.resolve_data)


@_method("runs.getMany", READ, a.RunsArguments, list[Run | None], get=True)
async def _get_runs(world: RedisWorld, args: a.RunsArguments) -> Any:
    """Read runs in the order of their ids, null for a missing one."""
    runs = await world.runs.get_many(args.run_ids, resolve_data=args.resolve_data)
    return [None if run is None else run.to_wire() for run in runs]


@_method("runs.list", READ, a.ListRunsArguments, Page[Run], get=True)
async def _list_runs(world: RedisWorld, args: a.ListRunsArguments) -> Any:
    """List runs, newest first by default."""
    return await world.runs.list(**_given(args))


@_method("runs.waitForTerminal", READ, a.WaitForArguments, Run, get=True)
async def _wait_for_run(world: RedisWorld, args: a.WaitForArguments) -> Any:
    """Wait until a run has ended, and read it; at the timeout read it as it is."""
    return await world.runs.wait_for_terminal(
        args.run_id, timeout=args.timeout, resolve_data=args.resolve_data
    )


@_method("runs.cancelMany", APP | OPERATE, a.CancelArguments, CancelManyResult)
async def _cancel_runs(world: RedisWorld, args: a.CancelArguments) -> Any:
    """Cancel 1 to 500 runs, each with its own outcome."""
    return await world.runs.cancel_many(args.run_ids, args.reason)


@_method("steps.get", READ, a.StepArguments, Step, get=True)
async def _get_step(world: RedisWorld, args: a.StepArguments) -> Any:
    """Read a step."""
    return await world.steps.get(args.run_id, args.step_id, resolve_data=args.resolve_data)


@_method("steps.list", READ, a.OfRunArguments, Page[Step], get=True)
async def _list_steps(world: RedisWorld, args: a.OfRunArguments) -> Any:
    """List the steps of a run in the order of their creation."""
    return await world.steps.list(args.run_id, **_given(args, "run_id"))


@_method("waits.get", READ, a.WaitArguments, Wait, get=True)
async def _get_wait(world: RedisWorld, args: a.WaitArguments) -> Any:
    """Read a wait."""
    return await world.waits.get(args.run_id, args.correlation_id)


@_method("waits.list", READ, a.OfRunArguments, Page[Wait], get=True)
async def _list_waits(world: RedisWorld, args: a.OfRunArguments) -> Any:
    """List the waits of a run in the order of their creation."""
    return await world.waits.list(args.run_id, **_given(args, "run_id", "resolve_data"))


@_method("hooks.get", READ, a.HookArguments, Hook, get=True)
async def _get_hook(world: RedisWorld, args: a.HookArguments) -> Any:
    """Read a hook."""
    return await world.hooks.get(args.hook_id, run_id=args.run_id, resolve_data=args.resolve_data)


@_method("hooks.getByToken", READ, a.TokenArguments, Hook)
async def _get_hook_by_token(world: RedisWorld, args: a.TokenArguments) -> Any:
    """Read the hook that holds a token. By POST only: a token is a secret, an address is not."""
    return await world.hooks.get_by_token(args.token, resolve_data=args.resolve_data)


@_method("hooks.list", READ, a.ListHooksArguments, Page[Hook], get=True)
async def _list_hooks(world: RedisWorld, args: a.ListHooksArguments) -> Any:
    """List the hooks of a run, or of all runs."""
    return await world.hooks.list(args.run_id, **_given(args, "run_id"))


# -- queue ---------------------------------------------------------------------------------


async def _send_one(world: RedisWorld, args: a.EnqueueArguments) -> str | None:
    options = _given(args, "queue_name", "payload")
    return await world.queue.send(args.queue_name, args.payload, **options)


@_method("queue.send", APP, a.EnqueueArguments)
async def _send(world: RedisWorld, args: a.EnqueueArguments) -> Any:
    """Send a message; `messageId` is null if its step has ended."""
    return {"messageId": await _send_one(world, args)}


@_method("queue.sendMany", APP, a.SendManyArguments)
async def _send_many(world: RedisWorld, args: a.SendManyArguments) -> Any:
    """Send 1 to 256 messages, each with its own outcome, in their order."""

    async def send(message: a.EnqueueArguments) -> dict[str, Any]:
        try:
            return {"messageId": await _send_one(world, message)}
        except WorldError as error:
            return {"error": failure_of(error), "retryable": error.status in (429, 503)}

    results: list[dict[str, Any]] = []
    for first in range(0, len(args.messages), _SENT_AT_ONCE):
        some = args.messages[first : first + _SENT_AT_ONCE]
        results += await asyncio.gather(*map(send, some))
    return {"results": results}


@_method("queue.ack", APP, a.AckArguments)
async def _ack(world: RedisWorld, args: a.AckArguments) -> Any:
    """End a delivery, with or without a continuation; `done` is false if the lease was lost."""
    follow_up = None
    if args.follow_up is not None:
        follow_up = FollowUp(args.follow_up.delay, args.follow_up.idempotency_key)
    return {"done": await world.queue.ack(Message.from_handle(args.handle), follow_up=follow_up)}


@_method("queue.retry", APP, a.RetryArguments)
async def _retry(world: RedisWorld, args: a.RetryArguments) -> Any:
    """Count a delivery as failed, and have it repeated after a back-off or the given delay."""
    message = Message.from_handle(args.handle)
    delay = args.delay
    if delay is None and args.retry_after is not None:
        delay = max(args.retry_after, backoff(message.failures + 1))
    return {"done": await world.queue.retry(message, error=args.error, delay=delay)}


@_method("queue.extend", APP, a.ExtendArguments)
async def _extend(world: RedisWorld, args: a.ExtendArguments) -> Any:
    """Extend a lease from now on."""
    message = Message.from_handle(args.handle)
    return {"done": await world.queue.extend(message, lease=args.lease)}


@_method("queue.release", APP, a.HandleArguments)
async def _release(world: RedisWorld, args: a.HandleArguments) -> Any:
    """Return a message because the worker stops; the delivery does not count."""
    return {"done": await world.queue.release(Message.from_handle(args.handle))}


@_method("queue.postpone", APP, a.PostponeArguments)
async def _postpone(world: RedisWorld, args: a.PostponeArguments) -> Any:
    """Return a message that is not for this worker, or not yet; the delivery does not count."""
    message = Message.from_handle(args.handle)
    return {"done": await world.queue.postpone(message, args.delay)}


@_method("queue.stats", READ, a.TopicArguments, get=True)
async def _stats(world: RedisWorld, args: a.TopicArguments) -> Any:
    """Count the messages of a topic by their state."""
    stats = await world.queue.stats(args.topic)
    names = [_in_camel_case(each._asdict()) for each in stats.postponed_names]
    return _in_camel_case(asdict(stats) | {"postponed_names": names})


def _in_camel_case(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {to_camel(name): value for name, value in fields.items()}


@_method("queue.deadLetters", READ, a.LettersArguments, get=True)
async def _dead_letters(world: RedisWorld, args: a.LettersArguments) -> Any:
    """List the dead letters of a topic."""
    page = await world.queue.dead_letters(args.topic, **_given(args, "topic"))
    return {
        "data": [_letter_to_wire(letter) for letter in page.data],
        "cursor": page.cursor,
        "hasMore": page.has_more,
    }


@_method("queue.redrive", OPERATE, a.MessageArguments)
async def _redrive(world: RedisWorld, args: a.MessageArguments) -> Any:
    """Send a dead letter again."""
    return {"messageId": await world.queue.redrive(args.message_id)}


@_method("queue.purgeDeadLetters", OPERATE, a.TopicArguments)
async def _purge(world: RedisWorld, args: a.TopicArguments) -> Any:
    """Delete the dead letters of a topic."""
    return {"purged": await world.queue.purge_dead_letters(args.topic)}


# -- streams -------------------------------------------------------------------------------


def _chunks(values: Iterable[Any]) -> list[bytes]:
    chunks = []
    for value in values:
        if not isinstance(value, bytes):
            raise InvalidInputError(f"a chunk must be bytes, not a {type(value).__name__}")
        chunks.append(value)
    return chunks


async def _noted(world: RedisWorld, args: a.FindableArguments, call: Awaitable[None]) -> None:
    """Do a call that writes a stream; note the run with it, for readers that know the name."""
    if args.findable:
        noting = world.streams.note_run(args.run_id, args.name)
        await complete([call, noting], "calls of this request")
    else:
        await call


@_method("streams.write", APP, a.WriteArguments)
async def _write(world: RedisWorld, args: a.WriteArguments) -> Any:
    """Append a chunk to a stream."""
    call = world.streams.write_many(
        args.run_id,
        args.name,
        _chunks([args.chunk]),
        writer=args.writer,
        sequence=args.sequence,
    )
    await _noted(world, args, call)


@_method("streams.writeMany", APP, a.WriteManyArguments)
async def _write_many(world: RedisWorld, args: a.WriteManyArguments) -> Any:
    """Append up to 5,000 chunks in order, all of them or none."""
    call = world.streams.write_many(
        args.run_id,
        args.name,
        _chunks(args.chunks),
        writer=args.writer,
        sequence=args.sequence,
    )
    await _noted(world, args, call)


@_method("streams.close", APP, a.FindableArguments)
async def _close(world: RedisWorld, args: a.FindableArguments) -> Any:
    """Close a stream; closing it again changes nothing."""
    await _noted(world, args, world.streams.close(args.run_id, args.name))


@_method("streams.find", READ, a.StreamNameArguments, get=True)
async def _find_stream(world: RedisWorld, args: a.StreamNameArguments) -> Any:
    """Find the run of a stream that was written as findable, by the name of the stream."""
    return {"runId": await world.streams.find_run(args.name)}


@_method("streams.list", READ, a.RunIdArguments, list[str], get=True)
async def _list_streams(world: RedisWorld, args: a.RunIdArguments) -> Any:
    """List the names of the streams of a run."""
    return await world.streams.list(args.run_id)


@_method("streams.getInfo", READ, a.StreamArguments, StreamInfo, get=True)
async def _stream_info(world: RedisWorld, args: a.StreamArguments) -> Any:
    """Read the length of a stream, and whether it is closed."""
    return await world.streams.get_info(args.run_id, args.name)


@_method("streams.getChunks", READ, a.ChunksArguments, StreamChunksPage, get=True)
async def _stream_chunks(world: RedisWorld, args: a.ChunksArguments) -> Any:
    """Read a page of the current chunks of a stream."""
    return await world.streams.get_chunks(args.run_id, args.name, **_given(args, "run_id", "name"))


async def call(method: Method, world: RedisWorld, args: a.Arguments) -> Any:
    """Do a method; the result as its reply has it."""
    return _to_wire(await method.call(world, args))


def check_cancel(args: Any) -> None:
    """Let an operator create only the event that cancels a run.

    Raises:
        RequestError: it is another event.
    """
    if args.event.get("eventType") != "run_cancelled":
        raise RequestError(403, "forbidden", "this token may only create run_cancelled events")
