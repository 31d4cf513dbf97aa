"""Blocking calls of scripts, for threads beside the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import redis
import redis.exceptions
from redis.crc import key_slot

from redis_world.connection.refusals import (
    first_refusal,
    is_elsewhere,
    is_lost,
    lacks_script,
    translate,
)
from redis_world.connection.slots import Address, owners_of
from redis_world.lua import Argument, ScriptLibrary

__all__ = ["BlockingClient", "BlockingCluster", "BlockingServer", "SyncCaller"]

_TRIES: Final = 3
_PAUSE: Final = 0.5


class BlockingClient(Protocol):
    """Runs scripts, and blocks its thread meanwhile."""

    def run(self, command: str, what: str, rows: Sequence[list[Argument]]) -> list[Any]:
        """Run a script several times; replies in order, errors among them."""

    def close(self) -> None:
        """Close the connections."""


class SyncCaller:
    """Blocking calls of scripts over connections of their own."""

    def __init__(self, client: BlockingClient, library: ScriptLibrary) -> None:
        self._client = client
        self._library = library

    def call_many(
        self, name: str, calls: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]]
    ) -> list[list[Any]]:
        """Run one script several times in one round trip; tried again a few times.

        Raises:
            WorldUnavailableError: the server did not do it.
        """
        script = self._library[name]
        rows = [script.arrange(keys, args) for keys, args in calls]
        tries = 1
        while True:
            try:
                replies = self._client.run("EVALSHA", script.sha, rows)
                if lacks_script(replies):
                    replies = self._client.run("EVAL", script.source, rows)
                error = first_refusal(replies)
            except redis.exceptions.RedisError as lost:
                error = lost
            if error is None:
                return replies
            if tries == _TRIES or not (is_lost(error) or is_elsewhere(error)):
                raise translate(error) from error
            tries += 1
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class BlockingServer:
    """A server that is alone."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def run(self, command: str, what: str, rows: Sequence[list[Argument]]) -> list[Any]:
        with self.client.pipeline(transaction=False) as pipeline:
            for row in rows:
                pipeline.execute_command(command, what, *row)  # type: ignore[no-untyped-call]
            return pipeline.execute(raise_on_error=False)

    def close(self) -> None:
        self.client.close()


class BlockingCluster:
    """The masters of a cluster; it looks anew who has which slot after each failure."""

    def __init__(
        self, seeds: Sequence[Address], connect: Callable[[Address], redis.Redis]
    ) -> None:
        self._seeds = seeds
        self._connect = connect
        self._servers: dict[Address, BlockingServer] = {}
        self._owners: list[Address | None] = []

    def run(self, command: str, what: str, rows: Sequence[list[Argument]]) -> list[Any]:
        if not self._owners:
            self._owners = self._ask_for_owners()
        places: dict[Address, list[int]] = {}
        for place, row in enumerate(rows):
            key = row[1] if isinstance(row[1], bytes) else str(row[1]).encode()
            owner = self._owners[key_slot(key)] or self._seeds[0]
            places.setdefault(owner, []).append(place)
        replies: list[Any] = [None] * len(rows)
        try:
            for owner, some in places.items():
                found = self._server(owner).run(command, what, [rows[place] for place in some])
                for place, reply in zip(some, found, strict=True):
                    replies[place] = reply
        except redis.exceptions.RedisError:
            self._owners = []
            raise
        if any(map(is_elsewhere, replies)):
            self._owners = []
        return replies

    def close(self) -> None:
        for server in self._servers.values():
            server.close()

    def _server(self, address: Address) -> BlockingServer:
        if address not in self._servers:
            self._servers[address] = BlockingServer(self._connect(address))
        return self._servers[address]

    def _ask_for_owners(self) -> list[Address | None]:
        error: Exception = redis.exceptions.ConnectionError("the cluster has no node")
        for address in dict.fromkeys([*self._servers, *self._seeds]):
            try:
                reply = self._server(address).client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
            except redis.exceptions.RedisError as lost:
                error = lost
                continue
            return owners_of(reply, address)
        raise error
