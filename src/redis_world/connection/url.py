"""URLs of servers, clusters and Sentinels.

`redis://`, `rediss://` and `unix://` are as redis-py has them. `redis+cluster://` names one or
more nodes, `redis+sentinel://` one or more Sentinels and behind the first slash their service;
with `rediss+` they are reached by TLS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import redis

from redis_world.errors import ConfigurationError
from redis_world.memory import SCHEME as MEMORY

__all__ = ["MEMORY", "Place", "parse_url", "refuse_decoding"]

_PLAIN: Final = (MEMORY, "redis", "rediss", "unix")
_SEVERAL: Final = {"cluster": 6379, "sentinel": 26379}
"""Kinds of servers that have several addresses, and the port that each has by default."""
_SCHEMES: Final = (
    *_PLAIN,
    *(f"{base}+{kind}" for kind in _SEVERAL for base in ("redis", "rediss")),
)


class Place(NamedTuple):
    """What a URL says.

    Attributes:
        kind: `memory`, `redis`, `rediss`, `unix`, `cluster` or `sentinel`.
        url: as redis-py has it; of several addresses, with the first one.
        hosts: all of several addresses.
        service: of Sentinels.
        database: of the servers that Sentinels name.
    """

    kind: str
    url: str
    hosts: list[tuple[str, int]]
    service: str
    database: int = 0

    def url_of(self, host: str, port: int) -> str:
        """The same URL of another address."""
        scheme, _, rest = self.url.partition("://")
        user, at, behind = rest.rpartition("@")
        end = behind[len(behind.partition("/")[0]) :]
        name = f"[{host}]" if ":" in host else host
        return f"{scheme}://{user}{at}{name}:{port}{end}"


def parse_url(url: str) -> Place:
    """Take a URL apart.

    Raises:
        ConfigurationError: it is none of a server; the text tells no secret of it.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise ConfigurationError(
            f"{_without_secrets(url)!r} is no URL of a server: they begin with one of {known}"
        )
    if scheme == MEMORY:
        return Place(MEMORY, url, [], "")
    base, _, kind = scheme.partition("+")
    if not kind:
        _check(url, url)
        return Place(scheme, url, [], "")
    user, at, behind = rest.rpartition("@")
    addresses, slash, end = behind.partition("/")
    if not slash:
        addresses, question, options = addresses.partition("?")
        end = question + options
    path, question, options = end.partition("?")
    hosts = [_address(each, _SEVERAL[kind], url) for each in addresses.split(",")]
    service, _, database = path.partition("/")
    if kind == "cluster":
        service, database = "", path.strip("/")
        if database not in ("", "0"):
            raise ConfigurationError(
                f"{_without_secrets(url)!r} is no URL of a cluster, which has no database but 0"
            )
    elif not service:
        raise ConfigurationError(
            f"{_without_secrets(url)!r} names no service: redis+sentinel://host:26379/service"
        )
    host = f"[{hosts[0][0]}]" if ":" in hosts[0][0] else hosts[0][0]
    plain = f"{base}://{user}{at}{host}:{hosts[0][1]}/{database}{question}{options}"
    _check(plain, url)
    return Place(kind, plain, hosts, service, int(database or "0"))


def _address(text: str, default_port: int, url: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    if not host or not port.isdecimal():
        raise ConfigurationError(
            f"{_without_secrets(url)!r} is no URL of a server: {text!r} is no address"
        )
    return host.strip("[]"), int(port)


def _check(url: str, shown: str) -> None:
    """Check a URL as redis-py has it."""
    try:
        options = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ConfigurationError(
            f"{_without_secrets(shown)!r} is no URL of a server: {error}"
        ) from None
    database = urlsplit(url).path.strip("/")
    if not url.startswith("unix:") and database and not database.isdecimal():
        raise ConfigurationError(
            f"{_without_secrets(shown)!r} is no URL of a server: {database!r} is no number of a "
            "database"
        )
    refuse_decoding(dict(options))


def _without_secrets(url: str) -> str:
    """A URL as it may be shown: user, password and options may be anywhere in front or behind."""
    return url.rpartition("@")[2].partition("?")[0]


def refuse_decoding(options: Mapping[str, Any]) -> None:
    """Check that replies come as bytes.

    Raises:
        ConfigurationError: they would be decoded.
    """
    if str(options.get("decode_responses", False)).lower() not in {"false", "0", "no", ""}:
        raise ConfigurationError(
            "decode_responses=True would break binary payloads: make the client without it"
        )
