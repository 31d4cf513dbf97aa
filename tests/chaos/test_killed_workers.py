"""Workers, starters and resumers killed at every point: nothing is lost, nothing is done twice.

`make chaos` runs 1,000 workflows on every server, and kills at every point many times.
"""

# Contract: 7.no run is left behind, 7.delivery

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import redis
from vercel.workflow._internal import world as sdk_world

from redis_world import RedisWorld
from redis_world.testing import check_invariants
from redis_world.vercel import use_redis_world
from support.backends import Servers
from support.killing import SWEEP_INTERVAL, Crew, Driver, Zygote, make_plan
from support.killing_checks import leftovers, violations_of_outcome
from support.killing_points import RESUMER_DEATHS, STARTER_DEATHS, WORKER_POINTS, Death
from support.killing_report import describe_run
from support.killing_specs import make_flow
from support.until import until

IS_LONG: Final = os.environ.get("REDIS_WORLD_CHAOS") == "long"
SEEDS: Final = {"redis7": 1, "redis8": 2, "valkey9": 3}
KINDS: Final = [*SEEDS] if IS_LONG else ["redis7"]
FLOWS: Final = 1000 if IS_LONG else 60
"""The fewest runs."""
AT_ONCE: Final = 16
"""Runs that are under way."""
TIMES: Final = 12 if IS_LONG else 1
"""How often workers die at each point."""
MOST_FLOWS: Final = 10 * FLOWS
"""Points that were not passed until then are never passed."""
NAMESPACE: Final = "killing"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str) -> Iterator[str]:
    """A server of its own: effects of steps are counted outside of the World's namespace."""
    with contextlib.closing(Servers()) as servers:
        yield servers.backend(kind).url


class Performance:
    """All runs of a test, until they have ended, and everything that was found."""

    def __init__(self, url: str, world: RedisWorld, zygote: Zygote, seed: int) -> None:
        self.seed = seed
        self.world = world
        self.keys = world.connection.keys
        self.client = redis.Redis.from_url(url)
        self.zygote = zygote
        self.crew = Crew(zygote, make_plan(seed, TIMES))
        self.deaths: Counter[Death] = Counter()
        self.run_ids: set[str] = set()
        self._next = 0

    async def play(self) -> None:
        """Drive as many runs as there have to be, and more until the plan of deaths is used up."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.crew.run())
                async with asyncio.TaskGroup() as driving:
                    for _ in range(AT_ONCE):
                        driving.create_task(self._drive())
                await self._until_quiet()
                self.crew.stop()
        finally:
            self.client.close()

    async def _drive(self) -> None:
        while self._next < FLOWS or not self.crew.is_healthy:
            assert self._next < MOST_FLOWS, f"nobody passes {self.crew.pending}"
            flow = make_flow(self.seed, self._next)
            self._next += 1
            driver = Driver(self.world, self.zygote, flow, self.deaths)
            run = await driver.drive()
            self.run_ids.add(run.run_id)
            wrong = await violations_of_outcome(self.client, self.keys, flow, run)
            if wrong:
                described = describe_run(self.client, self.keys, flow, run.run_id)
                raise AssertionError("\n".join([f"seed {self.seed}", *wrong, described]))

    async def _until_quiet(self) -> None:
        """No message is left, no debt, no hook, and no key of a run that nobody started."""

        def left() -> list[str]:
            return leftovers(self.client, self.keys, self.run_ids)

        try:
            await until(lambda: not left())
        except pytest.fail.Exception:
            pytest.fail(f"seed {self.seed}: left are {left()}")

    def table(self) -> str:
        rows = [(str(point), count) for point, count in self.crew.deaths.items()]
        rows += [(str(death), count) for death, count in self.deaths.items()]
        lines = [f"{count:6} {where}" for where, count in sorted(rows)]
        return "\n".join([f"seed {self.seed}: {self._next} runs, deaths", *lines])


async def test_what_dies_loses_nothing_and_doubles_nothing(
    kind: str,
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = SEEDS[kind]
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    # The SDK's World is one of the process: other tests have theirs again afterwards.
    monkeypatch.setattr(sdk_world, "the_world", None)
    world = RedisWorld(url, namespace=NAMESPACE, sweep_interval=SWEEP_INTERVAL)
    async with world, Zygote.started(url, NAMESPACE, tmp_path / "workers.log") as zygote:
        use_redis_world(world=world)
        performance = Performance(url, world, zygote, seed)
        await performance.play()
        await check_invariants(world)
    if IS_LONG:
        with capsys.disabled():
            print(f"\n{performance.table()}")  # noqa: T201 - asked for
    assert performance.crew.deaths.keys() == {*WORKER_POINTS}
    assert performance.deaths.keys() == {*STARTER_DEATHS, *RESUMER_DEATHS}
