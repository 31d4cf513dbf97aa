"""Keeps garbage collections out of what Python 3.11 can't have interrupted.

Every replay in a sandbox of its own imports its modules anew. A collection in the midst of one may
run a finalizer that imports something, too. Two places don't bear that in Python 3.11, whose
collections strike at any allocation. Later versions collect between two instructions only.

* The lock of an import, while it is being taken (CPython issue 91351): the import that was
  interrupted ends with `KeyError: <id of the thread>` and the run with it, or, when both want the
  same module, the process stands still.
* A context, while a variable of it is set or it is copied: an import in a sandbox sets variables
  of its own for a moment, and so replaces the mapping that the interrupted call is reading. The
  variable is lost and the run fails with a `LookupError`, or the process crashes.
"""

from __future__ import annotations

import asyncio
import gc
import importlib._bootstrap
import inspect
import sys
from types import CodeType
from typing import Any, Final

from vercel.workflow._internal import py_sandbox, runtime, serde

__all__ = ["spare_replays"]


_STRIKES_ANYWHERE: Final = sys.version_info < (3, 12)


def _code_of_locks() -> frozenset[CodeType]:
    lock = importlib._bootstrap._ModuleLock  # type: ignore[attr-defined]  # noqa: SLF001
    return frozenset([lock.acquire.__code__, lock.release.__code__])


def _code_of_sandboxes() -> frozenset[CodeType]:
    """What sets variables when a replay begins and ends, and for its imports."""
    functions: list[Any] = [
        py_sandbox.Sandbox._activate,  # noqa: SLF001 - hence the upper bound of the dependency
        py_sandbox._host_import,  # noqa: SLF001
        py_sandbox._SandboxFinder._find_real_spec,  # noqa: SLF001
        serde.sandboxed_registrations,
        runtime.WorkflowOrchestratorContext.run_workflow,
    ]
    return frozenset(inspect.unwrap(function).__code__ for function in functions)


def _code_of_loops() -> frozenset[CodeType]:
    """What copies the context, in a replay and everywhere else."""
    functions: list[Any] = [
        asyncio.Handle.__init__,
        asyncio.BaseEventLoop.create_task,
        asyncio.Runner._lazy_init,  # type: ignore[attr-defined]  # noqa: SLF001
    ]
    return frozenset(function.__code__ for function in functions)


_ALWAYS: Final = _code_of_locks() | _code_of_sandboxes() if _STRIKES_ANYWHERE else frozenset()
_IN_REPLAYS: Final = _code_of_loops() if _STRIKES_ANYWHERE else frozenset()


def spare_replays() -> None:
    """Have no collection of this process find garbage where a replay can't be interrupted."""
    if _STRIKES_ANYWHERE and _spare not in gc.callbacks:
        gc.callbacks.append(_spare)


def _spare(phase: str, _info: dict[str, int]) -> None:
    interrupted = sys._getframe().f_back  # noqa: SLF001 - the one way to know
    if interrupted is not None and _is_delicate(interrupted.f_code):
        # A collection can't be called off, but it passes over what is frozen. That what others
        # have frozen is looked at again from then on costs time only.
        if phase == "start":
            gc.freeze()
        else:
            gc.unfreeze()


def _is_delicate(code: CodeType) -> bool:
    # Outside of a sandbox an import of a finalizer sets no variables.
    return code in _ALWAYS or (code in _IN_REPLAYS and py_sandbox.in_sandbox())
