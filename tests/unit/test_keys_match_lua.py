"""`keys.py` and `lua/lib/keys.lua` build the same keys."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from redis_world.keys import Keys, RunKeys, escape, token_hash
from redis_world.lua import Script, ScriptLibrary, script_root
from support.backends import Backend
from support.events import new_run
from support.exercise import TOPIC, exercise, exercise_partitions

TEXTS: Final = (
    "",
    "plain",
    "wrun_01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "A-Z_a.z-0",
    ":",
    "a:b/c",
    "a%3Ab",
    "%",
    "{}*?[]^$()+|\\",
    " \t\r\n",
    "\x00",
    "a\x00b",
    "\x7f\x01",
    "é",
    "\U0001f600",
    "x" * 4096,
    "é" * 2048,
)

BASE: Final = "{ns/0.0}:v1:"
KEYS: Final = Keys("ns")
OF_LUA: Final[dict[str, tuple[int, Callable[..., str]]]] = {
    "escape": (1, escape),
    "run_key": (1, lambda run: KEYS.of_run(run).run),
    "hook_key": (2, lambda run, hook: KEYS.of_run(run).hook(hook)),
    "hook_runs_key": (1, KEYS.hook_runs),
    "token_key": (1, KEYS.token),
    "status_key": (1, KEYS.runs_of_status),
    "workflow_key": (2, KEYS.runs_of_workflow),
    "topic_key": (2, KEYS.topic),
    "message_key": (2, KEYS.message),
    "idempotency_key": (2, KEYS.idempotency),
    "run_queue_key": (1, lambda run: KEYS.of_run(run).queue),
    "contents_key": (1, lambda run: KEYS.of_run(run).contents),
    "held_key": (1, lambda run: KEYS.of_run(run).held),
    "attributes_key": (1, lambda run: KEYS.of_run(run).attributes),
    "payloads_key": (1, lambda run: KEYS.of_run(run).payloads),
    "hooks_key": (1, lambda run: KEYS.of_run(run).hooks),
    "streams_key": (1, lambda run: KEYS.of_run(run).streams),
    "stream_key": (2, lambda run, name: KEYS.of_run(run).stream(name)),
    "writers_key": (2, lambda run, name: KEYS.of_run(run).writers(name)),
    "done_channel": (1, lambda run: KEYS.of_run(run).done),
    "owed_key": (0, lambda: KEYS.owed),
    "parked_key": (0, lambda: KEYS.parked),
    "lost_key": (0, lambda: KEYS.lost),
    "runs_key": (0, lambda: KEYS.runs),
    "all_hooks_key": (0, lambda: KEYS.all_hooks),
    "topics_key": (0, lambda: KEYS.topics),
    "finished_key": (0, lambda: KEYS.finished),
    "retained_key": (0, lambda: KEYS.retained),
    "cleaning_key": (0, lambda: KEYS.cleaning),
    "releases_key": (0, lambda: KEYS.releases),
    "events_key": (1, lambda run: KEYS.of_run(run).events),
    "stripped_key": (1, lambda run: KEYS.of_run(run).stripped),
    "old_key": (1, lambda run: KEYS.of_run(run).old),
    "claims_key": (1, lambda run: KEYS.of_run(run).claims),
    "ops_key": (1, lambda run: KEYS.of_run(run).ops),
    "worker_channel": (2, KEYS.worker_channel),
}
"""Function of the Lua library -> how many texts it takes after the base, and Python's twin."""

SOURCE: Final = (script_root() / "lib" / "keys.lua").read_text(encoding="utf-8")


def script(function: str, root: Path) -> Script:
    """A script that answers what the function makes of its arguments."""
    folder = root / "test"
    folder.mkdir()
    base = "" if function == "escape" else "base" if not OF_LUA[function][0] else "base, "
    rest = "unpack(parts)" if OF_LUA[function][0] else ""
    (folder / "key.lua").write_text(
        "-- Builds a key.\n--\n-- KEYS: key\n-- ARGV: base, parts...\n-- Returns: it.\n--\n"
        f"-- @include lib/keys\nreturn {{ {function}({base}{rest}) }}\n",
        encoding="utf-8",
    )
    return ScriptLibrary(root, {"lib/keys": SOURCE})["test/key"]


def test_no_script_builds_a_key_of_its_own() -> None:
    own = re.compile(r"""\.\.\s*['"]:\w|base\s*\.\.""")
    for path in script_root().rglob("*.lua"):
        if path.name != "keys.lua":
            assert not own.search(path.read_text(encoding="utf-8")), path


def test_every_function_has_a_twin() -> None:
    assert set(re.findall(r"^local function (\w+)", SOURCE, re.MULTILINE)) == set(OF_LUA)


@pytest.mark.parametrize("function", OF_LUA)
def test_both_build_the_same_keys(function: str, backend: Backend, tmp_path: Path) -> None:
    built = script(function, tmp_path)
    count, twin = OF_LUA[function]
    assert KEYS.base == BASE
    with contextlib.closing(backend.client()) as client:
        for number in range(len(TEXTS)):
            parts = [TEXTS[(number + 5 * place) % len(TEXTS)] for place in range(count)]
            # The hash of a token is Python's work: scripts get it ready.
            given = [token_hash(part) for part in parts] if function == "token_key" else parts
            row = built.arrange({"key": "k"}, {"base": BASE, "parts": given})
            answer = client.eval(built.source, *row)  # type: ignore[arg-type]
            assert answer == [twin(*parts).encode()], parts


def test_escaped_text_is_harmless_and_its_own() -> None:
    escaped = [escape(text) for text in TEXTS]
    assert len(set(escaped)) == len(TEXTS)
    assert all(re.fullmatch(r"[A-Za-z0-9_.%-]*", text) for text in escaped)
    assert escape("a:é") == "a%3A%C3%A9"


def known_keys(keys: Keys) -> str:
    """A pattern of every key that `keys.py` builds for a namespace."""
    some = "\x01"
    run = RunKeys(keys.base, some)
    built = [
        *(keys.meta, keys.token(some), keys.hook_runs(some), keys.all_hooks, keys.runs),
        keys.stream_run(some),
        *(keys.runs_of_status(some), keys.runs_of_workflow(some, some), keys.topics),
        *(keys.topic(TOPIC, part) for part in ("due", "declined", "leased", "dead", "held")),
        keys.topic("__sleepy_wkf_workflow_", "sleepers"),
        *(keys.topic("__dead_wkf_workflow_", part) for part in ("due", "leased", "dead")),
        *(keys.message(TOPIC, some), keys.idempotency(TOPIC, some)),
        *(run.run, run.attributes, run.events, run.payloads, run.claims),
        *(run.hooks, run.hook(some), run.waits, run.wait_states),
        *(run.streams, run.stream(some), run.writers(some), run.queue, run.contents, run.held),
        *(run.ops, keys.owed, keys.parked, keys.finished, keys.retained, keys.cleaning),
        *(keys.token_numbers, keys.reservations, keys.releases, keys.lost),
    ]
    text = r"[A-Za-z0-9_.%-]+"
    return "|".join(
        re.escape(key)
        .replace(re.escape(token_hash(some)), "[0-9a-f]{64}")
        .replace(re.escape(escape(some)), text)
        .replace(some, text)
        for key in built
    )


@pytest.mark.large
@pytest.mark.parametrize("partitions", [1, 4])
async def test_every_key_of_a_server_is_a_known_one(backend: Backend, partitions: int) -> None:
    """Scripts write no key that Python knows nothing of."""
    async with backend.world(partitions=partitions) as world:
        await new_run(world, workflowName="a:b")
        await (exercise if partitions == 1 else exercise_partitions)(world)
        pattern = re.compile("|".join(map(known_keys, world.connection.partitions)))
    keys = [key.decode() for key in backend.dump()]
    assert len(keys) > 20
    assert [key for key in keys if not pattern.fullmatch(key)] == []
