"""The invariant checker: silent on whatever a World makes, loud on every kind of damage to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import pytest
import pytest_asyncio
from ulid import ULID

from redis_world import RedisWorld
from redis_world.codec import encode_data
from redis_world.keys import Keys
from redis_world.queue import Enqueue
from redis_world.testing import (
    InvariantViolationError,
    ManualClock,
    check_invariants,
    memory_world,
)
from support.backends import Backend
from support.events import (
    attr_set,
    event,
    hook_created,
    hook_disposed,
    hook_received,
    lazy_start,
    new_run,
    resilient_start,
    run_created,
    run_ended,
    step_completed,
    step_created,
    step_failed,
    step_retrying,
    step_started,
    wait_completed,
    wait_created,
)
from support.exercise import exercise
from support.message_fields import Record, Texts, envelope, record_of, state
from support.private_servers import ONE
from support.queue_tools import NAME, TOPIC, content, health_check, step, wake
from support.simulation_judge import Judge

NAMESPACE: Final = "rich"
KEYS: Final = Keys(NAMESPACE)

Client: TypeAlias = Any
"""A blocking client, whose types leave open what it answers."""
Dump = list[tuple[bytes, bytes, Any, int]]
"""Key, type, value and milliseconds to live."""


def _run(name: str) -> str:
    """A run id of one and the same moment."""
    return f"wrun_01K{name:0>23}"


MAIN, PENDING, DONE, FAILED, CANCELLED, RESILIENT, ABSENT = map(
    _run, ("MA", "PEND", "DNE", "FA", "CA", "RE", "ABSENT")
)
MOMENT: Final = ULID.from_str(MAIN.removeprefix("wrun_")).datetime
HEALTH: Final = "wrun_hc_1"
"""A run that never is: it only has a stream."""

RICH: Final[dict[str, Any]] = {
    "library": ManualClock.library(),
    "max_failures": 2,
    # What is noted at that moment has not expired now.
    "retention": timedelta(days=36_500),
}
"""Options of the World that has everything."""

RUN: Final = KEYS.of_run(MAIN)
ODD: Final = "a/b:ü %"
"""A step id with whatever must be escaped in a key."""
NOTED: Final = ("out", ODD)
"""Names of streams whose run is noted."""


# -- a World with everything in it ------------------------------------------------------------


class _Builder:
    """Makes calls, each at a time of its own."""

    def __init__(self, world: RedisWorld, clock: ManualClock) -> None:
        self.world = world
        self.clock = clock

    async def create(self, run_id: str, *events: dict[str, Any], **params: Any) -> None:
        for each in events:
            await self.clock.advance(0.001)
            await self.world.events.create(run_id, each, **params)

    async def send(self, payload: dict[str, Any], name: str = NAME, **options: Any) -> None:
        await self.clock.advance(0.001)
        await self.world.queue.send(name, payload, **options)


async def build(world: RedisWorld) -> None:
    """Runs, steps, hooks, waits, streams and messages in every state that they can have."""
    make = _Builder(world, await ManualClock(world).set(MOMENT))
    await _bury(make)
    await _end_runs(make)
    await make.create(
        MAIN,
        run_created(
            attributes={"a": "1", "b": "2"},
            executionContext={"nan": float("nan"), "list": [1]},
            encryptionPublicKey="key",
        ),
        event("run_started"),
    )
    await make.create(RESILIENT, resilient_start())
    await make.create(PENDING, run_created())
    await _steps(make)
    await _others(make)
    await _streams(world)
    await _messages(make)


async def _steps(make: _Builder) -> None:
    enqueue = Enqueue(NAME, step("made", MAIN), idempotency_key="made")
    await make.create(MAIN, step_created("made"), enqueue=enqueue)
    tried = (step_created, step_started)
    soon = make.clock.now + timedelta(hours=1)
    await make.create(MAIN, *(each("begun") for each in (*tried, step_started)))
    await make.create(
        MAIN, *(each("again") for each in tried), step_retrying("again", retryAfter=soon)
    )
    await make.create(MAIN, *(each(ODD) for each in tried), event("step_retrying", ODD, any=1))
    await make.create(
        MAIN, *(each("done") for each in (*tried, step_retrying, step_started, step_completed))
    )
    await make.create(MAIN, step_created("void"), event("step_completed", "void", any=1))
    await make.create(MAIN, lazy_start("lazy"), lazy_start("lost"), step_failed("lost"))


async def _others(make: _Builder) -> None:
    until = make.clock.now + timedelta(days=1)
    await make.create(
        MAIN,
        hook_created("open", "t1", metadata=b"m", tokenRetentionUntil=until, isWebhook=True),
        hook_created("plain", "t2"),
        hook_created("rival", "t1"),
        hook_created("gone", "t3"),
        hook_received("plain"),
    )
    await make.create(MAIN, hook_received("plain"), resume_id="r1", payload_digest="d1")
    await make.create(
        MAIN,
        hook_disposed("gone"),
        wait_created("w1"),
        wait_created("w2"),
        wait_completed("w2"),
        attr_set({"a": None, "c": "3"}, "attr_1"),
        attr_set({"b": "4"}, "attr_2", step="done"),
    )


async def _end_runs(make: _Builder) -> None:
    for run_id, status in ((DONE, "completed"), (FAILED, "failed"), (CANCELLED, "cancelled")):
        await make.create(run_id, run_created(), event("run_started"))
        await make.create(
            run_id,
            step_created("left"),
            lazy_start("slow"),
            hook_created("open", f"token of {status}"),
            hook_received("open"),
            wait_created(),
            run_ended(status),
            step_completed("slow"),
        )
    await make.create(CANCELLED, event("run_cancelled"))


async def _streams(world: RedisWorld) -> None:
    await world.streams.write_many(MAIN, "out", [b"1", b""])
    await world.streams.write(MAIN, "open", b"1")
    await world.streams.close(MAIN, "out")
    await world.streams.close(MAIN, "void")
    await world.streams.write(HEALTH, "health", b"ok")
    for name in NOTED:
        await world.streams.note_run(MAIN, name)


async def _bury(make: _Builder) -> None:
    """A dead letter, of a run that comes later."""
    await make.send(content(0, FAILED), idempotency_key="k")
    for _ in range(2):
        (message,) = await make.world.queue.claim(TOPIC)
        await make.world.queue.retry(message, error="boom", delay=0)


async def _messages(make: _Builder) -> None:
    await make.send(wake(MAIN))
    await make.world.queue.claim(TOPIC)
    await make.send(content(1, MAIN))
    await make.world.queue.claim(TOPIC)
    await make.send(content(2, MAIN), delay=60, idempotency_key="a key/ü")
    await make.send(wake(MAIN), headers={"h": "1"})
    await make.send(wake(DONE))
    await make.send(health_check(), "__x_wkf_workflow_y", idempotency_key="a key")
    await make.send(content(3, ABSENT))
    await make.send(content("x" * 5000, ABSENT))


_dumps: list[Dump] = []


async def rich_dump() -> Dump:
    """The keys of that World, made once."""
    if not _dumps:
        backend = Backend("memory", "memory://invariants")
        async with backend.world(namespace=NAMESPACE, **RICH) as world:
            await build(world)
            with contextlib.closing(backend.client()) as client:
                dumped = backend.dump().items()
                _dumps.append(
                    [(key, type_, value, client.pttl(key)) for key, (type_, value) in dumped]
                )
        backend.clear()
    return _dumps[0]


def restore(client: Client, dump: Dump) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for key, type_, value, ttl in dump:
            match type_:
                case b"hash":
                    pipeline.hset(key, mapping=value)
                case b"zset":
                    pipeline.zadd(key, dict(value))
                case b"set":
                    pipeline.sadd(key, *value)
                case b"stream":
                    for entry_id, fields in value:
                        pipeline.xadd(key, fields, id=entry_id)
                case _:
                    pipeline.set(key, value)
            if ttl >= 0:
                pipeline.pexpire(key, ttl)
        pipeline.execute()


async def violations(world: RedisWorld) -> list[str]:
    try:
        await check_invariants(world)
    except InvariantViolationError as error:
        return error.violations
    return []


@pytest.fixture
def client(backend: Backend) -> Iterator[Client]:
    with contextlib.closing(backend.client()) as client:
        yield client


# -- what a World makes holds -----------------------------------------------------------------


async def test_a_world_with_everything_holds(backend: Backend) -> None:
    async with backend.world(**RICH) as world:
        await build(world)
        before = backend.dump()
        await check_invariants(world)
        assert backend.dump() == before


@pytest.mark.slow
async def test_every_call_leaves_a_world_that_holds(world: RedisWorld) -> None:
    await exercise(world)
    await check_invariants(world)


@pytest.mark.parametrize("year", [1, 1900, 1969, 1970, 9999])
async def test_what_occurred_long_ago_holds(world: RedisWorld, year: int) -> None:
    run_id = await new_run(world)
    moment = datetime(year, 6, 1, 1, 2, 3, 456_000, tzinfo=UTC)
    until = min(moment, datetime.now(UTC))
    await world.events.create(run_id, step_created("s"), occurred_at=moment)
    await world.events.create(run_id, step_started("s"))
    await world.events.create(run_id, event("step_retrying", "s", error=b"", retryAfter=moment))
    await world.events.create(run_id, event("wait_created", "w", resumeAt=moment))
    await world.events.create(run_id, hook_created("h", "t", tokenRetentionUntil=until))
    assert (await world.events.list(run_id)).data[2].occurred_at == moment
    await check_invariants(world)


async def test_an_empty_world_holds(world: RedisWorld) -> None:
    await check_invariants(world)


async def test_without_serialized_runs_a_run_has_any_number_of_leased_replays(
    backend: Backend,
) -> None:
    async with backend.world(serialize_runs=False) as world:
        for number in range(2):
            await world.queue.send(NAME, content(number))
        assert len(await world.queue.claim(TOPIC)) == 2
        await check_invariants(world)
        async with backend.world(namespace=world.config.namespace) as other:
            assert len(await violations(other)) == 1


async def test_other_namespaces_are_not_looked_at(backend: Backend) -> None:
    async with backend.world(namespace="one") as world:
        with contextlib.closing(backend.client()) as client:
            client.set("{one.more/0.0}:v1:stray", "1")
            client.set("{on}:v1:stray", "1")
            backend.namespaces += ["one", "one.more", "on"]
        await check_invariants(world)


async def test_a_namespace_may_be_larger_than_one_round_trip(
    backend: Backend, client: Client
) -> None:
    async with backend.world() as world:
        base = world.connection.keys.base
        client.mset({f"{base}stray:{number}": "1" for number in range(2500)})
        assert len(await violations(world)) == 2500


async def test_the_error_tells_all_violations() -> None:
    async with memory_world() as world:
        keys = world.connection.keys
        await world.connection.execute(
            ("SET", f"{keys.base}one", "1"), ("SET", f"{keys.base}two", "1")
        )
        with pytest.raises(AssertionError, match=r"2 violations") as caught:
            await check_invariants(world)
        assert isinstance(caught.value, InvariantViolationError)
        assert len(caught.value.violations) == 2
        assert all(violation in str(caught.value) for violation in caught.value.violations)


# -- damage -----------------------------------------------------------------------------------


def rewrite(client: Client, key: str, change: Callable[[int, dict[bytes, bytes]], Any]) -> None:
    """Replace the entries of a stream; a change of False leaves the entry out."""
    entries = client.xrange(key)
    client.delete(key)
    for place, (entry_id, fields) in enumerate(entries, start=1):
        if change(place, fields) is not False:
            client.xadd(key, fields, id=entry_id)


def slot_of(client: Client, kind: str, correlation_id: str) -> str:
    """The slot of the last such event."""
    found: str = next(
        entry_id.decode().removeprefix("0-")
        for entry_id, fields in reversed(client.xrange(RUN.events))
        if fields[b"type"] == kind.encode() and fields.get(b"corr", b"") == correlation_id.encode()
    )
    return found


def in_place(client: Client, place: str) -> str:
    """The first member of a set of the topic, `<message>/<run>`."""
    return str(client.zrange(KEYS.topic(TOPIC, place), 0, 0)[0].decode())


def id_in_place(client: Client, place: str) -> str:
    return in_place(client, place).partition("/")[0]


def record(client: Client, place: str) -> Record:
    """The record of the first message of a set."""
    return record_of(client, BASE, TOPIC, in_place(client, place))


Damage = Callable[[Client], Any]


def do(name: str, *args: Any, **kwargs: Any) -> Damage:
    """One command."""
    return lambda client: getattr(client, name)(*args, **kwargs)


def log(kind: str, correlation_id: str = "", run_id: str = MAIN, **data: Any) -> Damage:
    """An event without what it does."""

    def damage(client: Client) -> None:
        fields: dict[Any, Any] = {"type": kind, "at": "1", "spec": "7", "op": "op of its own"}
        if correlation_id:
            fields["corr"] = correlation_id
        fields["data"] = encode_data(data, "data")
        client.xadd(KEYS.of_run(run_id).events, fields, id="0-*")

    return damage


def entry(kind: str, correlation_id: str = "", /, **fields: bytes | None) -> Damage:
    """An event with other fields; None takes one away."""

    def damage(client: Client) -> None:
        slot = int(slot_of(client, kind, correlation_id))

        def change(place: int, old: dict[bytes, bytes]) -> None:
            if place == slot:
                for name, value in fields.items():
                    old[name.encode()] = value or b""
                    if value is None:
                        del old[name.encode()]

        rewrite(client, RUN.events, change)

    return damage


def at_slot(name: str, key: str, kind: str, correlation_id: str, *rest: str) -> Damage:
    """A command on a key, with the slot of an event as its field."""
    return lambda client: getattr(client, name)(key, slot_of(client, kind, correlation_id), *rest)


def on_record(place: str, change: Callable[[Record], Any]) -> Damage:
    """A change of the message that is the first one of its set."""
    return lambda client: change(record(client, place))


def in_head(place: str, **words: str | int) -> Damage:
    return on_record(place, lambda message: message.set_head(**words))


def in_texts(place: str, **texts: str) -> Damage:
    return on_record(place, lambda message: message.set_texts(**texts))


def in_state(place: str, **words: str | int | None) -> Damage:
    return on_record(place, lambda message: message.set_state(**words))


def beside(place: str, kind: str, value: str) -> Damage:
    return on_record(place, lambda message: message.put(kind, value))


def on_set(place: str, name: str, *args: Any) -> Damage:
    """A command on a set of the topic, with its first member behind it."""

    def damage(client: Client) -> None:
        getattr(client, name)(KEYS.topic(TOPIC, place), *args, in_place(client, place))

    return damage


def put_twice(client: Client) -> None:
    """A due message into another set too."""
    client.zadd(KEYS.topic(TOPIC, "held"), {in_place(client, "due"): 1})


def strand_held(client: Client) -> None:
    """Take away whatever could free the held replays of a run."""
    for place in ("due", "leased"):
        for member in map(bytes.decode, client.zrange(KEYS.topic(TOPIC, place), 0, -1)):
            if member.endswith(f"/{MAIN}"):
                record_of(client, BASE, TOPIC, member).delete()
                client.zrem(KEYS.topic(TOPIC, place), member)
    client.hdel(RUN.queue, "leased", "wake")


def name_in_book(field: str, place: str) -> Damage:
    """A field of the bookkeeping that names the first message of a set."""
    return lambda client: client.hset(RUN.queue, field, id_in_place(client, place))


def wake_record(client: Client) -> Record:
    """The record of the wake that absorbs others."""
    return Record(client, RUN.queue, client.hget(RUN.queue, "wake").decode())


def lone_record(client: Client) -> Record:
    """The record of the message of no run."""
    (key,) = client.scan_iter(f"{BASE}queue:{LONE_TOPIC}:message:*", count=1000)
    return Record(client, key.decode(), key.decode().rpartition(":")[2])


def large_record(client: Client) -> Record:
    """The record of the message whose body lies apart."""
    contents = ABSENT_QUEUE.removesuffix("queue") + "contents"
    (field,) = (each for each in client.hkeys(contents) if each.startswith(b"body:"))
    return Record(client, ABSENT_QUEUE, field.decode().removeprefix("body:"))


def in_another_run(client: Client) -> None:
    """A due message, in its set as of another run."""
    message_id, _, run_id = in_place(client, "due").partition("/")
    assert run_id != PENDING
    client.zrem(KEYS.topic(TOPIC, "due"), f"{message_id}/{run_id}")
    client.zadd(KEYS.topic(TOPIC, "due"), {f"{message_id}/{PENDING}": 1})


def in_another_topic(client: Client) -> None:
    """A due message, in the set of another topic."""
    member = in_place(client, "due")
    client.zrem(KEYS.topic(TOPIC, "due"), member)
    client.zadd(KEYS.topic(LONE_TOPIC, "due"), {member: 1})


def of_nobody(client: Client) -> None:
    """A held replay, as a message of no run."""
    message = record(client, "held")
    message.copy_to(KEYS.message(TOPIC, message.id))


def letter_key(client: Client) -> None:
    client.hset(FAILED_QUEUE, f"key:{TOPIC}/k", id_in_place(client, "dead"))


def lone_key(client: Client) -> None:
    """The idempotency key of no run, naming a message of one."""
    client.set(LONE_KEY, id_in_place(client, "held"))


def offer(place: str, since: int) -> Damage:
    """The first message of a set, as one that was postponed."""
    return lambda client: client.zadd(
        KEYS.topic(TOPIC, "declined"), {in_place(client, place): since}
    )


def as_string(key: str) -> Damage:
    def damage(client: Client) -> None:
        client.delete(key)
        client.set(key, "1")

    return damage


def drop(place: int, key: str = RUN.events) -> Damage:
    return lambda client: rewrite(client, key, lambda at, _: at != place)


def _not_owed(record: Any) -> str:
    """The record of a step, without since when it is owed its message."""
    words = record.decode().split(" ")
    words[12] = "-"
    return " ".join(words)


BASE: Final = KEYS.base
OUT, WRITERS = RUN.stream("out"), RUN.writers("out")
TOKEN: Final = KEYS.token("t1")
ABSENT_QUEUE, FAILED_QUEUE = KEYS.of_run(ABSENT).queue, KEYS.of_run(FAILED).queue
LONE_TOPIC: Final = "__x_wkf_workflow_"
LONE_KEY: Final = f"{BASE}queue:{LONE_TOPIC}:key:a%20key"
"""The idempotency key of the message of no run."""
LETTERS: Final = f"{BASE}queue:{TOPIC}:letters"
KEY: Final = f"key:{TOPIC}/a key/ü"
STARTED: Final = {"stepName": "s"}
WRITE: Final[dict[str, Any]] = {"writer": {"type": "workflow"}, "changes": []}

DAMAGES: Final[dict[str, tuple[Damage, str]]] = {
    # Keys and their owners.
    "a stray key": (do("set", f"{BASE}stray", "1"), "stray is not a key of a World"),
    "a stray key of a run": (do("set", f"{RUN.run}:more", "1"), f"{MAIN}:more is not a key"),
    "a stray key of a topic": (do("set", f"{BASE}queue:t:x", "1"), "queue:t:x is not a key"),
    "another partition": (do("set", "{rich/1.0}:v1:runs", "1"), "{rich/1.0}:v1:runs is not a key"),
    "beside meta": (do("set", "{rich}:v1:stray", "1"), "{rich}:v1:stray is not a key"),
    "a name that is not escaped": (
        do("hset", f"{RUN.run}:step:a/b", "a", "1"),
        "a/b is not a key",
    ),
    "a name that is no text": (do("hset", f"{RUN.run}:step:%FF", "a", "1"), "%FF is not a key"),
    "another type": (as_string(RUN.claims), "claims is a string and must be a hash"),
    "a type that no key has": (
        do("rpush", KEYS.of_run(HEALTH).queue, "1"),
        f"run:{HEALTH}:queue is a list and must be a hash",
    ),
    "no run": (do("delete", RUN.run), f"run:{MAIN}:events belongs to a missing run"),
    "a run that is not there": (
        do("hset", KEYS.of_run(ABSENT).attributes, "a", "1"),
        f"run:{ABSENT}:attributes belongs to a missing run",
    ),
    "a run that expires": (do("expire", RUN.run, 99), f"run:{MAIN} expires in"),
    "a stream that expires": (do("expire", OUT, 99), ":stream:out expires in"),
    "ops that expire": (do("expire", RUN.ops, 99), f"{MAIN}:ops expires in"),
    "ops that stay": (
        do("persist", KEYS.of_run(DONE).ops),
        f"run:{DONE}:ops belongs to an ended run, and does not expire",
    ),
    "a topic that expires": (do("expire", KEYS.topics, 99), "topics expires in"),
    "a lost stream": (
        do("persist", KEYS.of_run(HEALTH).stream("health")),
        f"run:{HEALTH}:stream:health belongs to a missing run, and does not expire",
    ),
    "another schema": (do("hset", KEYS.meta, "schema", "1"), "meta: schema is 1, and must be 3"),
    "no partitions": (do("hdel", KEYS.meta, "partitions"), "meta: partitions is absent"),
    # The log.
    "a gap": (drop(3), f"{MAIN}:events: entry 0-4 is where 0-3 must be"),
    "no run_created": (drop(1), "the first event is not run_created"),
    "no log": (do("delete", RUN.events), f"{MAIN}:events: the run has no log"),
    "a second run_created": (log("run_created"), "run_created, creates the run a second time"),
    "a second run_started": (log("run_started"), "run_started, starts the run a second time"),
    "a second end": (log("run_failed", run_id=DONE), "run_failed, comes after the end of the run"),
    "a cancelled completion": (
        log("run_cancelled", run_id=DONE),
        "run_cancelled, ends the run a second time",
    ),
    "a step of a finished run": (
        log("step_created", "new", DONE, **STARTED),
        f"{DONE}:events: slot 11, step_created new, comes after the end of the run",
    ),
    "an outcome of a finished run": (
        log("step_failed", "left", DONE),
        "step_failed left, is the outcome of a step that was not running",
    ),
    "a second step_created": (log("step_created", "made", **STARTED), "made, creates a step a"),
    "a step_started of none": (log("step_started", "no"), "no, comes before the creation of its"),
    "an outcome of none": (log("step_failed", "no"), "no, comes before the creation of its step"),
    "an event after the end": (log("step_started", "done"), "done, comes after the end of its s"),
    "a second outcome": (log("step_failed", "done"), "done, comes after the end of its step"),
    "an event of no step": (log("step_started"), "step_started, names no step"),
    "a second hook_created": (log("hook_created", "open", token="t"), "open, creates a hook a"),
    "a hook_conflict behind": (log("hook_conflict", "gone"), "gone, creates a hook a second tim"),
    "a hook_created behind a conflict": (
        log("hook_created", "rival", token="t"),
        "hook_created rival, creates a hook a second time",
    ),
    "a conflict with nobody": (log("hook_conflict", "x"), "x, does not tell the token and its"),
    "hook_received of none": (
        log("hook_received", "x"),
        "hook_received x, belongs to no live hook",
    ),
    "hook_received of a gone one": (log("hook_received", "gone"), "gone, belongs to no live hook"),
    "a second hook_disposed": (log("hook_disposed", "gone"), "gone, belongs to no live hook"),
    "a wait of no time": (log("wait_created", "x", resumeAt=1), "x, has data that no World wr"),
    "a second wait_created": (
        log("wait_created", "w1", resumeAt=MOMENT),
        "w1, creates a wait a second time",
    ),
    "wait_completed of none": (log("wait_completed", "x"), "x, comes before the creation of its"),
    "a second wait_completed": (log("wait_completed", "w2"), "w2, completes a wait a second time"),
    "a second write": (log("attr_set", "attr_1", **WRITE), "attr_1, is a write of the workflow t"),
    "a second resume": (entry("hook_received", "plain", resume=b"r0"), "claims: resume:r0"),
    "a repeated resume": (
        entry("hook_created", "gone", type=b"hook_received", corr=b"plain", resume=b"r1"),
        "hook_received plain, repeats a resume id",
    ),
    "no op": (entry("run_started", op=None), "slot 2 has no op"),
    "no time": (entry("run_started", at=None), "slot 2 has no at"),
    "no version": (entry("run_started", spec=None), "slot 2 has no spec"),
    "no type": (entry("run_started", type=None), "slot 2 has no type"),
    "a time that is none": (
        entry("run_started", at=b"x"),
        "has the at 'x', which is not a number",
    ),
    "a hook of no time": (entry("hook_created", "open", at=b"x"), "has the at 'x', which is no"),
    "an odd occurrence": (entry("run_started", occ=b"x"), "has the occ 'x', which is not a num"),
    "no data": (entry("run_created", data=None), "slot 1, run_created, has data that no World"),
    "unreadable data": (entry("run_created", data=b"\xff"), "has data that can't be read"),
    "data that is a list": (entry("run_created", data=b"\x80"), "has data that is a list"),
    "one op twice": (
        lambda c: [entry("step_created", name, op=b"same")(c) for name in ("begun", "void")],
        "have one op, same",
    ),
    "one op of two steps": (
        entry("step_started", "lazy", corr=b"begun"),
        "have one op, ",
    ),
    **{
        f"a {kind}": (log(kind, "x"), f"has the type {kind!r}, which this World never writes")
        for kind in ("noop", "run_x", "attr_x", "hook_x", "wait_x")
    },
    "a step_x": (log("step_x", "made"), "has the type 'step_x', which this World never writes"),
    # Payloads.
    "a payload of nothing": (
        do("hset", RUN.payloads, "999", "x"),
        f"{MAIN}:payloads: 999 is not a slot of a large payload",
    ),
    "a small payload beside the log": (
        at_slot("hset", RUN.payloads, "step_created", "begun", "x"),
        "is not a slot of a large payload",
    ),
    "a large payload that is gone": (
        entry("step_created", "begun", payload=b">5000"),
        f"{MAIN}:payloads: the large payload of slot ",
    ),
    "a payload of run_started": (
        entry("run_started", payload=b"\0x"),
        f"{MAIN}:events: slot 2 is a run_started, which has no payload",
    ),
    "a payload of a lazy start": (
        entry("step_started", "lazy", payload=b"\0x"),
        "belongs to a lazy start, whose payload is its input",
    ),
    "no payload": (
        entry("step_created", "begun", payload=b""),
        f"run:{MAIN}: step:begun: input_slot is ",
    ),
    "no place for a payload": (
        entry("run_started", payload=None),
        f"{MAIN}:events: slot 2 has no place for a payload",
    ),
    "a copy of the log of a run that keeps its data": (
        do("xadd", RUN.stripped, {"type": "run_created"}, id="0-1"),
        f"{MAIN}:stripped: the run keeps its user data",
    ),
    # Entities; of their fields, tests below change each.
    "another context": (
        do("hset", RUN.run, "execution_context", encode_data({}, "data")),
        f"run:{MAIN}: execution_context is {{}}, by the log",
    ),
    "an unreadable context": (
        do("hset", RUN.run, "execution_context", b"\xff"),
        f"run:{MAIN}: its execution_context can't be read",
    ),
    "another attribute": (do("hset", RUN.attributes, "z", "1"), f"{MAIN}:attributes: z is '1'"),
    "no step": (do("hdel", RUN.run, f"step:{ODD}"), f"run:{MAIN}: step:{ODD} is missing"),
    "an unknown step": (
        lambda c: c.hset(RUN.run, "step:x", c.hget(RUN.run, "step:made")),
        f"run:{MAIN}: step:x belongs to no step of the log",
    ),
    "no record of a step": (
        do("hset", RUN.run, "step:made", "p 0"),
        f"run:{MAIN}: step:made is 'p 0', which is not a record of a step",
    ),
    "one step too many": (do("hincrby", RUN.run, "steps", 1), f"run:{MAIN}: steps is "),
    "another length": (do("hincrby", RUN.run, "length", 1), f"run:{MAIN}: length is "),
    "messages that are not noted": (do("hdel", RUN.run, "queued"), f"run:{MAIN}: queued is abs"),
    "an unknown hook": (
        do("hset", RUN.hook("gone"), "a", "1"),
        ":hook:gone belongs to no hook that is",
    ),
    "a hook of a finished run": (
        do("hset", KEYS.of_run(DONE).hook("open"), "a", "1"),
        f"run:{DONE}:hook:open belongs to no hook that is live by the log",
    ),
    "a wait of a finished run": (
        do("hset", KEYS.of_run(DONE).wait_states, "wait_1", "x"),
        f"run:{DONE}:wait_states: wait_1 is 'x', by the log absent",
    ),
    "a step in no order": (do("hdel", RUN.run, "steps:1"), f"run:{MAIN}: steps:1 is absent"),
    "a hook in another slot": (
        do("zadd", RUN.hooks, {"open": 2}),
        f"{MAIN}:hooks: open has score 2, not ",
    ),
    "an unknown wait": (do("zadd", RUN.waits, {"x": 2}), f"{MAIN}:waits: x must not be in it"),
    "no claim": (do("hdel", RUN.claims, "gone:gone"), "claims: gone:gone is absent, by the log"),
    "a claim of nothing": (do("hset", RUN.claims, "attr:x", "3"), "attr:x is '3', by the log abs"),
    "no op of a slot": (
        lambda client: client.hdel(RUN.ops, client.hkeys(RUN.ops)[0]),
        f"{MAIN}:ops: ",
    ),
    "an op of no slot": (do("hset", RUN.ops, "x", "999"), "ops: x names 999, which is not a slot"),
    "an op of another": (do("hset", RUN.ops, "x", "2"), "ops: x names slot 2, which another requ"),
    # Indexes.
    "not in the runs": (do("zrem", KEYS.runs, MAIN), f"runs: {MAIN} is missing"),
    "an unknown run": (do("zadd", KEYS.runs, {"x": 0}), "runs: x must not be in it"),
    "a run with a score": (do("zadd", KEYS.runs, {MAIN: 1}), f"runs: {MAIN} has score 1, not 0"),
    "of another status": (
        do("zadd", KEYS.runs_of_status("failed"), {MAIN: 0}),
        f"runs:status:failed: {MAIN} must not be in it",
    ),
    "of no status": (
        do("zrem", KEYS.runs_of_status("running"), MAIN),
        f"runs:status:running: {MAIN} is missing",
    ),
    "of an unknown status": (
        do("zadd", KEYS.runs_of_status("odd"), {MAIN: 0}),
        f"runs:status:odd: {MAIN} must not be in it",
    ),
    "of another workflow": (
        do("zadd", KEYS.runs_of_workflow("x", "running"), {MAIN: 0}),
        f"runs:workflow:x:running: {MAIN} must not be in it",
    ),
    "of no workflow": (
        do("zrem", KEYS.runs_of_workflow("workflow//w", "running"), MAIN),
        f"runs:workflow:workflow%2F%2Fw:running: {MAIN} is missing",
    ),
    "no token": (do("delete", TOKEN), "is absent, its hook is"),
    "another's token": (do("hset", TOKEN, "hook", "x"), f"token:{TOKEN[-64:]} is "),
    "a token of nobody": (do("hset", KEYS.token("t9"), "run", MAIN), "is the token of no live ho"),
    "one token of two hooks": (
        entry("hook_created", "plain", data=encode_data({"token": "t1"}, "data")),
        f"token:{TOKEN[-64:]}: it is the token of two live hooks",
    ),
    "not in the hooks": (do("delete", KEYS.all_hooks), f"/{b'open'.hex()}/{MAIN} is missing"),
    "an unknown hook in the hooks": (do("zadd", KEYS.all_hooks, {"x": 0}), "hooks: x must not be"),
    "not in a hook's runs": (
        do("delete", KEYS.hook_runs("open")),
        f"hook:open: {MAIN} is missing",
    ),
    "a hook's run at another time": (
        do("zadd", KEYS.hook_runs("open"), {MAIN: 1}),
        f"hook:open: {MAIN} has score 1, not ",
    ),
    "a hook of no run": (do("zadd", KEYS.hook_runs("x"), {MAIN: 1}), f"hook:x: {MAIN} must not"),
    # Streams.
    "a gap in a stream": (drop(1, OUT), ":stream:out: entry 0-2 is where 0-1 must be"),
    "a chunk behind the end": (do("xadd", OUT, {"chunk": "x"}, "0-*"), "comes after the end"),
    "a second end of a stream": (do("xadd", OUT, {"end": "x"}, "0-*"), "0-4 is a second end"),
    "an unknown entry": (do("xadd", OUT, {"x": "x"}, "0-*"), "is neither a chunk nor the end"),
    "an end that nobody tells": (do("hdel", WRITERS, "end"), "writers: the end is not there, in"),
    "an end that is none": (drop(3, OUT), ", in the stream not there"),
    "a write behind all": (do("hset", WRITERS, "x", "1 7"), "last write of x is 1 at 7, of 2 ch"),
    "a write of no number": (do("hset", WRITERS, "x", "0 1"), "the last write of x is 0 at 1, of"),
    "an odd write": (do("hset", WRITERS, "x", "1"), "out:writers: the last write of x is '1'"),
    "a chunk of nobody": (
        do("xadd", RUN.stream("open"), {"chunk": "x"}, "0-*"),
        "no writer has wri",
    ),
    "a stream without a name": (do("zrem", RUN.streams, "out"), ":streams: out is missing"),
    "a name without a stream": (
        do("zadd", RUN.streams, {"x": 0}),
        f"streams: x is there, and run:{MAIN}:stream:x is not",
    ),
    "a name with a score": (do("zadd", RUN.streams, {"out": 1}), "streams: out has score 1, not"),
    "no stream": (do("delete", OUT), ":stream:out is missing"),
    "no writers": (do("delete", WRITERS), ":stream:out:writers is missing"),
    "a note of another type": (
        do("hset", KEYS.stream_run("x"), "run", MAIN),
        "stream:x is a hash and must be a string",
    ),
    "a note of no name": (do("set", f"{BASE}stream:a/b", MAIN), ":stream:a/b is not a key"),
    "streams to be kept of no run": (
        do("zadd", KEYS.cleaning, {"keep/x": 1}),
        "keep/x belongs to no",
    ),
    # Messages.
    "in two places": (put_twice, "is in due and he"),
    "in no place": (on_set("due", "zrem"), "is in no set"),
    "not stored": (on_record("due", Record.delete), "is not there, and is in due"),
    "of another run": (in_another_run, f"/{PENDING} is run:wrun_"),
    "of no run": (do("zadd", KEYS.topic(TOPIC, "due"), {"x": 1}), "due: x has no place for a run"),
    "of another topic": (in_another_topic, f"is due in the topic {LONE_TOPIC}, its own is "),
    "due at another time": (on_set("due", "zincrby", 1), "is due at "),
    "held at another time": (on_set("held", "zincrby", 1), "is held at "),
    "dead at another time": (on_set("dead", "zincrby", 1), "is dead at "),
    "a receipt of nobody": (in_state("due", receipt="r"), "is due and has a receipt"),
    "no receipt": (in_state("leased", receipt="-"), "is leased and has no receipt"),
    "a reason to live": (
        in_state("due", reason="max_failures", died_at=1),
        "is due and has a reason",
    ),
    "no reason": (
        in_state("dead", reason=None, died_at=None),
        "is dead and has no reason of its death",
    ),
    "an unknown reason": (in_state("dead", reason="old_age"), "has the unknown reason 'old_age'"),
    "too few deliveries": (in_state("dead", attempt=1), "has ended 2 times, and was"),
    "no state": (on_record("due", lambda m: m.drop("state")), "has no state"),
    "a state alone": (on_record("due", lambda m: m.drop("message")), "belongs to no message"),
    **{
        f"no message but {kind}": (
            do("hset", RUN.queue, f"{kind}:msg_x", "x"),
            f"run:{MAIN}:queue: {kind}:msg_x belongs to no message",
        )
        for kind in ("state", "headers", "body", "error", "declined")
    },
    "a count that is none": (in_state("due", lost="x"), "has the state '0 0 x "),
    "a word too many": (in_state("due", reason="r"), "has the state '0 0 0 "),
    "an envelope without texts": (beside("due", "message", "wake 0"), "is 'wake 0', which is no"),
    "a word too few": (beside("due", "message", "wake 0 0\n"), "which is not an envelope"),
    "a length that is none": (in_head("due", step="x"), "which is not an envelope"),
    "a key that lies apart": (in_head("due", key=">5000"), "which is not an envelope"),
    "a body that is too long": (in_head("due", body=1), "bytes too many"),
    "a body that is too short": (in_head("due", body=4000), "bytes too few"),
    "a small body apart": (in_head("due", body=">9"), "has body of 9 bytes apart"),
    "a large body in place": (
        in_texts("due", body="x" * 4097),
        "has body of 4097 bytes in place",
    ),
    "large headers that are gone": (in_head("due", headers=">5000"), "has no headers"),
    "a large body that is gone": (
        lambda client: large_record(client).drop("body"),
        "has no body",
    ),
    "a large body of another length": (
        lambda client: large_record(client).put("body", "x" * 4999),
        "has body of 4999 bytes, by its envelope ",
    ),
    "a body twice": (beside("due", "body", "x"), "has body twice"),
    "headers twice": (beside("due", "headers", "x"), "has headers twice"),
    "one message of two runs": (
        lambda client: record(client, "held").copy_to(KEYS.of_run(PENDING).queue),
        ", too",
    ),
    "another topic's name": (
        in_texts("due", queue="__x_wkf_workflow_y"),
        "has the queue name '__x_wkf_workflow_y', of another topic",
    ),
    "a name that is none": (in_texts("due", queue="x"), "has the queue name 'x', of"),
    "an unknown kind": (in_head("held", kind="x"), "has the unknown kind 'x'"),
    "a step that is none": (in_head("held", kind="step"), "is a step of run "),
    "a step of a replay": (in_texts("held", step="s"), "and step 's'"),
    "a held step": (in_head("held", kind="step"), "is held, and no replay but of th"),
    "a message of nobody": (of_nobody, "is a replay of run ''"),
    "a run's message of no run": (in_head("held", kind="other"), "is a other of run 'wrun_"),
    "a message of no run that was declined": (
        lambda client: lone_record(client).put("declined", "1 w\ns"),
        " was declined by w, and never postponed",
    ),
    "bookkeeping of no run": (
        lambda client: client.hset(lone_record(client).key, "n", 1),
        ": n is not a field of this message",
    ),
    "no message in a hash of its own": (
        lambda client: lone_record(client).drop("message"),
        " has no message:msg_",
    ),
    "a message of no run under another topic": (
        lambda client: lone_record(client).copy_to(KEYS.message(TOPIC, lone_record(client).id)),
        f"has the topic {LONE_TOPIC}",
    ),
    "an unknown topic": (do("srem", KEYS.topics, TOPIC), f"topics: {TOPIC} is missing"),
    # What was postponed.
    "offered and not there": (
        do("zadd", KEYS.topic(TOPIC, "declined"), {f"msg_x/{MAIN}": 1}),
        f":declined: msg_x/{MAIN} is not there",
    ),
    "offered and leased": (offer("leased", 1), " is leased, not due"),
    "offered and never postponed": (offer("due", 1), " was not postponed at 1"),
    "offered in another topic": (
        lambda c: c.zadd(KEYS.topic(LONE_TOPIC, "declined"), {in_place(c, "due"): 1}),
        f" belongs to the topic {TOPIC}",
    ),
    "declined and never postponed": (
        beside("due", "declined", "1 w1 w2\ns"),
        "was declined by w1, w2, and never postponed",
    ),
    "declined by nobody": (
        lambda client: [
            in_state("due", postponed=1)(client),
            beside("due", "declined", "1 w1  w2\ns")(client),
        ],
        "was declined by a worker without a name",
    ),
    "declined at no time": (beside("due", "declined", "x w1\ns"), "was declined 'x w1"),
    "declined without a step": (beside("due", "declined", "1 w1"), "was declined '1 w1'"),
    # Letters.
    "a letter that is not dead": (
        do("hset", LETTERS, "msg_x", MAIN),
        f"queue:{TOPIC}:letters: msg_x belongs to run '{MAIN}', in truth None",
    ),
    "a letter of another run": (
        lambda client: client.hset(LETTERS, id_in_place(client, "dead"), MAIN),
        f"belongs to run '{MAIN}', in truth '{FAILED}'",
    ),
    "no letter": (do("delete", LETTERS), f"belongs to run None, in truth '{FAILED}'"),
    # Idempotency keys.
    "a key of nothing": (do("hset", RUN.queue, KEY, "msg_x"), " names msg_x, which is not there"),
    "a key of another": (name_in_book(KEY, "held"), "which has another key"),
    "a key in another topic": (
        lambda c: c.hset(RUN.queue, f"key:{LONE_TOPIC}/a key/ü", c.hget(RUN.queue, KEY)),
        "which has another key",
    ),
    "a key of another run's message": (
        lambda c: c.hset(ABSENT_QUEUE, KEY, c.hget(RUN.queue, KEY)),
        f", which is run:{MAIN}:queue: message:",
    ),
    "a key of a dead letter": (letter_key, "which is over"),
    "no key": (do("hdel", RUN.queue, KEY), "is outstanding, and its key 'a key/ü' is free"),
    "a key that two have": (
        lambda client: record(client, "held").set_texts(key="a key/ü"),
        "is outstanding, and its key 'a key/ü' belongs to msg_",
    ),
    "a key of nothing, and of no run": (
        do("set", LONE_KEY, "msg_x"),
        "queue:__x_wkf_workflow_:key:a%20key names msg_x, which is not there",
    ),
    "a key of no run of a run's message": (lone_key, f", which is run:{MAIN}:queue: message:"),
    "no key of no run": (do("delete", LONE_KEY), "outstanding, and its key 'a key' is free"),
    "a key that is not escaped": (
        do("set", f"{BASE}queue:{TOPIC}:key:a b", "msg_x"),
        ":key:a b is not a key of a World",
    ),
    # The bookkeeping.
    "another count": (do("hincrby", RUN.queue, "n", 1), f"run:{MAIN}:queue: n is "),
    "another count of letters": (do("hset", RUN.queue, "dead", 1), "queue: dead is 1, in truth 0"),
    "another count of held ones": (do("hset", RUN.queue, "held", 9), "queue: held is 9, in truth"),
    "a count of nothing": (do("hset", RUN.queue, "rewakes", "x"), "rewakes is 'x', which this W"),
    "an unknown field": (
        do("hset", RUN.queue, "x", 1),
        f"run:{MAIN}:queue: x is not a field of ",
    ),
    "a field of no message": (
        do("hset", RUN.queue, "body:", 1),
        "queue: body: is not a field of",
    ),
    "a topic of nothing": (do("hset", RUN.queue, "topic", "t"), "topic is t, which is not in top"),
    "a queue of nothing": (do("hset", RUN.queue, "queue", TOPIC), "of no topic that was ever sen"),
    "bare without a reason": (do("hset", RUN.queue, "bare", 1), "bare is there, and the run kee"),
    "bare or not": (do("hset", RUN.queue, "bare", 0), "bare is '0', which this World never writ"),
    "leased by nobody": (do("hdel", RUN.queue, "leased"), "queue: leased is [], in truth ['msg_"),
    "another one leased": (name_in_book("leased", "due"), f"run:{MAIN}:queue: leased is ['msg_"),
    "another step": (do("hset", RUN.queue, "step:x", "m"), "step:x is ['m'], in truth None"),
    "another's step": (name_in_book("step:made", "held"), "step:made is ['msg_"),
    "no step's message": (do("hdel", RUN.queue, "step:made"), "step:made is None, in truth ['msg"),
    "held elsewhere": (do("zadd", RUN.held, {f"{TOPIC}/x": 1}), f"run:{MAIN}:held has "),
    "held for ever": (strand_held, "replays are held, and nothing will free them"),
    "a wake of nothing": (do("hset", RUN.queue, "wake", "x"), "wake is x, which is not a wake of"),
    "a wake that is none": (name_in_book("wake", "held"), ", which is not a wake of the run"),
    "another's wake": (
        lambda c: c.hset(ABSENT_QUEUE, "wake", wake_record(c).id),
        ", which is not a wake of the run",
    ),
    "a delivered wake": (
        lambda client: wake_record(client).set_state(attempt=1, lost=1),
        ", which was delivered",
    ),
    "a delayed wake": (lambda client: wake_record(client).set_head(sent_at=1), ", which was del"),
    "a book of no run": (
        do("hset", KEYS.of_run("wrun_x").queue, "n", "0"),
        "run:wrun_x:queue belongs to no live run",
    ),
    "a book of a finished run": (
        do("hset", KEYS.of_run(CANCELLED).queue, "queue", NAME),
        f"run:{CANCELLED}:queue belongs to no live run",
    ),
    # What heals itself.
    "an idle run that nobody knows": (do("zrem", KEYS.parked, RESILIENT), "parked: wrun_"),
    "a busy run that is parked": (do("zadd", KEYS.parked, {MAIN: 1}), f"parked: {MAIN} must not"),
    "a finished run that is parked": (do("zadd", KEYS.parked, {DONE: 1}), f"parked: {DONE} must"),
    "mended and of no run": (do("zadd", KEYS.lost, {"": 1}), "lost: what belongs to no ru"),
    "a debt of no run": (do("zadd", KEYS.owed, {"x": 1}), "owed: x is not a live run"),
    "a debt of a finished run": (
        do("hset", KEYS.of_run(DONE).run, "owed", "1 0"),
        f"run:{DONE}: owed: '1 0', but the run is over",
    ),
    "a debt that nobody finds": (do("zrem", KEYS.owed, MAIN), f"owed: {MAIN} is missing"),
    "a debt that is found too late": (
        do("zadd", KEYS.owed, {MAIN: 9e15}),
        f"owed: {MAIN} has score 9000000000000000, later than ",
    ),
    "a debt too many": (do("hset", RUN.run, "owed", " 9"), f"run:{MAIN}: owed: ' 9', but"),
    "no debt": (
        do("hset", KEYS.of_run(PENDING).run, "owed", ""),
        f"owed: {PENDING} must not be in it",
    ),
    "a step without a message": (
        lambda c: c.hset(RUN.run, "step:begun", _not_owed(c.hget(RUN.run, "step:begun"))),
        f"run:{MAIN}: step:begun is not over, and has no message",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory"], indirect=True)
@pytest.mark.parametrize("name", DAMAGES)
async def test_damage_is_found(backend: Backend, client: Client, name: str) -> None:
    damage, expected = DAMAGES[name]
    backend.namespaces.append(NAMESPACE)
    restore(client, await rich_dump())
    async with backend.world(namespace=NAMESPACE) as world:
        damage(client)
        found = await violations(world)
    assert [each for each in found if expected in each], found


@pytest.mark.slow
@pytest.mark.parametrize("backend", [ONE], indirect=True)
async def test_damage_is_found_on_a_real_server(backend: Backend, client: Client) -> None:
    missed = []
    backend.namespaces.append(NAMESPACE)
    async with backend.world(namespace=NAMESPACE) as world:
        for name, (damage, expected) in DAMAGES.items():
            client.flushall()
            restore(client, await rich_dump())
            damage(client)
            if not any(expected in each for each in await violations(world)):
                missed.append(name)
    assert missed == []


# -- nothing at all may go or change ----------------------------------------------------------


class Rich:
    """The World with everything in it, its keys damaged and mended again."""

    def __init__(self, world: RedisWorld, client: Client, dump: Dump) -> None:
        self.world = world
        self.client = client
        self.keys = {
            key.decode(): (type_, value, ttl)
            for key, type_, value, ttl in dump
            if not key.endswith(b":clock")
        }

    async def damage(self, name: str, key: str, *args: Any) -> list[str]:
        """What is found when a command has changed a key, which is mended then."""
        getattr(self.client, name)(key, *args)
        found = await violations(self.world)
        self.client.delete(key)
        restore(self.client, [(key.encode(), *self.keys[key])])
        return found


@pytest_asyncio.fixture
async def rich() -> AsyncIterator[Rich]:
    backend = Backend("memory", "memory://invariants", [NAMESPACE])
    with contextlib.closing(backend.client()) as client:
        dump = await rich_dump()
        restore(client, dump)
        async with backend.world(namespace=NAMESPACE) as world:
            rich = Rich(world, client, dump)
            assert await violations(world) == []
            yield rich
            assert await violations(world) == []
    backend.clear()


@pytest.mark.slow
async def test_no_key_may_be_missing(rich: Rich) -> None:
    unnoticed = {key for key in rich.keys if not await rich.damage("delete", key)}
    # Nothing else tells which names of streams were noted.
    notes = {KEYS.stream_run(name) for name in NOTED}
    assert notes <= unnoticed
    assert {key.rpartition(":")[2] for key in unnoticed - notes} <= {"ops"}


async def test_no_key_may_expire(rich: Rich) -> None:
    lasting = {key for key, (_, _, ttl) in rich.keys.items() if ttl < 0}
    for key in lasting:
        rich.client.expire(key, 1000)
    found = await violations(rich.world)
    for key in lasting:
        rich.client.persist(key)
    told = {each.partition(" expires in ")[0] for each in found}
    assert {key.removeprefix(BASE) for key in lasting} == told


@pytest.mark.slow
async def test_nothing_may_be_added_to_a_sorted_set_or_get_another_score(rich: Rich) -> None:
    unnoticed = set()
    for key, (type_, value, _) in rich.keys.items():
        if type_ == b"zset":
            for what, members in (
                ("more", {"x": 0}),
                ("scores", {member: score + 1 for member, score in value}),
            ):
                if not await rich.damage("zadd", key, members):
                    unnoticed.add(f"{key.removeprefix(BASE)} {what}")
    # Times until a lease ends, or since when something waits, stand nowhere else; what waits for a
    # hook counts later; and the name of a stream may outlive it where there is no run.
    assert unnoticed == {
        f"queue:{TOPIC}:leased scores",
        "parked scores",
        "finished scores",
        f"run:{HEALTH}:streams more",
    }


@pytest.mark.parametrize("name", ["done", "again", ODD])
async def test_no_word_of_a_steps_record_may_change(rich: Rich, name: str) -> None:
    words = rich.keys[RUN.run][1][f"step:{name}".encode()].decode().split(" ")
    for place, word in enumerate(words):
        if place == 12 and word != "-":
            # Since when it waits stands nowhere else.
            continue
        other = {"-": "7", "p": "r", "r": "p", "c": "f", "f": "c"}.get(word, f"{word}1")
        record = " ".join([*words[:place], other, *words[place + 1 :]])
        found = await rich.damage("hset", RUN.run, f"step:{name}", record)
        # Since when it is owed its message is told of the run.
        told = f"{MAIN}: owed: " if place == 12 else f"{MAIN}: step:{name}: "
        assert [each for each in found if told in each], (place, found)


@pytest.mark.parametrize(
    "key",
    [RUN.run, RUN.attributes, RUN.claims, RUN.wait_states, RUN.hook("open")],
    ids=lambda key: key.removeprefix(RUN.run),
)
async def test_no_field_of_an_entity_may_change_or_go_or_come(rich: Rich, key: str) -> None:
    # Records of steps, and what tells of more than the log, are other tests' matter.
    left = ("length", "owed", "queued", "steps", "step:")
    fields = [field.decode() for field in rich.keys[key][1] if not field.decode().startswith(left)]
    optional = {"execution_context"}
    changed = await rich.damage("hset", key, None, None, dict.fromkeys([*fields, "more"], "x"))
    gone = await rich.damage("hdel", key, *fields[1:])
    for field in {*fields, "more"} - optional:
        told = f"{key.removeprefix(BASE)}: {field} is "
        assert [each for each in changed if each.startswith(told + "'x', by the log ")], field
        if field in fields[1:]:
            assert [each for each in gone if each.startswith(told + "absent, by ")], field


async def test_a_note_in_another_partition_than_its_name_is_found() -> None:
    async with memory_world(partitions=4) as world:
        await world.streams.note_run(MAIN, "a/b")
        await check_invariants(world)
        partitions = world.connection.partitions
        wrong = next(keys for keys in partitions if keys is not partitions.of("a/b"))
        await world.connection.execute(("SET", wrong.stream_run("a/b"), MAIN))
        with pytest.raises(InvariantViolationError) as caught:
            await check_invariants(world)
    assert caught.value.violations == [
        f"partition {wrong.number}: stream:a%2Fb is in another partition than its name belongs to"
    ]


LEFT_BEHIND: Final[dict[str, tuple[tuple[str | int, ...], str]]] = {
    "a small payload": (
        ("XADD", "{events}", "0-*", "type", "run_cancelled", "payload", "x"),
        "{events}: slot 4 keeps its payload",
    ),
    "large payloads": (("HSET", "{payloads}", "1", "x"), "{payloads}: the user data of the run "),
    "a copy that is not complete": (
        ("XADD", "{stripped}", "0-1", "type", "run_created"),
        "{stripped}: no sweeper will complete it",
    ),
    "another log": (
        ("XADD", "{stripped}", "0-1", "type", "run_created"),
        "{stripped}: slot 1 is not that of the log",
    ),
}
"""A command, and what is told of it."""


@pytest.mark.parametrize("name", LEFT_BEHIND)
async def test_what_is_left_of_deleted_user_data_is_found(name: str) -> None:
    command, told = LEFT_BEHIND[name]
    async with memory_world() as world:
        run_id = await new_run(world, attributes={"$retention": "0"}, allowReservedAttributes=True)
        await world.events.create(run_id, run_ended("completed"))
        await check_invariants(world)
        keys = world.connection.keys.of_run(run_id)
        names = {each: getattr(keys, each) for each in ("events", "payloads", "stripped")}
        await world.connection.execute(tuple(str(word).format(**names) for word in command))
        with pytest.raises(InvariantViolationError) as caught:
            await check_invariants(world)
        base = world.connection.keys.base
        assert told.format(**names).removeprefix(base) in str(caught.value)


# -- messages made by hand --------------------------------------------------------------------


class ByHand:
    """A World whose messages are written as ARCHITECTURE.md has them, by no script."""

    def __init__(self, world: RedisWorld, client: Client) -> None:
        self.world = world
        self.client = client
        self.keys = world.connection.keys
        self.run_id = ""
        client.sadd(self.keys.topics, TOPIC)

    async def begin(self, *, user_data: bool = True) -> None:
        """Make the run of the messages; one without user data is over."""
        if user_data:
            self.run_id = await new_run(self.world)
        else:
            self.run_id = await new_run(
                self.world, attributes={"$retention": "0"}, allowReservedAttributes=True
            )
            await self.world.events.create(self.run_id, run_ended("completed"))
        run = self.keys.of_run(self.run_id).run
        self.client.hset(run, "queued", 1)
        if user_data:
            self.client.hset(run, "owed", "")
            self.client.zrem(self.keys.owed, self.run_id)

    @property
    def book(self) -> str:
        return self.keys.of_run(self.run_id).queue

    def put(
        self, name: str, place: str = "due", kind: str = "replay", texts: Texts | None = None
    ) -> Record:
        """A message of the run in a set of the topic, in which it is since the time 9."""
        message = Record(self.client, self.book, f"msg_{name}")
        self.client.zrem(self.keys.parked, self.run_id)
        message.put("message", envelope(kind, TOPIC, 1, {"queue": NAME, **(texts or {})}))
        words: dict[str, str | int] = {}
        if place == "leased":
            words = {"attempt": 1, "receipt": "w_1", "op": "claim"}
        elif place == "dead":
            words = {"attempt": 2, "failures": 2, "reason": "max_failures", "died_at": 9}
            letters = f"{self.keys.base}queue:{TOPIC}:letters"
            self.client.hset(letters, message.id, self.run_id)
        elif place == "held":
            self.client.zadd(self.keys.of_run(self.run_id).held, {f"{TOPIC}/{message.id}": 9})
            self.client.hincrby(self.book, "held", 1)
        message.put("state", state(9, **words))
        self.client.zadd(self.keys.topic(TOPIC, place), {f"{message.id}/{self.run_id}": 9})
        self.client.hincrby(self.book, "dead" if place == "dead" else "n", 1)
        return message

    async def both(self) -> tuple[list[str], list[str]]:
        """What the checker finds, and what the judge of the simulation does."""
        return await violations(self.world), (await Judge(self.world).look()).wrong


@pytest_asyncio.fixture
async def by_hand(backend: Backend, client: Client) -> AsyncIterator[ByHand]:
    async with backend.world() as world:
        yield ByHand(world, client)


IN_MEMORY: Final = pytest.mark.parametrize("backend", ["memory"], indirect=True)


@IN_MEMORY
async def test_messages_in_every_place_hold(by_hand: ByHand) -> None:
    await by_hand.begin()
    client, book, base = by_hand.client, by_hand.book, by_hand.keys.base
    by_hand.put("plain", "leased", texts={"body": "{}"})
    by_hand.put("held", "held", texts={"key": "a/ü", "headers": "h", "body": "x" * 4096})
    large = by_hand.put("large", texts={"headers": 5000, "body": 4097})
    large.put("headers", "h" * 5000)
    large.put("body", "b" * 4097)
    by_hand.put("dead", "dead", texts={"key": "k", "deployment": "d"}).put("error", "boom")
    by_hand.put("step", kind="step", texts={"step": "s", "body": "{}"})
    by_hand.put("wake", kind="wake").set_head(sent_at=9)
    postponed = by_hand.put("postponed", kind="step", texts={"step": "t"})
    postponed.set_state(attempt=1, postponed=1)
    postponed.put("declined", "7 w1,w2\nwork\n")
    member = {f"{postponed.id}/{by_hand.run_id}": 7}
    client.zadd(by_hand.keys.topic(TOPIC, "declined"), member)
    names = {"leased": "msg_plain", "wake": "msg_wake", "queue": NAME, "topic": TOPIC}
    of_messages = {"step:s": "msg_step", "step:t": postponed.id, f"key:{TOPIC}/a/ü": "msg_held"}
    client.hset(book, mapping={**names, **of_messages})
    client.hset(book, mapping={"rewakes": 1, "rewoken_at": 5, "rewoken_length": 2})

    lone = Record(client, f"{base}queue:{TOPIC}:message:msg_lone", "msg_lone")
    texts = {"queue": NAME, "key": "k:1", "body": "x" * 4096}
    lone.put("message", envelope("other", TOPIC, 1, texts))
    lone.put("state", state(9))
    client.set(f"{base}queue:{TOPIC}:key:k%3A1", "msg_lone")
    client.zadd(by_hand.keys.topic(TOPIC, "due"), {"msg_lone/": 9})

    assert await by_hand.both() == ([], [])
    verdict = await Judge(by_hand.world).look()
    assert verdict.leased == {"msg_plain": "w_1"}
    assert verdict.dead == {"msg_dead": (by_hand.run_id, "replay")}


BARE: Final[dict[str, tuple[dict[str, str | int], Texts, str, str]]] = {
    "nothing": ({"bare": 1}, {}, "", ""),
    "what is deleted later": (
        {"bare": 1, "error:msg_1": "e"},
        {"headers": "h", "body": "b"},
        "messages",
        "",
    ),
    "what was large": ({"bare": 1}, {"headers": 5000, "body": 5000}, "", ""),
    "its content": ({}, {}, "", "bare is absent, and nothing of its messages may be shown"),
    "small headers": ({"bare": 1}, {"headers": "h"}, "", "keeps its headers"),
    "a small body": ({"bare": 1}, {"body": "b"}, "", "keeps its body"),
    "large headers": (
        {"bare": 1, "headers:msg_1": "h" * 5000},
        {"headers": 5000},
        "",
        "keeps its headers",
    ),
    "a large body": ({"bare": 1, "body:msg_1": "b" * 5000}, {"body": 5000}, "", "keeps its body"),
    "an error": ({"bare": 1, "error:msg_1": "e"}, {}, "", "keeps its error"),
    "a large body that goes at once": (
        {"bare": 1, "body:msg_1": "b" * 5000},
        {"body": 5000},
        "messages",
        "keeps its body",
    ),
}
"""Of what a message keeps of deleted user data: fields, texts, what is cleaned, what is told."""


@IN_MEMORY
@pytest.mark.parametrize("keeps", BARE)
async def test_nothing_is_left_of_the_messages_of_deleted_user_data(
    by_hand: ByHand, keeps: str
) -> None:
    fields, texts, cleaned, told = BARE[keeps]
    await by_hand.begin(user_data=False)
    by_hand.put("1", texts=texts)
    contents = {name: fields[name] for name in fields if name.startswith(("body:", "headers:"))}
    rest = {name: fields[name] for name in fields if name not in contents}
    by_hand.client.hset(by_hand.book, mapping={"queue": NAME, **rest})
    if contents:
        by_hand.client.hset(by_hand.keys.of_run(by_hand.run_id).contents, mapping=contents)
    if cleaned:
        by_hand.client.zadd(by_hand.keys.cleaning, {f"{cleaned}/{by_hand.run_id}": 1})
    found, judged = await by_hand.both()
    assert (not found) == (not judged) == (not told), (found, judged)
    assert all(told in each for each in found), found


@IN_MEMORY
async def test_the_messages_of_a_run_that_is_being_removed_are_bare(by_hand: ByHand) -> None:
    by_hand.run_id = ABSENT
    by_hand.put("1", texts={"body": "b"})
    by_hand.client.zadd(by_hand.keys.cleaning, {f"run/{ABSENT}": 1})
    found, judged = await by_hand.both()
    assert len(found) == len(judged) == 1
    by_hand.client.hset(by_hand.book, "bare", 1)
    assert await by_hand.both() == ([], [])
    by_hand.client.zrem(by_hand.keys.cleaning, f"run/{ABSENT}")
    found, judged = await by_hand.both()
    assert [each for each in found if "bare is there, and the run keeps" in each]
    assert [each for each in judged if "is bare and keeps its user data" in each]


@IN_MEMORY
async def test_of_a_run_that_is_mended_nothing_is_told_that_its_loss_explains(
    by_hand: ByHand,
) -> None:
    await by_hand.begin()
    client, keys = by_hand.client, by_hand.keys
    await by_hand.world.events.create(by_hand.run_id, step_created("s"))
    run = keys.of_run(by_hand.run_id)
    record = client.hget(run.run, "step:s")
    client.hset(run.run, mapping={"step:s": _not_owed(record), "owed": ""})
    client.zrem(keys.owed, by_hand.run_id)
    by_hand.put("1")
    # Lost were a leased replay, behind which another one was held, and the message of a step.
    for name in ("leased", "held"):
        by_hand.put(name, name).delete()
    client.zrem(keys.topic(TOPIC, "leased"), f"msg_leased/{by_hand.run_id}")
    named = {"leased": "msg_leased", "wake": "msg_x", "step:s": "msg_x", f"key:{TOPIC}/k": "msg_x"}
    client.hset(by_hand.book, mapping=named)
    client.zadd(keys.lost, {by_hand.run_id: 1})
    assert await by_hand.both() == ([], [])

    client.zadd(keys.topic(TOPIC, "due"), {f"msg_x/{by_hand.run_id}": 1})
    found, judged = await by_hand.both()
    assert found == [f"run:{by_hand.run_id}:queue: message:msg_x is not there, and is in due"]
    assert judged == [f"msg_x/{by_hand.run_id} lies in due of {TOPIC} and is not stored"]

    client.zrem(keys.topic(TOPIC, "due"), f"msg_x/{by_hand.run_id}")
    client.delete(keys.lost)
    found, judged = await by_hand.both()
    for told in (
        *(
            "n is 3, in truth 1",
            "leased is ['msg_leased']",
            "wake is msg_x",
            "step:s is ['msg_x']",
        ),
        *("message:msg_held is not there", f"key:{TOPIC}/k names msg_x", ":held has {"),
        "step:s is not over",
    ):
        assert [each for each in found if told in each], (told, found)
    for told in (
        *(
            "has n 3 and",
            "has leased msg_leased",
            "has the wake msg_x",
            "the message msg_x for st",
        ),
        *("lies in held", f"key:{TOPIC}/k names msg_x", "which is not held"),
        "nobody will run it",
    ):
        assert [each for each in judged if told in each], (told, judged)


@IN_MEMORY
@pytest.mark.parametrize(
    ("part", "field"), [("queue", "body:msg_1"), ("contents", "error:msg_1"), ("contents", "n")]
)
async def test_content_lies_beside_the_bookkeeping(by_hand: ByHand, part: str, field: str) -> None:
    await by_hand.begin()
    by_hand.put("1", texts={"body": 5000})
    keys = by_hand.keys.of_run(by_hand.run_id)
    if part == "contents":
        by_hand.client.hset(keys.contents, "body:msg_1", "b" * 5000)
    by_hand.client.hset(getattr(keys, part), field, "b" * 5000)
    found, judged = await by_hand.both()
    assert any("is in the wrong hash" in each for each in found), found
    assert any("lies in the wrong hash" in each for each in judged), judged


@IN_MEMORY
async def test_content_without_bookkeeping(by_hand: ByHand) -> None:
    await by_hand.begin()
    keys = by_hand.keys.of_run(by_hand.run_id)
    by_hand.client.hset(keys.contents, "body:msg_1", "b")
    found, judged = await by_hand.both()
    assert any("body:msg_1 belongs to no message" in each for each in found), found
    assert any("has contents and no messages" in each for each in judged), judged
