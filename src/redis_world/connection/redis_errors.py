"""What redis-py's errors mean: passing trouble, an error of the World, or a bug."""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import redis.asyncio.sentinel
import redis.exceptions
import redis.sentinel

from redis_world.errors import (
    ConfigurationError,
    ScriptError,
    WorldError,
    WorldUnavailableError,
)

__all__ = [
    "NoNodeError",
    "address_of",
    "base_of",
    "chain",
    "first_refusal",
    "is_elsewhere",
    "is_lost",
    "is_passing",
    "is_sentinel",
    "is_unknown_command",
    "lacks_script",
    "mark",
    "pool_of",
    "reason_of",
    "translate",
    "uses_tls",
    "wants_certificate",
    "with_tls",
    "without_tls",
]

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


def is_unknown_command(reply: object) -> bool:
    """Whether a reply says that the server does not have a command."""
    return isinstance(reply, redis.exceptions.ResponseError) and bool(
        re.match(r"(ERR )?unknown (sub)?command", str(reply), re.IGNORECASE)
    )


class NoNodeError(redis.exceptions.ConnectionError):
    """None of several servers can be asked.

    Attributes:
        errors: what became of each, by its address.
    """

    def __init__(self, what: str, errors: Mapping[str, Exception]) -> None:
        told = ", ".join(f"{address} ({reason_of(error)})" for address, error in errors.items())
        super().__init__(f"{what}: {told}")
        self.errors = errors


# -- where an error comes from -------------------------------------------------------------


def mark(error: Exception, pool: redis.asyncio.ConnectionPool) -> Exception:
    """Note of which server an error is; the first note counts."""
    error.__dict__.setdefault("redis_world_pool", pool)
    return error


def pool_of(error: BaseException) -> redis.asyncio.ConnectionPool | None:
    """The connections to the server that an error is of, as far as that is known."""
    pool: redis.asyncio.ConnectionPool | None = error.__dict__.get("redis_world_pool")
    return pool


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that led to it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


_ADDRESS: Final = re.compile(r"(?:connecting to|reading from|writing to) (\S*[:/]\S*?)\.?(?:\s|$)")


def address_of(error: BaseException) -> str:
    """The address that an error is about, as redis-py tells it or as it was noted; else empty."""
    if isinstance(error, NoNodeError):
        return ""
    found = _ADDRESS.search(str(error))
    if found is not None:
        return found[1].removesuffix(":")
    pool = pool_of(error)
    options = {} if pool is None else pool.connection_kwargs
    if "path" in options:
        return str(options["path"])
    return f"{options['host']}:{options.get('port', 6379)}" if options.get("host") else ""


# -- why there is no connection ------------------------------------------------------------

_CLOSED: Final = ("Connection closed by server", "the connection was closed", "Connection lost",
                  "Error connecting to")  # fmt: skip
_OTHER_PROTOCOL: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE",
                          "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL")  # fmt: skip
_OTHER_HOST: Final = (62, 64)
"""OpenSSL's codes of a certificate for another host or another address."""
_CONNECT: Final = re.compile(r"\[Errno (\d+)\]")


def reason_of(error: BaseException) -> str:
    """Why there is no connection, in a few words, without objects and addresses."""
    for each in chain(error):
        reason = _reason(each)
        if reason:
            return reason
    return str(error) or type(error).__name__


def _reason(error: BaseException) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not valid: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS failed: {_tls_reason(error).replace('_', ' ').lower()}"
        case socket.gaierror():
            return f"the host name is unknown: {error.strerror}"
        case redis.exceptions.TimeoutError() | TimeoutError():
            text = str(error)
            return "no answer" if not text or text.startswith("Timeout ") else text
        case OSError() if error.errno is not None:
            return os.strerror(error.errno).lower()
        case OSError():
            # Of several addresses of one host each has an error of its own.
            numbers = {int(each) for each in _CONNECT.findall(str(error))}
            return " and ".join(os.strerror(each).lower() for each in sorted(numbers))
        case redis.exceptions.InvalidResponse():
            return "it does not answer as Redis does"
        case NoNodeError():
            return str(error)
    if isinstance(error, _MASTERLESS):
        # The rest shows objects of redis-py.
        return str(error).partition(" : ")[0]
    if any(text in str(error) for text in _CLOSED):
        return "the server closed the connection"
    return ""


def _tls_reason(error: ssl.SSLError) -> str:
    """OpenSSL's words, without the place in its source."""
    return error.reason or re.sub(r"^\[\w+\]\s*|\s*\(_?ssl.*$", "", str(error.args[-1]))


_MASTERLESS: Final = (
    redis.asyncio.sentinel.MasterNotFoundError,
    redis.sentinel.MasterNotFoundError,
)


_TLS_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")


def _file_problem(error: BaseException) -> WorldError | None:
    """Which file of the URL can't be used."""
    pool = pool_of(error)
    options = {} if pool is None else pool.connection_kwargs
    named = {name: str(options[name]) for name in _TLS_FILES if options.get(name)}
    for each in chain(error):
        if isinstance(each, FileNotFoundError | PermissionError | IsADirectoryError):
            for name, path in named.items():
                if not os.access(path, os.R_OK) or Path(path).is_dir() != (name == "ssl_ca_path"):
                    why = (each.strerror or "").lower()
                    return ConfigurationError(
                        f"can't read the file {path!r}, which the URL names as {name}: {why}. "
                        "Correct the path, or the rights of the file"
                    )
        if named and isinstance(each, ssl.SSLError) and not _is_from_the_server(each):
            files = " or ".join(f"{name}={path}" for name, path in named.items())
            return ConfigurationError(
                f"a file of the URL can't be used ({files}): {_reason(each)}"
            )
    return None


def _is_from_the_server(error: ssl.SSLError) -> bool:
    """Whether an error is of a handshake, and not of the settings."""
    is_file = "PEM" in _tls_reason(error) or error.library in ("X509", "PEM")
    return isinstance(error, ssl.SSLCertVerificationError) or not is_file


def _tls_problem(error: BaseException, at: str) -> WorldError | None:
    """What is wrong with certificates, and what to do."""
    problem = _file_problem(error)
    if problem is not None:
        return problem
    for each in chain(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            what = f"the certificate of the server{at} is not valid: {each.verify_message}"
            if each.verify_code in _OTHER_HOST:
                advice = "use the host name of the certificate in the URL"
            else:
                advice = (
                    "name the file of its certificate authority in the URL, "
                    "as in ?ssl_ca_certs=/path/to/ca.pem, or renew the certificate"
                )
            return ConfigurationError(f"{what}. To fix it, {advice}")
        if not isinstance(each, ssl.SSLError):
            continue
        reason = _tls_reason(each)
        if any(name in reason for name in _OTHER_PROTOCOL):
            return without_tls(at)
        if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
            return wants_certificate(at)
    return None


def without_tls(at: str) -> WorldError:
    """The error of a `rediss://` URL whose server does not use TLS."""
    return ConfigurationError(
        f"the server{at} does not use TLS on this port: use redis:// instead of rediss://, or the "
        "port for TLS"
    )


def with_tls(at: str) -> WorldError:
    """The error of a `redis://` URL whose server uses TLS."""
    return ConfigurationError(
        f"the server{at} uses TLS on this port: use rediss:// instead of redis://, or the port "
        "without TLS"
    )


def wants_certificate(at: str) -> WorldError:
    """The error of a `rediss://` URL without a certificate, which the server wants."""
    return ConfigurationError(
        f"the server{at} wants a certificate of its clients: name it in the URL, as in "
        "?ssl_certfile=/path/to/cert.pem&ssl_keyfile=/path/to/key.pem"
    )


def is_sentinel(at: str, base: str = "redis") -> WorldError:
    """The error of a URL that names a Sentinel as if it had data."""
    return ConfigurationError(
        f"the server{at} is a Sentinel, which stores no data: use {base}+sentinel://host:port/"
        "service with the name of the service that it watches"
    )


def base_of(pool: redis.asyncio.ConnectionPool | None) -> str:
    """What a URL of the same transport begins with."""
    return "rediss" if pool is not None and uses_tls(pool) else "redis"


def uses_tls(pool: redis.asyncio.ConnectionPool) -> bool:
    """Whether the connections of a pool are encrypted."""
    return issubclass(pool.connection_class, redis.asyncio.SSLConnection)


def _wants_password(error: BaseException) -> bool:
    """Whether a client without a password is asked for one, maybe since a moment ago."""
    text = str(error)
    if isinstance(error, redis.exceptions.AuthenticationError):
        return "Authentication required" in text
    # A server takes no more than a few bytes from a stranger, whatever the command is.
    return isinstance(error, redis.exceptions.ResponseError) and "unauthenticated" in text


def translate(error: BaseException, *, where: str = "") -> WorldError:
    """The World's error for one of redis-py's.

    Args:
        error: redis-py's, or one of the operating system.
        where: the server's address, unless the error has it.
    """
    where = address_of(error) or where
    at = f" at {where}" if where else ""
    text = str(error)
    if isinstance(error, WorldError):
        return error
    if _wants_password(error):
        return ConfigurationError(
            f"the server{at} requires a password: add it to the URL, as in "
            f"redis://user:password@host:port/0 ({text})"
        )
    if isinstance(error, redis.exceptions.AuthenticationError):
        return ConfigurationError(
            f"the server{at} refuses the user or password: correct them in the URL ({text})"
        )
    if isinstance(error, redis.exceptions.NoPermissionError):
        return ConfigurationError(
            f"the server{at} denies a command to this user: {text}. `redis-world doctor` shows "
            "the rights that the user needs"
        )
    tls = _tls_problem(error, at)
    if tls is not None:
        return tls
    if any(isinstance(each, redis.exceptions.InvalidResponse) for each in chain(error)):
        return WorldUnavailableError(
            f"the server{at} does not answer as Redis does: correct the host or port in the URL"
        )
    if isinstance(error, redis.exceptions.TimeoutError):
        return WorldUnavailableError(
            f"the server{at} did not answer in time ({reason_of(error)}): check its load, the "
            "network and the address in the URL"
        )
    if isinstance(error, redis.exceptions.ConnectionError | OSError):
        if isinstance(error, (NoNodeError, *_MASTERLESS)):
            return WorldUnavailableError(
                f"{reason_of(error)}. Is it running, and is the URL correct?"
            )
        return WorldUnavailableError(
            f"the server{at} can't be reached ({reason_of(error)}): is it running, and is the "
            "URL correct?"
        )
    if isinstance(error, TypeError) and where:
        found = re.search(r"keyword argument '(\w+)'", text)
        name = f" {found[1]!r}" if found else ""
        return ConfigurationError(f"the URL has an unknown option{name}: remove it")
    if is_elsewhere(error) or "SELECT is not allowed in cluster mode" in text:
        base = base_of(pool_of(error))
        return ConfigurationError(
            f"the server{at} is a node of a cluster: use {base}+cluster:// instead of {base}://, "
            "without a database"
        )
    if isinstance(error, redis.exceptions.ResponseError):
        return _translate_refusal(error, at)
    return ScriptError(f"{type(error).__name__}: {text}")


def _translate_refusal(error: redis.exceptions.ResponseError, at: str) -> WorldError:
    text = str(error)
    if "DB index is out of range" in text:
        pool = pool_of(error)
        number = "this database" if pool is None else f"database {pool.connection_kwargs['db']}"
        return ConfigurationError(
            f"the server{at} does not have {number}: use a lower number in the URL, or raise "
            f"`databases` in the server's configuration ({text})"
        )
    if "cluster support disabled" in text:
        base = base_of(pool_of(error))
        return ConfigurationError(
            f"the server{at} is not a node of a cluster: use {base}:// instead of {base}+cluster://"
        )
    if _has_code(error, _UNAVAILABLE_CODES):
        return WorldUnavailableError(f"the server{at} can't do this now: {text}")
    return ScriptError(f"the server{at} refused a command: {text}")
