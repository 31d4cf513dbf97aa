"""URLs of servers, clusters and Sentinels.

`redis://`, `rediss://` (TLS) and `unix://` are as in redis-py. `redis+cluster://` names one or
more nodes of a cluster. `redis+sentinel://` names one or more Sentinels and, after the first
slash, their service. `rediss+` does the same with TLS. In each of them `valkey` may stand for
`redis`, and `valkeys` for `rediss`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import redis

from redis_world.errors import ConfigurationError
from redis_world.memory import SCHEME as MEMORY
from redis_world.values import shown

__all__ = ["MEMORY", "Place", "name_of_memory", "parse_url", "refuse_decoding"]

_BASES: Final = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
"""What a scheme may begin with, and how redis-py calls it."""
_PLAIN: Final = (MEMORY, "unix", *_BASES)
_SEVERAL: Final = {"cluster": 6379, "sentinel": 26379}
"""Kinds of servers that have several addresses, and the port that each has by default."""
_HOST: Final = r"(?:[\w. -]+|\[[0-9a-fA-F:.]+\])(?::\d+)?"
_ADDRESS: Final = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/[\w.-]*)*", re.ASCII)
_LONGEST: Final = 300
_OPTION: Final = re.compile(r"[a-z_]+=")
_OPTION_ERROR: Final = re.compile(r"Invalid value for '[a-z_]{1,40}' in connection URL\.")
_ESCAPE: Final = (
    "Escape special characters of a user or password: %2F for /, %23 for #, %3F for ?, %40 for @"
)
_SCHEMES: Final = (*_PLAIN, *(f"{base}+{kind}" for kind in _SEVERAL for base in _BASES))
_EXAMPLES: Final = (
    "redis://localhost:6379/0, rediss://host:6379/0 (TLS), unix:///path/to/socket, "
    "redis+cluster://host:6379,host:6379, redis+sentinel://host:26379,host:26379/service "
    "or memory://"
)


class Place(NamedTuple):
    """What a URL says.

    Attributes:
        kind: `memory`, `redis`, `rediss`, `unix`, `cluster` or `sentinel`.
        url: as redis-py has it; of several addresses, with the first one.
        hosts: all of several addresses.
        service: of Sentinels.
        database: of the servers that Sentinels name.
        scheme: as the URL has it.
    """

    kind: str
    url: str
    hosts: list[tuple[str, int]]
    service: str
    database: int = 0
    scheme: str = ""

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
        ConfigurationError: it is invalid; the text has no user and no password.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"the URL must be text, not {shown(url)}")
    url = str.__str__(url)
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ConfigurationError(
            f"{_without_secrets(url)!r} is not the URL of a server. Use one like {_EXAMPLES}; "
            "valkey:// and valkeys:// work like redis:// and rediss://"
        )
    _refuse_unescaped(url, scheme)
    if scheme == MEMORY:
        return Place(MEMORY, url, [], "", scheme=scheme)
    base, _, kind = scheme.partition("+")
    base = _BASES.get(base, base)
    if not kind:
        plain = f"{base}://{rest}"
        _check(plain, url)
        return Place(base, plain, [], "", scheme=scheme)
    # The options first: they name files, whose paths have slashes.
    place, question, options = rest.partition("?")
    user, at, behind = place.rpartition("@")
    addresses, _, path = behind.partition("/")
    hosts = [_address(each, _SEVERAL[kind], url) for each in addresses.split(",")]
    service, _, database = path.partition("/")
    if kind == "cluster":
        service, database = "", path.strip("/")
        if database not in ("", "0"):
            raise ConfigurationError(
                f"{_without_secrets(url)!r} names a database, but a cluster has only database 0: "
                "leave it out"
            )
    elif not service:
        raise ConfigurationError(
            f"{_without_secrets(url)!r} names no service of the Sentinels: add it after a slash, "
            "as in redis+sentinel://host:26379/service"
        )
    host = f"[{hosts[0][0]}]" if ":" in hosts[0][0] else hosts[0][0]
    plain = f"{base}://{user}{at}{host}:{hosts[0][1]}/{database}{question}{options}"
    _check(plain, url)
    return Place(kind, plain, hosts, service, int(database or "0"), scheme)


def _address(text: str, default_port: int, url: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    if not host or not port.isdecimal():
        raise ConfigurationError(
            f"{_without_secrets(url)!r} is not the URL of a server: each address must be host or "
            "host:port"
        )
    return host.strip("[]"), int(port)


def _check(url: str, shown: str) -> None:
    """Check a URL as redis-py has it."""
    try:
        options = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        # The error may quote what stands where the port should, as part of a password does.
        reason = str(error)
        if not _OPTION_ERROR.fullmatch(reason):
            reason = f"the host or port is invalid. {_ESCAPE}"
        raise ConfigurationError(
            f"{_without_secrets(shown)!r} is not the URL of a server: {reason}"
        ) from None
    database = urlsplit(url).path.strip("/")
    if not url.startswith("unix:") and database and not database.isdecimal():
        raise ConfigurationError(
            f"{_without_secrets(shown)!r} is not the URL of a server: only the number of a "
            "database may follow the slash"
        )
    refuse_decoding(dict(options))


def _without_secrets(url: str) -> str:
    """What of a URL may be shown: its address, where nothing in it may be part of a password."""
    scheme, separator, rest = url.rpartition("://")
    user, at, place = rest.rpartition("@")
    # With a question mark or hash in front of the last @ that may be one within an option.
    if not _ADDRESS.fullmatch(place) or len(place) > _LONGEST or {"?", "#"} & {*user}:
        place = "..."
    shown = scheme + separator if scheme in _SCHEMES else ""
    return f"{shown}{'...@' if at else ''}{place}"


def _refuse_unescaped(url: str, scheme: str) -> None:
    """Refuse a URL in which a user or password ends too early.

    Raises:
        ConfigurationError: the text tells no secret of it.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        pass
    else:
        # A path of a socket may have an @ in it, an option of one server, too.
        in_path = "@" in parts.path and not (scheme == "unix" and parts.netloc[-1:] in ("", "@"))
        in_query = "@" in parts.query and not (scheme in _PLAIN and _OPTION.match(parts.query))
        if not (parts.fragment or in_path or in_query):
            return
    raise ConfigurationError(
        f"{_without_secrets(url)!r} is not the URL of a server: it has a stray /, #, ? or @. "
        f"{_ESCAPE}"
    )


def name_of_memory(url: str) -> str:
    """The URL of an embedded store without a user and a password, which it does not need."""
    parts = urlsplit(url)
    return f"{MEMORY}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def refuse_decoding(options: Mapping[str, Any]) -> None:
    """Check that replies come as bytes.

    Raises:
        ConfigurationError: they would be decoded.
    """
    if str(options.get("decode_responses", False)).lower() not in {"false", "0", "no", ""}:
        raise ConfigurationError(
            "decode_responses=True would corrupt binary payloads: remove it from the URL or client"
        )
