"""`world.events` of the reference: writing and reading logs (contract, sections 5 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from redis_world.errors import (
    EntityConflictError,
    EventNotFoundError,
    InvalidEventError,
    InvalidInputError,
    WorldError,
)
from redis_world.events.batch import Item, parse_batch
from redis_world.events.validation import parse_event, validate_event
from redis_world.ids import event_slot
from redis_world.messages import Enqueue, Message, run_of
from redis_world.models import (
    BaseEvent,
    BatchEvent,
    BatchItemResult,
    BatchResult,
    Event,
    EventResult,
    Page,
    ResolveData,
    SortOrder,
)
from redis_world.paging import event_cursor, parse_event_cursor
from redis_world.testing.reference import hook_rules, run_rules, step_rules, wait_rules
from redis_world.testing.reference.debts import owe_for_event, queue_of, tidy
from redis_world.testing.reference.delivery import acknowledge, leased, message_of, push
from redis_world.testing.reference.pages import page_of_log
from redis_world.testing.reference.request import check_text, prepare
from redis_world.testing.reference.state import State, StoredEvent, StoredMessage
from redis_world.testing.reference.views import (
    event_view,
    hook_view,
    run_view,
    step_view,
    wait_view,
)
from redis_world.testing.reference.write import Outcome, Write
from redis_world.values import shown

__all__ = ["ReferenceEvents"]

_RULES: Final[dict[str, Callable[[Write], Outcome]]] = {
    rule.__name__: rule
    for rule in (
        run_rules.run_created,
        run_rules.run_started,
        run_rules.run_completed,
        run_rules.run_failed,
        run_rules.run_cancelled,
        run_rules.attr_set,
        step_rules.step_created,
        step_rules.step_started,
        step_rules.step_completed,
        step_rules.step_failed,
        step_rules.step_retrying,
        hook_rules.hook_created,
        hook_rules.hook_received,
        hook_rules.hook_disposed,
        wait_rules.wait_created,
        wait_rules.wait_completed,
    )
}


class ReferenceEvents:
    """Writes and reads event logs."""

    def __init__(self, state: State) -> None:
        self._state = state

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
        """Record one event and change the entity that it is about, as `RedisWorld` does.

        Args:
            run_id: the run; None on run_created lets this World make the id.
            event: a model of `redis_world.models`, or the wire's camelCase mapping.
            resolve_data: `none` leaves payloads out of the answer.
            resolve_delta: the same for the events of the answer, where `since_cursor` or
                `event_count` asks for them; None as `resolve_data`.
            resume_id: on hook_received, the id of the resume: it is recorded once.
            payload_digest: on hook_received, what tells two payloads of one resume apart.
            occurred_at: when it happened, stored beside the World's time.
            request_id: has no effect: within one process no reply is lost.
            skip_preload: on run_started, leave the log out of the answer.
            since_cursor: return the events after this cursor, the own one included.
            event_count: how many events the writer had seen: return those between them and this
                one; `since_cursor` wins over it.
            preload_events: on hook_received, return the run and its whole log; it wins over the
                two above.
            enqueue: a message that is sent with the event, or with neither.
            ack: a leased message of the same run, whose delivery ends with the event.
            compute_instance_id: accepted and ignored, as the next two are.
            replay_divergence_count: accepted and ignored.
            via_step_dispatch: accepted and ignored.
            v1_compat: only False.

        Raises:
            InvalidEventError, AttributeValidationError: bad input; nothing was stored.
            WorldError: as sections 4 and 5 of the contract say; nothing was stored.
        """
        # What can be judged without state comes first, whether or not the run exists.
        if v1_compat:
            raise InvalidEventError(
                f"v1_compat must be False, not {shown(v1_compat)}: this World has no legacy runs"
            )
        model = parse_event(event)
        validate_event(model)
        after = None if since_cursor is None else parse_event_cursor(since_cursor)
        _check_event_count(event_count)
        if resolve_data not in ("all", "none"):
            raise InvalidInputError(f"resolve_data must be 'all' or 'none', not {resolve_data!r}")
        if resolve_delta not in ("all", "none", None):
            raise InvalidInputError(
                f"resolve_delta must be 'all' or 'none', not {resolve_delta!r}"
            )
        write = prepare(
            self._state,
            run_id,
            model,
            resume_id=resume_id,
            payload_digest=payload_digest,
            request_id=request_id,
            occurred_at=occurred_at,
        )
        message = None
        if enqueue is not None:
            message = self._message(enqueue, write.run_id)
        if ack is not None and ack.run_id != write.run_id:
            raise InvalidEventError(
                f"ack is a message of run {shown(ack.run_id)}: it must be one of the event's "
                f"run, {shown(write.run_id)}"
            )

        outcome = _RULES[model.event_type](write)
        is_noop = model.event_type == "run_started" and not outcome.is_new
        written = 0 if is_noop else outcome.slot
        ended = None if ack is None else leased(self._state, ack)
        if ended is not None:
            sent = acknowledge(self._state, ended, message)
        else:
            sent = None if message is None else push(self._state, message)
        is_new = message is not None and sent == message.message_id
        owe_for_event(self._state, write, outcome, message if is_new else None)
        tidy(self._state, write.run_id)
        self._state.changed.ring()

        result = self._result(write, outcome, resolve_data)
        if sent is not None:
            result["message_id"] = sent
        if ack is not None:
            result["acked"] = ended is not None
        if preload_events and model.event_type == "hook_received":
            run = self._state.runs[write.run_id]
            result["run"] = run_view(run, resolve_data)
            result["max_events"] = self._state.config.max_events_per_run
            result |= self._told(write.run_id, resolve_data, after=0)
        elif after is not None:
            result |= self._told(write.run_id, resolve_delta or resolve_data, after=after)
        elif event_count is not None and written > event_count + 1:
            result |= self._told(
                write.run_id, resolve_delta or resolve_data, after=event_count, before=written
            )
        elif model.event_type == "run_started" and not skip_preload:
            asked = resolve_delta if event_count is not None else None
            result |= self._told(write.run_id, asked or resolve_data, after=0)
        return EventResult(**result)

    async def create_batch(
        self,
        run_id: str,
        events: Sequence[BatchEvent | BaseEvent | Mapping[str, Any]],
        *,
        resolve_data: ResolveData = "all",
        request_id: str | None = None,
        enqueue: Enqueue | None = None,
    ) -> BatchResult:
        """Record several events of one run in order, each as its own `create` would.

        Args:
            run_id: the run.
            events: 1 to 128 of run_completed, run_failed and the events of steps and waits.
            resolve_data: `none` leaves payloads out of the answer.
            request_id: has no effect: within one process no reply is lost.
            enqueue: a message that is sent if any event is accepted.

        Raises:
            InvalidEventError: there can't be such a batch; nothing was stored.
        """
        items = parse_batch(events)
        if not run_id:
            raise InvalidEventError(f"a batch needs a run id, not {shown(run_id)}")
        if resolve_data not in ("all", "none"):
            raise InvalidInputError(f"resolve_data must be 'all' or 'none', not {resolve_data!r}")
        check_text(run_id, request_id)
        message = None if enqueue is None else self._message(enqueue, run_id)
        results: list[BatchItemResult] = []
        created: set[str] = set()
        for item in items:
            try:
                result = self._batched(run_id, item, resolve_data, created)
                results.append(BatchItemResult(status=200, **result))
            except WorldError as error:
                text = str(error)
                results.append(
                    BatchItemResult(status=error.status, error=error.code, message=text)
                )
        sent = None
        if message is not None and any(each.status == 200 for each in results):
            sent = push(self._state, message)
        self._state.changed.ring()
        if sent is None:
            return BatchResult(results=results)
        return BatchResult(results=results, message_id=sent)

    def _batched(
        self, run_id: str, item: Item, resolve_data: ResolveData, created: set[str]
    ) -> dict[str, Any]:
        """Record one event of a batch; `created` are the steps that it has created so far."""
        if isinstance(item.event, WorldError):
            raise item.event
        kind, corr = item.event.event_type, item.event.correlation_id or ""
        write = prepare(
            self._state,
            run_id,
            item.event,
            resume_id=None,
            payload_digest=None,
            request_id=None,
            occurred_at=item.occurred_at,
        )
        run = self._state.runs.get(run_id)
        exists = run is not None and corr in run.steps
        # A step that is to be born running and exists already is another's.
        if item.is_born_running and exists and corr not in created:
            raise EntityConflictError(f"step {corr!r} already exists")
        outcome = _RULES[kind](write)
        if kind == "step_created":
            created.add(corr)
        owe_for_event(self._state, write, outcome, None)
        if item.is_born_running and kind == "step_started":
            # As after a lazy start it is the matter of the replay that runs it.
            queue_of(self._state, run_id).step_debts.pop(corr, None)
        tidy(self._state, run_id)
        return self._result(write, outcome, resolve_data)

    async def get(self, run_id: str, event_id: str, *, resolve_data: ResolveData = "all") -> Event:
        """Read one event.

        Raises:
            EventNotFoundError: the run has no such event.
        """
        slot = event_slot(event_id)
        for event in self._log(run_id):
            if event.slot == slot:
                return event_view(run_id, event, resolve_data)
        raise EventNotFoundError(event_id)

    async def list(
        self,
        run_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        sort_order: SortOrder = "asc",
        resolve_data: ResolveData = "all",
    ) -> Page[Event]:
        """List a log, or the part of it behind a cursor; without a limit all of the rest.

        Raises:
            InvalidCursorError: the cursor is neither of an earlier page nor `eid:<event id>`.
        """
        return page_of_log(run_id, self._log(run_id), limit, cursor, sort_order, resolve_data)

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
        """List the events of one step, hook or wait."""
        events = [event for event in self._log(run_id) if event.correlation_id == correlation_id]
        return page_of_log(run_id, events, limit, cursor, sort_order, resolve_data)

    # -- inside ----------------------------------------------------------------------------

    def _message(self, enqueue: Enqueue, run_id: str) -> StoredMessage:
        found = run_of(enqueue.payload)
        if found not in ("", run_id):
            raise InvalidInputError(
                f"enqueue.payload has the runId {shown(found)}: it must be the run of the event, "
                f"{shown(run_id)}"
            )
        return message_of(self._state, enqueue)

    def _log(self, run_id: str) -> Sequence[StoredEvent]:
        check_text(run_id)
        run = self._state.runs.get(run_id)
        return () if run is None else run.events

    def _result(self, write: Write, outcome: Outcome, resolve_data: ResolveData) -> dict[str, Any]:
        """The event as it is stored, and the entity that it changed."""
        result: dict[str, Any] = {}
        run, corr = self._state.runs[write.run_id], write.correlation_id
        if outcome.event is not None:
            result["event"] = event_view(write.run_id, outcome.event, resolve_data)
        match outcome.shows:
            case "run":
                result["run"] = run_view(run, resolve_data)
                result["max_events"] = self._state.config.max_events_per_run
            case "step":
                result["step"] = step_view(run.steps[corr], resolve_data)
            case "hook":
                environment = self._state.config.environment
                result["hook"] = hook_view(run.hooks[corr], run, environment, resolve_data)
            case "wait":
                result["wait"] = wait_view(run.waits[corr])
            case _:
                pass
        if outcome.step_created is not None:
            result["step_created"] = outcome.step_created
        return result

    def _told(
        self, run_id: str, resolve_data: ResolveData, *, after: int, before: int | None = None
    ) -> dict[str, Any]:
        """What an answer tells of the log: all behind a slot, or what is between two."""
        log = self._log(run_id)
        told = log[after:] if before is None else log[after : before - 1]
        return {
            "events": [event_view(run_id, event, resolve_data) for event in told],
            "cursor": event_cursor(max(after, len(log))) if before is None else None,
            "has_more": False,
        }


def _check_event_count(count: int | None) -> None:
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InvalidInputError(f"event_count must be a whole number of at least 0, not {count!r}")
