"""`world.events`: the event log, and the only way to change anything (contract, section 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from redis_world.cleaning import go_on_if_possible
from redis_world.connection import Command, Connection
from redis_world.errors import (
    EventNotFoundError,
    InvalidEventError,
    InvalidInputError,
    WorldError,
)
from redis_world.events.batch import Batch, Item, parse_batch
from redis_world.events.log import Lengths, LogMark, LogReader, slot_of
from redis_world.events.parts import (
    NOTHING,
    Beginning,
    Behind,
    Part,
    Recorded,
    Replay,
    ReplayPart,
    Unseen,
    Whole,
)
from redis_world.events.plan import Plan, told_of_queue
from redis_world.events.plans import PLANS
from redis_world.events.request import Request
from redis_world.events.scripts import Row
from redis_world.events.validation import parse_event, validate_event
from redis_world.ids import MAX_SLOT, IdFactory, event_slot, new_request_id
from redis_world.messages import (
    Ending,
    Enqueue,
    Message,
    check_lease,
    message_args,
    pack_outbox,
    topic_of,
)
from redis_world.models import (
    BaseEvent,
    BatchEvent,
    BatchResult,
    CreateEvent,
    Event,
    EventResult,
    Page,
    ResolveData,
    RunStartedEvent,
    SortOrder,
    Timestamp,
)
from redis_world.paging import (
    check_limit,
    check_order,
    check_resolve_data,
    event_cursor,
    parse_event_cursor,
)
from redis_world.payloads import has_large, load
from redis_world.tokens import create_hook
from redis_world.values import flag, shown, text, whole

__all__ = ["Events"]

_ALL: Final[ResolveData] = "all"
_TIMESTAMP: Final[TypeAdapter[datetime]] = TypeAdapter(Timestamp)


class Events:
    """Writes and reads event logs."""

    def __init__(self, connection: Connection, ids: IdFactory) -> None:
        self._connection = connection
        self._ids = ids
        self._lengths = Lengths()
        self._limit = connection.config.max_name_bytes

    async def create(
        self,
        run_id: str | None,
        event: BaseEvent | Mapping[str, Any],
        *,
        resolve_data: ResolveData = "all",
        resolve_delta: ResolveData | None = None,
        resume_id: str | None = None,
        payload_digest: str | None = None,
        occurred_at: datetime | None = None,
        request_id: str | None = None,
        skip_preload: bool = False,
        since_cursor: str | None = None,
        event_count: int | None = None,
        preload_events: bool = False,
        enqueue: Enqueue | None = None,
        ack: Message | None = None,
        compute_instance_id: str | None = None,  # noqa: ARG002 - accepted by contract
        replay_divergence_count: int | None = None,  # noqa: ARG002
        via_step_dispatch: bool | None = None,  # noqa: ARG002
        v1_compat: bool = False,
    ) -> EventResult:
        """Record one event and update its entity, in one script.

        Args:
            run_id: the run; None on run_created: the World makes the id.
            event: a model of `redis_world.models`, or a camelCase mapping in the wire format.
            resolve_data: `none` leaves payloads out of the answer.
            resolve_delta: the same for the events of the answer, if `since_cursor` or
                `event_count` asks for them; None: as `resolve_data`.
            resume_id: on hook_received, the id of the resume. Each id is recorded once.
            payload_digest: on hook_received, tells two payloads of one resume id apart.
            occurred_at: when it happened; stored beside the server's time.
            request_id: an id of the caller's request, stored with the event. Several events may
                share it.
            skip_preload: on run_started, leave the log out of the answer.
            since_cursor: return the events after this cursor, including the new one.
            event_count: how many events the writer has seen. Returns the events between those and
                the new one. `since_cursor` takes precedence.
            preload_events: on hook_received, return the run and its whole log. It takes precedence
                over the two above.
            enqueue: a message that the same script sends: Redis stores both or neither. It is also
                sent for a repeated resume, and for the run_started of a running run.
            ack: a leased message of the same run. If the event is accepted, the same script ends
                the message, as `queue.ack` does. `acked` of the result is False if the lease was
                lost: the event counts all the same. Once a handler's own message has ended in this
                way, what the handler returns or raises changes nothing.
            compute_instance_id: accepted and ignored.
            replay_divergence_count: accepted and ignored.
            via_step_dispatch: accepted and ignored.
            v1_compat: must be False: this World has no legacy runs.

        Raises:
            InvalidEventError, AttributeValidationError: bad input; nothing was stored.
            WorldError: see sections 4 and 5 of the contract; nothing was stored.
        """
        if v1_compat is not False and flag(v1_compat, "v1_compat"):
            raise InvalidEventError(
                f"v1_compat must be False, not {shown(v1_compat)}: this World has no legacy runs"
            )
        model = parse_event(event)
        validate_event(model)
        after = None if since_cursor is None else parse_event_cursor(since_cursor, "since_cursor")
        if event_count is not None:
            event_count = min(whole(event_count, "event_count", 0), MAX_SLOT)
        if skip_preload is not False:
            skip_preload = flag(skip_preload, "skip_preload")
        if preload_events is not False:
            preload_events = flag(preload_events, "preload_events")
        if not self._connection.is_open:
            await self._connection.open()
        request = self._request(
            run_id,
            model,
            resolve_data,
            resume_id=resume_id,
            payload_digest=payload_digest,
            occurred_at=occurred_at,
            request_id=request_id,
            enqueue=enqueue,
            ack=ack,
        )
        delta = (
            None if resolve_delta is None else check_resolve_data(resolve_delta, "resolve_delta")
        )
        part = self._part(
            request,
            after,
            event_count,
            delta,
            preloads=not skip_preload,
            preloads_all=preload_events,
        )
        if part is NOTHING:
            return (await self._record(request, ())).result
        return await part.attach(await self._record(request, part.commands()))

    async def begin_replay(
        self,
        run_id: str,
        event: Mapping[str, Any],
        *,
        after: LogMark | None = None,
        enqueue: Enqueue | None = None,
    ) -> Replay:
        """Record run_started as `create` does, and read the log, or the part of it after a mark.

        Args:
            run_id: the run.
            event: the event, in the wire format.
            after: the end of what the caller has of the log.
            enqueue: as in `create`.

        Raises:
            InvalidInputError: an argument is invalid.
            WorldError: as in `create`.
        """
        model = parse_event(event)
        validate_event(model)
        if not isinstance(model, RunStartedEvent):
            raise InvalidEventError(f"event must be a run_started, not {model.event_type}")
        if after is not None and not isinstance(after, LogMark):
            raise InvalidInputError(f"after must be a LogMark, not {shown(after)}")
        await self._connection.open()
        request = self._request(run_id, model, "all", enqueue=enqueue)
        part = ReplayPart(self._reader(request.run_id, "all"), after)
        return await part.attach(await self._record(request, part.commands()))

    async def create_batch(
        self,
        run_id: str,
        events: Sequence[BatchEvent | BaseEvent | Mapping[str, Any]],
        *,
        resolve_data: ResolveData = "all",
        request_id: str | None = None,
        enqueue: Enqueue | None = None,
    ) -> BatchResult:
        """Record several events of one run in order, in one script and at consecutive slots.

        Each event has the outcome that its `create` would have. Accepted events are stored
        together; refused events leave nothing. A `step_created` followed by the `step_started` of
        the same step is one claim: if the step exists, both are refused.

        Args:
            run_id: the run.
            events: 1 to 128 events: run_completed, run_failed and events of steps and waits. Each
                entity may have one, apart from that pair. Give them as `create` takes them, or as
                `BatchEvent`, or as its camelCase mapping with an `occurred_at`.
            resolve_data: `none` leaves payloads out of the answer.
            request_id: an id of the caller's request, stored with the events.
            enqueue: a message that the same script sends, if it accepts any event.

        Raises:
            InvalidEventError: the batch is malformed; nothing was stored.
        """
        limit = self._connection.config.max_name_bytes
        items = parse_batch(events)
        run_id = text(run_id, "run_id", limit, error=InvalidEventError)
        if not run_id:
            raise InvalidEventError(f"a batch needs a run id, not {shown(run_id)}")
        resolve_data = check_resolve_data(resolve_data)
        await self._connection.open()
        batch = Batch(self._connection, run_id, _op(request_id, limit))
        for item in items:
            try:
                request = self._batched(run_id, item, resolve_data, batch.next_op)
                batch.add(request, is_born_running=item.is_born_running)
            except WorldError as error:
                batch.refuse(error)
        return await batch.run(resolve_data, self._pack(run_id, enqueue))

    async def get(self, run_id: str, event_id: str, *, resolve_data: ResolveData = "all") -> Event:
        """Read one event.

        Raises:
            EventNotFoundError: the run has no such event.
        """
        limit = self._connection.config.max_name_bytes
        run_id, event_id = text(run_id, "run_id", limit), text(event_id, "event_id", limit)
        resolve_data = check_resolve_data(resolve_data)
        slot = event_slot(event_id)
        reader = self._reader(run_id, resolve_data)
        events, _ = await reader.page(slot - 1, 1)
        if not events or slot_of(events[0]) != slot:
            raise EventNotFoundError(event_id)
        return events[0]

    async def list(
        self,
        run_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        sort_order: SortOrder = "asc",
        resolve_data: ResolveData = "all",
    ) -> Page[Event]:
        """List a log, or the part of it after a cursor.

        Without a limit the page has all remaining events. A cursor comes from an earlier page, or
        is `eid:<event id>`.

        Raises:
            InvalidCursorError: the cursor is neither.
        """
        run_id = text(run_id, "run_id", self._connection.config.max_name_bytes)
        resolve_data = check_resolve_data(resolve_data)
        sort_order = check_order(sort_order)
        place = None if cursor is None else parse_event_cursor(cursor)
        if limit is not None:
            limit = check_limit(limit)
        reader = self._reader(run_id, resolve_data)
        if sort_order == "desc":
            events, more = await reader.in_front_of(place, limit)
        elif limit is None:
            events, more = await reader.all_behind(place or 0), False
        else:
            events, more = await reader.page(place or 0, limit)
        if events:
            cursor = event_cursor(slot_of(events[-1]))
        return Page[Event].model_construct(None, data=events, cursor=cursor, has_more=more)

    async def list_by_correlation_id(
        self,
        run_id: str,
        correlation_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        sort_order: SortOrder = "asc",
        resolve_data: ResolveData = "all",
    ) -> Page[Event]:
        """List the events of one step, hook or wait.

        It reads the whole log, small payloads included: a log has no index by correlation id.
        """
        name_limit = self._connection.config.max_name_bytes
        run_id = text(run_id, "run_id", name_limit)
        correlation_id = text(correlation_id, "correlation_id", name_limit)
        resolve_data = check_resolve_data(resolve_data)
        sort_order = check_order(sort_order)
        place = None if cursor is None else parse_event_cursor(cursor)
        if limit is not None:
            limit = check_limit(limit)
        found = await self._reader(run_id, "none").slots_of(correlation_id)
        if sort_order == "desc":
            found = [slot for slot in reversed(found) if place is None or slot < place]
        elif place is not None:
            found = [slot for slot in found if slot > place]
        more = limit is not None and len(found) > limit
        found = found[:limit]
        events = await self._reader(run_id, resolve_data).at(found)
        if found:
            cursor = event_cursor(found[-1])
        return Page[Event].model_construct(None, data=[*events], cursor=cursor, has_more=more)

    # -- inside ----------------------------------------------------------------------------

    def _request(
        self,
        run_id: str | None,
        event: CreateEvent,
        resolve_data: ResolveData,
        *,
        resume_id: str | None = None,
        payload_digest: str | None = None,
        occurred_at: datetime | None = None,
        request_id: str | None = None,
        enqueue: Enqueue | None = None,
        ack: Message | None = None,
    ) -> Request:
        if resolve_data is not _ALL:
            resolve_data = check_resolve_data(resolve_data)
        limit = self._limit
        if run_id is not None:
            run_id = text(run_id, "run_id", limit, error=InvalidEventError)
        made_id = not run_id and event.event_type == "run_created"
        if not run_id and not made_id:
            raise InvalidEventError(
                f"{event.event_type} needs a run id: run_id is {shown(run_id)}"
            )
        if event.correlation_id is not None:
            text(event.correlation_id, "correlationId", limit, error=InvalidEventError)
        if resume_id is not None:
            resume_id = text(resume_id, "resume_id", limit, error=InvalidEventError)
        if payload_digest is not None:
            payload_digest = text(payload_digest, "payload_digest", limit, error=InvalidEventError)
        if occurred_at is not None:
            try:
                occurred_at = _TIMESTAMP.validate_python(occurred_at)
            except ValidationError as error:
                raise InvalidEventError(f"occurred_at: {error.errors()[0]['msg']}") from None
        is_resume = event.event_type == "hook_received"
        if not run_id:
            run_id = self._ids.run_id(self._connection.server_time())
        return Request(
            event=event,
            run_id=run_id,
            op=_op(request_id, limit),
            keys=self._connection.partitions.of(run_id),
            config=self._connection.config,
            server_time=self._connection.server_time,
            resolve_data=resolve_data,
            resume_id=(resume_id or None) if is_resume else None,
            payload_digest=payload_digest if is_resume else None,
            occurred_at=occurred_at,
            made_id=made_id,
            outbox=b"" if enqueue is None and ack is None else self._pack(run_id, enqueue, ack),
            ack=ack,
        )

    def _batched(self, run_id: str, item: Item, resolve_data: ResolveData, op: str) -> Request:
        """One event of a batch, as its own creation would be."""
        if isinstance(item.event, WorldError):
            raise item.event
        request = self._request(run_id, item.event, resolve_data, occurred_at=item.occurred_at)
        request.op = op
        return request

    def _pack(self, run_id: str, enqueue: Enqueue | None, ack: Message | None = None) -> bytes:
        """What an event of a run brings along for the queue."""
        if ack is not None:
            self._check_ack(ack, run_id)
        if enqueue is None:
            return pack_outbox(None, ack)
        message_id = self._ids.message_id(self._connection.server_time())
        args = message_args(enqueue, message_id, self._connection.config.max_payload_bytes)
        if args["run_id"] not in ("", run_id):
            raise InvalidInputError(
                f"enqueue.payload has the runId {shown(args['run_id'])}: it must be the run of "
                f"the event, {shown(run_id)}"
            )
        return pack_outbox(args, ack)

    def _check_ack(self, message: Message, run_id: str) -> None:
        if not isinstance(message, Message):
            raise InvalidEventError(f"ack must be a Message, not {shown(message)}")
        partitions = self._connection.partitions
        try:
            check_lease(message, self._connection.config.max_name_bytes, len(partitions))
            topic_of(message.queue_name)
        except InvalidInputError as error:
            raise InvalidEventError(f"ack: {error}") from None
        if message.run_id != run_id or message.partition != partitions.of(run_id).number:
            raise InvalidEventError(
                f"ack is a message of run {shown(message.run_id)}: it must be one of the event's "
                f"run, {shown(run_id)}"
            )

    async def _record(self, request: Request, reads: Sequence[Command]) -> Recorded:
        """Run the event's script; `reads` go behind it in the same round trip."""
        if request.ack is None:
            return await self._run(request, reads)
        ending = request.ack.ending
        ending.is_under_way = True
        try:
            return await self._run(request, reads, ending)
        finally:
            ending.is_under_way = False

    async def _run(
        self, request: Request, reads: Sequence[Command], ending: Ending | None = None
    ) -> Recorded:
        plan = PLANS[request.event.event_type]
        row = plan.row(request)
        if request.event.event_type == "hook_created" and len(self._connection.partitions) > 1:
            reply, *rest = await self._create_hook(request, plan, row, reads)
        else:
            reply, *rest = await self._connection.run(plan.script, row, reads)
        if reply[0] not in plan.accepted:
            raise plan.refusal(request, reply)
        if ending is not None and told_of_queue(reply[3]).get("acked"):
            ending.is_over = True
        if plan.is_left(reply):
            await go_on_if_possible(self._connection, plan.goes_on, request.run_id)
        payloads = plan.payloads(reply)
        if has_large(payloads):
            await load(self._connection, [(request.run_id, payloads)])
        return Recorded(plan.result(request, reply), reply[0] != b"RUNNING", rest)

    async def _create_hook(
        self, request: Request, plan: Plan, row: Row, reads: Sequence[Command]
    ) -> Sequence[Any]:
        """Create a hook whose token may be the matter of another partition."""
        keys, args = self._connection.script(plan.script).named(row)
        token = args["token_text"]
        partition = str(self._connection.partitions.of(token).number)

        async def create(phase: str, detail: str, identity: str) -> Sequence[Any]:
            words = {
                **args,
                "phase": phase,
                "detail": detail,
                "identity": identity,
                "token_partition": partition,
            }
            return await self._connection.call_then(plan.script, keys, words, reads)

        return await create_hook(
            self._connection, token, request.run_id, request.correlation_id, create
        )

    def _reader(self, run_id: str, resolve_data: ResolveData) -> LogReader:
        return LogReader(self._connection, self._lengths, run_id, resolve_data)

    def _part(
        self,
        request: Request,
        after: int | None,
        seen: int | None,
        delta: ResolveData | None,
        *,
        preloads: bool,
        preloads_all: bool,
    ) -> Part[EventResult]:
        """The part of the log that is asked for with an event."""
        kind = request.event.event_type
        preloads = preloads and kind == "run_started"
        preloads_all = preloads_all and kind == "hook_received"
        if after is None and seen is None and not preloads and not preloads_all:
            return NOTHING
        is_delta = not preloads_all and (after is not None or seen is not None)
        resolve_data = delta if delta is not None and is_delta else request.resolve_data
        reader = self._reader(request.run_id, resolve_data)
        if preloads_all:
            return Whole(reader, request.run, request.config.max_events_per_run)
        if after is not None:
            return Behind(reader, after)
        if seen is not None:
            return Unseen(reader, seen, preloads=preloads)
        return Beginning(reader)


def _op(request_id: str | None, limit: int) -> str:
    """The id by which a request finds what it has written, and the caller's behind it."""
    if request_id is None:
        return new_request_id()
    return f"{new_request_id()}:{text(request_id, 'request_id', limit)}"
