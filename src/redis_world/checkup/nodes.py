"""The servers that a checkup asks: one, or the masters of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import redis.asyncio

from redis_world.connection import Command
from redis_world.connection.cluster import ask_by_owner, slot_of
from redis_world.connection.sender import Reply, round_trip

__all__ = ["Nodes"]


class Nodes:
    """Who is asked for what: the namespace's keys may be spread over several nodes.

    Args:
        clients: one for each node.
        client_of_slot: which of them has a slot; None where there is but one node.
    """

    def __init__(
        self,
        clients: Sequence[redis.asyncio.Redis],
        client_of_slot: Callable[[int], redis.asyncio.Redis] | None = None,
    ) -> None:
        self.clients = clients
        self._client_of_slot = client_of_slot

    async def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """Ask the node that has the first key of each command; one round trip to each node."""
        if self._client_of_slot is None:
            return await round_trip(self.clients[0], commands)
        return await ask_by_owner(
            [self._client_of_slot(slot_of(command) or 0) for command in commands],
            lambda client, places: round_trip(client, [commands[place] for place in places]),
        )

    async def ask_each(self, command: Command) -> list[Reply]:
        """Ask all nodes for the same.

        Raises:
            redis.exceptions.RedisError, OSError: a node does not answer; the text says which.
        """
        found = await asyncio.gather(
            *(round_trip(each, [command]) for each in self.clients), return_exceptions=True
        )
        for result in found:
            if isinstance(result, BaseException):
                raise result
        return [replies[0] for replies in found if not isinstance(replies, BaseException)]
