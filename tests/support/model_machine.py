"""Random calls on a RedisWorld and a ReferenceWorld, which must answer alike."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from hypothesis.strategies import SearchStrategy

from support import events as e
from support import model_events as events
from support import model_messages as messages
from support import model_reads as reads
from support.backends import Backend
from support.model_life import STREAMS, Life

_READ_EVERY: Final = 20
"""Acts after which everything is read."""

_SECONDS: Final = (1, 5, 15, 15, 20, 60, 600, 3600, 90_000)
"""Among them the sweep interval, an hour, and more than a run id's age may be."""

_ACTS_OF_RUNS: Final = 40
"""How long the same runs are in use."""

Act = tuple[Callable[..., Any], dict[str, Any]]
"""A method of a life, and its arguments."""


def act(chance: Random, life: Life) -> Act:
    """Something that may happen; what is worth more comes more often."""
    acts = [write, batch, send, work, end, idle, rest, look, use_stream, err, prune]
    return chance.choices(acts, [12, 3, 4, 4, 3, 3, 2, 2, 3, 1, 1])[0](chance, life)


def run(chance: Random, life: Life) -> int:
    """Which run: the first one is busy, and in time there are others."""
    return 4 * (life.acts // _ACTS_OF_RUNS) + chance.choices(range(4), [8, 4, 2, 1])[0]


def write(chance: Random, life: Life) -> Act:
    """Events of one run, each with parameters of its own; seldom its end."""
    number = run(chance, life)
    if not life.has_run(number) and chance.random() < 0.9:
        # Of the runs that went before, one ends when another one begins.
        if number >= 4 and chance.random() < 0.5:
            return Life.create, {"number": number - 4, "events": [(events.end_of_run(chance), {})]}
        # An id that is a day old is good for a resilient start only.
        is_new = number not in life.run_ids
        found = [events.creation(chance, resilient=not is_new), e.event("run_started")]
    else:
        found = []
        for _ in range(chance.randint(1, 3)):
            scene = life.scene(chance, number)
            make = chance.choices(events.FAMILIES, [6, 5, 2, 3, 1])[0]
            found += make(chance, scene)
    scene = life.scene(chance, number)
    message = None
    if chance.random() < 0.25:
        message = messages.message(chance, scene, life.run_id(number))
    return Life.create, {
        "number": number,
        "events": [(wire, events.params(chance, scene, wire)) for wire in found],
        "pause": chance.choice([0, 0.001]),
        "message": message,
    }


def batch(chance: Random, life: Life) -> Act:
    number = run(chance, life)
    scene = life.scene(chance, number)
    message = None
    if chance.random() < 0.3:
        message = messages.message(chance, scene, life.run_id(number))
    return Life.create_batch, {
        "number": number,
        "events": events.batch(chance, scene),
        "message": message,
        "mode": chance.choice(reads.MODES),
    }


def send(chance: Random, life: Life) -> Act:
    number = run(chance, life)
    run_id, scene = life.run_id(number), life.scene(chance, number)
    found = [messages.message(chance, scene, run_id) for _ in range(chance.randint(1, 4))]
    return Life.send, {"messages": found}


def work(chance: Random, life: Life) -> Act:
    topic = messages.topic(chance)
    match chance.choice(["claim", "work", "work", "fail"]):
        case "claim":
            lease = messages.lease(chance)
            worker = chance.choice([None, "w1", "w2"])
            limit = chance.randint(1, 4)
            return Life.claim, {"topic": topic, "limit": limit, "lease": lease, "worker": worker}
        case "work":
            hows = [messages.end(chance) for _ in range(chance.randint(1, 4))]
            return Life.work, {"hows": hows}
        case _:
            limit, purges = chance.randint(1, 3), chance.random() < 0.5
            return Life.fail_for_good, {"topic": topic, "limit": limit, "purges": purges}


def end(chance: Random, life: Life) -> Act:
    topic, pick = messages.topic(chance), chance.randrange(10)
    match chance.choice(["lease", "lease", "lost", "redrive", "all", "purge"]):
        case "lease":
            return Life.end_lease, {"pick": pick, "how": messages.end(chance)}
        case "lost":
            return Life.end_lost_lease, {"pick": pick, "how": messages.end(chance)}
        case "redrive":
            return Life.redrive, {"topic": topic, "pick": pick}
        case "all":
            return Life.redrive_all, {"topic": topic}
        case _:
            return Life.purge, {"topic": topic}


def idle(chance: Random, life: Life) -> Act:
    pauses = [chance.choice(_SECONDS) for _ in range(chance.randint(1, 4))]
    return Life.idle, {"pauses": pauses, "limit": chance.choice([0, 1, 10, 10])}


def rest(chance: Random, life: Life) -> Act:
    """A run that rests on a hook, or on a dead letter, until that is gone."""
    number = run(chance, life)
    scene = life.scene(chance, number)
    letter = messages.message(chance, scene, life.run_id(number))
    return Life.rest, {
        "number": number,
        "on": chance.choice([chance.choice(scene.names("h")), letter]),
        "then": chance.choice([Life.purge, Life.redrive_all]),
        "pauses": [chance.choice(_SECONDS) for _ in range(2)],
    }


def look(chance: Random, life: Life) -> Act:
    return Life.turn_pages, {
        "number": run(chance, life),
        "name": chance.choice(STREAMS),
        "topic": messages.topic(chance),
        "limit": chance.randint(1, 3),
        "order": chance.choice(reads.ORDERS),
    }


def use_stream(chance: Random, life: Life) -> Act:
    number, name = run(chance, life), chance.choice(STREAMS)
    if chance.random() < 0.4:
        return Life.read_stream, {"number": number, "name": name, "start": chance.randint(-3, 3)}
    chunks = [chance.choice([b"", b"a", b"\x00b"]) for _ in range(chance.randint(0, 3))]
    closes = chance.random() < 0.4
    return Life.use_stream, {"number": number, "name": name, "chunks": chunks, "closes": closes}


def prune(chance: Random, life: Life) -> Act:
    return Life.prune, {
        "age": chance.choice([0, 0.001, 60, 3600]),
        "status": chance.choice(["completed", "failed", "cancelled"]),
        "dry_run": chance.random() < 0.3,
    }


def err(chance: Random, life: Life) -> Act:
    match chance.choice(["invalid", "invalid", "no run", "stranger", "cancel"]):
        case "invalid":
            wire, params = chance.choice(events.INVALID)
            return Life.create, {"number": run(chance, life), "events": [(wire, params)]}
        case "cancel":
            first = run(chance, life)
            numbers = [number for number in (first, first - 2, first - 4) if number >= 0]
            return Life.cancel_many, {"numbers": numbers, "reason": chance.choice(["why", None])}
        case "no run":
            run_id = chance.choice([None, "", "wrun_1", "wrun_8" + "0" * 25])
            return Life.create_in_no_run, {"run_id": run_id, "wire": events.end_of_run(chance)}
        case _:
            age = chance.choice([-300.001, -300, 0, 86_400, 86_400.001])
            return Life.create_stranger, {"age": age, "wire": events.creation(chance)}


def _unused(machine: ModelMachine) -> SearchStrategy[int]:
    """A seed that this life has not seen: Hypothesis likes to draw what it drew before."""
    return st.integers(0, 2**32).filter(lambda seed: seed not in machine.seeds)


class ModelMachine(RuleBasedStateMachine):
    """Has one rule, whose details follow from a seed.

    Of many rules Hypothesis would leave some out of each life, and it repeats most details: with
    few lives, too little happened in them. What is left to it is to leave out the steps that a
    failure does not need.
    """

    backend: Backend
    """Of the test: a subclass sets it, since Hypothesis makes the machines. Lives differ by it."""
    options: dict[str, Any]
    """Of both Worlds."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Life(self.backend, **self.options)
        self.seeds: set[int] = set()

    @rule(seed=st.runner().flatmap(_unused))
    def go_on(self, seed: int) -> None:
        self.seeds.add(seed)
        self.life.acts += 1
        chance = Random(f"{self.backend.kind} {seed}")
        self.life.pass_time(chance.choice([0, 0, 0.001, 1]))
        method, arguments = act(chance, self.life)
        shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        note(f"# {method.__name__}({shown})")
        method(self.life, **arguments)
        if self.life.acts % _READ_EVERY == 0:
            self.life.read_everything(reads.MODES[self.life.acts // _READ_EVERY % 2])

    def teardown(self) -> None:
        try:
            self.life.read_everything(*reads.MODES)
            self.life.read_entities()
        finally:
            self.life.close()
            self.backend.clear()
