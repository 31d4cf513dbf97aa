"""Whatever two events meet on one entity: what four processes get is what some order would give.

For every pair of events, in every state that they can meet in, two processes each create one of
them at the same moment. The tables of the contract (`support/transitions.py`) say what becomes of
an event in a state, so there has to be an order of the four calls that explains every answer, and
the log; and where the contract has one winner, there is exactly one.

`make chaos` runs the long form: 300 rounds of each pair, on every server.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations
from typing import Final

import pytest

from redis_world import RedisWorld
from redis_world.testing import check_invariants
from support import events as e
from support.backends import Backend
from support.simulation_crew import Answer, Call, Crew
from support.transitions import DUPLICATE, HOOK, RUN, RUN_TERMINAL, STEP, WAIT, Outcome, Table

IS_LONG: Final = os.environ.get("REDIS_WORLD_CHAOS") == "long"
KINDS: Final = ["redis7", "redis8", "valkey9"] if IS_LONG else ["redis7"]
PROCESSES: Final = 4
ROUNDS: Final = 300 if IS_LONG else 12
"""Of each pair, over all states that it begins in."""
ENDED: Final = "; run ended"

EVENTS: Final[dict[str, e.Wire]] = {
    "run_created": e.run_created(),
    "run_started": e.event("run_started"),
    "run_started, resilient": e.resilient_start(),
    "run_completed": e.run_ended("completed"),
    "run_failed": e.run_ended("failed"),
    "run_cancelled": e.run_ended("cancelled"),
    "attr_set": e.attr_set({"color": "blue"}, "attr_1"),
    "attr_set of a step": e.attr_set({"color": "red"}, step="step_1"),
    "step_created": e.step_created(),
    "step_started, lazy": e.lazy_start(),
    "step_started": e.step_started(),
    "step_completed": e.step_completed(),
    "step_failed": e.step_failed(),
    "step_retrying": e.step_retrying(),
    "hook_created": e.hook_created(),
    "hook_received": e.hook_received(),
    "hook_received, resumed": e.hook_received(),
    "hook_disposed": e.hook_disposed(),
    "wait_created": e.wait_created(),
    "wait_completed": e.wait_completed(),
}


@dataclass(frozen=True)
class Entity:
    """What the events are about, and what they find it in."""

    table: Table
    events: tuple[str, ...]
    begins: dict[str, tuple[e.Wire, ...]]
    """State -> events that lead to it, on a run that is running."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [*combinations_with_replacement(self.events, 2)]


ENTITIES: Final = {
    "run": Entity(
        RUN,
        (*[name for name in EVENTS if name.startswith(("run_", "attr_"))],),
        {"missing": (), "pending": (), "running": ()},
    ),
    "step": Entity(
        STEP,
        (*[name for name in EVENTS if name.startswith("step_")], "run_completed"),
        {"missing": (), "pending": (e.step_created(),), "running": (e.lazy_start(),)},
    ),
    "hook": Entity(
        HOOK,
        (*[name for name in EVENTS if name.startswith("hook_")], "run_completed"),
        {"missing": (), "missing; token taken": (), "live": (e.hook_created(),)},
    ),
    "wait": Entity(
        WAIT,
        (*[name for name in EVENTS if name.startswith("wait_")], "run_completed"),
        {"missing": (), "waiting": (e.wait_created(),)},
    ),
}

ONE_WINNER: Final = (
    ("run", {"missing"}, {"run_created"}),
    ("run", {"pending", "running"}, {"run_completed", "run_failed"}),
    ("run", {"pending", "running"}, {"attr_set"}),
    ("step", {"missing"}, {"step_created", "step_started, lazy"}),
    ("step", {"pending", "running"}, {"step_completed", "step_failed"}),
    ("step", {"missing", "pending", "running"}, {"run_completed"}),
    ("hook", {"missing", "missing; token taken"}, {"hook_created"}),
    ("hook", {"live"}, {"hook_disposed"}),
    ("hook", {"missing", "missing; token taken", "live"}, {"run_completed"}),
    ("wait", {"missing"}, {"wait_created"}),
    ("wait", {"waiting"}, {"wait_completed"}),
    ("wait", {"missing", "waiting"}, {"run_completed"}),
)  # fmt: skip
"""Of rivals that are all among these events, exactly one is accepted (contract, section 5)."""

PAIRS: Final = [
    pytest.param(name, pair, id=f"{name}: {pair[0]} and {pair[1]}")
    for name, entity in ENTITIES.items()
    for pair in entity.pairs
]


# -- what an order gives -------------------------------------------------------------------


class Course:
    """The state of an entity while events come one after another, as the tables say."""

    def __init__(self, name: str, state: str, before: Sequence[str]) -> None:
        self._name = name
        self._table = ENTITIES[name].table
        self._state = state
        self._seen: dict[str, int] = {}
        """What counts once -> the slot of its event."""
        self._before = before
        self.types: list[str] = []

    def follow(self, event: str) -> Answer:
        """What the event is answered."""
        if event in self._seen and event == "hook_received, resumed":
            return Answer(slot=self._seen[event], event_type="hook_received")
        outcome = self._outcome(event)
        if outcome.error is None and event in self._seen and event == "attr_set":
            outcome = DUPLICATE
        if outcome.error is not None:
            return Answer(error=outcome.error.__name__, reason=outcome.reason or "")
        kind = event.partition(",")[0].removesuffix(" of a step")
        if kind == "hook_created" and outcome.state == "conflicted":
            kind = "hook_conflict"
        created = {"run_started": "run_created", "step_started": "step_created"}
        self.types += [created[kind]] if outcome.events == 2 else []
        self.types += [kind] if outcome.events else []
        self._state = self._behind(outcome.state or self._state)
        log = [*self._before, *self.types]
        # A start of a running run answers the event that has started it.
        slot = len(log) if outcome.events else log.index("run_started") + 1
        self._seen[event] = slot
        return Answer(slot=slot, event_type=kind)

    def _outcome(self, event: str) -> Outcome:
        if self._name != "run" and event == "run_completed":
            is_over = self._state.endswith(ENDED)
            return RUN_TERMINAL if is_over else Outcome(state=f"{self._state}{ENDED}")
        row = event.removesuffix(" of a step").removesuffix(", resumed")
        return self._table.rows[row][self._table.states.index(self._state)]

    def _behind(self, state: str) -> str:
        """The state by its name in the table."""
        if self._state.endswith(ENDED) and not state.endswith(ENDED):
            state += ENDED
        if state.endswith(ENDED):
            state = state.replace("; token taken", "").replace("; token free", "")
            # Of a hook that is gone the end of its run leaves nothing.
            state = state.replace("disposed", "missing")
        return state


# -- races ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crews() -> Iterator[dict[str, Crew]]:
    """Processes by the URL of their server."""
    crews: dict[str, Crew] = {}
    yield crews
    for crew in crews.values():
        crew.close()


@pytest.fixture
def crew(backend: Backend, crews: dict[str, Crew]) -> Crew:
    if backend.url not in crews:
        crews[backend.url] = Crew(backend.url, PROCESSES)
    return crews[backend.url]


async def begin(world: RedisWorld, name: str, state: str, number: int) -> str:
    """A run whose entity is in this state."""
    if name == "run":
        return e.new_run_id() if state == "missing" else await e.new_run(world, state)
    if state == "missing; token taken":
        await world.events.create(await e.new_run(world), of_round(e.hook_created(), number))
    run_id = await e.new_run(world)
    for wire in ENTITIES[name].begins[state]:
        await world.events.create(run_id, of_round(wire, number))
    return run_id


def of_round(wire: e.Wire, number: int) -> e.Wire:
    """The event with a token of its round: tokens are of all runs together."""
    if wire["eventType"] != "hook_created":
        return wire
    return e.hook_created(token=f"token_{number}")


def calls_of_round(run_id: str, events: Sequence[str], number: int) -> list[Call]:
    return [
        Call(
            run_id,
            of_round(EVENTS[event], number),
            {"resume_id": "r"} if event.endswith("resumed") else {},
        )
        for event in events
    ]


async def logs(world: RedisWorld, run_ids: Sequence[str]) -> list[list[str]]:
    return await asyncio.gather(*(e.log_types(world, run_id) for run_id in run_ids))


# Contract: 1.rivals
@pytest.mark.parametrize("backend", KINDS, indirect=True)
@pytest.mark.parametrize(("name", "pair"), PAIRS)
async def test_some_order_explains_what_rivals_get(
    backend: Backend, crew: Crew, name: str, pair: tuple[str, str]
) -> None:
    chance = random.Random(1)
    states = [*ENTITIES[name].begins]
    begun = [states[i % len(states)] for i in range(ROUNDS)]
    rivals = [chance.sample([*pair, *pair], PROCESSES) for _ in begun]
    winners: Counter[str] = Counter()
    async with backend.world() as world:
        run_ids = await asyncio.gather(
            *(begin(world, name, state, i) for i, state in enumerate(begun))
        )
        before = await logs(world, run_ids)
        rounds = [
            calls_of_round(run_id, events, i)
            for i, (run_id, events) in enumerate(zip(run_ids, rivals, strict=True))
        ]
        raced = crew.race(world.config.namespace, rounds)
        after = await logs(world, run_ids)
        for state, events, answers, old, new in zip(
            begun, rivals, raced, before, after, strict=True
        ):
            told = f"{state}: {[*zip(events, answers, strict=True)]} {old} {new}"
            assert is_explained(name, state, events, answers, old, new), told
            if has_one_winner(name, state, pair):
                won = [
                    each for each, answer in zip(events, answers, strict=True) if not answer.error
                ]
                assert len(won) == 1, told
                winners.update(won)
        await check_invariants(world)
    if IS_LONG and winners:
        assert winners.keys() == {*pair}, "one of them never came first"


def is_explained(
    name: str,
    state: str,
    events: Sequence[str],
    answers: Sequence[Answer],
    before: list[str],
    after: list[str],
) -> bool:
    """Whether an order of the calls gives these answers and this log."""
    for order in permutations(range(len(events))):
        course = Course(name, state, before)
        fits = all(course.follow(events[i]) == answers[i] for i in order)
        if fits and before + course.types == after:
            return True
    return False


def has_one_winner(name: str, state: str, pair: Sequence[str]) -> bool:
    return any(
        name == each and state in states and {*pair} <= events
        for each, states, events in ONE_WINNER
    )


# Contract: 5.hook_conflict, 1.rivals
@pytest.mark.parametrize("backend", KINDS, indirect=True)
async def test_a_token_has_one_owner(backend: Backend, crew: Crew) -> None:
    """Four runs want one token: one gets it, and the others learn who has."""
    async with backend.world() as world:
        run_ids = await asyncio.gather(*(e.new_run(world) for _ in range(PROCESSES * ROUNDS)))
        rounds = [
            [Call(run_id, of_round(e.hook_created(), i)) for run_id in run_ids[i::ROUNDS]]
            for i in range(ROUNDS)
        ]
        raced = crew.race(world.config.namespace, rounds)
        for i, (calls, answers) in enumerate(zip(rounds, raced, strict=True)):
            kinds = Counter(answer.event_type for answer in answers)
            assert kinds == {"hook_created": 1, "hook_conflict": PROCESSES - 1}
            owner = (await world.hooks.get_by_token(f"token_{i}")).run_id
            for call, answer in zip(calls, answers, strict=True):
                assert (call.run_id == owner) == (answer.event_type == "hook_created")
                if call.run_id != owner:
                    last = (await e.log(world, call.run_id))[-1]
                    assert e.data_of(last)["conflictingRunId"] == owner
        await check_invariants(world)


# -- the model -----------------------------------------------------------------------------


def test_an_order_that_does_not_fit_explains_nothing() -> None:
    """The races above can fail."""
    both = ["step_completed", "step_failed"]
    won = [Answer(slot=5, event_type="step_completed"), Answer(slot=6, event_type="step_failed")]
    lost = Answer(error="EntityConflictError", reason="step_terminal")
    before = ["run_created", "run_started", "step_created", "step_started"]
    assert is_explained("step", "running", both, [won[0], lost], before, [*before, both[0]])
    assert not is_explained("step", "running", both, won, before, [*before, *both])
    assert not is_explained("step", "running", both, [won[0], lost], before, before)
    assert not is_explained("step", "running", both, [lost, lost], before, before)
    late = Answer(slot=6, event_type="step_completed")
    assert not is_explained("step", "running", both, [late, lost], before, [*before, both[0]])
    duplicate = Answer(error="EntityConflictError", reason="duplicate")
    assert not is_explained(
        "step", "running", both, [won[0], duplicate], before, [*before, both[0]]
    )
