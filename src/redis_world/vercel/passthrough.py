"""Lets modules of workflows import this package.

The SDK executes the module of a workflow again for each replay, in a sandbox that forbids network
code. It serves some packages from the process instead of importing them again. This package and
its client are added to those: both are the same in every replay, and neither can be imported in a
sandbox.
"""

from __future__ import annotations

import pkgutil
from typing import Final

from vercel.workflow._internal import py_sandbox

import redis_world

__all__ = ["pass_through"]

_REPLAYED: Final = frozenset({"demo"})
"""Subpackages that hold workflows themselves: a replay has to execute them."""


def pass_through() -> None:
    """Serve redis and this package from the process in the sandboxes of all registries."""
    names = {module.name for module in pkgutil.iter_modules(redis_world.__path__)} - _REPLAYED
    # The finder of the sandboxes holds this very set, whenever it was made.
    py_sandbox._PASSTHROUGHS.update(  # noqa: SLF001 - hence the upper bound of the dependency
        {"redis", *(f"redis_world.{name}" for name in names)}
    )
