"""A value of a subclass counts as its value, in every place (contract, section 4)."""

# Contract: 4.subclasses

from __future__ import annotations

import enum
import numbers
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

import pytest

from redis_world import RedisWorld
from redis_world.config import WorldConfig
from redis_world.errors import InvalidInputError
from redis_world.models import EventResult, StepCreatedData, StepCreatedEvent
from redis_world.queue import Enqueue, FollowUp
from support import events as e
from support.backends import Backend
from support.private_servers import ONE

TOPIC: Final = "__wkf_workflow_"


class Text(str):
    """As numpy's or an enumeration's: it says something else about itself."""

    __slots__ = ()

    def __str__(self) -> str:
        return "not the value"

    def __repr__(self) -> str:
        return "not the value"


class Kind(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Blob(bytes):
    def __bytes__(self) -> bytes:
        return b"not the value"


class Whole(int):
    def __int__(self) -> int:
        return -1

    def __repr__(self) -> str:
        return "not the value"


class Ratio(float):
    def __float__(self) -> float:
        return -1.0


class Record(dict[Any, Any]):
    pass


class Rows(list[Any]):
    pass


class Length(timedelta):
    """As pendulum's, whose days leave out its months."""

    @property
    def days(self) -> int:
        return 0


class Moment(datetime):
    """As that of the SDK's sandbox, pandas or pendulum: arithmetic and copies are its own."""

    def astimezone(self, tz: tzinfo | None = None) -> NoReturn:
        raise AssertionError("the subclass was asked")

    def replace(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("the subclass was asked")

    def isoformat(self, *_: Any) -> str:
        return "not the value"


class Zone(tzinfo):
    """A time zone of a library."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=2)

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "Zone"


@numbers.Integral.register
class Int64:
    """As numpy's: a number that is no int."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@numbers.Real.register
class Float32:
    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


# What tells numpy's truth values from other objects is their class alone.
Truth = type("bool_", (), {"__module__": "numpy", "__bool__": lambda _: True})


class View(Mapping[str, Any]):
    """A mapping that is no dict."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found

    def __getitem__(self, key: str) -> Any:
        return self.found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


class Pair(NamedTuple):
    left: int
    right: int


MOMENT: Final = Moment(2035, 1, 2, 3, 4, 5, 678_901, tzinfo=Zone())
STORED: Final = datetime(2035, 1, 2, 1, 4, 5, 678_000, tzinfo=UTC)

STRUCTURE: Final[dict[Any, Any]] = Record(
    {
        Text("text"): Text("value"),
        "kind": Kind.RED,
        "level": Level.HIGH,
        "bytes": [Blob(b"\x00\xff"), bytearray(b"ab"), memoryview(b"abcd")[::2]],
        "number": Whole(7),
        "ratio": Ratio(1.5),
        "rows": Rows([Whole(1), (Text("a"),), Pair(Whole(1), 2)]),
        "ordered": OrderedDict(b=1, a=2),
        "view": View({"k": MappingProxyType({Kind.RED: 1})}),
        "moment": MOMENT,
        "int64": Int64(2**40),
        "float32": Float32(0.5),
        "truth": Truth(),
        "set": {Whole(1)},
    }
)
PLAIN: Final[dict[str, Any]] = {
    "text": "value",
    "kind": "red",
    "level": 3,
    "bytes": [b"\x00\xff", b"ab", b"ac"],
    "number": 7,
    "ratio": 1.5,
    "rows": [1, ["a"], [1, 2]],
    "ordered": {"b": 1, "a": 2},
    "view": {"k": {"red": 1}},
    "moment": datetime(2035, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=2))),
    "int64": 2**40,
    "float32": 0.5,
    "truth": True,
    "set": {1},
}


def assert_plain(found: Any, wanted: Any) -> None:
    """Equal all the way down, of the plain types themselves."""
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(found, dict):
        assert list(found) == list(wanted)
        for key, value in found.items():
            assert type(key) is str
            assert_plain(value, wanted[key])
    elif isinstance(found, list):
        assert len(found) == len(wanted)
        for each, other in zip(found, wanted, strict=True):
            assert_plain(each, other)
    else:
        assert found == wanted


async def test_payloads_and_data_of_events(world: RedisWorld) -> None:
    run_id = await e.new_run(world, executionContext=STRUCTURE, input=STRUCTURE)
    run = await world.runs.get(Text(run_id))
    assert_plain(run.execution_context, PLAIN)
    assert_plain(run.input, PLAIN)
    for value, wanted in (
        (STRUCTURE, PLAIN),
        (Text("t"), "t"),
        (Blob(b"b"), b"b"),
        (memoryview(b"abcd")[::2], b"ac"),
        (MOMENT, PLAIN["moment"]),
        (Whole(1), 1),
        (Truth(), True),
    ):
        name = f"step {wanted!r:.20}"
        wire = e.step_created(name, input=value, unknown=value)
        result = await world.events.create(run_id, wire)
        assert result.step is not None
        assert_plain(result.step.input, wanted)
        last = (await e.log(world, run_id))[-1]
        for found in (e.data_of(result.event), e.data_of(last)):
            assert_plain(found["input"], wanted)
            assert_plain(found["unknown"], wanted)
        assert_plain((await world.steps.get(run_id, name)).input, wanted)


async def test_what_events_are_made_of(world: RedisWorld) -> None:
    """Names, ids, tokens, dates and flags, in a mapping that is no dict, or a model."""
    run_id = Text(await e.new_run(world))

    async def create(wire: Any, **params: Any) -> EventResult:
        return await world.events.create(run_id, wire, **params)

    step = View(
        {
            "eventType": Text("step_created"),
            "correlationId": Text("s"),
            "specVersion": Int64(5),
            "eventData": View({"stepName": Text("name"), "input": Text("in")}),
        }
    )
    made = await create(step, occurred_at=MOMENT, request_id=Text("r"), resolve_data=Text("all"))
    assert made.step is not None
    assert made.event is not None
    for text in (made.step.step_name, made.step.step_id, made.step.run_id):
        assert type(text) is str
    assert (made.step.step_name, made.step.spec_version) == ("name", 5)
    assert_plain(made.event.occurred_at, STORED)
    await create(e.step_started(Text("s"), attempt=Whole(1)), event_count=Int64(1))
    retried = await create(e.step_retrying("s", retryAfter=MOMENT, error=b""))
    assert retried.step is not None
    assert_plain(retried.step.retry_after, STORED)
    wait = await create(e.wait_created(Text("w"), MOMENT))
    assert wait.wait is not None
    assert_plain(wait.wait.resume_at, STORED)
    assert_plain((await world.waits.get(run_id, Text("w"))).resume_at, STORED)
    until = Moment.fromtimestamp((datetime.now(UTC) + timedelta(days=3)).timestamp(), UTC)
    data = {"token": Text("tok"), "isWebhook": Truth(), "tokenRetentionUntil": until}
    hook = await create(e.event("hook_created", Text("h"), **data))
    assert hook.hook is not None
    assert (hook.hook.token, hook.hook.is_webhook) == ("tok", True)
    assert type(hook.hook.token_retention_until) is datetime
    received = await create(
        e.hook_received("h"),
        resume_id=Text("r1"),
        payload_digest=Text("d"),
        preload_events=Truth(),
    )
    assert received.event is not None
    assert type(received.event.resume_id) is str
    changes = ({"key": Text("k"), "value": Kind.RED},)
    written = await create(
        e.event("attr_set", "a", changes=changes, writer=Record(type=Text("workflow")))
    )
    assert written.run is not None
    assert_plain(written.run.attributes, {"k": "red"})
    model = StepCreatedEvent(
        correlation_id=Text("m"), event_data=StepCreatedData(step_name="s", input=STRUCTURE)
    )
    answered = await create(model)
    assert answered.step is not None
    assert_plain(answered.step.input, PLAIN)
    items: Any = iter((View(e.step_created(Text("b"))), {"event": e.wait_completed("w")}))
    batch = await world.events.create_batch(run_id, items)
    assert [each.status for each in batch.results] == [200, 200]


async def test_reads_and_streams(world: RedisWorld) -> None:
    one: Any = Int64(1)
    running: Any = (Text("running"),)
    ascending: Any = Text("asc")
    run_id = await e.new_run(world, workflowName=Kind.RED)
    await e.write(world, run_id, e.step_created("s"), e.hook_created("h", "t"))
    page = await world.runs.list(
        workflow_name=Kind.RED, status=running, limit=one, sort_order=ascending
    )
    assert [each.run_id for each in page.data] == [run_id]
    assert page.cursor is not None
    assert (await world.runs.list(limit=Whole(5), cursor=Text(page.cursor))).data == []
    assert (await world.runs.get_many((Text(run_id),)))[0] is not None
    assert (await world.steps.get(Text(run_id), Text("s"))).step_id == "s"
    assert (await world.hooks.get(Text("h"), run_id=Text(run_id))).hook_id == "h"
    assert (await world.hooks.get_by_token(Text("t"))).token == "t"
    assert (await world.runs.wait_for_terminal(run_id, timeout=Length(0))).status == "running"
    chunks = (each for each in (Blob(b"1"), bytearray(b"2"), memoryview(b"3x4")[::2]))
    await world.streams.write_many(Text(run_id), Text("out"), chunks)  # type: ignore[arg-type]
    await world.streams.close(run_id, "out")
    reader = world.streams.read(run_id, Text("out"), start_index=Int64(0))  # type: ignore[arg-type]
    assert [chunk async for chunk in reader] == [b"1", b"2", b"34"]
    found = await world.runs.cancel_many((Text(run_id),), Text("why"))
    assert found.results[0].outcome == "cancelled"
    assert e.data_of((await e.log(world, run_id))[-1]) == {"cancelReason": "why"}


async def test_messages(world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    enqueue = Enqueue(
        Text(f"{TOPIC}w"), View({"runId": Text(run_id), "stepId": Text("s")}), Length(0)
    )
    sent = await world.events.create(run_id, e.step_created("s"), enqueue=enqueue)
    assert sent.message_id is not None
    payload = {"a": STRUCTURE}
    headers = View({Text("h"): Kind.RED})
    await world.queue.send(
        Text(f"{TOPIC}w"),
        payload,
        delay=Ratio(0),
        idempotency_key=Text("k"),
        headers=headers,
        deployment_id=Text("d"),
    )
    five: Any = Int64(5)
    messages = await world.queue.claim(Text(TOPIC), limit=five, lease=Length(seconds=60))
    by_queue = {"runId" in message.payload: message for message in messages}
    assert_plain(by_queue[True].payload, {"runId": run_id, "stepId": "s"})
    own = by_queue[False]
    assert_plain(own.payload, {"a": PLAIN})
    assert_plain(own.headers, {"h": "red"})
    assert (own.idempotency_key, own.deployment_id) == ("k", "d")
    assert await world.queue.ack(own, follow_up=FollowUp(Float32(0.0), Text("k2")))  # type: ignore[arg-type]
    (again,) = await world.queue.claim(TOPIC)
    assert_plain(again.payload, {"a": PLAIN})
    assert again.idempotency_key == "k2"


def test_options() -> None:
    config = WorldConfig.create(
        namespace=Text("ns"),
        partitions=Int64(4),
        socket_timeout=Ratio(2.5),
        retention=Length(days=3),
        serialize_runs=Truth(),
    )
    assert (config.namespace, config.partitions) == ("ns", 4)
    assert config.retention == timedelta(days=3)
    for value in config.__dict__.values():
        assert type(value).__module__ in ("builtins", "datetime"), value


# Contract: 4.limits
@pytest.mark.parametrize("kind", ["memory", ONE])
async def test_each_part_of_a_request_is_bounded(
    kind: str, request: pytest.FixtureRequest
) -> None:
    backend: Backend = request.getfixturevalue("servers").backend(kind)
    limit = 1000
    big = "x" * (limit + 1)
    async with backend.world(max_payload_bytes=limit) as world:
        run_id = await e.new_run(world)
        await e.write(world, run_id, e.step_created("s"), e.hook_created("h", "t"))
        await world.queue.send(f"{TOPIC}w", {"a": 1})
        (message,) = await world.queue.claim(TOPIC)
        before = backend.dump()

        def create(wire: Any, **params: Any) -> Any:
            return world.events.create(run_id, wire, **params)

        def send(**params: Any) -> Any:
            return world.queue.send(**{"queue_name": f"{TOPIC}w", "payload": {}, **params})

        queue, streams = world.queue, world.streams
        calls = {
            "step name": create(e.step_created("n", stepName=big)),
            "lazy step name": create(e.lazy_start("n", stepName=big)),
            "step id": create(e.step_created(big)),
            "hook id": create(e.hook_created(big)),
            "token": create(e.hook_created("n", big)),
            "token of an event": create(e.hook_received("h", token=big)),
            "wait id": create(e.wait_created(big)),
            "unknown data": create(e.step_created("n", unknown=big)),
            "unknown name": create(e.step_created("n", **{big: 1})),
            "many names": create(e.step_created("n", **{f"k{i}": 1 for i in range(400)})),
            "error code": create(e.event("run_failed", errorCode=big)),
            "resume id": create(e.hook_received("h"), resume_id=big),
            "digest": create(e.hook_received("h"), resume_id="r", payload_digest=big),
            "request id": create(e.step_created("n"), request_id=big),
            "since cursor": create(e.step_created("n"), since_cursor=f"eid:{big}"),
            "run id": world.events.create(big, e.step_created("n")),
            "workflow": world.events.create(None, e.run_created(workflowName=big)),
            "deployment": world.events.create(None, e.run_created(deploymentId=big)),
            "public key": world.events.create(None, e.run_created(encryptionPublicKey=big)),
            "context": world.events.create(None, e.run_created(executionContext={"k": big})),
            "attributes": world.events.create(
                None, e.run_created(attributes={f"k{i}": "v" * 250 for i in range(8)})
            ),
            "batch": world.events.create_batch(big, [e.step_created("n")]),
            "batch request": world.events.create_batch(
                run_id, [e.step_created("n")], request_id=big
            ),
            "reason": world.runs.cancel_many([run_id], big),
            "cancelled run": world.runs.cancel_many([big]),
            "queue name": send(queue_name=f"{TOPIC}{big}"),
            "key": send(idempotency_key=big),
            "header": send(headers={"h": big}),
            "header name": send(headers={big: "v"}),
            "headers": send(headers={f"h{i}": "v" * 9 for i in range(100)}),
            "message deployment": send(deployment_id=big),
            "run of a message": send(payload={"runId": big}),
            "step of a message": send(payload={"runId": run_id, "stepId": big}),
            "payload": send(payload={"a": big + "x" * 65_536}),
            "enqueued name": create(e.step_created("n"), enqueue=Enqueue(f"{TOPIC}{big}", {})),
            "enqueued headers": create(
                e.step_created("n"), enqueue=Enqueue(f"{TOPIC}w", {}, headers={"h": big})
            ),
            "follow-up key": queue.ack(message, follow_up=FollowUp(0, big)),
            "redriven message": queue.redrive(big),
            "stream": streams.write(run_id, big, b""),
            "stream run": streams.write(big, "out", b""),
            "closed stream": streams.close(run_id, big),
            "chunk": streams.write(run_id, "out", big.encode()),
            "streams of a run": streams.list(big),
            "stream info": streams.get_info(run_id, big),
            "chunks of a stream": streams.get_chunks(run_id, big),
            "noted stream": streams.note_run(run_id, big),
            "noted run": streams.note_run(big, "out"),
            "name of a stream": streams.find_run(big),
            "chunk cursor": streams.get_chunks(run_id, "out", cursor=f"chunks:{big}"),
            "run": world.runs.get(big),
            "runs": world.runs.get_many([big]),
            "awaited run": world.runs.wait_for_terminal(big),
            "filter": world.runs.list(workflow_name=big),
            "cursor": world.runs.list(cursor=f"runs:{big}"),
            "step": world.steps.get(run_id, big),
            "hook": world.hooks.get(big),
            "look-up": world.hooks.get_by_token(big),
            "hook cursor": world.hooks.list(cursor=f"all_hooks:{1:015d}/{'ab' * 1300}/{run_id}"),
            "wait": world.waits.get(run_id, big),
            "event": world.events.get(run_id, big),
            "log of one": world.events.list_by_correlation_id(run_id, big),
        }
        for name, each in calls.items():
            with pytest.raises(InvalidInputError) as caught:
                await each
            assert len(str(caught.value)) < 700, name
        assert backend.dump() == before
        assert await queue.ack(message)
        # What the World makes itself is not too long for the least limit.
    async with backend.world(max_payload_bytes=1) as world:
        run_id = await e.new_run(world, input=b"1")
        await e.write(world, run_id, e.step_created("s" * 200, input=b""))
    assert not backend.clear()


class Shelf(Mapping[str, list[int]]):
    """Makes its values when they are asked for, as `shelve` does: nobody else keeps them."""

    def __iter__(self) -> Iterator[str]:
        return iter("abcdefgh")

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: str) -> list[int]:
        return [ord(key)]


# Contract: 4.subclasses
async def test_values_that_are_made_on_the_way_are_stored_each(world: RedisWorld) -> None:
    await world.queue.send(f"{TOPIC}orders", {"shelf": Shelf()})
    (message,) = await world.queue.claim(TOPIC)
    assert message.payload["shelf"] == {key: [ord(key)] for key in "abcdefgh"}
