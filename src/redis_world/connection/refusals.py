"""What redis-py's errors mean: passing trouble, an error of the World, or a bug."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import redis.exceptions

from redis_world.errors import (
    ConfigurationError,
    ScriptError,
    WorldError,
    WorldUnavailableError,
)

__all__ = ["first_refusal", "is_elsewhere", "is_lost", "is_passing", "lacks_script", "translate"]

_PASSING_CODES: Final = (
    "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS",
    "UNBLOCKED",
)  # fmt: skip
"""Refusals of a server that starts, changes its role, lacks its replicas or is busy: it has not
run the command. A wait that a change of the role has ended counts as one."""
_UNAVAILABLE_CODES: Final = (*_PASSING_CODES, "OOM", "MISCONF", "UNKILLABLE")

# redis-py takes the code off the texts of the errors that it has a class for.
_TYPED: Final[dict[str, type[Exception]]] = {
    "OOM": redis.exceptions.OutOfMemoryError,
    "LOADING": redis.exceptions.BusyLoadingError,
    "READONLY": redis.exceptions.ReadOnlyError,
    "MASTERDOWN": redis.exceptions.MasterDownError,
    "CLUSTERDOWN": redis.exceptions.ClusterDownError,
    "TRYAGAIN": redis.exceptions.TryAgainError,
}


def first_refusal(replies: Iterable[Any]) -> Exception | None:
    """The first error among replies."""
    for reply in replies:  # of each call of each batch: a generator takes three times as long
        if isinstance(reply, Exception):
            return reply
    return None


def lacks_script(replies: Sequence[Any]) -> bool:
    """Whether a script of a pipeline was not there."""
    for reply in replies:  # noqa: SIM110 - as above
        if isinstance(reply, redis.exceptions.NoScriptError):
            return True
    return False


def _has_code(error: Exception, codes: Sequence[str]) -> bool:
    text = str(error)
    return any(text.startswith(code) or isinstance(error, _TYPED.get(code, ())) for code in codes)


def is_passing(reply: Any) -> bool:
    """Whether a reply says that the server will do the command, only not now."""
    return isinstance(reply, redis.exceptions.RedisError) and _has_code(reply, _PASSING_CODES)


def is_elsewhere(reply: object) -> bool:
    """Whether a reply says that another node of a cluster has the key, or is about to."""
    return isinstance(reply, redis.exceptions.AskError)


def is_lost(error: Exception) -> bool:
    """Whether nobody knows if the commands were run, or they were not, but may be later."""
    if isinstance(error, redis.exceptions.AuthenticationError):
        return False
    lost = redis.exceptions.ConnectionError | redis.exceptions.TimeoutError | OSError
    return isinstance(error, lost) or is_passing(error)


def _wants_password(error: BaseException) -> bool:
    """Whether a client without a password is asked for one, maybe since a moment ago."""
    text = str(error)
    if isinstance(error, redis.exceptions.AuthenticationError):
        return "Authentication required" in text
    # A server takes no more than a few bytes from a stranger, whatever the command is.
    return isinstance(error, redis.exceptions.ResponseError) and "unauthenticated" in text


def translate(error: BaseException, *, where: str = "") -> WorldError:
    """The World's error for one of redis-py's."""
    at = f" at {where}" if where else ""
    text = str(error)
    if isinstance(error, WorldError):
        return error
    if _wants_password(error):
        return ConfigurationError(
            f"the server{at} requires a password, and the URL has none that it takes ({text})"
        )
    if isinstance(error, redis.exceptions.AuthenticationError):
        return ConfigurationError(f"the server{at} refuses the user or password: {text}")
    if isinstance(error, redis.exceptions.NoPermissionError):
        return ConfigurationError(f"the server{at} denies a command to this user: {text}")
    if isinstance(error, redis.exceptions.TimeoutError):
        return WorldUnavailableError(f"the server{at} did not answer in time ({text})")
    if isinstance(error, redis.exceptions.ConnectionError | OSError):
        hint = ": is it running, and is the URL right?" if where else ""
        return WorldUnavailableError(f"the server{at} can't be reached{hint} ({text})")
    if isinstance(error, TypeError) and where:
        return ConfigurationError(f"the URL has an option that does not exist: {text}")
    if is_elsewhere(error):
        return ConfigurationError(
            f"the server{at} is a node of a cluster: its URL begins with redis+cluster://"
        )
    if isinstance(error, redis.exceptions.ResponseError):
        if "DB index is out of range" in text:
            return ConfigurationError(f"the server{at} does not have this database: {text}")
        if _has_code(error, _UNAVAILABLE_CODES):
            return WorldUnavailableError(f"the server{at} can't do this now: {text}")
        return ScriptError(f"the server{at} refused a command: {text}")
    return ScriptError(f"{type(error).__name__}: {text}")
