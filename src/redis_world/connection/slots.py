"""The slots of a cluster, and the nodes that have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

__all__ = ["SLOTS", "Address", "owners_of"]

SLOTS: Final = 16_384


class Address(NamedTuple):
    """Where a node of a cluster is."""

    host: str
    port: int


def owners_of(reply: Any, asked: Address) -> list[Address | None]:
    """The master of each slot, by the reply of CLUSTER SLOTS from the node that was asked."""
    owners: list[Address | None] = [None] * SLOTS
    if isinstance(reply, dict):
        # As redis-py reads it: (first, last) -> {primary, replicas}.
        ranges = [(*span, found["primary"]) for span, found in reply.items()]
    else:
        ranges = [(row[0], row[1], row[2]) for row in reply]
    for first, last, node in ranges:
        address = _address(node, asked)
        for slot in range(int(first), int(last) + 1):
            owners[slot] = address
    return owners


def _address(node: Sequence[Any], asked: Address) -> Address:
    host = node[0].decode() if isinstance(node[0], bytes) else str(node[0] or "")
    # A node that does not know its own name leaves it out.
    return Address(host or asked.host, int(node[1]))
