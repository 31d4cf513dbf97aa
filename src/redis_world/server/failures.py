"""Errors as replies: `{status, code, message, retryAfter?}` (docs/http.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_world.errors import EntityConflictError, WorldError

__all__ = ["RequestError", "failure_of"]


class RequestError(WorldError):
    """The server refuses a request before the World sees it.

    Args:
        status: the HTTP status.
        code: the wire name.
        message: what is wrong, and what to do.
        retry_after: whole seconds after which to try again.
        headers: of the reply.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after: int | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status  # type: ignore[misc]
        self.code = code  # type: ignore[misc]
        self.retry_after = retry_after
        self.headers = tuple(headers)


def failure_of(error: WorldError) -> dict[str, Any]:
    """The body of an error's reply."""
    failure: dict[str, Any] = {
        "status": error.status,
        "code": error.code,
        "message": str(error) or error.code,
    }
    retry_after = getattr(error, "retry_after", None)
    if retry_after is not None:
        failure["retryAfter"] = retry_after
    if isinstance(error, EntityConflictError):
        failure["reason"] = error.reason
    return failure
