"""Every script is called with exactly the names of its header (design, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from redis_world.lua import Script, default_library
from redis_world.testing import memory_world
from support.exercise import exercise

Names = tuple[frozenset[str], frozenset[str]]


async def test_wrappers_match_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, set[Names]] = {}
    original = Script.arrange

    def arrange(self: Script, keys: Mapping[str, Any], args: Mapping[str, Any]) -> list[Any]:
        found.setdefault(self.name, set()).add((frozenset(keys), frozenset(args)))
        return original(self, keys, args)

    monkeypatch.setattr(Script, "arrange", arrange)
    async with memory_world() as world:
        await exercise(world)
    expected = {
        script.name: {
            (
                frozenset(script.keys),
                frozenset(script.args) | ({script.tail} if script.tail else set()),
            )
        }
        for script in default_library()
    }
    assert found == expected
