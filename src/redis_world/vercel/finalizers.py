"""Keeps garbage collections out of the locks of imports.

Every replay in a sandbox of its own imports its modules anew. A collection that strikes while the
lock of such an import is being taken may run a finalizer that imports something, too. Python 3.11
can't do both at once (CPython issue 91351): the import that was interrupted ends with `KeyError:
<id of the thread>` and the run with it, or, when both want the same module, the process stands
still. Later versions can.
"""

from __future__ import annotations

import gc
import importlib._bootstrap
import sys
from types import CodeType
from typing import Final

__all__ = ["spare_import_locks"]


def _code_with_a_lock() -> tuple[CodeType, ...]:
    if sys.version_info >= (3, 12):
        return ()
    lock = importlib._bootstrap._ModuleLock  # type: ignore[attr-defined]  # noqa: SLF001
    return (lock.acquire.__code__, lock.release.__code__)


_WITH_A_LOCK: Final = _code_with_a_lock()


def spare_import_locks() -> None:
    """Have no collection of this process find garbage while an import takes or drops its lock."""
    if _WITH_A_LOCK and _spare not in gc.callbacks:
        gc.callbacks.append(_spare)


def _spare(phase: str, _info: dict[str, int]) -> None:
    interrupted = sys._getframe().f_back  # noqa: SLF001 - the one way to know
    if interrupted is not None and interrupted.f_code in _WITH_A_LOCK:
        # A collection can't be called off, but it passes over what is frozen. That what others
        # have frozen is looked at again from then on costs time only.
        if phase == "start":
            gc.freeze()
        else:
            gc.unfreeze()
