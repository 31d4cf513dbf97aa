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
from support.private_servers import ONE
from support.queue_tools import NAME, TOPIC, content, health_check, step, wake

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

RUN: Final = KEYS.of_run(MAIN)
ODD: Final = "a/b:ü %"
"""A step id with whatever must be escaped in a key."""


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
    await make.send(health_check(), "__x_wkf_workflow_y")
    await make.send(content(3, ABSENT))


_dumps: list[Dump] = []


async def rich_dump() -> Dump:
    """The keys of that World, made once."""
    if not _dumps:
        backend = Backend("memory", "memory://invariants")
        async with backend.world(
            namespace=NAMESPACE, library=ManualClock.library(), max_failures=2
        ) as world:
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
    async with backend.world(library=ManualClock.library(), max_failures=2) as world:
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
    """The id of the first message in a set of the topic."""
    return str(client.zrange(KEYS.topic(TOPIC, place), 0, 0)[0].decode())


def message_key(client: Client, place: str) -> str:
    return KEYS.message(TOPIC, in_place(client, place))


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


def on_message(place: str, name: str, *args: Any) -> Damage:
    """A command on the message that is the first one of its set."""
    return lambda client: getattr(client, name)(message_key(client, place), *args)


def on_set(place: str, name: str, *args: Any) -> Damage:
    """A command on a set of the topic, with the id of its first message behind it."""

    def damage(client: Client) -> None:
        getattr(client, name)(KEYS.topic(TOPIC, place), *args, in_place(client, place))

    return damage


def put_twice(client: Client) -> None:
    """A due message into another set too."""
    client.zadd(KEYS.topic(TOPIC, "held"), {in_place(client, "due"): 1})


def strand_held(client: Client) -> None:
    """Take away whatever could free the held replays of a run."""
    held = {text.decode() for text in client.zrange(KEYS.topic(TOPIC, "held"), 0, -1)}
    for key in client.scan_iter("*:message:*", count=1000):
        message_id = key.decode().rpartition(":")[2]
        if client.hget(key, "run") == MAIN.encode() and message_id not in held:
            client.delete(key)
            for place in ("due", "leased"):
                client.zrem(KEYS.topic(TOPIC, place), message_id)
    client.hdel(RUN.queue, "leased", "wake")


def name_in_book(field: str, place: str) -> Damage:
    """A field of the bookkeeping that names the first message of a set."""
    return lambda client: client.hset(RUN.queue, field, in_place(client, place))


def on_key(*args: Any, name: str = "set") -> Damage:
    """A command on an idempotency key of an outstanding message."""

    def damage(client: Client) -> None:
        (key,) = (k for k in client.scan_iter("*:key:*", count=1000) if b"%C3%BC" in k)
        getattr(client, name)(key, *args)

    return damage


def letter_key(client: Client) -> None:
    client.set(KEYS.idempotency(TOPIC, FAILED, "k"), in_place(client, "dead"))


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
    "another schema": (do("hset", KEYS.meta, "schema", "1"), "meta: schema is 1, and must be 2"),
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
    "streams to be kept of no run": (
        do("zadd", KEYS.cleaning, {"keep/x": 1}),
        "keep/x belongs to no",
    ),
    # Messages.
    "in two places": (put_twice, "is in due and he"),
    "in no place": (on_set("due", "zrem"), "is in no set"),
    "not stored": (on_message("due", "delete"), "is not there, and is in due"),
    "due at another time": (on_set("due", "zincrby", 1), "is due at "),
    "held at another time": (on_set("held", "zincrby", 1), "is held at "),
    "dead at another time": (on_set("dead", "zincrby", 1), "is dead at "),
    "a receipt of nobody": (on_message("due", "hset", "receipt", "r"), "is due and has a receipt"),
    "no receipt": (on_message("leased", "hdel", "receipt"), "is leased and has no receipt"),
    "a reason to live": (on_message("due", "hset", "reason", "r"), "is due and has a reason"),
    "no reason": (on_message("dead", "hdel", "reason"), "is dead and has no reason of its death"),
    "too few deliveries": (on_message("dead", "hset", "attempt", 1), "has ended 2 times, and was"),
    "no body": (on_message("due", "hdel", "body"), "has no body"),
    "a count that is none": (on_message("due", "hset", "lost", "x"), "has lost 'x'"),
    "another topic's name": (
        on_message("due", "hset", "queue", "__x_wkf_workflow_y"),
        "has the queue name '__x_wkf_workflow_y', of another topic",
    ),
    "a name that is none": (on_message("due", "hset", "queue", "x"), "has the queue name 'x', of"),
    "an unknown kind": (on_message("held", "hset", "kind", "x"), "has the unknown kind 'x'"),
    "a step that is none": (on_message("held", "hset", "kind", "step"), "is a step of run "),
    "a held step": (
        on_message("held", "hset", "kind", "step"),
        "is held, and no replay but of th",
    ),
    "a message of nobody": (on_message("held", "hset", "run", ""), "is a replay of run ''"),
    "an unknown topic": (do("srem", KEYS.topics, TOPIC), f"topics: {TOPIC} is missing"),
    "a key of nothing": (on_key("msg_x"), " names msg_x, which is not there"),
    "a key of another": (
        lambda client: on_key(in_place(client, "held"))(client),
        "which has another key",
    ),
    "a key of a dead letter": (letter_key, "which is over"),
    "no key": (on_key(name="delete"), "is outstanding, and its key 'a key/ü' is free"),
    # The bookkeeping.
    "another count": (do("hincrby", RUN.queue, "n", 1), f"run:{MAIN}:queue: n is "),
    "another count of letters": (do("hset", RUN.queue, "dead", 1), "queue: dead is 1, in truth 0"),
    "leased by nobody": (do("hdel", RUN.queue, "leased"), "queue: leased is [], in truth ['msg_"),
    "another one leased": (name_in_book("leased", "due"), f"run:{MAIN}:queue: leased is ['msg_"),
    "another step": (do("hset", RUN.queue, "step:x", "m"), "step:x is ['m'], in truth None"),
    "no step's message": (do("hdel", RUN.queue, "step:made"), "step:made is None, in truth ['msg"),
    "held elsewhere": (do("zadd", RUN.held, {f"{TOPIC}/x": 1}), f"run:{MAIN}:held has "),
    "held for ever": (strand_held, "replays are held, and nothing will free them"),
    "a wake of nothing": (do("hset", RUN.queue, "wake", "x"), "wake is x, which is not a wake of"),
    "a wake that is none": (name_in_book("wake", "held"), ", which is not a wake of the run"),
    "a delivered wake": (
        lambda c: c.hincrby(KEYS.message(TOPIC, c.hget(RUN.queue, "wake").decode()), "lost", 1),
        ", which was delivered",
    ),
    "a delayed wake": (
        lambda c: c.hset(
            KEYS.message(TOPIC, c.hget(RUN.queue, "wake").decode()), "enqueued_at", "1"
        ),
        ", which was delayed",
    ),
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
    "a message that is sought": (
        lambda c: c.zadd(KEYS.lost, {f"n/{c.hget(RUN.queue, 'wake').decode()}": 1}),
        "is there",
    ),
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
    assert {key.rpartition(":")[2] for key in unnoticed} <= {"ops"}


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
