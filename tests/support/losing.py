"""Playing a call several times over, in namespaces of their own, and losing parts of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, Literal, TypeAlias

import pytest
from pydantic import BaseModel
from ulid import ULID

from redis_world import RedisWorld, ids
from redis_world.codec import to_ms
from redis_world.errors import WorldError
from redis_world.ids import process_id
from redis_world.keys import Keys
from redis_world.lua import Script, ScriptLibrary, script_root
from redis_world.queue import Message
from redis_world.requests import request_scope
from redis_world.testing import CuttingProxy, ManualClock, cutting_proxy
from support.backends import Backend
from support.events import run_id_at
from support.queue_tools import outcome

IS_LONG: Final = os.environ.get("REDIS_WORLD_CHAOS") == "long"

CLOCKED: Final = ManualClock.library()
SCRIPTS: Final = {
    known.encode(): script.name for script in CLOCKED for known in (script.sha, script.source)
}
"""What EVALSHA and EVAL call a script, to its name."""


class _Loaded(ScriptLibrary):
    """Scripts that the server has already: eight Worlds are opened for each case."""

    def __getitem__(self, name: str) -> Script:
        return CLOCKED[name]

    def __iter__(self) -> Iterator[Script]:
        return iter(())


LIBRARY: Final = _Loaded(script_root())

MOMENT: Final = datetime.now(UTC).replace(microsecond=0)
"""The time of all scripts, so that what is played twice happens at the same time."""
RUN: Final = run_id_at(MOMENT)
OTHER: Final = run_id_at(MOMENT)

LOSSES: Final = {
    "the reply": (1, 0),
    "the replies to two tries": (2, 0),
    "the request": (0, 1),
    **({"much": (5, 2)} if IS_LONG else {}),
}
"""How many replies and requests of a call are lost."""


def load_scripts(backend: Backend) -> None:
    """Let a server know all scripts: else what is lost first is that it does not."""
    scripts = list(CLOCKED)
    with contextlib.closing(backend.client()) as client:
        known = client.script_exists(*(script.sha for script in scripts))
        for script, is_known in zip(scripts, known, strict=True):
            if not is_known:
                client.script_load(script.source)


# -- the network ---------------------------------------------------------------------------


def runs(*names: str) -> Callable[[list[bytes]], bool]:
    """Whether a command runs one of these scripts, or any."""

    def matching(command: list[bytes]) -> bool:
        name = SCRIPTS.get(command[1]) if command[0] in {b"EVALSHA", b"EVAL"} else None
        return name is not None and (not names or name in names)

    return matching


def nth(number: int, matching: Callable[[list[bytes]], bool]) -> Callable[[list[bytes]], bool]:
    """Of the commands that match, only this one, counted from 1."""
    seen = 0

    def is_it(command: list[bytes]) -> bool:
        nonlocal seen
        seen += matching(command)
        return seen == number and matching(command)

    return is_it


def freeze(world: RedisWorld, *, seconds: int = 0) -> None:
    """Let a World take this for the server's time, which is in ids and in some messages."""
    now = to_ms(MOMENT) + 1000 * seconds
    world.connection.server_time = lambda: now  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def direct_world(
    backend: Backend, namespace: str, *, is_set: bool = True, **options: Any
) -> AsyncIterator[tuple[RedisWorld, ManualClock]]:
    """A World that goes by no proxy; its clock is set, unless it was already."""
    async with backend.world(namespace=namespace, library=LIBRARY, **options) as world:
        freeze(world)
        clock = ManualClock(world)
        yield world, await clock.set(MOMENT) if is_set else clock


@contextlib.asynccontextmanager
async def fragile_world(
    backend: Backend, namespace: str, **options: Any
) -> AsyncIterator[tuple[RedisWorld, CuttingProxy]]:
    """A World that goes by a proxy; its ids sort behind those of the other one."""
    async with (
        cutting_proxy(backend.url) as proxy,
        RedisWorld(proxy.url, namespace=namespace, library=LIBRARY, **options) as world,
    ):
        freeze(world, seconds=1)
        yield world, proxy


# -- playing the same again ----------------------------------------------------------------

Prepare: TypeAlias = Callable[[RedisWorld, ManualClock], Awaitable[Any]]
Call: TypeAlias = Callable[[RedisWorld, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """A call, and what has to be there before it."""

    script: str
    """Whose reply or request is lost."""
    call: Call
    """What is called, given what `prepare` has returned."""
    prepare: Prepare | None = None
    refused: bool = False
    """Whether it raises, with nothing lost too."""
    answers: bool = True
    """Whether its answer is the same whatever is lost."""
    repeats: Literal["answered", "done", "no"] = "answered"
    """For a caller who repeats it in another process: whether it happens once, and whether the
    answer is the same, too."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the Worlds."""


async def prepare(backend: Backend, namespace: str, case: Case) -> Any:
    """Bring a namespace into the state that a case begins with."""
    async with direct_world(backend, namespace, **case.options) as (world, clock):
        return await case.prepare(world, clock) if case.prepare is not None else None


async def play(
    backend: Backend, namespace: str, case: Case, given: Any, replies: int = 0, requests: int = 0
) -> Any:
    """The result of a case's call, or the error that it raised."""
    async with fragile_world(backend, namespace, **case.options) as (world, proxy):
        proxy.drop_requests(runs(case.script), times=requests)
        proxy.drop_replies(runs(case.script), times=replies)
        result = await outcome(case.call(world, given))
        assert proxy.dropped == replies + requests
    return result


def copy_namespace(
    backend: Backend, source: str, targets: Iterable[str], partitions: int = 1
) -> None:
    with contextlib.closing(backend.client()) as client:
        keys = [key for end in "}/" for key in client.scan_iter(f"{{{source}{end}*", 1000)]
        with client.pipeline(transaction=False) as pipeline:
            for target in targets:
                for key in keys:
                    pipeline.copy(key.decode(), _renamed(key, source, target, partitions))
            pipeline.execute()


def _renamed(key: bytes, source: str, target: str, partitions: int) -> str:
    """A key in the same partition of another namespace, whose tag has another end."""
    name = key.decode()
    for number in range(partitions):
        base = Keys(source, number, partitions).base
        if name.startswith(base):
            return name.replace(base, Keys(target, number, partitions).base, 1)
    return name.replace(source, target, 1)


REQUEST_ID: Final = str(ULID.from_timestamp(to_ms(MOMENT) + 1000))
"""Of a caller that repeats its request; what is made of it sorts behind what was there."""


async def play_in_two_worlds(backend: Backend, namespace: str, case: Case, given: Any) -> Any:
    """The result for a caller who did not get the first one, and asks another process."""
    result = None
    for attempt in (1, 2):
        async with direct_world(backend, namespace, is_set=False, **case.options) as (world, _):
            freeze(world, seconds=1)
            with request_scope(REQUEST_ID, attempt=attempt):
                result = await outcome(case.call(world, given))
    return result


async def hold_against_twin(backend: Backend, case: Case) -> dict[bytes, Any]:
    """Play a case with each loss and without; the keys that it left."""
    losses = {"nothing": (0, 0), **LOSSES}
    repetitions = [] if case.repeats == "no" else ["the caller's reply"]
    names = {loss: backend.namespace() for loss in [*losses, *repetitions]}
    twin_name, *other_names = names.values()
    given = await prepare(backend, twin_name, case)
    copy_namespace(backend, twin_name, other_names, case.options.get("partitions", 1))
    results = await asyncio.gather(
        *(play(backend, names[loss], case, given, *numbers) for loss, numbers in losses.items()),
        *(play_in_two_worlds(backend, names[each], case, given) for each in repetitions),
    )
    assert isinstance(results[0], Exception) == case.refused, results[0]
    dump = backend.dump()
    answers = [result if case.answers else None for result in results]
    if case.repeats == "done":
        answers[-1] = answers[0]
    twin, *others = [
        comparable(answer, keys_of(dump, name))
        for name, answer in zip(names.values(), answers, strict=True)
    ]
    for loss, other in zip([*names][1:], others, strict=True):
        different = {
            what: (other.get(what), twin.get(what))
            for what in {**twin, **other}
            if other.get(what) != twin.get(what)
        }
        assert not different, f"{loss} was lost"
    return twin


@dataclass(frozen=True)
class Twin:
    """A case that was played without any loss, and a namespace in which it was not yet."""

    played: str
    """The namespace of the former."""
    answer: Any
    namespace: str
    given: Any

    def assert_same(self, backend: Backend, answer: Any) -> None:
        """What has become of the other namespace, and its answer, are the twin's."""
        dump = backend.dump()
        ours, theirs = keys_of(dump, self.namespace), keys_of(dump, self.played)
        assert comparable(answer, ours) == comparable(self.answer, theirs)


async def play_twin(backend: Backend, case: Case) -> Twin:
    played, namespace = backend.namespace(), backend.namespace()
    given = await prepare(backend, played, case)
    copy_namespace(backend, played, [namespace])
    return Twin(played, await play(backend, played, case, given), namespace, given)


_TAG_END: Final = re.compile(rb"^([0-9]+)\.[0-9]+\}")


def keys_of(dump: Mapping[bytes, Any], namespace: str) -> dict[bytes, Any]:
    """The keys of a namespace's partitions; when it was opened is another matter."""
    prefix = f"{{{namespace}/".encode()
    # Tags differ in what chooses their slots.
    return {
        _TAG_END.sub(rb"\1}", key[len(prefix) :]): dump[key]
        for key in dump
        if key.startswith(prefix)
    }


ID: Final = re.compile(rb"(?:wrun|msg)_[0-9A-Z]{26}|(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")
"""Runs, messages; what this process makes for its requests and receipts."""


@pytest.fixture(autouse=True)
def ids_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of requests that sort as they were made; for the tests of modules that import this."""
    numbers = count(1)
    monkeypatch.setattr(ids, "_entropy", lambda size: next(numbers).to_bytes(size, "big"))


ANSWER: Final = b"answer"
WRITER: Final = re.compile(process_id().encode() + rb"[0-9a-f]{8}")


def comparable(answer: Any, keys: Mapping[bytes, Any]) -> dict[bytes, Any]:
    """Keys, and the answer as one more, with ranks for ids: these sort as they were made."""
    spelled = [[key, spell(value)] for key, value in {ANSWER: answer, **keys}.items()]
    found: set[bytes] = set()

    def look(text: bytes) -> bytes:
        found.update(match[0] for match in ID.finditer(text))
        return text

    replace_texts(spelled, look)
    counts = Counter[bytes]()
    ranks = {}
    for each in sorted(found, key=lambda each: (len(each), each)):
        kind = each.partition(b"_")[0] if b"_" in each else b"request"
        counts[kind] += 1
        ranks[each] = b"<%s %d>" % (kind, counts[kind])

    def rank(text: bytes) -> bytes:
        return WRITER.sub(b"<writer>", ID.sub(lambda match: ranks[match[0]], text))

    return {key: in_order(value) for key, value in replace_texts(spelled, rank)}


def spell(value: Any) -> Any:
    """A value in plain lists, its texts as bytes."""
    match value:
        case str():
            return value.encode()
        case WorldError():
            return [type(value).__name__.encode(), str(value).encode(), spell(vars(value))]
        case BaseModel():
            return [[name.encode(), spell(each)] for name, each in value if each is not None]
        case Message():
            return spell(dataclasses.asdict(value))
        case Mapping():
            return [[spell(key), spell(value[key])] for key in sorted(value)]
        case list() | tuple():
            return [spell(each) for each in value]
    return value


def replace_texts(value: Any, replace: Callable[[bytes], bytes]) -> Any:
    match value:
        case bytes():
            return replace(value)
        case list():
            return [replace_texts(each, replace) for each in value]
    return value


def in_order(value: Any) -> Any:
    """A key's value, its members sorted by what stands for their ids."""
    match value:
        case [b"zset", members]:
            return [b"zset", sorted(members, key=lambda member: (member[1], member[0]))]
        case [b"hash" | b"set" as kind, members]:
            return [kind, sorted(members)]
    return value
