"""Random calls around hook tokens by many clients that stall, overtake each other, and stop.

Several Worlds of one namespace take turns at every single script call (`token_scheduler`), and
behind every one of them an oracle looks at the raw keys (`token_oracle`). At the end there are
healthy clients only: then nothing may remain, and every token has to be free or owned.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any, Final

from ulid import ULID

import redis_world.tokens
from redis_world import RedisWorld
from redis_world.codec import to_ms
from redis_world.errors import HookNotFoundError
from redis_world.lua import ScriptLibrary
from redis_world.testing import check_invariants
from support import events as e
from support.backends import Backend
from support.token_oracle import Change, LiveHook, Oracle
from support.token_promises import Promises, change_of, place_of, spell
from support.token_scheduler import Client, Turn
from support.token_stage import Stage, staged

__all__ = ["TOKENS", "TokenSimulation", "simulate"]

TOKENS: Final = ("token_a", "token_b", "token_c")
HOOK_IDS: Final = ("h1", "h2", "h3", "h4")
LEAPS: Final = (0.05, 0.5, 1, 3.5, 8)
"""Seconds; those behind the grace of a reservation are among them."""
RETENTIONS: Final = (3, 20, 60)
PACES: Final = (0.03, 0.3, 1, 1, 1, 1)
PACES_OF_CREATION: Final = (0.02, 0.02, 0.1, 1)
"""A client that has reserved a token stalls more often than others: there rivals meet."""
CROWD: Final = 8
CRASHES: Final = 0.03
"""How many of all turns stop their client."""
PATIENCE: Final = 600
"""A client with more turns is said to go on for ever."""
_SHOWN: Final = 60


async def simulate(
    backend: Backend,
    seed: int,
    steps: int,
    *,
    partitions: int,
    library: ScriptLibrary | None = None,
    tokens: ModuleType = redis_world.tokens,
    favoured: Collection[str] = (),
    patience: int = PATIENCE,
) -> TokenSimulation:
    """A simulation in a namespace of its own, to its end.

    Args:
        backend: where it is.
        seed: of all chance; with odd ones the clocks of the partitions differ.
        steps: turns, leaps of the clock, and begins of calls.
        partitions: of the namespace.
        library: other scripts, on a manual clock.
        tokens: another protocol.
        favoured: calls that are made more often.
        patience: how many turns a client may have.

    Raises:
        AssertionError: something is wrong; it tells how it came to that.
    """
    state = random.getstate()
    # The World's own chance: the order in which partitions are swept.
    random.seed(seed)
    try:
        async with staged(
            backend, partitions=partitions, skew=seed % 2 * 20, library=library, tokens=tokens
        ) as stage:
            simulation = TokenSimulation(stage, seed, favoured, patience)
            await simulation.run(steps)
    finally:
        random.setstate(state)
    return simulation


class TokenSimulation:
    """Random calls on the Worlds of a stage, and whether what was promised was kept.

    Attributes:
        promises: those of the calls.
    """

    def __init__(
        self,
        stage: Stage,
        seed: int,
        favoured: Collection[str] = (),
        patience: int = PATIENCE,
    ) -> None:
        self.stage, self.scheduler, self.clock = stage, stage.scheduler, stage.clock
        self.random = random.Random(seed)
        self.step = 0
        self.partitions = stage.worlds[0].connection.partitions
        self.oracle = Oracle(stage.client, self.partitions, TOKENS, HOOK_IDS, self.clock.of)
        self.promises = Promises(self.oracle)
        self._story: deque[str] = deque(maxlen=_SHOWN)
        self._crashes = CRASHES
        self._patience = patience
        self._attempts: deque[tuple[LiveHook, str]] = deque(maxlen=8)
        self._coming = self._announce()
        self.scheduler.pace = self._pace
        self._calls: dict[str, Callable[[], Any]] = {
            "create_run": self._create_run,
            "hook": self._create_hooks,
            "again": self._create_hook_again,
            "early": self._create_hook_early,
            "dispose": self._dispose,
            "end": self._end_run,
            "sweep": self._sweep,
            "prune": self._prune,
            "ask": self._ask,
        }
        weights = {"hook": 8, "again": 5, "early": 1.5, "dispose": 6, "end": 4, "prune": 1}
        self._weights = [
            weights.get(name, 2.5) * (4 if name in favoured else 1) for name in self._calls
        ]

    # -- life ------------------------------------------------------------------------------

    async def run(self, steps: int) -> None:
        """Do so many steps, then let everybody finish, and see what is left."""
        for _ in range(steps):
            self.step += 1
            await self._do_something()
        self._crashes = 0
        await self._drain()
        # One token can be claimed before any sweeper has come, the others after that.
        await self._claim(TOKENS[0])
        await self._let_rest()
        for token in TOKENS[1:]:
            await self._claim(token)
        # Now nobody looks for these hooks any more but behind their end.
        await self._let_rest()
        for run_id in self._runs("pending", "running"):
            await self._begin_end(run_id, "completed")
        await self._drain()
        await self._pass(max(RETENTIONS) + 60)
        await self._begin("prune", lambda world: world.prune(0))
        await self._drain()
        await self._let_rest()
        self._assert([f"{token} is still owned" for token in TOKENS if self.oracle.owner(token)])

    async def _do_something(self) -> None:
        turns, chance = self.scheduler.waiting, self.random.random()
        if not turns or (chance < 0.25 and len(self.scheduler.clients) < CROWD):
            await self._begin_something()
        elif chance < 0.29:
            await self._pass(self.random.choice(LEAPS))
        else:
            if chance < 0.33:
                await self._ask_now(self.random.choice(TOKENS))
            await self._take(self._pick())

    async def _begin_something(self) -> None:
        if len(self._runs("pending", "running")) < 2:
            await self._create_run()
        else:
            await self.random.choices([*self._calls.values()], self._weights)[0]()

    def _pick(self) -> Turn:
        turns = self.scheduler.waiting
        return self.random.choices(turns, [turn.pace for turn in turns])[0]

    async def _drain(self) -> None:
        """Let all clients finish; one that does not is found by the number of its calls."""
        while self.scheduler.waiting:
            self.step += 1
            await self._take(self._pick())
        self._assert([f"{each.name} hangs" for each in self.scheduler.clients])

    async def _let_rest(self) -> None:
        """Time passes, sweepers sweep, and nothing may be left."""
        for _ in range(2):
            await self._pass(4)
            await self._begin("sweep", lambda world: world.sweep())
            await self._drain()
        self._assert([*self.oracle.leftovers()])
        await check_invariants(self.stage.worlds[0])

    async def _claim(self, token: str) -> None:
        """A token that has no owner can be claimed, one that has can't."""
        run_id, owner = self._announce(), self.oracle.owner(token)
        await self._begin(
            "create_run", lambda world: world.events.create(run_id, e.run_created()), run=run_id
        )
        await self._drain()
        client = await self._begin_hook(run_id, "h1", token, None)
        await self._drain()
        data = e.data_of(client.outcome.event)
        expected = {"token": token}
        if owner is not None:
            expected["conflictingRunId"] = owner.run_id
        self._assert([] if data == expected else [f"{token} is {owner}'s, and a claim got {data}"])
        await self._ask_now(token)

    # -- steps -----------------------------------------------------------------------------

    async def _take(self, turn: Turn) -> None:
        """One turn, and what its client does behind it."""
        client = turn.client
        crash = ""
        if self.random.random() < self._crashes:
            crash = self.random.choice(["before", "behind"])
        if crash == "before":
            self._tell(f"{client.name} stops before {turn.name}")
            await self.scheduler.stop(client)
            self._conclude()
            return
        if turn.pause:
            await self.clock.advance(turn.pause)
        reply = await self.scheduler.take(turn)
        self._tell(f"{client.name}: {spell(turn, reply)}")
        self._look(change_of(turn))
        if turn.name == "events/hook_created":
            self._assert([*self.promises.of_creation(client, reply[0])])
        if client.calls > self._patience:
            self._assert([f"{client.name} goes on for ever"])
        if crash == "behind":
            self._tell(f"{client.name} stops behind {turn.name}")
            await self.scheduler.stop(client)
        else:
            await self.scheduler.answer(turn, reply)
        self._conclude()

    async def _pass(self, seconds: float) -> None:
        self.step += 1
        await self.clock.advance(seconds)
        self._tell(f"{seconds} s pass")
        self._look(Change(lets_time_pass=True))

    async def _ask_now(self, token: str) -> None:
        """While nobody else is at work the answer is the owner, and nothing else."""
        owner = self.oracle.owner(token)
        try:
            found = place_of(await self.random.choice(self.stage.worlds).hooks.get_by_token(token))
        except HookNotFoundError:
            found = None
        self._assert([] if found == owner else [f"{token} is {owner}'s, and a reader got {found}"])

    # -- calls -----------------------------------------------------------------------------

    async def _create_run(self) -> None:
        busy = {client.about.get("run") for client in self.scheduler.clients}
        for run_id in [*self.oracle.run_ids]:
            if self.oracle.statuses.get(run_id) is None and run_id not in {*busy, self._coming}:
                self.oracle.run_ids.remove(run_id)
        run_id, self._coming = self._coming, self._announce()
        event = self.random.choice([e.run_created(), e.resilient_start()])
        await self._begin(
            "create_run",
            lambda world: world.events.create(run_id, event, skip_preload=True),
            run=run_id,
        )

    async def _create_hooks(self) -> None:
        """A hook; often by two Worlds at once, sometimes with two tokens."""
        runs = self._runs("pending", "running")
        if self.random.random() < 0.1:
            runs = self._runs(*e.TERMINAL) or runs
        run_id = self.random.choice(runs)
        hook_id = self._hook_id(run_id)
        token = self.random.choice(TOKENS)
        until = self.random.choice([None, None, None, *RETENTIONS])
        await self._begin_hook(run_id, hook_id, token, until)
        chance = self.random.random()
        if chance < 0.2:
            await self._begin_hook(run_id, hook_id, token, until)
        elif chance < 0.4:
            await self._begin_hook(run_id, hook_id, self.random.choice(TOKENS), until)
        elif chance < 0.7:
            rival = self.random.choice(self._runs("pending", "running"))
            await self._begin_hook(rival, self._hook_id(rival), token, until)

    async def _create_hook_early(self) -> None:
        """A run that is about to be created comes to its hook before that, and so does a rival."""
        token, rival = (
            self.random.choice(TOKENS),
            self.random.choice(self._runs("pending", "running")),
        )
        await self._begin_hook(self._coming, self.random.choice(HOOK_IDS), token, None)
        await self._begin_hook(rival, self._hook_id(rival), token, None)

    async def _create_hook_again(self) -> None:
        """A replay of a run comes once more to a hook that it has not recorded."""
        live = self._runs("pending", "running")
        open_calls = [
            (hook, token)
            for hook, token in self._attempts
            if hook.run_id in live and hook not in self.promises.recorded
        ]
        if open_calls:
            hook, token = self.random.choice(open_calls)
            await self._begin_hook(hook.run_id, hook.hook_id, token, None)

    def _hook_id(self, run_id: str) -> str:
        """Mostly one that the run has not had yet."""
        new = [each for each in HOOK_IDS if LiveHook(run_id, each) not in self.promises.recorded]
        return self.random.choice(new if new and self.random.random() < 0.8 else HOOK_IDS)

    async def _begin_hook(
        self, run_id: str, hook_id: str, token: str, retained: float | None
    ) -> Client:
        data = {}
        if retained is not None:
            data["tokenRetentionUntil"] = self.clock.now + timedelta(seconds=retained)
        event = e.hook_created(hook_id, token, **data)
        self._attempts.append((LiveHook(run_id, hook_id), token))
        return await self._begin(
            "hook",
            lambda world: world.events.create(run_id, event),
            run=run_id,
            hook=hook_id,
            token=token,
        )

    async def _dispose(self) -> None:
        live = sorted(hook for hooks in self.oracle.live.values() for hook in hooks)
        if live:
            run_id, hook_id = self.random.choice(live)
            await self._begin(
                "dispose",
                lambda world: world.events.create(run_id, e.hook_disposed(hook_id)),
                run=run_id,
                hook=hook_id,
            )

    async def _end_run(self) -> None:
        run_id = self.random.choice(self._runs("pending", "running"))
        await self._begin_end(run_id, self.random.choice(e.TERMINAL))

    async def _begin_end(self, run_id: str, status: str) -> None:
        event = e.run_ended(status)
        await self._begin("end", lambda world: world.events.create(run_id, event), run=run_id)

    async def _sweep(self) -> None:
        await self._begin("sweep", lambda world: world.sweep())

    async def _prune(self) -> None:
        await self._begin("prune", lambda world: world.prune(0))

    async def _ask(self) -> None:
        token = self.random.choice(TOKENS)
        await self._begin("ask", lambda world: world.hooks.get_by_token(token), token=token)

    # -- inside ----------------------------------------------------------------------------

    async def _begin(
        self, kind: str, work: Callable[[RedisWorld], Any], /, **about: str
    ) -> Client:
        world = self.random.choice(self.stage.worlds)
        name = " ".join([f"{kind}#{self.step}", *about.values()])
        client = Client(name, self.step, {"kind": kind, **about})
        self._tell(f"{name} begins")
        await self.scheduler.begin(client, lambda: work(world))
        self._conclude()
        return client

    def _announce(self) -> str:
        """The id of a run that is not there yet."""
        made_at = to_ms(self.clock.now).to_bytes(6, "big")
        run_id = f"wrun_{ULID.from_bytes(made_at + self.random.randbytes(10))}"
        self.oracle.run_ids.append(run_id)
        return run_id

    def _pace(self, _name: str, args: Mapping[str, Any]) -> float:
        return self.random.choice(PACES_OF_CREATION if args.get("phase") == "create" else PACES)

    @property
    def story(self) -> list[str]:
        """The last steps."""
        return [*self._story]

    def _runs(self, *statuses: str) -> list[str]:
        return [run for run, status in self.oracle.statuses.items() if status in statuses]

    def _look(self, change: Change) -> None:
        self._assert([*self.oracle.look(self.step, change)])

    def _conclude(self) -> None:
        """Hold what ended calls have returned against what may be."""
        for client in self.scheduler.ended():
            self._assert([*self.promises.of_call(client)])

    def _tell(self, text: str) -> None:
        self._story.append(f"{self.step}: {text}")

    def _assert(self, wrong: list[str]) -> None:
        if wrong:
            raise AssertionError("\n  ".join([*wrong, "after", *self._story]))
