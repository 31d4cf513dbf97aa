"""A World with `partitions=None`: it opens a namespace as it is, and creates none."""

from __future__ import annotations

import contextlib
import copy
import pickle
import secrets
from typing import Final

import pytest

from redis_world import RedisWorld
from redis_world.connection.namespaces import Namespaces
from redis_world.errors import ConfigurationError, NamespaceNotFoundError
from redis_world.keys import meta_key
from support.backends import Backend
from support.events import new_run
from support.exercise import TOPIC

PARTITIONS: Final = 4


async def fill(backend: Backend) -> tuple[str, str]:
    """A namespace with several partitions; and a run in it."""
    namespace = backend.namespace()
    async with backend.world(namespace=namespace, partitions=PARTITIONS) as world:
        runs = [await new_run(world) for _ in range(2 * PARTITIONS)]
        await world.queue.send(f"{TOPIC}w", {"runId": runs[0]})
    return namespace, runs[0]


async def test_it_takes_the_partitions_of_the_namespace(backend: Backend) -> None:
    namespace, run_id = await fill(backend)
    async with backend.world(namespace=namespace, partitions=None) as world:
        assert len(world.connection.partitions) == PARTITIONS
        assert (await world.runs.get(run_id)).run_id == run_id
        found = {run.run_id for run in (await world.runs.list(limit=100)).data}
        assert TOPIC in await world.queue.topics()
        created = await new_run(world)
    async with backend.world(namespace=namespace, partitions=PARTITIONS) as world:
        assert {run.run_id for run in (await world.runs.list(limit=100)).data} == {*found, created}


async def test_it_creates_nothing(backend: Backend) -> None:
    namespace, _ = await fill(backend)
    other = backend.namespace()
    before = backend.dump()
    for _ in range(2):
        world = backend.world(namespace=other, partitions=None)
        with pytest.raises(NamespaceNotFoundError) as caught:
            await world.open()
        await world.aclose()
        assert (caught.value.namespace, caught.value.existing) == (other, (namespace,))
        assert f"no such namespace: '{other}'" in str(caught.value)
        assert f"Existing namespaces are: {namespace}" in str(caught.value)
    assert backend.dump() == before


async def test_a_server_without_any_namespace(backend: Backend) -> None:
    world = backend.world(partitions=None)
    with pytest.raises(NamespaceNotFoundError, match="The server has no namespaces") as caught:
        await world.open()
    await world.aclose()
    assert caught.value.existing == ()
    assert isinstance(caught.value, ConfigurationError)
    assert caught.value.status == 404
    assert backend.dump() == {}


async def test_a_namespace_that_is_created_later(backend: Backend) -> None:
    world = backend.world(partitions=None)
    with pytest.raises(NamespaceNotFoundError):
        await world.open()
    async with backend.world(namespace=world.config.namespace, partitions=2):
        pass
    async with world:
        assert len(world.connection.partitions) == 2


async def test_keys_of_others_are_no_namespaces(backend: Backend) -> None:
    name = backend.namespace()
    others = [f"{{{name}}}x:v1:meta", f"{{{name}/0.0}}:v1:meta", f"{{{name} }}:v1:meta"]
    with contextlib.closing(backend.client()) as client:
        client.hset(meta_key(name), "schema", "1")
        for key in others:
            client.set(key, "1")
    world = backend.world(partitions=None)
    with pytest.raises(NamespaceNotFoundError) as caught:
        await world.open()
    assert caught.value.existing == (name,)
    await world.aclose()
    with contextlib.closing(backend.client()) as client:
        # Not of this test's namespaces, for whoever looks for what tests leave.
        for key in others:
            client.delete(key)


async def test_a_namespace_of_another_version(backend: Backend) -> None:
    world = backend.world(partitions=None)
    with contextlib.closing(backend.client()) as client:
        client.hset(meta_key(world.config.namespace), mapping={"schema": 99, "partitions": 1})
    with pytest.raises(ConfigurationError, match="schema 99"):
        await world.open()
    await world.aclose()


async def test_it_has_to_be_opened_first(backend: Backend) -> None:
    namespace, run_id = await fill(backend)
    world = backend.world(namespace=namespace, partitions=None)
    with pytest.raises(ConfigurationError, match="open"):
        await world.runs.get(run_id)
    await world.open()
    assert (await world.runs.get(run_id)).run_id == run_id
    await world.aclose()


async def test_a_namespace_that_was_deleted_meanwhile_is_not_created_again(
    real_backend: Backend,
) -> None:
    namespace, run_id = await fill(real_backend)
    async with real_backend.world(namespace=namespace, partitions=None) as world:
        with contextlib.closing(real_backend.client()) as client:
            client.flushall()
            client.script_flush()
        with pytest.raises(NamespaceNotFoundError):
            await world.runs.get(run_id)
        assert real_backend.dump() == {}
        async with real_backend.world(namespace=namespace, partitions=PARTITIONS) as maker:
            await new_run(maker)
        assert len((await world.runs.list()).data) == 1
        with contextlib.closing(real_backend.client()) as client:
            client.flushall()
            client.script_flush()
        async with real_backend.world(namespace=namespace, partitions=PARTITIONS + 1):
            pass
        with contextlib.closing(real_backend.client()) as client:
            client.script_flush()
        with pytest.raises(ConfigurationError, match=f"partitions={PARTITIONS + 1}"):
            await world.runs.list()


async def test_the_environment_can_say_so(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, _ = await fill(backend)
    monkeypatch.setenv("REDIS_WORLD_URL", backend.url)
    monkeypatch.setenv("REDIS_WORLD_NAMESPACE", namespace)
    monkeypatch.setenv("REDIS_WORLD_PARTITIONS", "none")
    async with RedisWorld.from_env() as world:
        assert len(world.connection.partitions) == PARTITIONS


def test_names_that_look_alike_come_first() -> None:
    names = [f"n{secrets.token_hex(4)}" for _ in range(20)]
    found = Namespaces(sorted([*names, "orders"]), is_complete=True)
    assert found.nearest("ordres")[0] == "orders"
    text = found.describe("ordres")
    assert text.startswith("Existing namespaces are: orders, ")
    assert text.endswith(" and 11 more")
    partial = found._replace(is_complete=False)
    assert partial.describe("ordres").startswith("Existing namespaces include: orders, ")
    assert "did not finish" in Namespaces([], is_complete=False).describe("x")


async def test_a_user_who_may_not_list_them(real_backend: Backend) -> None:
    name = f"u{secrets.token_hex(4)}"
    with contextlib.closing(real_backend.client()) as client:
        rights = ["on", ">secret", "+@all", "-scan", "~*", "&*"]
        client.execute_command("ACL", "SETUSER", name, *rights)  # type: ignore[no-untyped-call]
    world = RedisWorld(real_backend.url.replace("//", f"//{name}:secret@"), partitions=None)
    with pytest.raises(NamespaceNotFoundError, match=r"\+scan"):
        await world.open()
    await world.aclose()
    with contextlib.closing(real_backend.client()) as client:
        client.execute_command("ACL", "DELUSER", name)  # type: ignore[no-untyped-call]


def test_the_error_survives_a_copy() -> None:
    error = NamespaceNotFoundError("text", namespace="a", existing=["b"])
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(twin), twin.namespace, twin.existing) == ("text", "a", ("b",))
