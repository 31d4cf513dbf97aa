"""Random operations on the queue, with crashes and losses, judged after every one of them.

`make chaos` runs the long form: 40 seeds of 5,000 operations on every server.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from typing import Any, Final

import pytest
import redis

from redis_world.messages import Enqueue
from redis_world.queue import Message
from redis_world.testing import ManualClock, check_invariants
from support import events as e
from support.backends import Backend
from support.message_fields import Record
from support.queue_simulation import simulate
from support.queue_tools import NAME, OTHER_RUN, TOPIC, content, send, step, wake
from support.simulation_judge import Judge

IS_LONG: Final = os.environ.get("REDIS_WORLD_CHAOS") == "long"
SEEDS: Final = 12 if IS_LONG else 4

SEEN: Final = {
    "queue/send OK",
    "queue/send DONE",
    "queue/claim OK",
    "queue/ack OK",
    "queue/ack LEASE_LOST",
    "queue/retry OK",
    "queue/retry DEAD",
    "queue/retry LEASE_LOST",
    "queue/release OK",
    "queue/release LEASE_LOST",
    "queue/postpone OK",
    "queue/postpone LEASE_LOST",
    "queue/extend OK",
    "queue/extend LEASE_LOST",
    "queue/redrive OK",
    "queue/purge OK",
    "queue/pay_wake OK",
    "queue/pay_step OK",
    "queue/unpark OK",
    "queue/unpark LEFT",
    "events/run_created OK",
    "events/run_created CONFLICT",
    "events/run_started RUNNING",
    "events/step_created CONFLICT",
    "events/hook_created TOKEN_TAKEN",
    "events/hook_received OK",
    "events/hook_received REPEATED",
    "events/hook_disposed OK",
    "events/wait_completed OK",
    "events/step_completed STEP_TERMINAL",
}
"""What happens to random calls: lives without a dead letter prove nothing about them."""


# Contract: 7.delivery, 7.no run is left behind
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_random_operations_keep_the_queue_in_order(backend: Backend, seed: int) -> None:
    operations = 300
    if IS_LONG:
        operations = 1000 if backend.is_memory else 5000
    print(f"seed {seed}, {operations} operations")  # noqa: T201 - shown when it fails
    await simulate(backend, seed, operations)


if IS_LONG:

    async def test_long_lives_meet_everything(real_backend: Backend) -> None:
        """In one of them what is rare may not happen; in a few it does."""
        missing = SEEN
        for seed in range(100, 110):
            simulation = await simulate(real_backend, seed, 5000)
            missing = missing - simulation.stage.promises.outcomes.keys()
            if not missing:
                break
        assert not missing


async def test_random_operations_without_one_replay_per_run(backend: Backend) -> None:
    """Only what serialized runs promise does not hold then."""
    async with backend.world(library=ManualClock.library(), serialize_runs=False) as world:
        clock = await ManualClock(world).set()
        judge, chance = Judge(world), random.Random(5)
        leased: list[Message] = []
        for i in range(80):
            match chance.choice(["send", "send", "claim", "ack", "time"]):
                case "send":
                    await send(world, chance.choice([wake(), content(i), step()]))
                case "claim":
                    leased += await world.queue.claim(TOPIC, limit=2, lease=20)
                case "ack" if leased:
                    await world.queue.ack(leased.pop(chance.randrange(len(leased))))
                case _:
                    await clock.advance(3)
            assert (await judge.look()).wrong == []
        assert (await world.queue.stats(TOPIC)).held == 0
        assert await world.queue.send(NAME, content("last")) is not None


# -- the judge -----------------------------------------------------------------------------

Damage = Callable[[redis.Redis, str, dict[str, str]], Any]
"""Changes raw keys; has the base of their names, and the ids of `rich_queue`."""


def _book(base: str, ids: dict[str, str]) -> str:
    return f"{base}run:{ids['run']}:queue"


def _member(ids: dict[str, str], name: str) -> str:
    return f"{ids[name]}/{ids['run']}"


def _record(client: Any, base: str, ids: dict[str, str], name: str) -> Record:
    return Record(client, _book(base, ids), ids[name])


def _with_state(name: str, **words: str | int | None) -> Damage:
    return lambda c, b, i: _record(c, b, i, name).set_state(**words)


def _with_head(name: str, **words: str | int) -> Damage:
    return lambda c, b, i: _record(c, b, i, name).set_head(**words)


def _with_texts(name: str, **texts: str) -> Damage:
    return lambda c, b, i: _record(c, b, i, name).set_texts(**texts)


def _with_field(name: str, kind: str, value: str) -> Damage:
    return lambda c, b, i: _record(c, b, i, name).put(kind, value)


def _with_book(field: str, value: str | int) -> Damage:
    return lambda c, b, i: c.hset(_book(b, i), field, value)


def _of_nobody(client: Any, base: str, ids: dict[str, str], kind: str) -> Record:
    """A held replay, as a message of no run."""
    lone = Record(client, f"{base}queue:{TOPIC}:message:{ids['held']}", ids["held"])
    _record(client, base, ids, "held").copy_to(lone.key)
    lone.set_head(kind=kind)
    _record(client, base, ids, "held").delete()
    client.zrem(f"{base}queue:{TOPIC}:held", _member(ids, "held"))
    client.zadd(f"{base}queue:{TOPIC}:held", {f"{ids['held']}/": 1})
    return lone


def _owe(client: Any, base: str, ids: dict[str, str], step: str, since: str) -> None:
    """Change since when a step is owed its message, in its record."""
    run, field = f"{base}run:{ids['run']}", f"step:{step}"
    words = client.hget(run, field).decode().split(" ")
    words[12] = since
    client.hset(run, field, " ".join(words))


DAMAGES: Final[dict[str, Damage]] = {
    "lies in 0 sets": lambda c, b, i: c.zrem(f"{b}queue:{TOPIC}:due", _member(i, "wake")),
    "lies in 2 sets": lambda c, b, i: c.zadd(f"{b}queue:{TOPIC}:leased", {_member(i, "wake"): 1}),
    "and is not stored": lambda c, b, i: c.zadd(f"{b}queue:{TOPIC}:due", {"msg_none/x": 1}),
    "which names no run": lambda c, b, i: c.zadd(f"{b}queue:{TOPIC}:due", {"msg_none": 1}),
    "and is of the run": lambda c, b, i: c.zadd(
        f"{b}queue:{TOPIC}:due", {f"{i['wake']}/{OTHER_RUN}": 1}
    ),
    "and is of the topic": lambda c, b, i: c.zadd(
        f"{b}queue:__x_wkf_workflow_:due", {_member(i, "wake"): 1}
    ),
    "nobody knows the key": lambda c, b, i: c.set(f"{b}queue:{TOPIC}:what", 1),
    "topics lacks": lambda c, b, i: c.delete(f"{b}topics"),
    "has the envelope": _with_field("wake", "message", "wake 0"),
    "has the envelope wake >5000": _with_head("wake", step=">5000"),
    "has the state": _with_field("wake", "state", "0 0 0"),
    "has the state nil": lambda c, b, i: _record(c, b, i, "wake").drop("state"),
    "is of no message": _with_book("body:msg_none", "x"),
    "is stored twice": lambda c, b, i: _record(c, b, i, "wake").copy_to(
        f"{b}run:{i['idle']}:queue"
    ),
    "bytes of texts and has": _with_head("wake", body=4000),
    "bytes of body apart": _with_head("wake", body=">9"),
    "bytes of body in its envelope": _with_texts("wake", body="x" * 4097),
    "has body twice": _with_field("wake", "body", "x"),
    "bytes of headers and has none": _with_head("wake", headers=">5000"),
    "bytes of headers and tells of": lambda c, b, i: (
        _with_head("wake", headers=">5000")(c, b, i),
        _with_field("wake", "headers", "x")(c, b, i),
    ),
    "and the step s9": _with_texts("held", step="s9"),
    "is a what of the run": _with_head("held", kind="what"),
    "has the queue name": _with_texts("wake", queue=TOPIC),
    "is of the topic": lambda c, b, i: _of_nobody(c, b, i, "other").set_head(topic="t"),
    "has no envelope": lambda c, b, i: _of_nobody(c, b, i, "other").drop("message"),
    "has the field n": lambda c, b, i: c.hset(_of_nobody(c, b, i, "other").key, "n", 1),
    "is due and has the receipt": _with_state("wake", receipt="r"),
    "is leased and has the receipt": _with_state("leased", receipt="-"),
    "is due and has the reason": _with_state("wake", reason="max_failures", died_at=1),
    "is dead and has the reason": _with_state("dead", reason=None, died_at=None),
    "is dead and has the reason old_age": _with_state("dead", reason="old_age"),
    "has more ends than deliveries": _with_state("wake", failures=1),
    "is due at": lambda c, b, i: c.zincrby(f"{b}queue:{TOPIC}:due", 1, _member(i, "wake")),
    "is dead at": lambda c, b, i: c.zincrby(f"{b}queue:{TOPIC}:dead", 1, _member(i, "dead")),
    "have nothing of it": lambda c, b, i: c.delete(f"{b}queue:{TOPIC}:letters"),
    "is among the letters": lambda c, b, i: c.hset(f"{b}queue:{TOPIC}:letters", "msg_none", "x"),
    "its key is free": lambda c, b, i: c.hdel(_book(b, i), f"key:{TOPIC}/k/1"),
    "and is free": lambda c, b, i: c.hset(_book(b, i), f"key:{TOPIC}/k2", i["wake"]),
    "under one key": _with_texts("wake", key="k/1"),
    "is offered in": lambda c, b, i: c.zadd(
        f"{b}queue:{TOPIC}:declined", {_member(i, "leased"): 1}
    ),
    "is offered since": lambda c, b, i: c.zadd(
        f"{b}queue:{TOPIC}:declined", {_member(i, "wake"): 1}
    ),
    "and was postponed 0": _with_field("wake", "declined", "1 w\ns"),
    "is declined by nobody": lambda c, b, i: (
        _with_state("wake", postponed=1)(c, b, i),
        _with_field("wake", "declined", "1 w  v\ns")(c, b, i),
    ),
    "is held and is no replay": lambda c, b, i: _of_nobody(c, b, i, "replay"),
    "has n 9": _with_book("n", 9),
    "has dead 9": _with_book("dead", 9),
    "has held 9": _with_book("held", 9),
    "has the field what 1": _with_book("what", 1),
    "has the field rewakes x": _with_book("rewakes", "x"),
    "has the topic t and": _with_book("topic", "t"),
    "that nothing was ever sent to": _with_book("queue", TOPIC),
    "is bare and keeps its user data": _with_book("bare", 1),
    "keeps body that nobody may see": lambda c, b, i: (
        _with_book("bare", 1)(c, b, i),
        _with_texts("wake", body="x")(c, b, i),
    ),
    "keeps an error that nobody may see": lambda c, b, i: (
        _with_book("bare", 1)(c, b, i),
        _with_field("dead", "error", "x")(c, b, i),
    ),
    "is not bare": lambda c, b, i: c.zadd(f"{b}cleaning", {f"run/{i['run']}": 1}),
    "what is of no run is to be mended": lambda c, b, i: c.zadd(f"{b}lost", {"": 1}),
    "has leased absent": lambda c, b, i: c.hdel(f"{b}run:{i['run']}:queue", "leased"),
    "does not hold": lambda c, b, i: c.delete(f"{b}run:{i['run']}:held"),
    "which is not held": lambda c, b, i: c.zadd(f"{b}run:{i['run']}:held", {"x/msg_none": 1}),
    "which is no wake of it": lambda c, b, i: c.hset(
        f"{b}run:{i['run']}:queue", "wake", i["held"]
    ),
    "which was delivered": _with_state("wake", attempt=1),
    "which was delayed": lambda c, b, i: (
        _with_state("wake", due_at=5)(c, b, i),
        c.zadd(f"{b}queue:{TOPIC}:due", {_member(i, "wake"): 5}),
    ),
    "has a wake and is owed one": lambda c, b, i: c.hset(f"{b}run:{i['run']}", "owed", "1 1"),
    "for step s1 and in truth": lambda c, b, i: c.hset(
        f"{b}run:{i['run']}:queue", "step:s1", "msg_none"
    ),
    "does not know the message": lambda c, b, i: c.hdel(f"{b}run:{i['run']}:queue", "step:s1"),
    "two messages of step s1": lambda c, b, i: (
        _with_texts("wake", step="s1")(c, b, i),
        _with_head("wake", kind="step")(c, b, i),
    ),
    "and nobody will run it": lambda c, b, i: _owe(c, b, i, "s2", "-"),
    "has a message and is owed one": lambda c, b, i: _owe(c, b, i, "s1", "0"),
    "steps their message, and in truth": lambda c, b, i: _owe(c, b, i, "s1", "0"),
    "is not in owed": lambda c, b, i: c.zrem(f"{b}owed", i["run"]),
    "is in owed, and owes": lambda c, b, i: c.hset(f"{b}run:{i['run']}", "owed", ""),
    "but bookkeeping": lambda c, b, i: c.hset(f"{b}run:{OTHER_RUN}:queue", "n", 0),
    "messages, and is parked": lambda c, b, i: c.zadd(f"{b}parked", {i["run"]: 1}),
    "messages, and is not parked": lambda c, b, i: c.zrem(f"{b}parked", i["idle"]),
    "is parked and is no live run": lambda c, b, i: c.zadd(f"{b}parked", {OTHER_RUN: 1}),
    "and there is no such run": lambda c, b, i: c.zadd(f"{b}owed", {OTHER_RUN: 1}),
    "nothing will bring it one": lambda c, b, i: c.hset(f"{b}run:{i['idle']}", "owed", ""),
    "nothing will free them": lambda c, b, i: (
        c.zrem(f"{b}queue:{TOPIC}:leased", _member(i, "leased")),
        c.delete(f"{b}queue:{TOPIC}:due"),
    ),
}
"""What the judge says, and what it says it of."""


@pytest.mark.parametrize("says", DAMAGES)
@pytest.mark.parametrize("backend", ["memory", "redis7"], indirect=True)
async def test_the_judge_sees_it(backend: Backend, says: str) -> None:
    async with backend.world(library=ManualClock.library(), max_failures=2) as world:
        await ManualClock(world).set()
        judge = Judge(world)
        ids = {"run": await e.new_run(world), "idle": await e.new_run(world)}
        ids["dead"] = await send(world, wake(ids["run"]))
        for _ in range(2):
            (letter,) = await world.queue.claim(TOPIC)
            await world.queue.retry(letter, delay=0)
        ids["leased"] = await send(world, wake(ids["run"]))
        await world.queue.claim(TOPIC)
        ids["held"] = await send(world, content(1, ids["run"]))
        await world.queue.claim(TOPIC)
        await send(world, content(2, ids["run"]), idempotency_key="k/1")
        along = Enqueue(NAME, step("s1", ids["run"]))
        await world.events.create(ids["run"], e.step_created("s1"), enqueue=along)
        await world.events.create(ids["run"], e.step_created("s2"))
        ids["wake"] = await send(world, wake(ids["run"]))

        verdict = await judge.look([ids["run"], ids["idle"]])
        assert verdict.wrong == []
        assert [*verdict.leased] == [ids["leased"]]
        assert verdict.dead == {ids["dead"]: (ids["run"], "wake")}
        await check_invariants(world)
        with contextlib.closing(backend.client()) as client:
            DAMAGES[says](client, world.connection.keys.base, ids)
        wrong = (await judge.look([ids["run"], ids["idle"]])).wrong
        assert any(says in sentence for sentence in wrong), wrong
