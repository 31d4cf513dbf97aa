"""No password and no hook token is in an error, a log line or a repr (contract, section 4)."""

# Contract: 4.secrets

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from redis_world import RedisWorld
from redis_world.errors import ConfigurationError, HookNotFoundError, WorldError
from redis_world.models import HookCreatedData
from redis_world.queue import Enqueue
from support import events as e

TOKEN: Final = "tok-secret-5ed2"
NAME: Final = "__wkf_workflow_w"


def texts(error: BaseException | None) -> Iterator[str]:
    """All that a traceback tells of an error, but for the code."""
    while error is not None:
        yield f"{error} {error!r}"
        error = error.__cause__ or error.__context__


async def test_no_token_is_told(world: RedisWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run_id, other = await e.new_run(world), await e.new_run(world)
    told: list[str] = []

    async def create(run: str, wire: Any, **params: Any) -> Any:
        try:
            result = await world.events.create(run, wire, **params)
        except WorldError as error:
            told.extend(texts(error))
            return None
        told.append(repr(result))
        return result

    late = datetime.now(UTC) + timedelta(days=9999)
    lone = f"{TOKEN}\ud800"
    retained = e.hook_created("h", TOKEN, tokenRetentionUntil=datetime.now(UTC) + timedelta(1))
    await create(run_id, retained)
    for wire in (
        e.hook_created("h", TOKEN),
        e.hook_created("late", TOKEN, tokenRetentionUntil=late),
        e.hook_created("x", lone),
        e.hook_created("x", [TOKEN]),  # type: ignore[arg-type]
        e.hook_created("x", {TOKEN: 1}),  # type: ignore[arg-type]
        e.hook_created("x", TOKEN, isWebhook=TOKEN),
        e.hook_created("x", TOKEN, metadata=object()),
        e.hook_created("x", TOKEN, tokenRetentionUntil="no date"),
        e.hook_received("h", token=TOKEN),
        e.hook_received("h", token=5),
        e.hook_received("none", token=TOKEN),
        e.hook_disposed("none", token=TOKEN),
        {"eventType": "hook_conflict", "eventData": {"token": TOKEN}},
        {"eventType": "no type", "eventData": {"token": TOKEN}},
        {"eventType": "hook_created", "eventData": {"token": TOKEN}},
        {"eventType": "hook_created", "correlationId": 5, "eventData": {"token": TOKEN}},
    ):
        await create(run_id, wire, preload_events=True)
        await create("wrun_none", wire)
    # Its conflict, and that of a request whose event brings a message along.
    conflict = await create(
        other, e.hook_created("rival", TOKEN), since_cursor=f"eid:evnt_{0:026d}"
    )
    assert conflict.event.event_type == "hook_conflict"
    await create(other, e.hook_created("rival", TOKEN))
    payload = {"runId": run_id, "hookInput": {"token": TOKEN}, "n": 1}
    enqueue = Enqueue(NAME, payload)
    await create(run_id, e.step_created("s"), enqueue=enqueue)
    (message,) = await world.queue.claim("__wkf_workflow_")
    told += [repr(enqueue), repr(message)]
    assert is_dataclass(message)
    assert asdict(message)["payload"]["hookInput"] == {"token": TOKEN}, "it is there all the same"
    assert replace(message, failures=63).payload == payload
    for wrong in (f"{TOKEN}-none", lone, [TOKEN], TOKEN * 100):
        with pytest.raises((HookNotFoundError, ValueError)) as caught:
            await world.hooks.get_by_token(wrong)  # type: ignore[arg-type]
        told += texts(caught.value)
    found = [
        await world.hooks.get_by_token(TOKEN),
        await world.hooks.list(),
        await world.events.list(run_id),
        await world.events.list(other),
        HookCreatedData(token=TOKEN),
    ]
    told += [f"{each} {each!r}" for each in found]
    with pytest.raises(ValueError) as malformed:
        HookCreatedData.from_wire({"token": [TOKEN]})
    told += texts(malformed.value)
    assert await create(run_id, e.hook_disposed("h", token=TOKEN)) is not None
    told += [record.getMessage() for record in caplog.records]
    for text in told:
        assert TOKEN not in text, text
    assert not hasattr(HookNotFoundError.of_token(), "token")
    assert HookNotFoundError.of_token().entity_id == ""


PASSWORDS: Final = (
    "q7x/z9k",
    "q7x#z9k",
    "q7x?z9k",
    "12/z9k",
    "12#z9k",
    "12?z9k",
    "q7x@z9k",
    "q7x@c/z9k",
    "q7x@c#z9k",
    "q7x@c?z9k",
    "q7x:z9k",
    "[q7x]z9k",
    "q7x%zzz9k",
    "q7x/e@c?r#z9k",
    "?z9k=1",
    "q7x z9k",
)


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize(
    "form",
    [
        *("redis://user:{}@no-host.invalid:6379/0", "rediss://:{}@no-host.invalid"),
        *("redis+cluster://user:{}@no-host.invalid:1,other:2/0", "unix://user:{}@/no/socket?db=0"),
        "redis+sentinel://user:{}@no-host.invalid:1/service",
        *("redis://user:{}@no-host.invalid:x/0", "redis://user:{}@no-host.invalid/x"),
        *("nodb://user:{}@no-host.invalid/0", "user:{}@no-host.invalid", "memory://user:{}@x"),
        *("redis://no-host.invalid/0?password={}", "redis+cluster://no-host.invalid?password={}"),
        "redis://no-host.invalid/0?socket_timeout=x&password={}",
    ],
)
async def test_no_password_is_told(
    form: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told = []
    try:
        world = RedisWorld(form.format(password), connect_timeout=0.01, retry_timeout=0)
        told.append(f"{world!r} {world.config!r} {world.connection.describe()}")
        async with world:
            pass
    except WorldError as error:
        told += texts(error)
    told += [record.getMessage() for record in caplog.records]
    for text in told:
        assert "q7x" not in text, text
        assert "z9k" not in text, text


def test_an_unknown_option_is_not_quoted() -> None:
    """It may be the password, which is part of the URL."""
    with pytest.raises(ConfigurationError, match="password") as caught:
        RedisWorld("memory://", password="hidden-5ed2")
    assert all("hidden" not in text for text in texts(caught.value))


class Dsn:
    """A URL of another class, as settings libraries have it."""

    def __init__(self, padding: int = 0) -> None:
        self._padding = padding

    def __repr__(self) -> str:
        return f"Dsn({'a' * self._padding}redis://user:hidden-5ed2@localhost)"


@pytest.mark.parametrize(
    "option", ["url", "namespace", "partitions", "durability", "retention", "max_connections"]
)
@pytest.mark.parametrize(
    "value",
    [
        "redis://user:hidden-5ed2@localhost",
        b"redis://user:hidden-5ed2@localhost",
        bytearray(b"redis://user:hidden-5ed2@localhost"),
        ["redis://user:hidden-5ed2@localhost"],
        Dsn(),
        Dsn(100),
    ],
    ids=["text", "bytes", "a bytearray", "a list", "an object", "a long object"],
)
def test_a_url_in_the_wrong_place_is_quoted_without_its_password(option: str, value: Any) -> None:
    if option == "url" and isinstance(value, str):
        assert "hidden" not in RedisWorld(value).connection.describe()
        return
    with pytest.raises(ConfigurationError) as caught:
        RedisWorld(**{"url": "memory://", option: value})
    assert all("hidden" not in text for text in texts(caught.value))


def test_how_special_characters_are_written() -> None:
    with pytest.raises(ConfigurationError, match="%2F for /"):
        RedisWorld("redis://user:pa/ss@localhost:6379/0")
    RedisWorld("redis://user:pa%2Fss@localhost:6379/0")
