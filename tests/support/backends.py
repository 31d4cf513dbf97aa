"""The servers that every behaviour test runs on."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

import redis

from redis_world import RedisWorld
from redis_world.lua import ScriptLibrary
from redis_world.memory import memory_sync_client
from redis_world.testing import (
    Cluster,
    Server,
    ServerUnavailableError,
    redis_cluster,
    redis_server,
)
from support.acl import CHECKING, acl_rule
from support.private_servers import FROM_A_WHEEL, ONE, give_up, here
from support.sentinel import Failovers, guarded_server

EMBEDDED: Final = "memory"
KINDS: Final = (EMBEDDED, "redis7", "redis8", "valkey9")
CLUSTER: Final = "cluster"
"""Three masters, 16 partitions of each namespace, and a user of few rights."""
SENTINEL: Final = "sentinel"
"""A master and a replica that change places, or die, every few seconds."""
UNMEASURED: Final = ("redis8", "valkey9", CLUSTER, SENTINEL)
"""On which the tests run code that they have run on the others already."""
ALL_KINDS: Final = (*KINDS, ONE, CLUSTER, SENTINEL)
"""What tests name a server by, in parameters and elsewhere."""
QUICK_KINDS: Final = (EMBEDDED, ONE, FROM_A_WHEEL[0])
"""The embedded store and one real server: what the quick part runs the behaviour tests on."""
PASSWORD: Final = "secret"
PARTITIONS: Final = 16


class Servers:
    """Real servers, started when the first test asks for one, ended with the session."""

    def __init__(self) -> None:
        self._stacks: dict[str, contextlib.ExitStack] = {}
        self._servers: dict[str, Server | Cluster | Failovers] = {}
        self._missing: dict[str, str] = {}
        self._observers: dict[str, redis.Redis] = {}

    def backend(self, kind: str) -> Backend:
        backend = self._backend(kind)
        if kind not in (CLUSTER, SENTINEL):
            if kind not in self._observers:
                self._observers[kind] = self._stack_of(kind).enter_context(
                    contextlib.closing(backend.client())
                )
            backend.observer = self._observers[kind]
        return backend

    def _backend(self, kind: str) -> Backend:
        if kind == "memory":
            return Backend(kind, "memory://tests")
        if kind not in (CLUSTER, SENTINEL):
            kind = here(kind)
        if kind not in self._servers and kind not in self._missing:
            try:
                self._servers[kind] = self._start(kind)
            except ServerUnavailableError as error:
                self._missing[kind] = str(error)
        if kind in self._missing:
            give_up(kind, self._missing[kind])
        server = self._servers[kind]
        if isinstance(server, Failovers):
            return Backend(kind, server.guarded.url, failovers=server)
        url = server.url
        return Backend(
            kind, url.replace("://", f"://world:{PASSWORD}@") if kind == CLUSTER else url
        )

    def _start(self, kind: str) -> Server | Cluster | Failovers:
        stack = self._stack_of(kind)
        if kind == SENTINEL:
            return stack.enter_context(Failovers(stack.enter_context(guarded_server())))
        if kind == CLUSTER:
            # Its user may do what the documentation says is enough, and what tests look at.
            rule = acl_rule("t*", more=CHECKING)
            user = ("--user", "world", "on", f">{PASSWORD}", *rule)
            return stack.enter_context(redis_cluster(here(ONE), args=user))
        return stack.enter_context(redis_server(here(kind)))

    def _stack_of(self, kind: str) -> contextlib.ExitStack:
        return self._stacks.setdefault(kind, contextlib.ExitStack())

    def end(self, *kinds: str) -> None:
        """End the servers of these kinds: even idle ones take time of a processor."""
        for kind in kinds:
            self._servers.pop(kind, None)
            self._observers.pop(kind, None)
            self._stacks.pop(kind, contextlib.ExitStack()).close()

    def close(self) -> None:
        self.end(*reversed(self._stacks))


@dataclass
class Backend:
    """One server, for the length of one test."""

    kind: str
    url: str
    namespaces: list[str] = field(default_factory=list)
    failovers: Failovers | None = None
    """Those that happen below it, all the time."""
    observer: redis.Redis | None = None
    """A client that looks at all keys, kept for the session: tests do so several times each."""

    @property
    def is_memory(self) -> bool:
        return self.kind == "memory"

    @property
    def is_cluster(self) -> bool:
        return self.kind == CLUSTER

    @property
    def partitions(self) -> int:
        """How many its Worlds have by default."""
        return PARTITIONS if self.is_cluster else 1

    def namespace(self) -> str:
        """A namespace that no other test has."""
        name = f"t{secrets.token_hex(6)}"
        self.namespaces.append(name)
        return name

    def world(
        self, *, namespace: str | None = None, library: ScriptLibrary | None = None, **options: Any
    ) -> RedisWorld:
        """A World on this server, by default in a namespace of its own."""
        if self.is_cluster:
            options.setdefault("partitions", PARTITIONS)
        return RedisWorld(
            self.url, namespace=namespace or self.namespace(), library=library, **options
        )

    def client(self) -> redis.Redis:
        """A plain blocking client, to look behind the World's back; closed by its user."""
        if self.is_memory:
            return memory_sync_client(self.url)
        if self.failovers is not None:
            return self.failovers.client()
        if self.is_cluster:
            # It has the commands of a client, and finds their nodes.
            hosts = self.url.partition("@")[2]
            plain = f"redis://{hosts.partition(',')[0]}"
            return cast(redis.Redis, redis.RedisCluster.from_url(plain))
        return redis.Redis.from_url(self.url)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[Backend]:
        """The length of a test; what it leaves must lie in its own namespaces."""
        if self.failovers is not None:
            self.failovers.is_used = True
        try:
            yield self
        finally:
            if self.failovers is not None:
                self.failovers.is_used = False
            left = self.clear()
        assert not left, "keys outside of the test's namespaces"

    @contextlib.contextmanager
    def calm(self) -> Iterator[None]:
        """No failover within this block."""
        with contextlib.closing(self.client()):
            yield

    def dump(self) -> dict[bytes, Any]:
        """Every key with its type and value: equal dumps are equal keyspaces."""
        with self._observing() as client:
            keys = sorted(client.scan_iter(count=1000))
            kinds = _at_once(client, [("type", key) for key in keys])
            values = _at_once(client, [_read(*each) for each in zip(keys, kinds, strict=True)])
        return {
            key: (kind, _in_order(kind, value))
            for key, kind, value in zip(keys, kinds, values, strict=True)
        }

    @contextlib.contextmanager
    def _observing(self) -> Iterator[redis.Redis]:
        if self.observer is not None:
            yield self.observer
        else:
            with contextlib.closing(self.client()) as client:
                yield client

    def clear(self) -> list[bytes]:
        """Delete everything; returns the keys that belong to none of the test's namespaces."""
        with self._observing() as client:
            keys = list(client.scan_iter(count=1000))
            client.flushall()
            if self.observer is not None and not self.is_memory:
                # Tests count connections.
                self.observer.connection_pool.disconnect()
        own = tuple(f"{{{name}{end}".encode() for name in self.namespaces for end in "}/")
        return [key for key in keys if not key.startswith(own)]


def channels(client: redis.Redis, pattern: str = "*") -> int:
    """How many channels have a subscriber."""
    nodes: list[Any] = [client]
    if hasattr(client, "get_primaries"):
        # The subscriber is on one of them.
        nodes = [node.redis_connection for node in client.get_primaries()]
    found = [name for node in nodes for name in node.pubsub_channels(pattern)]
    # Sentinels talk to each other there.
    return len([name for name in found if name != b"__sentinel__:hello"])


def _at_once(client: redis.Redis, calls: Iterable[tuple[Any, ...]]) -> list[Any]:
    """What methods of a client return, in one round trip."""
    pipeline = client.pipeline(transaction=False)
    for method, *args in calls:
        getattr(pipeline, method)(*args)
    return pipeline.execute()


def _read(key: bytes, kind: bytes) -> tuple[Any, ...]:
    """The call that reads a value of this type."""
    match kind:
        case b"hash":
            return "hgetall", key
        case b"zset":
            return "zrange", key, 0, -1, False, True
        case b"set":
            return "smembers", key
        case b"stream":
            return "xrange", key
        case _:
            return "get", key


def _in_order(kind: bytes, value: Any) -> Any:
    match kind:
        case b"hash":
            return dict(sorted(value.items()))
        case b"set":
            return sorted(value)
        case _:
            return value
