"""The pytest plugin, as a user's project sees it."""

from __future__ import annotations

import pytest

from redis_world.testing import available_kinds
from support.marks import slow
from support.private_servers import ONE, give_up, here

pytest_plugins = ["pytester"]

TESTS = """
import asyncio
import pytest
from datetime import datetime, UTC
from redis_world.testing import ManualClock, check_invariants

CREATED = {"eventType": "run_created", "eventData": {"deploymentId": "d", "workflowName": "w"}}

async def use(world):
    await world.events.create(None, CREATED)
    assert len((await world.runs.list()).data) == 1
    await check_invariants(world)

def test_one(redis_world):
    assert redis_world.config.max_failures == 64
    async def main():
        await use(redis_world)
        with open("url", "w") as file:
            file.write(redis_world.connection.describe())
    asyncio.run(main())

def test_another_world_is_empty(redis_world):
    asyncio.run(use(redis_world))

@pytest.mark.redis_world(max_failures=1, namespace="mine")
def test_options(redis_world):
    asyncio.run(use(redis_world))
    assert (redis_world.config.max_failures, redis_world.config.namespace) == (1, "mine")

@pytest.mark.redis_world(namespace="mine")
def test_nothing_is_left(redis_world):
    asyncio.run(use(redis_world))

def test_a_test_that_does_not_use_its_world(redis_world):
    pass

def test_clock(redis_world, redis_world_clock):
    async def main():
        await redis_world_clock.set(datetime(2030, 1, 1, tzinfo=UTC))
        await redis_world_clock.advance(3600)
        run = (await redis_world.events.create(None, CREATED)).run
        assert run.created_at == datetime(2030, 1, 1, 1, tzinfo=UTC)
    asyncio.run(main())
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(TESTS)
    return pytester


@pytest.mark.slow
@pytest.mark.parametrize("kind", [slow("memory"), ONE])
def test_the_fixtures(project: pytest.Pytester, kind: str) -> None:
    if kind != "memory":
        kind = here(kind)
        if kind not in available_kinds():
            give_up(kind, "it is not installed")
    # Whatever runs coroutines, or nothing of the kind.
    arguments = ["-W", "error", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    if kind != "memory":
        arguments.append(f"--redis-world-server={kind}")
    result = project.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=6)
    url = (project.path / "url").read_text()
    assert url.startswith("memory://" if kind == "memory" else "127.0.0.1:")


@pytest.mark.slow
def test_it_tells_about_itself(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--markers", "--fixtures")
    result.stdout.fnmatch_lines_random(["*redis_world(?*options)*"])
    helped = pytester.runpytest_subprocess("--help")
    helped.stdout.fnmatch_lines(["*--redis-world-server=*"])
