"""`redis-world doctor`, as a person or a script runs it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from redis_world import RedisWorld
from redis_world.testing import Server
from support.backends import Backend
from support.command_line import environment, on_a_terminal
from support.private_servers import ONE, private_server
from support.queue_tools import claim_one, content, send

PASSWORD = "pass-word"
NOBODY = f"redis://user:{PASSWORD}@127.0.0.1:1/0"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "redis_world", "doctor", *arguments]


def doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        check=False,
        env=environment(**variables),
    )
    assert PASSWORD not in done.stdout + done.stderr
    assert done.stderr == ""
    return done


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """The plain lines by name: level, text, advice."""
    fields = [line.split("\t") for line in done.stdout.splitlines()]
    assert {len(each) for each in fields} == {4}
    return {name: [level, text, advice] for level, name, text, advice in fields}


@contextlib.contextmanager
def running(*args: str) -> Iterator[Server]:
    with private_server(ONE, *args) as server:
        yield server


@pytest.fixture(scope="module")
def healthy() -> Iterator[Server]:
    with running("--appendonly", "yes", "--maxmemory", "100mb") as server:
        yield server


# -- what it says, and how it ends ---------------------------------------------------------


def test_all_is_well(healthy: Server) -> None:
    done = doctor("--url", healthy.url)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    found = rows(done)
    product = "Valkey" if healthy.kind.startswith("valkey") else "Redis"
    assert found["version"] == ["ok", f"{product} {healthy.version}", ""]
    assert found["namespace"][0] == found["replicas"][0] == "info"
    # Nothing is made where nothing was: the second look finds no namespace either.
    again = rows(doctor("--url", healthy.url))
    assert "does not exist. The server has no namespaces" in again["namespace"][1]


def test_the_environment_says_what_the_world_would_be(healthy: Server) -> None:
    done = doctor(
        REDIS_WORLD_URL=healthy.url,
        REDIS_WORLD_NAMESPACE="orders",
        REDIS_WORLD_DURABILITY="replica",
    )
    assert done.returncode == 2
    found = rows(done)
    assert found["durability"][0] == "error"
    assert "orders" in found["namespace"][1]


def test_what_is_unknown_does_not_count(healthy: Server) -> None:
    user = f"unseeing-{os.getpid()}"
    with contextlib.closing(Backend(ONE, healthy.url).client()) as client:
        rights = ["on", f">{PASSWORD}", "+@all", "-info", "~*", "&*"]
        client.execute_command("ACL", "SETUSER", user, *rights)  # type: ignore[no-untyped-call]
        done = doctor("--url", healthy.url.replace("//", f"//{user}:{PASSWORD}@"))
        client.execute_command("ACL", "DELUSER", user)  # type: ignore[no-untyped-call]
    assert done.returncode == 0
    memory = rows(done)["memory"]
    assert memory[0] == "unknown"
    assert memory[2] == f"`ACL SETUSER {user} +info`"


async def test_warnings() -> None:
    with running("--appendonly", "yes", "--maxmemory", "100mb") as server:
        async with RedisWorld(server.url, namespace="orders", max_failures=2) as world:
            await send(world, content(1))
            for _ in range(2):
                await world.queue.retry(await claim_one(world), delay=0)
        done = doctor("--url", server.url, "--namespace", "orders")
    assert done.returncode == 1
    letters = rows(done)["dead letters"]
    assert letters[0] == "warning"
    assert "`redis-world dead list --namespace orders`" in letters[2]


def test_errors() -> None:
    with running("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        done = doctor("--url", server.url)
    assert done.returncode == 2
    found = rows(done)
    assert found["eviction"][0] == "error"
    assert "maxmemory-policy noeviction" in found["eviction"][2]
    assert found["persistence"][0] == "warning"


@pytest.mark.parametrize(
    ("arguments", "name", "word"),
    [
        (["--url", NOBODY], "connection", "127.0.0.1:1"),
        (["--url", "no url"], "configuration", "no url"),
        (["--url", NOBODY, "--namespace", "{}"], "configuration", "namespace"),
    ],
    ids=["nobody", "url", "namespace"],
)
@pytest.mark.parametrize("form", ["plain", "json"])
def test_what_can_not_be_looked_at(arguments: list[str], name: str, word: str, form: str) -> None:
    done = doctor(*arguments, *(["--json"] if form == "json" else []))
    assert done.returncode == 2
    if form == "plain":
        (found,) = rows(done).items()
        assert (found[0], found[1][0]) == (name, "error")
        assert word in found[1][1]
        assert found[1][2]
    else:
        document = json.loads(done.stdout)
        (finding,) = document["findings"]
        assert (finding["name"], document["level"]) == (name, "error")
        assert word in finding["text"]


def test_the_embedded_store() -> None:
    done = doctor("--url", "memory://")
    assert done.returncode == 0
    found = rows(done)
    assert found["version"][0] == "info"
    assert "--url" in found["version"][2]


def test_no_url_at_all() -> None:
    done = doctor()
    assert done.returncode == 2
    (found,) = rows(done).values()
    assert found[0] == "error"
    assert "REDIS_WORLD_URL is not set" in found[1]


def test_json(healthy: Server) -> None:
    done = doctor("--url", healthy.url, "--json")
    assert done.returncode == 0
    document: dict[str, Any] = json.loads(done.stdout)
    assert (document["level"], document["exitCode"]) == ("info", 0)
    assert {frozenset(each) for each in document["findings"]} == {
        frozenset({"name", "level", "text", "advice", "figures"})
    }
    found = {each["name"]: each for each in document["findings"]}
    assert found["connection"]["figures"]["roundTripMs"] > 0
    assert found["memory"]["figures"]["maxmemory"] == 100 * 2**20


def test_help() -> None:
    done = doctor("--help", COLUMNS="200")
    assert done.returncode == 0
    for word in ("--url", "--namespace", "--json", "Exit code", "warnings", "errors", "reached"):
        assert word in done.stdout


# -- on a terminal -------------------------------------------------------------------------


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_table(columns: int) -> None:
    with running("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        code, text = on_a_terminal(command("--url", server.url), columns=columns)
    assert code == 2
    assert "\x1b[" in text
    shown = plain(text)
    assert all(len(line.rstrip()) <= columns for line in shown.splitlines())
    # Nothing is cut: put together again, the sentences are whole.
    whole = " ".join(shown.split())
    assert "maxmemory-policy is allkeys-lru: a full server deletes" in whole
    assert "→ run `CONFIG SET maxmemory-policy noeviction`" in whole
    assert shown.rstrip().endswith("1 error, 1 warning.")


def test_a_terminal_when_all_is_well(healthy: Server) -> None:
    code, text = on_a_terminal(command("--url", healthy.url), columns=80)
    assert code == 0
    assert plain(text).rstrip().endswith("All is well.")


def test_a_terminal_without_colours_or_arrows(healthy: Server) -> None:
    plainest = {"TERM": "dumb", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    code, text = on_a_terminal(command("--url", healthy.url), columns=80, **plainest)
    assert code == 0
    assert text.isascii()
    assert "-> " in text
    assert "\x1b" not in text


def test_brackets_of_an_error_are_no_markup() -> None:
    code, text = on_a_terminal(command("--url", "redis://127.0.0.1:1/0?[bold]x=1"), columns=120)
    assert code == 2
    assert "Traceback" not in text
