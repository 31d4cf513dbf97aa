"""Calls on behalf of a caller who may send the same request again, to this process or another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from hashlib import blake2b
from typing import Final

from ulid import ULID

from redis_world.errors import InvalidInputError
from redis_world.values import shown, whole

__all__ = ["CallerRequest", "current_request", "request_scope"]

_MAX_ATTEMPT: Final = 1_000_000
_MAX_IDS: Final = 0xFFFF
_ULID_LETTERS: Final = 26


class CallerRequest:
    """A request of a caller, from which all ids are made that its calls need.

    Args:
        request_id: a ULID.
        attempt: which try it is, from 1.

    Attributes:
        is_repeated: whether an earlier try may have run already.
        time_ms: when the caller made the request, by its clock.
    """

    def __init__(self, request_id: str, attempt: int) -> None:
        self.is_repeated = attempt > 1
        ulid = ULID.from_str(request_id)
        self.time_ms = ulid.milliseconds
        self._seed = blake2b(ulid.bytes, digest_size=8).digest()
        self._made = 0

    def next_bytes(self, size: int) -> bytes:
        """Bytes for the next id: those of the same id in each try; they rise within a try."""
        self._made += 1
        if self._made > _MAX_IDS:
            raise InvalidInputError(f"one request may not need more than {_MAX_IDS} ids")
        return self._seed[: size - 2] + self._made.to_bytes(2, "big")


_current: ContextVar[CallerRequest | None] = ContextVar("redis_world_request", default=None)


def current_request() -> CallerRequest | None:
    """The request that the running code belongs to, if a caller gave it an id."""
    return _current.get()


@contextlib.contextmanager
def request_scope(request_id: str, *, attempt: int = 1) -> Iterator[None]:
    """Make the calls inside one request, which happens once however often it is repeated.

    A server that calls the World for others uses it: its client did not get the reply and sends
    the request again, maybe to another process. The repetition makes the same calls in the same
    order. It stores nothing anew and returns what the first try returned.

    Args:
        request_id: the id that the caller gave the request, a ULID. Its time becomes that of the
            ids made inside.
        attempt: 1 for the first try. A higher number tells the server to look for what an
            earlier try has stored.

    Raises:
        InvalidInputError: the id is not a ULID, or the attempt is not a positive number.
    """
    if not isinstance(request_id, str) or len(request_id) != _ULID_LETTERS:
        raise InvalidInputError(f"request_id must be a ULID, not {shown(request_id)}")
    attempt = whole(attempt, "attempt", 1, _MAX_ATTEMPT)
    try:
        request = CallerRequest(request_id.upper(), attempt)
    except ValueError:
        raise InvalidInputError(f"request_id must be a ULID, not {shown(request_id)}") from None
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)
