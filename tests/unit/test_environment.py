"""Variables of the environment: which of them are needed, and which are mistakes."""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.config import WorldConfig
from redis_world.errors import ConfigurationError
from redis_world.vercel import use_redis_world
from support.command_line import run_here

OPTIONS: Final = ("URL", *(name.upper() for name in WorldConfig.model_fields))
VARIABLES: Final = tuple(f"REDIS_WORLD_{name}" for name in OPTIONS)
OTHERS: Final = (
    # Kubernetes, for a service that is called redis-world, and links of Docker.
    *("REDIS_WORLD_SERVICE_HOST", "REDIS_WORLD_SERVICE_PORT", "REDIS_WORLD_SERVICE_PORT_REDIS"),
    *("REDIS_WORLD_PORT", "REDIS_WORLD_PORT_6379_TCP", "REDIS_WORLD_PORT_6379_TCP_ADDR"),
    *("REDIS_WORLD_PORT_6379_TCP_PORT", "REDIS_WORLD_PORT_6379_TCP_PROTO", "REDIS_WORLD_NAME"),
    *("REDIS_WORLD_ENV_PATH", "REDIS_WORLD_HEADLESS_SERVICE_HOST", "REDIS_WORLD_HOST"),
    # Of this project's own.
    *("REDIS_WORLD_CHAOS", "REDIS_WORLD_REDIS7", "REDIS_WORLD_SERVER_URL", "REDIS_WORLD_TOKEN"),
    *("REDIS_WORLD_CONCURRENCY", "REDIS_WORLD_TEST_FOLDER", "REDIS_WORLD_TEST_EFFECTS"),
    # Of others.
    *("REDIS_WORLD", "REDIS_URL", "WORLD_URL", "REDIS_WORLD_MAX", "REDIS_WORLD_TIMEOUT"),
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.upper().startswith("REDIS_WORLD"):
            monkeypatch.delenv(name)


def _slips(name: str) -> Iterator[str]:
    """All that one slip makes of a name."""
    yield from (name.lower(), name.title(), name.swapcase(), name.replace("_", ""))
    yield from (name.replace("_", "__"), name.replace("_", "-"))
    for place in range(len(name) + 1):
        head, tail = name[:place], name[place:]
        yield from (head + letter + tail for letter in "AEZ_09")
        if tail:
            yield head + tail[1:]
            yield from (head + letter + tail[1:] for letter in "AEZ_09")
            yield head + tail[0] + tail
            yield head + tail[0].lower() + tail[1:]
        if len(tail) > 1:
            yield head + tail[1] + tail[0] + tail[2:]


@pytest.mark.parametrize("name", VARIABLES)
def test_one_slip_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slips = {*_slips(name)} - {name}
    assert len(slips) > 15 * len(name) - 60
    monkeypatch.setattr(os, "environ", dict.fromkeys(slips, "secret"))
    with pytest.raises(ConfigurationError) as caught:
        WorldConfig.from_env()
    text = str(caught.value)
    for slip in slips:
        assert f"{slip} is not an option; did you mean {name}?" in text
    assert "secret" not in text


def test_no_option_is_a_slip_of_another_one() -> None:
    for name in VARIABLES:
        assert {*_slips(name)} & {*VARIABLES} <= {name}


@pytest.mark.parametrize("call", [RedisWorld.from_env, use_redis_world, WorldConfig.from_env])
def test_every_reader_of_the_environment_tells(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_WORLD_DURABILTY", "disk")
    monkeypatch.setenv("redis_world_url", "redis://localhost")
    given = {} if call == WorldConfig.from_env else {"url": "memory://"}
    with pytest.raises(ConfigurationError) as caught:
        call(**given)
    for name in ("REDIS_WORLD_DURABILTY", "REDIS_WORLD_DURABILITY", "REDIS_WORLD_URL"):
        assert name in str(caught.value)


def test_other_variables_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OTHERS:
        monkeypatch.setenv(name, "tcp://10.0.0.1:6379")
    monkeypatch.setenv("REDIS_WORLD_RETENTION", "P1D")
    assert RedisWorld.from_env(url="memory://").config.retention is not None
    for letter in string.ascii_uppercase:
        monkeypatch.setenv(f"REDIS_WORLD_{letter}", "1")
        monkeypatch.setenv(f"REDIS_WORLD_OPTION_{letter}", "1")
    WorldConfig.from_env()


@pytest.mark.parametrize("value", [None, "", " "])
@pytest.mark.parametrize("call", [RedisWorld.from_env, use_redis_world])
def test_a_url_is_demanded(
    call: Callable[..., Any], value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv("REDIS_WORLD_URL", value)
    with pytest.raises(ConfigurationError) as caught:
        call()
    text = str(caught.value)
    assert "REDIS_WORLD_URL" in text
    assert "REDIS_WORLD_URL=redis://localhost:6379/0" in text, "an example"
    assert "memory://" in text
    with pytest.raises(ConfigurationError, match="URL"):
        call(url="")


def test_the_embedded_store_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RedisWorld.from_env(url="memory://").is_memory
    monkeypatch.setenv("REDIS_WORLD_URL", "memory://named")
    assert RedisWorld.from_env().is_memory


COMMANDS: Final = (
    *(("worker", "app"), ("doctor",), ("bench", "--seconds", "1"), ("inspect", "runs")),
    *(("inspect", "run", "wrun_1"), ("inspect", "events", "wrun_1"), ("inspect", "queue")),
    *(("inspect", "steps", "wrun_1"), ("inspect", "hooks"), ("inspect", "streams", "wrun_1")),
    *(("cancel", "wrun_1"), ("dead", "list"), ("dead", "redrive", "msg_1")),
    *(("dead", "purge", "t", "--yes"), ("prune", "--older-than", "1d")),
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("slip", [None, "REDIS_WORLD_NAMESPCE"])
def test_each_command_tells_it(
    arguments: tuple[str, ...],
    slip: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "app.py").touch()
    monkeypatch.chdir(tmp_path)
    variables = {} if slip is None else {slip: "n", "REDIS_WORLD_URL": "redis://127.0.0.1:1"}
    done = run_here(*arguments, **variables)
    told = done.out + done.err
    assert done.code in (1, 2), told
    assert "Traceback" not in told
    assert ("REDIS_WORLD_URL" if slip is None else "REDIS_WORLD_NAMESPACE") in told
    assert "redis://localhost:6379/0" in told or slip
