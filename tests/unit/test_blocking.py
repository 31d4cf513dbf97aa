"""Blocking calls of the heartbeat: each call for itself, each node for itself."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest
import redis
import redis.exceptions

from redis_world import RedisWorld
from redis_world.connection import SyncCaller
from redis_world.connection.blocking import BlockingCluster, BlockingServer
from redis_world.connection.slots import SLOTS, Address
from redis_world.errors import ConfigurationError, WorldUnavailableError
from redis_world.keys import Partitions
from redis_world.lua import default_library
from support.backends import Backend
from support.private_servers import ONE, private_cluster, private_server
from support.until import until

PARTITIONS: Final = Partitions("world", 3)
NODES: Final = [Address("node", number) for number in range(3)]
CALLS: Final = [
    ({"wait_states": f"{keys.base}none"}, {"correlation_id": "w"}) for keys in PARTITIONS
]


class FakeNode(BlockingServer):
    """A node that does what a test wants instead of answering."""

    def __init__(self, do: Callable[[], Any]) -> None:
        super().__init__(redis.Redis())
        self._do = do
        self.asked = 0

    def run(self, command: str, what: str | None, rows: Sequence[Any]) -> list[Any]:
        self.asked += 1
        answer = self._do()
        return [answer] * len(rows)


class FakeCluster(BlockingCluster):
    """A cluster of such nodes, each with a third of the slots."""

    def __init__(self, *nodes: FakeNode) -> None:
        super().__init__(NODES, lambda _: redis.Redis())
        self.looks = 0
        """How often it was asked which node has which slot."""
        self._servers = dict(zip(NODES, nodes, strict=True))

    def _ask_for_owners(self) -> list[Address | None]:
        self.looks += 1
        return [NODES[slot * 3 // SLOTS] for slot in range(SLOTS)]


def good() -> list[bytes]:
    return [b"OK"]


class ProviderError(Exception):
    """Of a credential provider; no library's error."""


def failing(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


@pytest.fixture
def frozen() -> Iterator[Callable[[], Any]]:
    """What a frozen node does: nothing, until the test is over."""
    end = threading.Event()

    def hang() -> Any:
        assert end.wait(60)
        return [b"LATE"]

    yield hang
    end.set()


ERRORS: Final[list[BaseException]] = [
    redis.exceptions.ConnectionError("refused"),
    redis.exceptions.TimeoutError("slow"),
    redis.exceptions.ResponseError("ERR no"),
    redis.exceptions.AuthenticationError("WRONGPASS"),
    redis.exceptions.MovedError("1 node:2"),
    OSError("no route"),
    ProviderError("vault is sealed"),
    SystemExit(3),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", range(3))
def test_an_error_of_one_node_is_its_own(error: BaseException, place: int) -> None:
    nodes = [FakeNode(failing(error) if n == place else good) for n in range(3)]
    caller = SyncCaller(FakeCluster(*nodes), default_library())
    entries = caller.call_each("waits/get", CALLS)
    assert [isinstance(each, Exception) for each in entries] == [n == place for n in range(3)]
    assert all(entry == [b"OK"] for n, entry in enumerate(entries) if n != place)
    assert all(nodes[n].asked == 1 for n in range(3) if n != place), "asked again"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_nothing_that_one_server_does_is_raised(error: BaseException) -> None:
    caller = SyncCaller(FakeNode(failing(error)), default_library())
    entries = caller.call_each("waits/get", CALLS)
    assert len(entries) == len(CALLS)
    assert all(isinstance(each, Exception) for each in entries)


def test_a_wrong_call_is_an_entry_too() -> None:
    caller = SyncCaller(FakeNode(good), default_library())
    (entry,) = caller.call_each("waits/get", [({}, {})])
    assert isinstance(entry, Exception)
    assert caller.call_each("waits/get", []) == []


def test_an_error_that_passes_is_tried_again() -> None:
    answers: list[Callable[[], Any]] = [
        failing(redis.exceptions.ConnectionError("closed by server")),
        good,
    ]
    node = FakeNode(lambda: answers.pop(0)())  # noqa: PLW0108 - another one each time
    caller = SyncCaller(node, default_library())
    assert caller.call_each("waits/get", CALLS[:1]) == [[b"OK"]]


@pytest.mark.parametrize("place", range(3))
def test_a_frozen_node_delays_nobody_for_long(place: int, frozen: Callable[[], Any]) -> None:
    nodes = [FakeNode(frozen if n == place else good) for n in range(3)]
    caller = SyncCaller(FakeCluster(*nodes), default_library())
    for _ in range(3):
        began = time.monotonic()
        entries = caller.call_each("waits/get", CALLS)
        assert time.monotonic() - began < 3
        for n, entry in enumerate(entries):
            if n == place:
                assert isinstance(entry, WorldUnavailableError)
            else:
                assert entry == [b"OK"]
    assert nodes[place].asked == 1, "a node that hangs is sent nothing more"


class SlowlyEnding(threading.Thread):
    """Still there for a while after its work is done."""

    def run(self) -> None:
        super().run()
        time.sleep(0.2)


def test_a_node_that_has_answered_may_be_asked_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "Thread", SlowlyEnding)
    caller = SyncCaller(FakeCluster(*(FakeNode(good) for _ in NODES)), LIBRARY)
    caller.open()
    for _ in range(3):
        assert caller.call_each("waits/get", CALLS) == [[b"OK"]] * 3


def test_it_opens_beside_a_frozen_node_but_not_without_any(frozen: Callable[[], Any]) -> None:
    SyncCaller(FakeCluster(FakeNode(frozen), FakeNode(good), FakeNode(good)), LIBRARY).open()
    with pytest.raises(WorldUnavailableError):
        SyncCaller(FakeNode(failing(redis.exceptions.TimeoutError())), LIBRARY).open()


def gone() -> Any:
    """As a node that was killed."""
    try:
        raise ConnectionRefusedError(111, "refused")
    except OSError as error:
        raise redis.exceptions.ConnectionError("Error 111 connecting") from error


def test_a_node_that_is_gone_is_passed_over_and_looked_for_anew() -> None:
    """Else a worker that is idle would never claim again after a failover."""
    cluster = FakeCluster(FakeNode(good), FakeNode(gone), FakeNode(good))
    caller = SyncCaller(cluster, LIBRARY)
    caller.open()
    caller.open()
    assert cluster.looks == 2
    with pytest.raises(WorldUnavailableError):
        SyncCaller(FakeCluster(*(FakeNode(gone) for _ in NODES)), LIBRARY).open()


LIBRARY: Final = default_library()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis.exceptions.ConnectionError("max number of clients reached"), WorldUnavailableError),
        (redis.exceptions.AuthenticationError("WRONGPASS"), ConfigurationError),
    ],
)
def test_a_node_that_refuses_is_told_at_the_opening(
    error: Exception, expected: type[Exception]
) -> None:
    """Leases that lie there could not be extended."""
    cluster = FakeCluster(FakeNode(good), FakeNode(good), FakeNode(failing(error)))
    with pytest.raises(expected, match=str(error)):
        SyncCaller(cluster, LIBRARY).open()


# -- real servers --------------------------------------------------------------------------


@contextlib.contextmanager
def caller_of(world: RedisWorld) -> Iterator[SyncCaller]:
    with contextlib.closing(world.connection.sync_caller()) as caller:
        yield caller


async def test_it_works_on_every_server(world: RedisWorld, backend: Backend) -> None:
    with caller_of(world) as caller:
        caller.open()
        calls = [({"wait_states": f"{world.connection.keys.base}none"}, {"correlation_id": "w"})]
        assert caller.call_each("waits/get", calls * 3) == [[b"WAIT_NOT_FOUND"]] * 3


async def test_its_connection_is_there_before_the_first_call() -> None:
    with private_server(ONE) as server:
        async with RedisWorld(server.url) as world:
            with caller_of(world) as caller, redis.Redis(server.host, server.port) as looker:
                caller.open()
                looker.config_set("maxclients", 1)
                (entry,) = caller.call_each("waits/get", CALLS[:1])
                assert entry == [b"WAIT_NOT_FOUND"]
                with caller_of(world) as second, pytest.raises(WorldUnavailableError):
                    second.open()


async def test_a_frozen_master_keeps_only_its_own_leases_from_being_extended() -> None:
    with private_cluster() as cluster:
        async with RedisWorld(cluster.url, partitions=6, socket_timeout=2) as world:
            calls = [
                ({"wait_states": f"{keys.base}none"}, {"correlation_id": "w"})
                for keys in world.connection.partitions
            ]
            with caller_of(world) as caller:
                caller.open()
                good_reply: list[Any] = [b"WAIT_NOT_FOUND"]
                assert caller.call_each("waits/get", calls) == [good_reply] * 6
                os.kill(cluster.masters[1].pid, signal.SIGSTOP)
                try:
                    for _ in range(3):
                        entries = caller.call_each("waits/get", calls)
                        lost = [each for each in entries if isinstance(each, Exception)]
                        assert len(lost) == 2
                        assert entries.count(good_reply) == 4
                finally:
                    os.kill(cluster.masters[1].pid, signal.SIGCONT)
                await until(lambda: caller.call_each("waits/get", calls) == [good_reply] * 6)
