"""The plugin that lets fakeredis compile a script once: nothing else may change by it."""

from __future__ import annotations

import fakeredis
import pytest
import redis

from plugins import kept_scripts

SCRIPTS = {
    "an answer": "return {KEYS[1], ARGV[1], redis.call('INCR', KEYS[1])}",
    "a local of its own": "local n = (n or 0) + 1 return n",
    "an error reply": "return redis.error_reply('NO ' .. ARGV[1])",
    "an error of a command": "return redis.call('LPUSH', KEYS[1], '1')",
    "an error of Lua": "return nil + 1",
    "a syntax error": "return (",
    "a global": "leaked = 1",
}


def answers(script: str) -> list[object]:
    """What three calls and a look at the store give."""
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer(version=(7, 4)))
    client.set("k", 0)
    found: list[object] = []
    for argument in "abc":
        try:
            found.append(client.eval(script, 1, "k", argument))
        except redis.ResponseError as error:
            found.append(str(error))
    return [*found, client.get("k")]


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_each_call_answers_as_without_it(script: str) -> None:
    kept = answers(script)
    kept_scripts.pytest_unconfigure()
    try:
        assert answers(script) == kept
    finally:
        kept_scripts.pytest_configure()


def test_a_script_is_compiled_once() -> None:
    server = fakeredis.FakeServer(version=(7, 4))
    client = fakeredis.FakeRedis(server=server)
    client.eval("return 1", 0)
    compiled = vars(server)["_kept_scripts"]._compiled
    first = compiled[b"return 1"]
    for _ in range(5):
        client.eval("return 1", 0)
    assert compiled == {b"return 1": first}
