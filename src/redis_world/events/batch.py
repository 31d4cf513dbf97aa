"""Several events of one run in one script (contract, section 5, create_batch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from redis_world.cleaning import go_on_if_possible
from redis_world.connection import Connection
from redis_world.errors import InvalidEventError, WorldError
from redis_world.events.plan import Plan
from redis_world.events.plans import PLANS
from redis_world.events.request import Request
from redis_world.events.scripts import Row
from redis_world.events.validation import parse_event, validate_event
from redis_world.keys import RunKeys
from redis_world.models import (
    BaseEvent,
    BatchEvent,
    BatchItemResult,
    BatchResult,
    CreateEvent,
    ResolveData,
    StepStartedEvent,
)
from redis_world.payloads import load
from redis_world.values import items, shown

__all__ = ["Batch", "Item", "parse_batch"]

MAX_BATCH_EVENTS: Final = 128

_MAY_BE_THERE: Final = frozenset(
    {
        "run_completed",
        "run_failed",
        "step_created",
        "step_started",
        "step_completed",
        "step_failed",
        "step_retrying",
        "wait_created",
        "wait_completed",
    }
)


@dataclass(frozen=True, slots=True)
class Item:
    """An event of a batch, or the error that refuses it by itself; and when it occurred."""

    event: CreateEvent | WorldError
    occurred_at: datetime | None
    is_born_running: bool = False
    """Whether it starts a step that an event in front of it creates."""


def parse_batch(events: Sequence[BatchEvent | BaseEvent | Mapping[str, Any]]) -> list[Item]:
    """The events of a batch, each with what is wrong with it by itself.

    Raises:
        InvalidEventError: the batch as a whole can't be; nothing of it is stored.
    """
    given = items(events, "events", error=InvalidEventError)
    if not given:
        raise InvalidEventError(f"a batch needs 1 to {MAX_BATCH_EVENTS} events, not 0")
    if len(given) > MAX_BATCH_EVENTS:
        raise InvalidEventError(f"{len(given)} events in a batch; the limit is {MAX_BATCH_EVENTS}")
    parts = [_parts(event) for event in given]
    seen: dict[tuple[str, str], str] = {}
    for event, _ in parts:
        kind, correlation_id = _name(event)
        entity = (kind.partition("_")[0], correlation_id)
        if entity[0] == "run":
            entity = ("run", "")
        if kind not in _MAY_BE_THERE:
            raise InvalidEventError(f"eventType {shown(kind)} can't be in a batch")
        if entity in seen and (seen[entity], kind) != ("step_created", "step_started"):
            raise InvalidEventError(
                f"two events of {shown(' '.join(filter(None, entity)))} in one batch: only a "
                "step_created may be followed by its step_started"
            )
        seen[entity] = kind if entity not in seen else "both"
    born_running = {entity[1] for entity, kind in seen.items() if kind == "both"}
    return [_parse(event, occurred_at, born_running) for event, occurred_at in parts]


def _parts(item: object) -> tuple[BaseEvent | Mapping[str, Any], datetime | None]:
    """An event, and when it occurred."""
    try:
        if isinstance(item, Mapping) and "event" in item:
            item = BatchEvent.from_wire(dict(item))
    except ValidationError as error:
        raise InvalidEventError(
            f"malformed event in a batch: {error.errors()[0]['msg']}"
        ) from None
    except Exception as error:  # noqa: BLE001 - the classes of others may raise anything
        raise InvalidEventError(f"can't read an event of a batch: {shown(str(error))}") from None
    if isinstance(item, BatchEvent):
        event, occurred_at = item.event, item.occurred_at
        if isinstance(event, BaseEvent | Mapping):
            return event, occurred_at
        item = event
    if isinstance(item, BaseEvent | Mapping):
        return item, None
    raise InvalidEventError(f"events must be models or mappings, not {shown(item)}")


def _name(event: BaseEvent | Mapping[str, Any]) -> tuple[str, str]:
    """Type and correlation id, as far as they are there."""
    try:
        if isinstance(event, BaseEvent):
            kind, correlation_id = event.event_type, event.correlation_id
        else:
            kind = event.get("eventType", event.get("event_type"))
            correlation_id = event.get("correlationId", event.get("correlation_id"))
    except Exception as error:  # noqa: BLE001 - the classes of others may raise anything
        raise InvalidEventError(f"can't read an event of a batch: {shown(str(error))}") from None
    return (
        str.__str__(kind) if isinstance(kind, str) else shown(kind),
        str.__str__(correlation_id) if isinstance(correlation_id, str) else "",
    )


def _parse(
    event: BaseEvent | Mapping[str, Any], occurred_at: datetime | None, born_running: set[str]
) -> Item:
    try:
        model = parse_event(event)
        validate_event(model)
    except WorldError as error:
        return Item(error, occurred_at)
    if isinstance(model, StepStartedEvent):
        data = model.event_data
        if data is not None and "input" in data.model_fields_set:
            raise InvalidEventError(
                f"step_started of {shown(model.correlation_id)} has an input, which a batch does "
                "not allow: add a step_created before it"
            )
        return Item(model, occurred_at, model.correlation_id in born_running)
    return Item(model, occurred_at)


class _Call(NamedTuple):
    """An event of a batch, with the row of its own script."""

    request: Request
    plan: Plan
    row: Row


class Batch:
    """Events of one run on their way to the script, in their order."""

    def __init__(self, connection: Connection, run_id: str, op: str) -> None:
        self._connection = connection
        self._run_id = run_id
        self._op = op
        self._calls: list[_Call] = []
        self._born_running: set[int] = set()
        """Those of the calls that start a step which an event in front of them creates."""
        self._outcomes: list[int | WorldError] = []
        """Of each event: which of the calls it is, or the error that refuses it by itself."""

    @property
    def next_op(self) -> str:
        """The id by which the next event finds itself: the script makes the same."""
        return f"{self._op}/{len(self._calls) + 1}"

    def add(self, request: Request, *, is_born_running: bool = False) -> None:
        """Add an event.

        Raises:
            InvalidInputError: it can't be stored; it was not added.
        """
        plan = PLANS[request.event.event_type]
        call = _Call(request, plan, plan.row(request))
        if is_born_running:
            self._born_running.add(len(self._calls))
        self._outcomes.append(len(self._calls))
        self._calls.append(call)

    def refuse(self, error: WorldError) -> None:
        """Add an event that is refused already."""
        self._outcomes.append(error)

    async def run(self, resolve_data: ResolveData, outbox: bytes) -> BatchResult:
        """Apply the events, with the message that they bring along."""
        replies: Sequence[Any] = ()
        message_id = b""
        if self._calls:
            keys = self._connection.partitions.of(self._run_id)
            _, message_id, replies = await self._connection.call(
                "events/batch",
                self._keys_of(keys.of_run(self._run_id)),
                {
                    "base": keys.base,
                    "batch_outbox": outbox,
                    "batch_op": self._op,
                    "run_id": self._run_id,
                    "resolve_data": resolve_data,
                    "max_events": self._calls[0].request.max_events,
                    "items": self._items(),
                },
            )
            await self._complete(replies)
        results = [
            _refused(outcome)
            if isinstance(outcome, WorldError)
            else _read(self._calls[outcome], replies[outcome])
            for outcome in self._outcomes
        ]
        if message_id:
            return BatchResult.trusted({"results": results, "message_id": message_id.decode()})
        return BatchResult.trusted({"results": results})

    async def _complete(self, replies: Sequence[Any]) -> None:
        """Read the large payloads that the replies name, and do what the script has left."""
        accepted = [
            (call, reply)
            for call, reply in zip(self._calls, replies, strict=True)
            if reply[0] in call.plan.accepted
        ]
        # What the batch itself has brought may be deleted by now, where it ends the run.
        brought = {slot: self._payload_of(call) for call, (_, slot, *_) in accepted}
        found = [(self._run_id, call.plan.payloads(reply)) for call, reply in accepted]
        for _, row in found:
            for place in range(1, len(row), 2):
                row[place] = brought.get(row[place - 1], row[place])
        await load(self._connection, found)
        for call, reply in accepted:
            if call.plan.is_left(reply):
                await go_on_if_possible(self._connection, call.plan.goes_on, self._run_id)

    def _payload_of(self, call: _Call) -> bytes:
        _, args = self._connection.script(call.plan.script).named(call.row)
        payload = args.get("payload", b"")
        assert isinstance(payload, bytes)
        return payload

    @staticmethod
    def _keys_of(run: RunKeys) -> dict[str, str]:
        return {
            "run": run.run,
            "attributes": run.attributes,
            "events": run.events,
            "payloads": run.payloads,
            "ops": run.ops,
            "waits": run.waits,
            "wait_states": run.wait_states,
        }

    def _items(self) -> list[Any]:
        """Of each event its type and entity, the creation of its step, and its own words."""
        shared = self._connection.script("events/batch").names
        creations: dict[str, int] = {}
        items: list[Any] = []
        for place, (request, plan, row) in enumerate(self._calls, start=1):
            kind = request.event.event_type
            if kind == "step_created":
                creations[request.correlation_id] = place
            # 0 where the creation is refused by itself, and does not come so far.
            is_born_running = place - 1 in self._born_running
            creation = creations.get(request.correlation_id, 0) if is_born_running else ""
            own = self._connection.script(plan.script).words(row, without=shared)
            items += [kind, request.correlation_id, creation, len(own), *own]
        return items


def _read(call: _Call, reply: Sequence[Any]) -> BatchItemResult:
    request, plan, _ = call
    if reply[0] not in plan.accepted:
        return _refused(plan.refusal(request, reply))
    result = plan.result(request, reply)
    found = {
        name: value
        for name in ("event", "run", "step", "wait", "max_events")
        if (value := getattr(result, name)) is not None
    }
    return BatchItemResult.trusted({"status": 200, **found})


def _refused(error: WorldError) -> BatchItemResult:
    return BatchItemResult(status=error.status, error=error.code, message=str(error))
