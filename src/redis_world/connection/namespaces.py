"""Which namespaces a server has: for the error about one that it does not have."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import redis.asyncio
import redis.exceptions

from redis_world.connection.sender import scan
from redis_world.errors import NamespaceNotFoundError
from redis_world.keys import ROOT

__all__ = ["Namespaces", "list_namespaces", "no_such_namespace"]

_PATTERN: Final = f"{{*}}:{ROOT}:meta"
_META: Final = re.compile(rb"\{([A-Za-z0-9_.-]{1,64})\}:%b:meta" % ROOT.encode())
_SEARCH_SECONDS: Final = 2.0
"""A server may have millions of keys, and Redis has no index of namespaces."""
_SHOWN: Final = 10


class Namespaces(NamedTuple):
    """The namespaces that a search found.

    Attributes:
        names: sorted.
        is_complete: False where the search ended before it had seen all keys.
        is_denied: the user may not search.
    """

    names: Sequence[str]
    is_complete: bool
    is_denied: bool = False

    def nearest(self, name: str) -> list[str]:
        """The names, those that look like this one first."""
        similar = difflib.get_close_matches(name, self.names, n=_SHOWN)
        return [*similar, *(each for each in self.names if each not in similar)]

    def describe(self, name: str) -> str:
        """What the server has instead of this namespace, as a sentence."""
        names = self.nearest(name)
        if not names and self.is_complete:
            return "The server has no namespaces"
        if self.is_denied:
            return "This user may not list the other namespaces: that takes the right +scan"
        if not names:
            return "The search for other namespaces did not finish"
        text = ", ".join(names[:_SHOWN])
        if len(names) > _SHOWN:
            text += f" and {len(names) - _SHOWN} more"
        verb = "are" if self.is_complete else "include"
        return f"Existing namespaces {verb}: {text}"


async def list_namespaces(masters: Sequence[redis.asyncio.Redis]) -> Namespaces:
    """Search a server, or the masters of a cluster, for namespaces, for a few seconds at most.

    It raises nothing: a node that does not answer, or forbids the search, makes it incomplete.
    """
    found: set[str] = set()
    try:
        async with asyncio.timeout(_SEARCH_SECONDS):
            for client in masters:
                async with contextlib.aclosing(scan(client, _PATTERN)) as parts:
                    async for keys in parts:
                        names = filter(None, map(_META.fullmatch, keys))
                        found.update(each[1].decode() for each in names)
    except redis.exceptions.NoPermissionError:
        return Namespaces([], is_complete=False, is_denied=True)
    except (redis.exceptions.RedisError, OSError, TimeoutError):
        return Namespaces(sorted(found), is_complete=False)
    return Namespaces(sorted(found), is_complete=True)


def no_such_namespace(name: str, found: Namespaces, where: str) -> NamespaceNotFoundError:
    """The error for a namespace that does not exist."""
    advice = (
        "Set the namespace to one of them"
        if found.names
        else "A worker creates its namespace when it starts"
    )
    return NamespaceNotFoundError(
        f"no such namespace: {name!r} does not exist on the server at {where}. "
        f"{found.describe(name)}. {advice}",
        namespace=name,
        existing=found.nearest(name),
    )
