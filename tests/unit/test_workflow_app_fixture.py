"""The fixture `workflow_app` in a user's project, under each plugin that runs coroutines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from redis_world.testing import available_kinds

pytest_plugins = ["pytester"]

SHOP = """
from vercel.workflow import Workflows, sleep

from redis_world.vercel import use_redis_world

use_redis_world("redis://nowhere.invalid:6379/0")
workflows = Workflows()


@workflows.step
async def charge(order: str) -> str:
    return f"charged {order}"


@workflows.workflow
async def checkout(order: str) -> str:
    receipt = await charge(order)
    await sleep(3600)
    return receipt
"""

TESTS = """
import asyncio
from datetime import UTC, datetime

import pytest
from vercel.workflow import Workflows, sleep

from shop import checkout

{imports}

own = Workflows(as_vercel_job=False)


def note(name):
    with open("notes", "a") as file:
        file.write(name + "\\n")


@own.workflow
async def of_the_test_module(seconds: int) -> str:
    await sleep(seconds)
    return "slept"


async def use(app):
    assert not await app.runs()
    run = await app.start(checkout, "o-1")
    await app.advance(3600)
    assert await run.return_value() == "charged o-1"


{mark}
async def test_checkout(workflow_app):
    note("checkout")
    await use(workflow_app)


{mark}
async def test_that_fails(workflow_app):
    note("fails")
    run = await workflow_app.start(checkout, "o-1")
    assert await run.return_value() == "charged o-1"


{mark}
@pytest.mark.workflow_app(start=datetime(2030, 1, 1, tzinfo=UTC), time_limit=20)
@pytest.mark.redis_world(partitions=3)
async def test_after_it(workflow_app):
    note("after")
    assert workflow_app.now == datetime(2030, 1, 1, tzinfo=UTC)
    assert workflow_app.world.config.partitions == 3
    await use(workflow_app)


class TestMethods:
    {mark}
    @pytest.mark.parametrize("seconds", [60, 60 * 60 * 24 * 365])
    async def test_one(self, workflow_app, redis_world, redis_world_clock, seconds):
        note(f"method {{seconds}}")
        assert workflow_app.world is redis_world
        run = await workflow_app.start(of_the_test_module, seconds)
        await workflow_app.run_until_idle()
        await redis_world_clock.advance(seconds)
        assert workflow_app.now == redis_world_clock.now
        assert await run.return_value() == "slept"


def test_that_runs_its_coroutines_itself(workflow_app):
    note("plain")
    asyncio.run(use(workflow_app))


def test_that_does_not_use_it(workflow_app):
    note("unused")
"""

FIXTURE = """
{fixture}
async def order(workflow_app):
    run = await workflow_app.start(checkout, "o-2")
    yield run
    await run.cancel()
    assert await run.status() == "cancelled"


{mark}
async def test_fixture(order, workflow_app):
    note("fixture")
    assert await order.status() == "running"
    assert [run.run_id for run in await workflow_app.runs()] == [order.run_id]
"""

UNMARKED = """
async def test_without_a_mark(workflow_app):
    note("unmarked")
    await use(workflow_app)
"""


@dataclass(frozen=True)
class Mode:
    """How a project runs its coroutines."""

    arguments: tuple[str, ...]
    mark: str = ""
    imports: str = ""
    fixture: str = ""
    more: str = ""


MODES = {
    "plain": Mode(("-p", "no:asyncio", "-p", "no:anyio")),
    "asyncio-auto": Mode(
        ("-o", "asyncio_mode=auto", "-o", "asyncio_default_test_loop_scope=session"),
        fixture="@pytest.fixture(scope='function')",
    ),
    "asyncio-strict": Mode(
        ("-o", "asyncio_mode=strict"),
        "@pytest.mark.asyncio",
        "import pytest_asyncio",
        "@pytest_asyncio.fixture",
        UNMARKED,
    ),
    "anyio": Mode(
        ("-p", "no:asyncio"),
        "@pytest.mark.anyio",
        fixture="@pytest.fixture",
        more=UNMARKED,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODES)
def test_it_runs_under(name: str, pytester: pytest.Pytester) -> None:
    mode = MODES[name]
    names = {"mark": mode.mark, "imports": mode.imports, "fixture": mode.fixture}
    text = TESTS + (FIXTURE if mode.fixture else "") + mode.more
    pytester.makepyfile(shop=SHOP, test_shop=text.format(**names))
    arguments = ["-W", "error", "-p", "no:cacheprovider", *mode.arguments]
    if "asyncio" in name:
        scope = "session" if "auto" in name else "function"
        arguments += ["-o", f"asyncio_default_fixture_loop_scope={scope}"]
    if name == "plain" and (kinds := available_kinds()):
        arguments.append(f"--redis-world-server={kinds[-1]}")
    result = pytester.runpytest_subprocess(*arguments)
    expected = ["checkout", "fails", "after", "method 60", "method 31536000", "plain", "unused"]
    expected += ["fixture"] * bool(mode.fixture) + ["unmarked"] * bool(mode.more)
    result.assert_outcomes(passed=len(expected) - 1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*RunNotFinishedError: run wrun_* of checkout is running at * UTC. It waits for:",
            "* a sleep until * UTC: await workflow_app.advance(3600)",
        ]
    )
    assert Counter((pytester.path / "notes").read_text().splitlines()) == Counter(expected)


@pytest.mark.slow
def test_it_says_what_to_install(pytester: pytest.Pytester) -> None:
    """The plugin is there without the SDK, too, and the other fixtures work."""
    pytester.makeconftest("import sys; sys.modules['vercel.workflow'] = None")
    pytester.makepyfile(
        """
        import pytest
        import redis_world.testing as testing

        async def test_a_workflow(workflow_app):
            pass

        def test_a_world(redis_world):
            with pytest.raises(ModuleNotFoundError, match="pip install 'redis-world.vercel.'"):
                testing.WorkflowApp
            assert not hasattr(testing, "NoSuchName")
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:asyncio")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*the fixture workflow_app needs the Python SDK*: pip install 'redis-world[[]vercel]'"]
    )
