"""Who may do what: tokens, roles, namespaces, and how many requests at a time."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

import cbor2
import pytest

from redis_world import RedisWorld
from redis_world.errors import ConfigurationError
from redis_world.server import Access, Limits, Role, Token, access, parse_tokens
from redis_world.server.methods import METHODS
from support import events as e
from support.backends import Backend
from support.http_server import Client, serving
from support.queue_tools import TOPIC

pytestmark = pytest.mark.large

SECRETS: Final = {role: f"secret-token-of-{role}" for role in Role}
OTHER: Final = "secret-token-of-another-namespace"
EVERYBODYS: Final = ("server.info", "streams.read")
ALL_METHODS: Final = sorted([*METHODS, *EVERYBODYS, "queue.claim"])


def tokens_of(namespace: str, other: str) -> list[Token]:
    return [
        *(Token(secret, namespace, role) for role, secret in SECRETS.items()),
        Token(OTHER, other, Role.APP),
    ]


def roles_of(method: str) -> frozenset[Role]:
    if method == "queue.claim":
        return frozenset({Role.APP})
    return frozenset(Role) if method in EVERYBODYS else METHODS[method].roles


async def test_each_role_may_call_its_methods_and_no_others(
    backend: Backend, world: RedisWorld
) -> None:
    namespace = world.config.namespace
    entry = Access(tokens_of(namespace, backend.namespace()))
    async with serving(backend, namespace="unused", access=entry) as served:
        for role, secret in SECRETS.items():
            client = Client(served.client.port, secret)
            for method in ALL_METHODS:
                reply = await client.call(method, {"surely": "unknown"})
                is_allowed = role in roles_of(method)
                assert reply.status == (400 if is_allowed else 403), (role, method, reply.value)
                assert reply.value["code"] == ("invalid-input" if is_allowed else "forbidden")


def test_reading_is_for_all_and_writing_is_not() -> None:
    for name, method in METHODS.items():
        if method.has_get or name == "hooks.getByToken":
            assert method.roles == frozenset(Role), name
        else:
            assert Role.READ not in method.roles, name


async def test_an_operator_may_only_cancel(backend: Backend, world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    entry = Access(tokens_of(world.config.namespace, backend.namespace()))
    async with serving(backend, namespace="unused", access=entry) as served:
        client = Client(served.client.port, SECRETS[Role.OPERATE])
        before = backend.dump()
        reply = await client.call("events.create", {"runId": run_id, "event": e.step_created()})
        assert (reply.status, reply.value["code"]) == (403, "forbidden")
        assert backend.dump() == before
        cancelled = e.run_ended("cancelled")
        await client.value("events.create", {"runId": run_id, "event": cancelled})
    assert (await world.runs.get(run_id)).status == "cancelled"


async def test_a_token_opens_its_namespace_alone(backend: Backend, world: RedisWorld) -> None:
    run_id = await e.new_run(world)
    entry = Access(tokens_of(world.config.namespace, backend.namespace()))
    async with serving(backend, namespace="unused", access=entry) as served:
        stranger = Client(served.client.port, OTHER)
        reply = await stranger.call("runs.get", {"runId": run_id})
        assert (reply.status, reply.value["code"]) == (404, "WorkflowRunNotFoundError")
        assert (await stranger.value("runs.list"))["data"] == []
        assert await stranger.value("streams.list", {"runId": run_id}) == []
        own = Client(served.client.port, SECRETS[Role.READ])
        assert (await own.value("runs.get", {"runId": run_id}))["runId"] == run_id


BAD_HEADERS: Final = [
    None, "", "Bearer", "Bearer ", "Basic secret-token-of-app", "secret-token-of-app",
    "Bearer secret-token-of-ap", "Bearer secret-token-of-app2", "Bearer  x", "Bearer \xff\xfe",
    "bearer,secret-token-of-app",
]  # fmt: skip


@pytest.mark.parametrize("given", BAD_HEADERS)
async def test_without_a_valid_token_nothing_is_done(
    backend: Backend, world: RedisWorld, given: str | None
) -> None:
    entry = Access(tokens_of(world.config.namespace, backend.namespace()))
    async with serving(backend, namespace="unused", access=entry) as served:
        before = backend.dump()
        headers = {} if given is None else {"Authorization": given}
        client = Client(served.client.port, headers=headers)
        created = e.event("run_created", deploymentId="d", workflowName="w")
        for method in ("events.create", "runs.list", "no.method", "server.info"):
            reply = await client.call(method, {"runId": None, "event": created})
            assert (reply.status, reply.value["code"]) == (401, "unauthorized")
            assert reply.headers["www-authenticate"] == "Bearer"
        assert backend.dump() == before


async def test_health_needs_no_token(backend: Backend, world: RedisWorld) -> None:
    entry = Access(tokens_of(world.config.namespace, backend.namespace()))
    async with serving(backend, namespace="unused", access=entry) as served:
        for path in ("/livez", "/readyz", "/openapi.json"):
            assert (await served.client.send("GET", path)).status == 200


async def test_a_token_has_a_limit_of_requests(backend: Backend, world: RedisWorld) -> None:
    namespace = world.config.namespace
    few = Token("a-token-with-few-requests", namespace, Role.APP, 2)
    more = tokens_of(namespace, backend.namespace())
    async with serving(backend, namespace="unused", access=Access([few, *more])) as served:
        client = Client(served.client.port, few.secret)
        poll = {"topics": [TOPIC], "wait": 20, "worker": "w"}
        open_ones = [await client.open("POST", "/v1/queue.claim", *claim_body(poll)) for _ in "12"]
        while few.in_work < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        reply = await client.call("runs.list")
        assert (reply.status, reply.value["code"]) == (429, "throttled")
        assert int(reply.headers["retry-after"]) == reply.value["retryAfter"] >= 1
        # Others have their own.
        assert (
            await Client(served.client.port, SECRETS[Role.READ]).call("runs.list")
        ).status == 200
        for _, writer in open_ones:
            writer.close()
        while few.in_work:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await client.call("runs.list")).status == 200


def claim_body(poll: dict[str, object]) -> tuple[bytes, dict[str, str]]:
    return cbor2.dumps(poll), {"Content-Type": "application/cbor"}


async def test_a_server_has_a_limit_of_requests(backend: Backend, world: RedisWorld) -> None:
    limits = Limits(requests=1)
    async with serving(backend, namespace=world.config.namespace, limits=limits) as served:
        client = served.client
        poll = {"topics": [TOPIC], "wait": 20, "worker": "w"}
        _, writer = await client.open("POST", "/v1/queue.claim", *claim_body(poll))
        while (await client.call("runs.list")).status != 429:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # Health is asked for when much is to be done.
        assert (await client.send("GET", "/livez")).status == 200
        writer.close()


# -- tokens --------------------------------------------------------------------------------


def test_tokens_are_read() -> None:
    text = "\n# a comment\n  secret-token-number-1 orders app 7\nsecret-token-number-2\tn read\n;"
    one, two = parse_tokens(text, "file")
    assert (one.namespace, one.role, one.requests) == ("orders", Role.APP, 7)
    assert (two.namespace, two.role, two.requests) == ("n", Role.READ, access.DEFAULT_REQUESTS)
    assert one.secret not in repr(one)


BAD_LINES: Final = [
    "short n app", "secret-token-number-1 n", "secret-token-number-1 n boss",
    "secret-token-number-1 n app 0", "secret-token-number-1 n app x",
    "secret,token-number-1 n app",
    "secret-token-number-1 bad/name app", "secret-token-number-1 n app 1 2",
    "sécret-token-number-1 n app",
    "secret-token-number-1 n app\nsecret-token-number-1 m read",
]  # fmt: skip


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_malformed_line_is_refused_without_its_token(line: str) -> None:
    with pytest.raises(ConfigurationError, match="the file") as raised:
        parse_tokens(line, "the file")
    assert "secret-token-number-1" not in str(raised.value)


def test_a_token_is_rotated_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(access, "_LOOK_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    file = tmp_path / "tokens.txt"
    file.write_text("the-first-token-of-all n app\n")
    entry = Access(file=file)
    first = entry.find("the-first-token-of-all")
    assert first is not None
    first.in_work = 3
    replace(file, "the-first-token-of-all n app\nthe-second-token-of-all n app\n")
    both = [entry.find("the-first-token-of-all"), entry.find("the-second-token-of-all")]
    assert [each.in_work for each in both if each] == [3, 0]
    # A request that began before the change ends after it.
    first.in_work -= 1
    assert [each.in_work for each in both if each] == [2, 0]
    assert entry.secrets_of("n", Role.APP) == ["the-first-token-of-all", "the-second-token-of-all"]
    replace(file, "the-second-token-of-all n app\n")
    assert entry.find("the-first-token-of-all") is None
    # A half-written file locks nobody out, and is told of once.
    replace(file, "the-third-tok")
    assert entry.find("the-second-token-of-all") is not None
    file.unlink()
    assert entry.find("the-second-token-of-all") is not None
    replace(file, "the-fourth-token-of-all n app\n")
    assert entry.find("the-second-token-of-all") is None
    assert entry.find("the-fourth-token-of-all") is not None
    events = [getattr(each, "event", "") for each in caplog.records]
    assert events.count("tokens.changed") == 3
    assert "tokens.refused" in events
    assert "-tok" not in caplog.text


def replace(file: Path, text: str) -> None:
    """Put a new file in the place of the old one, as careful programs do."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't read the tokens"):
        Access(file=tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="can't read the tokens"):
        Access(file=tmp_path / "binary")


def test_a_change_of_a_token_counts_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_LOOK_SECONDS", 0.0)
    file = tmp_path / "tokens.txt"
    file.write_text("the-first-token-of-all n app\n")
    entry = Access(file=file)
    replace(file, "the-first-token-of-all other read 7\n")
    token = entry.find("the-first-token-of-all")
    assert token is not None
    assert (token.namespace, token.role, token.requests) == ("other", Role.READ, 7)


# -- versions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("redis-world-typescript/0.1.0", 200), ("redis-world-typescript/9.0.0-beta.1", 200),
        ("curl/8.0.1", 200), ("redis-world-typescript/0.0.9", 400), ("nonsense", 400),
    ],
)  # fmt: skip
async def test_a_package_that_is_too_old_is_told_to_upgrade(
    backend: Backend, world: RedisWorld, given: str, status: int
) -> None:
    async with serving(backend, namespace=world.config.namespace) as served:
        reply = await served.client.call("runs.list", Redis_World_Client=given)
        assert reply.status == status
        if "0.0.9" in given:
            assert reply.value["code"] == "client-too-old"
            assert "upgrade redis-world-typescript to 0.1.0 or later" in reply.value["message"]
