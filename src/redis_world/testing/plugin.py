"""The pytest plugin: the fixtures `workflow_app`, `redis_world` and `redis_world_clock`.

It is loaded wherever redis-world is installed. The fixtures are plain ones and work with every
plugin that runs the coroutines of tests: a World opens at its first call and closes with the event
loop. An async test that asks for `workflow_app`, and that no other plugin runs, is run here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import secrets
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, get_args

import pytest

from redis_world.keys import pattern_of
from redis_world.testing.clock import ManualClock
from redis_world.testing.servers import ServerKind, ServerUnavailableError, redis_server
from redis_world.world import RedisWorld

if TYPE_CHECKING:
    from redis_world.testing.workflows import WorkflowApp

_MEMORY: Final = "memory"
_APP: Final = "workflow_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses the server."""
    parser.getgroup("redis-world").addoption(
        "--redis-world-server",
        choices=[_MEMORY, *get_args(ServerKind)],
        default=_MEMORY,
        help="where workflow_app and redis_world run: the embedded store, or a private server",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the markers."""
    config.addinivalue_line(
        "markers", "redis_world(**options): options of the World that the fixture makes"
    )
    config.addinivalue_line(
        "markers",
        "workflow_app(start=None, time_limit=30.0): when the clock of the fixture starts, and how "
        "many real seconds a call waits for a running step",
    )


# -- async tests ---------------------------------------------------------------------------


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Have an async test end its `workflow_app` itself, in its own event loop."""
    app: Any = getattr(item, "funcargs", {}).get(_APP)
    test: Any = getattr(item, "obj", None)
    is_async = app is not None and inspect.iscoroutinefunction(test)
    if is_async:
        item.obj = _closing(app, test)  # type: ignore[attr-defined]
    yield
    if is_async:
        item.obj = test  # type: ignore[attr-defined]


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Run an async test that asks for `workflow_app` where no other plugin does."""
    # pytest-asyncio has made its tests plain functions by now, and anyio comes first.
    if _APP not in pyfuncitem.funcargs or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames  # noqa: SLF001 - as all plugins that run tests
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def _closing(
    app: WorkflowApp, test: Callable[..., Coroutine[Any, Any, object]]
) -> Callable[..., Coroutine[Any, Any, object]]:
    @functools.wraps(test)
    async def closing(*args: Any, **kwargs: Any) -> object:
        try:
            return await test(*args, **kwargs)
        finally:
            await app.aclose()

    return closing


# -- fixtures ------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def redis_world_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of the Worlds of the session; override it to use a server of your own."""
    kind = request.config.getoption("--redis-world-server")
    if kind == _MEMORY:
        yield f"memory://{secrets.token_hex(8)}"
        return
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(redis_server(kind))
        except ServerUnavailableError as error:
            pytest.skip(str(error))
        yield server.url


@pytest.fixture
def redis_world(request: pytest.FixtureRequest, redis_world_url: str) -> Iterator[RedisWorld]:
    """An empty World for one test. Its keys are deleted after the test.

    `@pytest.mark.redis_world(max_failures=1)` sets its options.
    """
    options = _options(request, "redis_world")
    options.setdefault("namespace", f"test-{secrets.token_hex(8)}")
    world = RedisWorld(redis_world_url, library=ManualClock.library(), **options)
    yield world
    asyncio.run(_clear(redis_world_url, world))


@pytest.fixture
def redis_world_clock(redis_world: RedisWorld) -> ManualClock:
    """The clock of `redis_world`: the server's time until the test awaits its `set`."""
    return ManualClock(redis_world)


@pytest.fixture
def workflow_app(
    request: pytest.FixtureRequest, redis_world: RedisWorld, redis_world_clock: ManualClock
) -> Iterator[WorkflowApp]:
    """Runs workflows of the Python SDK, with a worker and a clock for one test.

    It runs on `redis_world`, which takes that fixture's options.
    `@pytest.mark.workflow_app(start=..., time_limit=...)` sets those of `WorkflowApp`.
    """
    app = _load_app()(redis_world, clock=redis_world_clock, **_options(request, _APP))
    with app.installed():
        yield app


def _load_app() -> type[WorkflowApp]:
    missing = None
    try:
        from redis_world.testing.workflows import WorkflowApp
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not missing.startswith("vercel"):
            raise
    if missing is not None:
        # Apart from the error: the report shows what to install, not how it was noticed.
        pytest.fail(
            "the fixture workflow_app needs the Python SDK, which is not installed: "
            "pip install 'redis-world[vercel]'",
            pytrace=False,
        )
    return WorkflowApp


def _options(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    marker = request.node.get_closest_marker(name)
    return dict(marker.kwargs) if marker else {}


async def _clear(url: str, used: RedisWorld) -> None:
    """Delete a namespace."""
    namespace = used.config.namespace
    async with RedisWorld(
        url,
        namespace=namespace,
        partitions=used.config.partitions,
        # The server has these scripts already.
        library=ManualClock.library(),
    ) as world:
        keys = {key async for key in world.connection.scan(pattern_of(namespace))}
        await world.connection.execute(*(("UNLINK", key) for key in keys))
