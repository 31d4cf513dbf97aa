"""The official Python SDK, `vercel-workflow`, on Redis.

Put this in a module, and import it before the module with the workflows::

    from redis_world.vercel import use_redis_world

    use_redis_world("redis://localhost:6379/0")
"""

from __future__ import annotations

from typing import Any, cast

try:
    from vercel.workflow._internal import py_sandbox
    from vercel.workflow._internal import world as sdk
except ModuleNotFoundError as missing:  # pragma: no cover - without the extra there is no SDK
    raise ModuleNotFoundError(
        "redis_world.vercel needs the Python SDK: pip install 'redis-world[vercel]'",
        name=missing.name,
    ) from None

from redis_world import RedisWorld
from redis_world.vercel.adapter import VercelWorld
from redis_world.vercel.passthrough import pass_through

__all__ = ["VercelWorld", "pin_redis_world", "pinned_redis_world", "use_redis_world"]

_pinned: VercelWorld | None = None

pass_through()


def use_redis_world(
    url: str | None = None, *, world: RedisWorld | None = None, **options: Any
) -> VercelWorld:
    """Make Redis the World of this process, for all registries of workflows.

    A second call moves the existing registries to the new World: stop the workers of the earlier
    World first. A registry that is created after the call replaces a moved one with the same
    namespace, for example when you run a notebook cell again.

    Inside a replay, which runs the module of the workflows again, it changes nothing. In a worker
    of the command line it changes nothing either: the command chooses the World.

    Args:
        url: the URL of the server; None: `REDIS_WORLD_URL`.
        world: a `RedisWorld` instead of a URL.
        options: see `WorldConfig`.

    Returns:
        The World that the SDK uses now; its `worker()` creates a worker.

    Raises:
        ConfigurationError: there is no URL, or an option or the URL is invalid.
    """
    if _pinned is not None:
        return _pinned
    if py_sandbox.in_sandbox():
        return cast("VercelWorld", sdk.the_world)
    if world is None:
        world = RedisWorld.from_env(**({} if url is None else {"url": url}), **options)
    adapter = VercelWorld(world)
    if isinstance(sdk.the_world, VercelWorld):
        adapter.take_registries(sdk.the_world)
    sdk.set_world(adapter)
    return adapter


def pin_redis_world(adapter: VercelWorld | None) -> None:
    """Make all later calls of `use_redis_world` in this process return this World.

    None ends it. For a worker whose modules import their bootstrap: a second World would take over
    the registries of the worker.
    """
    global _pinned  # noqa: PLW0603 - the SDK's World is one of the process, too
    _pinned = adapter


def pinned_redis_world() -> VercelWorld | None:
    """The World that `pin_redis_world` has set, if any."""
    return _pinned
