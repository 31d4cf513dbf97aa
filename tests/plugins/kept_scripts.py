"""A pytest plugin that lets fakeredis compile each script once.

fakeredis compiles a script anew for each call, and has Lua collect its garbage after it: a third
of what a call costs. Here a script stays compiled, as on a real server, and garbage is collected
now and then. What a script does is the same.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from fakeredis.commands_mixins.scripting_mixin import LUA_MODULE, ScriptingCommandsMixin

_COLLECT: Final = "collectgarbage()"
_CALLS_PER_COLLECTION: Final = 200

_patch: Final = pytest.MonkeyPatch()


class _KeptScripts:
    """A Lua runtime that keeps what it has compiled."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._compiled: dict[bytes, Any] = {}
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def execute(self, source: bytes | str, *args: Any) -> Any:
        if isinstance(source, bytes) and not args:
            compiled = self._compiled.get(source)
            if compiled is None:
                try:
                    compiled = self._compiled[source] = self._runtime.compile(source)
                except LUA_MODULE.LuaSyntaxError:
                    return self._runtime.execute(source)  # has the text of a call's error
            return compiled()
        if source == _COLLECT:
            self._calls += 1
            if self._calls % _CALLS_PER_COLLECTION:
                return None
        return self._runtime.execute(source, *args)


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Before the coverage of Lua is measured, which watches what this runtime executes."""
    original = ScriptingCommandsMixin._get_server_runtime

    def get_server_runtime(mixin: ScriptingCommandsMixin, server: Any) -> Any:
        runtime = original(mixin, server)
        # Kept by the server, which it refers to: kept anywhere else, neither would be freed.
        kept = vars(server).get("_kept_scripts")
        if kept is None:
            kept = vars(server)["_kept_scripts"] = _KeptScripts(runtime)
        return kept

    _patch.setattr(ScriptingCommandsMixin, "_get_server_runtime", get_server_runtime)


def pytest_unconfigure() -> None:
    _patch.undo()
