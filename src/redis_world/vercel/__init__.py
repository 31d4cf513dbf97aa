"""The official Python SDK, `vercel-workflow`, on Redis.

In a module that is imported before the one that holds the workflows::

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

__all__ = ["VercelWorld", "pin_redis_world", "use_redis_world"]

_pinned: VercelWorld | None = None


def use_redis_world(
    url: str | None = None, *, world: RedisWorld | None = None, **options: Any
) -> VercelWorld:
    """Make Redis the World of this process, for all registries of workflows.

    Called again, it moves the registries that were made before to the new World, so that runs
    are started where they are worked on; stop the workers of the earlier World first. A registry
    that is made after the call takes the place of a moved one of the same namespace: a notebook's
    cell that is run again makes it anew.

    Inside of a replay, where the module of the workflows is executed again, it changes nothing;
    nor does it in a worker of the command line, whose World is chosen there.

    Args:
        url: where the server is; None: `REDIS_WORLD_URL`, else the embedded store.
        world: a ready World instead.
        options: see `WorldConfig`.

    Returns:
        The World that the SDK has now; its `worker()` consumes.

    Raises:
        ConfigurationError: an option or the URL can't be used.
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
    """Have all later calls of `use_redis_world` in this process give this World; None ends it.

    For a worker, whose modules may bring their bootstrap along: a second World would take the
    registries that the worker is there for.
    """
    global _pinned  # noqa: PLW0603 - the SDK's World is one of the process, too
    _pinned = adapter
