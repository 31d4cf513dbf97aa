"""Redis Cluster: which node has which slot, and how calls find their way there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import redis.asyncio
import redis.exceptions
from redis.crc import key_slot

from redis_world.config import WorldConfig
from redis_world.connection.redis_errors import NoNodeError, is_elsewhere, is_lost, mark
from redis_world.connection.sender import Command, Patience, Reply, Request, Sender, round_trip
from redis_world.connection.slots import SLOTS, Address, owners_of
from redis_world.connection.source import Source, close
from redis_world.lua import Argument

__all__ = ["ClusterRoutes", "ask_by_owner", "fence_of", "slot_of"]

logger = logging.getLogger(__name__)

Owner = TypeVar("Owner")

_KEYLESS: Final = {b"TIME", b"INFO", b"PING", b"CLIENT", b"CONFIG"}
_REFRESH_SECONDS: Final = 0.05
"""How long a look at the slots is good for, while calls fail."""


def slot_of(command: Command) -> int | None:
    """The slot of a command's first key; None where it has none."""
    name = _bytes(command[0])
    if name in _KEYLESS:
        return None
    place = 3 if name in (b"EVALSHA", b"EVAL") else 1
    return key_slot(_bytes(command[place]))


def fence_of(key: Argument) -> bytes:
    """A key of the same slot that is never there.

    While a slot moves from one node to another, a node refuses commands some of whose keys it does
    not have. A script may use keys that it does not name, and would fail in its middle, where it
    meets one that has moved already. With this key among those that it names, it is not run before
    the slot is one node's.
    """
    tag, brace, _ = _bytes(key).partition(b"}")
    return tag + brace + b":-"


def _bytes(part: Argument) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode()


async def ask_by_owner(
    owners: Sequence[Owner], ask: Callable[[Owner, list[int]], Awaitable[Sequence[Reply]]]
) -> list[Reply]:
    """Ask several for their parts of one question, at a time.

    Args:
        owners: who has to be asked, for each part.
        ask: asks an owner for the parts at these places; its replies in their order.

    Returns:
        All replies, in the order of the parts.
    """
    places: dict[Owner, list[int]] = {}
    for place, owner in enumerate(owners):
        places.setdefault(owner, []).append(place)
    found = await asyncio.gather(*(ask(owner, some) for owner, some in places.items()))
    replies: list[Reply] = [None] * len(owners)
    for some, own in zip(places.values(), found, strict=True):
        for place, reply in zip(some, own, strict=True):
            replies[place] = reply
    return replies


class ClusterRoutes:
    """The masters of a cluster, each with a client and a sender of its own."""

    def __init__(
        self,
        source: Source,
        config: WorldConfig,
        restore: Callable[[ClusterRoutes], Awaitable[None]],
    ) -> None:
        self._source = source
        self._config = config
        self._restore = partial(restore, self)
        self._loop = asyncio.get_running_loop()
        self._owners: list[Address | None] = [None] * SLOTS
        self._clients: dict[Address, redis.asyncio.Redis] = {}
        self._senders: dict[Address, Sender] = {}
        self._refreshing = asyncio.Lock()
        self._refreshed_at = -_REFRESH_SECONDS

    # -- life ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Learn which node has which slot.

        Raises:
            redis.exceptions.RedisError: no node of the cluster can be asked.
        """
        await self._refresh()

    async def finish(self) -> None:
        """Wait for what is under way."""
        for sender in [*self._senders.values()]:
            await sender.finish()

    async def aclose(self) -> None:
        """Close all clients, also where it is cancelled meanwhile."""
        async with contextlib.AsyncExitStack() as closing:
            for client in self.clients:
                closing.push_async_callback(close, client)

    @property
    def clients(self) -> list[redis.asyncio.Redis]:
        """One for each node that was talked to."""
        return [*self._clients.values()]

    @property
    def masters(self) -> list[redis.asyncio.Redis]:
        """One for each node that has slots."""
        return [self._client(each) for each in sorted({each for each in self._owners if each})]

    def client_of(self, key: str) -> redis.asyncio.Redis:
        """The client of the node that has a key."""
        return self.client_of_slot(key_slot(key.encode()))

    def client_of_slot(self, slot: int) -> redis.asyncio.Redis:
        """The client of the node that has a slot."""
        return self._client(self._owner(slot))

    def sender_of(self, slot: int | None) -> Sender:
        """The sender of the node that has a slot; of any where there is none."""
        return self._sender(self._owner(slot))

    def subscriber(self) -> redis.asyncio.Redis:
        """A client for the subscriber alone: what is published anywhere reaches every node."""
        return self._source.client(self._owner(None))

    # -- inside ----------------------------------------------------------------------------

    def _owner(self, slot: int | None) -> Address:
        if slot is not None and (owner := self._owners[slot]) is not None:
            return owner
        known = [each for each in {*self._owners} if each is not None]
        return random.choice(known or self._source.seeds)  # noqa: S311 - spreads load

    def _client(self, address: Address) -> redis.asyncio.Redis:
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = self._source.client(address)
        return client

    def _sender(self, address: Address) -> Sender:
        sender = self._senders.get(address)
        if sender is None:
            sender = self._senders[address] = Sender(
                self._client(address), self._config, self._restore, self._hand_over
            )
        return sender

    async def _hand_over(
        self, batch: list[Request], reason: Exception, patience: Patience
    ) -> list[Request]:
        """After a failure: give what is another node's by now to that; what stays."""
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            # One that names another owner knows better than what was learned just now.
            await self._refresh(at_once=is_elsewhere(reason))
        staying: list[Request] = []
        leaving: dict[Address, list[Request]] = {}
        for request in batch:
            owner = self._owner(request.slot)
            if self._senders.get(owner) is request.sender:
                staying.append(request)
            else:
                leaving.setdefault(owner, []).append(request)
        for owner, requests in leaving.items():
            self._sender(owner).take(requests, patience)
        return staying

    async def _refresh(self, *, at_once: bool = False) -> None:
        asked_at = self._loop.time()
        async with self._refreshing:
            pause = 0.0 if at_once else _REFRESH_SECONDS
            if self._refreshed_at > asked_at - pause:
                return
            self._owners = await self._ask_for_owners()
            self._refreshed_at = self._loop.time()

    async def _ask_for_owners(self) -> list[Address | None]:
        """The owner of each slot, as the first node tells that answers."""
        places = dict.fromkeys([*(each for each in self._owners if each), *self._source.seeds])
        errors: dict[str, Exception] = {}
        for address in places:
            client = self._client(address)
            try:
                async with asyncio.timeout(self._config.connect_timeout):
                    (reply,) = await round_trip(client, [("CLUSTER", "SLOTS")])
            except TimeoutError:
                reply = redis.exceptions.TimeoutError()
            except (redis.exceptions.RedisError, OSError) as lost:
                reply = lost
            if not isinstance(reply, Exception):
                return owners_of(reply, address)
            errors["{}:{}".format(*address)] = mark(reply, client.connection_pool)
        # A node that refuses tells more than those that are away.
        refusals = [each for each in errors.values() if not is_lost(each)]
        if refusals or len(errors) == 1:
            raise [*refusals, *errors.values()][0]
        raise NoNodeError("no node of the cluster can be reached", errors)
