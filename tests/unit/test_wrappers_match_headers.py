"""Every script is called with exactly the names of its header."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest

from redis_world.connection import Connection
from redis_world.events import scripts
from redis_world.events.plans import PLANS
from redis_world.lua import Script, default_library, script_root
from redis_world.models import CreateEvent
from redis_world.refusals import MIN_SPEC_VERSION, SPEC_VERSION
from redis_world.rows import PAYLOAD_FIELDS
from redis_world.testing import memory_world
from support.exercise import exercise, exercise_partitions
from support.tools import load_tool

Names = tuple[frozenset[str], frozenset[str]]


@pytest.mark.slow
async def test_wrappers_match_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, set[Names]] = {}
    original = Script.arrange

    def arrange(self: Script, keys: Mapping[str, Any], args: Mapping[str, Any]) -> list[Any]:
        found.setdefault(self.name, set()).add((frozenset(keys), frozenset(args)))
        return original(self, keys, args)

    run = Connection.run

    async def noting(
        connection: Connection, name: str, words: Sequence[Any], commands: Sequence[Any] = ()
    ) -> list[Any]:
        keys, args = connection.script(name).named(words)
        found.setdefault(name, set()).add((frozenset(keys), frozenset(args)))
        return await run(connection, name, words, commands)

    monkeypatch.setattr(Script, "arrange", arrange)
    monkeypatch.setattr(Connection, "run", noting)
    async with memory_world() as world:
        await exercise(world)
    async with memory_world(partitions=4) as world:
        await exercise_partitions(world)
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


def test_functions_of_scripts_are_up_to_date() -> None:
    assert load_tool("event_scripts").main(["--check"]) == 0


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_calls_the_script_of_its_type(kind: str) -> None:
    script = default_library()[PLANS[kind].script]
    names = [*script.keys, *script.args, *([script.tail] if script.tail else [])]
    assert script.name == f"events/{kind}"
    assert list(inspect.signature(getattr(scripts, kind)).parameters) == names
    row = getattr(scripts, kind)(
        **{name: [name] if name == script.tail else name for name in names}
    )
    assert list(row) == names


def test_both_sides_read_the_same_spec_versions() -> None:
    source = (script_root() / "lib" / "run.lua").read_text(encoding="utf-8")
    bounds = f"MIN_SPEC_VERSION, MAX_SPEC_VERSION = {MIN_SPEC_VERSION}, {SPEC_VERSION}"
    assert bounds in source


def test_every_payload_is_read_back_where_it_was_written() -> None:
    """An event's payload that is missing in this table would be stored and never seen again."""
    fields = {
        model.model_fields["event_type"].default: data.payload_field
        for model in get_args(CreateEvent)
        for data in get_args(model.model_fields["event_data"].annotation)
        if data is not type(None) and data.payload_field is not None
    }
    # The input of a run_started is its run_created event's.
    del fields["run_started"]
    assert fields == PAYLOAD_FIELDS
