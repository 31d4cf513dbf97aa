"""Tokens of hooks across partitions: who holds one, and what is left of those that are gone.

A hook lives in the partition of its run, the record of its token in the partition of the token: no
script reaches both. So a token is reserved under a rising number, then the hook is created
under that number, and whoever finds a token reserved asks the partition of the hook whether that
lives. One whose creator never comes is fenced off there, under that number, before its token
is taken over. Whether a record is in force the hook's partition alone can tell: so a token is free
in the very instant in which its hook goes, whenever its record is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from redis_world.connection import Connection
from redis_world.errors import NotDurableError, WorldUnavailableError
from redis_world.ids import new_request_id
from redis_world.keys import Keys, token_hash
from redis_world.scatter import complete

__all__ = ["create_hook", "release_stale"]

_GRACE_MS: Final = 3000
"""How long the creator of a hook has from its reservation."""
_PAUSE_SECONDS: Final = 0.05
_AT_ONCE: Final = 100

Create = Callable[[str, str, str], Awaitable[Sequence[Any]]]
"""Runs the script that creates the hook, in a phase of it with its detail, for a run of this
identity; its replies."""


class _Holder(NamedTuple):
    """Whom a record names, and under which number."""

    run_id: str
    hook_id: str
    number: str


async def create_hook(
    connection: Connection, token: str, run_id: str, hook_id: str, create: Create
) -> Sequence[Any]:
    """Create a hook whose token may lie in another partition; the replies of its script."""
    with _before_the_hook():
        replies = await create("check", "", "")
    if replies[0][0] != b"UNRESERVED":
        return replies
    # A run of the same id that comes when this one is removed is another one.
    identity = replies[0][1].decode()
    of_token, hashed = connection.partitions.of(token), token_hash(token)
    dead = _Holder("", "", "")
    while True:
        with _before_the_hook():
            reply = await _reserve(connection, of_token, hashed, (run_id, hook_id), dead)
        dead = _Holder("", "", "")
        if reply[0] == b"OK":
            replies = await create("create", reply[1].decode(), identity)
            if replies[0][0] != b"REVOKED":
                return replies
            continue
        holder = _Holder(*(part.decode() for part in reply[1:4]))
        with _before_the_hook():
            state = await _probe(connection, holder, hashed, revoke=int(reply[4]) > _GRACE_MS)
        if state == b"LIVE":
            return await create("conflict", holder.run_id, identity)
        if state == b"DEAD":
            dead = holder
        else:
            await asyncio.sleep(_PAUSE_SECONDS)


async def release_stale(connection: Connection, keys: Keys) -> None:
    """See to the reservations of a partition, and to the tokens of its hooks that are gone."""
    while True:
        _, reserved, released = await connection.call(
            "tokens/stale",
            {"reservations": keys.reservations, "releases": keys.releases},
            {"base": keys.base, "grace": str(_GRACE_MS), "limit": str(_AT_ONCE)},
        )
        # A token whose node is away must not keep the others from being free.
        await complete(
            [
                *(_settle(connection, keys, *map(bytes.decode, row)) for row in reserved),
                *(_free(connection, keys, member) for member in released),
            ],
            "tokens",
        )
        if len(reserved) < _AT_ONCE and len(released) < _AT_ONCE:
            return


# -- inside --------------------------------------------------------------------------------


@contextlib.contextmanager
def _before_the_hook() -> Iterator[None]:
    """What was not durable before the hook is there: nothing is stored that was asked for."""
    try:
        yield
    except NotDurableError as error:
        raise WorldUnavailableError(
            f"did not create the hook, create it again: {error}"
        ) from error


async def _reserve(
    connection: Connection, keys: Keys, hashed: str, claimant: tuple[str, str], dead: _Holder
) -> list[Any]:
    return await connection.call(
        "tokens/reserve",
        {
            "token": keys.token_of_hash(hashed),
            "numbers": keys.token_numbers,
            "reservations": keys.reservations,
        },
        {
            "token_hash": hashed,
            "op": new_request_id(),
            "run_id": claimant[0],
            "hook_id": claimant[1],
            "dead_run": dead.run_id,
            "dead_hook": dead.hook_id,
            "dead_number": dead.number,
        },
    )


async def _probe(connection: Connection, holder: _Holder, hashed: str, *, revoke: bool) -> bytes:
    keys = connection.partitions.of(holder.run_id)
    of_run = keys.of_run(holder.run_id)
    reply = await connection.call(
        "tokens/probe",
        {"run": of_run.run, "claims": of_run.claims},
        {
            "base": keys.base,
            "run_id": holder.run_id,
            "hook_id": holder.hook_id,
            "token_hash": hashed,
            "number": holder.number,
            "revoke": "1" if revoke else "",
        },
    )
    return bytes(reply[0])


async def _settle(
    connection: Connection, keys: Keys, hashed: str, run_id: str, hook_id: str, number: str
) -> None:
    """Find out what became of a reservation."""
    is_alive = False
    if run_id:
        holder = _Holder(run_id, hook_id, number)
        is_alive = await _probe(connection, holder, hashed, revoke=True) == b"LIVE"
    await _release(connection, keys, hashed, _Holder(run_id, hook_id, number), alive=is_alive)


async def _free(connection: Connection, keys: Keys, member: bytes) -> None:
    """Delete the record of a hook that is gone, and the note of it."""
    partition, hashed, run_id, hook_id = member.decode().split("/", 3)
    of_token = connection.partitions[int(partition)]
    (record,) = await connection.execute(
        ("HMGET", of_token.token_of_hash(hashed), "run", "hook", "r")
    )
    # Its namesake may have got the token anew, or be about to.
    if (record[0], record[1]) == (run_id.encode(), hook_id.encode()):
        holder = _Holder(run_id, hook_id, record[2].decode())
        if await _probe(connection, holder, hashed, revoke=False) == b"DEAD":
            await _release(connection, of_token, hashed, holder, alive=False)
    await connection.execute(("ZREM", keys.releases, member))


async def _release(
    connection: Connection, keys: Keys, hashed: str, holder: _Holder, *, alive: bool
) -> None:
    await connection.call(
        "tokens/release",
        {"token": keys.token_of_hash(hashed), "reservations": keys.reservations},
        {
            "token_hash": hashed,
            "run_id": holder.run_id,
            "hook_id": holder.hook_id,
            "number": holder.number,
            "alive": "1" if alive else "",
        },
    )
