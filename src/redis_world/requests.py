"""Calls on behalf of a caller who may send the same request again, to this process or another."""

from __future__ import annotations

import re
from contextvars import ContextVar, Token
from hashlib import blake2b
from typing import Final

from ulid import ULID

from redis_world.errors import InvalidInputError
from redis_world.values import shown, whole

__all__ = ["CallerRequest", "current_request", "request_scope"]

_MAX_ATTEMPT: Final = 1_000_000
_MAX_IDS: Final = 0xFFFF
_ULID: Final = re.compile("[0-7][0-9A-HJKMNP-TV-Z]{25}", re.IGNORECASE | re.ASCII)


class CallerRequest:
    """A request of a caller, from which all ids are made that its calls need.

    Args:
        request_id: a ULID.
        attempt: which try it is, from 1.

    Attributes:
        is_repeated: whether an earlier try may have run already.
    """

    __slots__ = ("_made", "_request_id", "_seed", "is_repeated")

    def __init__(self, request_id: str, attempt: int) -> None:
        self.is_repeated = attempt > 1
        self._request_id = request_id.upper()
        self._seed = b""
        self._made = 0

    @property
    def time_ms(self) -> int:
        """When the caller made the request, by its clock."""
        return ULID.from_str(self._request_id).milliseconds

    def next_bytes(self, size: int) -> bytes:
        """Bytes for the next id: those of the same id in each try; they rise within a try."""
        if not self._seed:
            self._seed = blake2b(self._request_id.encode(), digest_size=8).digest()
        self._made += 1
        if self._made > _MAX_IDS:
            raise InvalidInputError(f"one request may not need more than {_MAX_IDS} ids")
        return self._seed[: size - 2] + self._made.to_bytes(2, "big")


_current: ContextVar[CallerRequest | None] = ContextVar("redis_world_request", default=None)


def current_request() -> CallerRequest | None:
    """The request that the running code belongs to, if a caller gave it an id."""
    return _current.get()


class request_scope:  # noqa: N801 - used as a function, and made for every request
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

    __slots__ = ("_request", "_token")

    def __init__(self, request_id: str, *, attempt: int = 1) -> None:
        if not isinstance(request_id, str) or not _ULID.fullmatch(request_id):
            raise InvalidInputError(f"request_id must be a ULID, not {shown(request_id)}")
        self._request = CallerRequest(request_id, whole(attempt, "attempt", 1, _MAX_ATTEMPT))
        self._token: Token[CallerRequest | None] | None = None

    def __enter__(self) -> None:
        self._token = _current.set(self._request)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _current.reset(self._token)
