"""One life of two Worlds: what may happen in it, each time in both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from random import Random
from typing import Any, Final

from ulid import ULID

from redis_world.codec import to_ms
from redis_world.models import EventResult, ResolveData, SortOrder
from redis_world.queue import Enqueue, Message
from support import events as e
from support import model_reads as reads
from support.backends import Backend
from support.model_events import TOKENS, WORKFLOWS, Params, Scene
from support.model_messages import NO_MESSAGE, TOPICS, End
from support.model_twins import AnyWorld, Call, Twins

STREAMS: Final = ("out", "err")

OPTIONS: Final[Mapping[str, Any]] = {
    "max_failures": 2,
    "max_lost_leases": 2,
    "max_events_per_run": 25,
    "max_payload_bytes": 1000,
    "environment": "test",
    "retention": timedelta(hours=2),
}
"""Limits that a short life runs into."""

_ACTS_OF_A_SCENE: Final = 12
_RUNS_READ: Final = 4

Pair = tuple[Message, Message]
"""The same message as the reference and as the real World have it."""


def run_id_of(moment: datetime, number: int) -> str:
    """A run id of this moment, the same in every execution of a test."""
    return f"wrun_{ULID.from_bytes(to_ms(moment).to_bytes(6, 'big') + number.to_bytes(10, 'big'))}"


def send(enqueue: Enqueue, world: AnyWorld) -> Awaitable[str | None]:
    """Send what an event could bring along."""
    return world.queue.send(
        enqueue.queue_name,
        enqueue.payload,
        delay=enqueue.delay,
        idempotency_key=enqueue.idempotency_key,
        headers=enqueue.headers,
        deployment_id=enqueue.deployment_id,
    )


def create(run_id: str, wire: e.Wire, params: Params, world: AnyWorld) -> Awaitable[EventResult]:
    return world.events.create(run_id, wire, **params)


class Life:
    """Calls of both Worlds; each fails where their answers differ."""

    def __init__(self, backend: Backend, **options: Any) -> None:
        self.twins = Twins(backend, **{**OPTIONS, **options})
        self.run_ids: dict[int, str] = {}
        self.leased: list[Pair] = []
        """Messages that are leased, as far as one can know."""
        self.lost: list[Pair] = []
        """Those whose lease has ended."""
        self.known: dict[int, set[str]] = {}
        """Of each run that was to be created, the correlation ids that it has seen."""
        self.acts = 0
        """What has happened so far; the few names in use depend on it."""

    def run_id(self, number: int) -> str:
        """The id of a run, of the time at which it was first thought of."""
        return self.run_ids.setdefault(number, run_id_of(self.twins.clock.now, number))

    def has_run(self, number: int) -> bool:
        read = self.twins.reference.runs.get_many([self.run_ids.get(number, "")])
        return self.twins.run(read) != [None]

    def scene(self, chance: Random, number: int) -> Scene:
        """What may happen in a run."""
        place, known = self.acts // _ACTS_OF_A_SCENE, frozenset(self.known.get(number, ()))
        return Scene(self.twins.clock.now, place, known, chance)

    def names(self, kind: str) -> list[str]:
        return self.scene(Random(0), 0).names(kind)

    # -- events ----------------------------------------------------------------------------

    def create(
        self,
        number: int,
        events: list[tuple[e.Wire, Params]],
        pause: float = 0,
        message: Enqueue | None = None,
    ) -> None:
        """Create events one after another, each of which brings the message along."""
        run_id = self.run_id(number)
        known = self.known.setdefault(number, set())
        for wire, params in events:
            known.add(wire.get("correlationId", ""))
            self.twins.both(
                partial(
                    create, run_id, wire, {**params, "enqueue": message} if message else params
                ),
                f"{wire.get('eventType')} of run {number}",
            )
            self.pass_time(pause)

    def create_batch(
        self, number: int, events: list[Any], message: Enqueue | None, mode: ResolveData
    ) -> None:
        run_id = self.run_id(number)
        known = self.known.setdefault(number, set())
        known |= {item.get("event", item).get("correlationId", "") for item in events}
        self.twins.both(
            lambda world: world.events.create_batch(
                run_id, events, enqueue=message, resolve_data=mode
            ),
            f"batch of run {number}",
        )

    def create_in_no_run(self, run_id: str | None, wire: e.Wire) -> None:
        self.twins.both(lambda world: world.events.create(run_id, wire), f"event of {run_id!r}")

    def create_stranger(self, age: float, wire: e.Wire) -> None:
        """Create a run that is not heard of again, whose id is this many seconds old."""
        run_id = run_id_of(self.twins.clock.now - timedelta(seconds=age), 1000 + self.acts)
        self.twins.both(lambda world: world.events.create(run_id, wire), f"a run {age} s old")

    # -- queue -----------------------------------------------------------------------------

    def send(self, messages: list[Enqueue]) -> None:
        for message in messages:
            self.twins.both(partial(send, message), f"send of {message.payload}")

    def claim(
        self, topic: str, limit: int, lease: float = 60, worker: str | None = None
    ) -> list[Pair]:
        expected, actual = self.twins.both(
            lambda world: world.queue.claim_batch(topic, limit=limit, lease=lease, worker=worker),
            f"claim of {limit} of {topic}",
        )
        pairs = list(zip(expected.messages, actual.messages, strict=True))
        self.leased += pairs
        return pairs

    def end(self, pair: Pair, how: End) -> None:
        one, other = how(self.twins.reference, pair[0]), how(self.twins.redis, pair[1])
        done = self.twins.each(one, other, f"{how} of {pair[0]}")
        if pair in self.leased and (how.kind != "extend" or not done):
            self.leased.remove(pair)
            self.lost.append(pair)

    def end_lease(self, pick: int, how: End) -> None:
        if self.leased:
            self.end(self.leased[-1 - pick % len(self.leased)], how)

    def end_lost_lease(self, pick: int, how: End) -> None:
        if self.lost:
            self.end(self.lost[-1 - pick % len(self.lost)], how)

    def work(self, hows: list[End]) -> None:
        """Lease what is due, as far as one knows what to do with it, and do that."""
        for topic in TOPICS:
            for pair, how in zip(self.claim(topic, len(hows)), hows, strict=False):
                self.end(pair, how)

    def fail_for_good(self, topic: str, limit: int, *, purges: bool) -> None:
        """Fail whatever is due until it is dead; it may be purged by and by."""
        for _ in range(OPTIONS["max_failures"]):
            for pair in self.claim(topic, limit):
                self.end(pair, End("retry"))
        if purges:
            self.sweep()
            self.purge(topic)

    def redrive(self, topic: str, pick: int) -> None:
        """Redrive one of the dead letters, or what is none."""
        expected, actual = self.twins.both(
            lambda world: world.queue.dead_letters(topic), "dead letters"
        )
        if not expected.data:
            self.twins.both(lambda world: world.queue.redrive(NO_MESSAGE), "redrive of nothing")
            return
        place = pick % len(expected.data)
        self.twins.each(
            self.twins.reference.queue.redrive(expected.data[place].message_id),
            self.twins.redis.queue.redrive(actual.data[place].message_id),
            f"redrive of {expected.data[place]}",
        )

    def redrive_all(self, topic: str) -> None:
        self.twins.both(lambda world: world.queue.redrive_all(topic), f"redrive of {topic}")

    def purge(self, topic: str) -> None:
        self.twins.both(lambda world: world.queue.purge_dead_letters(topic), f"purge of {topic}")

    def sweep(self) -> None:
        self.twins.both(lambda world: world.sweep(), "sweep")

    def cancel_many(self, numbers: list[int], reason: str | None) -> None:
        ids = [self.run_id(number) for number in numbers]
        self.twins.both(
            lambda world: world.runs.cancel_many(ids, reason), f"cancellation of {numbers}"
        )

    def prune(self, age: float, status: str, *, dry_run: bool) -> None:
        self.twins.both(
            lambda world: world.prune(age, status=status, dry_run=dry_run),
            f"prune of {status} runs after {age} s",
        )

    def pass_time(self, seconds: float) -> None:
        self.twins.run(self.twins.clock.advance(seconds))

    def idle(self, pauses: list[float], limit: int) -> None:
        """What workers do that find nothing to do: sweep now and then, deliver, and go on."""
        for pause in pauses:
            self.pass_time(pause)
            self.sweep()
            if limit:
                self.work([End("ack")] * limit)

    def rest(
        self,
        number: int,
        on: str | Enqueue,
        then: Callable[[Life, str], None],
        pauses: list[float],
    ) -> None:
        """Let a run wait for nothing but a hook, or for what becomes of a dead letter."""
        if isinstance(on, str):
            self.create(number, [(e.hook_created(on, TOKENS[0]), {})])
        else:
            self.send([on])
            self.fail_for_good(TOPICS[0], 10, purges=False)
        self.idle([15, 60], 10)
        if isinstance(on, str):
            self.create(number, [(e.hook_disposed(on), {})])
        else:
            then(self, TOPICS[0])
        self.idle(pauses, 0)

    # -- streams ---------------------------------------------------------------------------

    def use_stream(self, number: int, name: str, chunks: list[bytes], *, closes: bool) -> None:
        """Write to a stream; without a run it ends by the server's clock, which nobody sets."""
        if not self.has_run(number):
            return
        run_id = self.run_id(number)
        self.twins.both(
            lambda world: world.streams.write_many(run_id, name, chunks), f"write to {name}"
        )
        if closes:
            self.twins.both(lambda world: world.streams.close(run_id, name), f"end of {name}")

    def read_stream(self, number: int, name: str, start: int) -> None:
        call = reads.read_live(self.run_id(number), name, start)
        self.twins.both(call, f"stream {name} from {start}")

    # -- reads -----------------------------------------------------------------------------

    def turn_pages(self, number: int, name: str, topic: str, limit: int, order: SortOrder) -> None:
        run_id = self.run_id(number)
        listings = reads.listings(run_id, name, topic, limit, order)
        calls = {what: reads.walk(pages) for what, pages in listings.items()}
        calls["end of the run"] = lambda world: world.runs.wait_for_terminal(run_id, timeout=0)
        self.twins.all_of(calls)

    def latest(self) -> list[str]:
        return list(self.run_ids.values())[-_RUNS_READ:]

    def read_everything(self, *modes: ResolveData) -> None:
        """Everything but the entities one by one; of runs the latest."""
        calls: dict[str, Call] = {}
        run_ids = [*self.latest(), "wrun_none"]
        for order in reads.ORDERS:
            calls |= reads.reads_of_all(run_ids, order)
        for status, workflow in product(reads.STATUSES, WORKFLOWS):
            calls |= reads.reads_of_status(status, workflow)
        for hook, token in zip(self.names("h"), TOKENS, strict=True):
            calls |= reads.reads_of_hook(hook, token)
        for topic in TOPICS:
            calls |= reads.reads_of_topic(topic)
        for run_id, name in product(run_ids, STREAMS):
            calls |= reads.reads_of_stream(run_id, name)
        for run_id, mode in product(run_ids, modes):
            calls |= reads.reads_of_run(run_id, mode)
        self.twins.all_of(calls)

    def read_entities(self) -> None:
        """Those of the last scene, each by itself, and what the logs say of it."""
        calls: dict[str, Call] = {}
        names = [name for kind in "shw" for name in self.names(kind)]
        for run_id, name in product(self.latest(), names):
            calls |= reads.reads_of_entity(run_id, name, "all")
        self.twins.all_of(calls)

    def close(self) -> None:
        self.twins.close()
