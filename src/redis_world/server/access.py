"""Who may do what: bearer tokens, each bound to a namespace and a role (docs/http.md)."""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final

from redis_world.errors import ConfigurationError

__all__ = ["DEFAULT_REQUESTS", "Access", "Role", "Token", "parse_tokens"]

logger = logging.getLogger(__name__)

DEFAULT_REQUESTS: Final = 512
"""Requests at a time that a token may have, unless it says otherwise."""
_LEAST_TOKEN: Final = 16
"""Characters: what is shorter can be guessed."""
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TOKEN: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
"""Printable, without commas: an app names several tokens with commas between them."""
_LOOK_SECONDS: Final = 1.0
"""How often the file is looked at for changes."""


class Role(StrEnum):
    """What a token allows. `app` and `operate` may also do all that `read` may."""

    READ = "read"
    APP = "app"
    OPERATE = "operate"


@dataclass(slots=True, eq=False)
class Token:
    """A bearer token.

    Attributes:
        secret: the token itself.
        namespace: the one namespace that it opens.
        role: what it allows.
        requests: how many requests it may have at a time.
        in_work: how many it has.
    """

    secret: str = field(repr=False)
    namespace: str
    role: Role
    requests: int = DEFAULT_REQUESTS
    in_work: int = 0
    digest: bytes = field(init=False, repr=False)
    """What tokens are compared by: equally long for all, so that the time tells nothing."""

    def __post_init__(self) -> None:
        self.digest = sha256(self.secret.encode()).digest()

    def updated(self, other: Token) -> Token:
        """This token with what another one of the same secret allows.

        Not the other one: the requests that are in work end as this one's.
        """
        self.namespace, self.role, self.requests = other.namespace, other.role, other.requests
        return self


def parse_tokens(text: str, where: str) -> list[Token]:
    """Read tokens: one per line, as `<token> <namespace> <role> [<requests at a time>]`.

    Empty lines and lines that start with `#` are skipped. In an environment variable `;` may
    separate the tokens, too.

    Args:
        text: the lines.
        where: where they are from, for the error.

    Raises:
        ConfigurationError: a line is malformed; the text names the line, and no token.
    """
    tokens: list[Token] = []
    for number, line in enumerate(text.replace(";", "\n").splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        problem = _problem(words)
        if problem:
            raise ConfigurationError(f"{where}, line {number}: {problem}")
        requests = int(words[3]) if len(words) > 3 else DEFAULT_REQUESTS
        tokens.append(Token(words[0], words[1], Role(words[2]), requests))
    if len({token.secret for token in tokens}) < len(tokens):
        raise ConfigurationError(f"{where}: the same token is there twice")
    return tokens


def _problem(words: Sequence[str]) -> str:
    if len(words) not in (3, 4):
        return "expected `<token> <namespace> <role> [<requests at a time>]`"
    if len(words[0]) < _LEAST_TOKEN or not _TOKEN.fullmatch(words[0]):
        return (
            f"a token must have at least {_LEAST_TOKEN} printable ASCII characters, and no comma"
        )
    if not _NAMESPACE.fullmatch(words[1]):
        return "the namespace must match [A-Za-z0-9_.-]{1,64}"
    if words[2] not in {*Role}:
        return f"the role must be one of {', '.join(Role)}"
    if len(words) > 3 and not re.fullmatch("[1-9][0-9]{0,5}", words[3]):
        return "requests at a time must be a whole number, at least 1"
    return ""


class Access:
    """The valid tokens, as they are now.

    Args:
        tokens: valid for good.
        file: more of them; changes count without a restart.

    Raises:
        ConfigurationError: the file can't be read, or is malformed.
    """

    def __init__(self, tokens: Iterable[Token] = (), file: Path | None = None) -> None:
        self._fixed = list(tokens)
        self._file = file
        self._from_file: list[Token] = []
        self._looked_at = time.monotonic()
        self._stamp: tuple[int, int, int] | None = None
        if file is not None:
            self._read(file)

    @property
    def tokens(self) -> list[Token]:
        """All valid tokens."""
        self._look()
        return [*self._fixed, *self._from_file]

    @property
    def namespaces(self) -> list[str]:
        """The namespaces that they open."""
        return list(dict.fromkeys(token.namespace for token in self.tokens))

    def find(self, secret: str) -> Token | None:
        """The token of a request; None when it is not valid. Takes as long for any text."""
        digest = sha256(secret.encode("utf-8", "surrogateescape")).digest()
        found = None
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def secrets_of(self, namespace: str, role: Role) -> list[str]:
        """The tokens of a namespace that have this role: what is sent to its app is signed so."""
        return [
            token.secret
            for token in self.tokens
            if token.namespace == namespace and token.role == role
        ]

    def _look(self) -> None:
        """Read the file again if it has changed."""
        now = time.monotonic()
        if self._file is None or now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            if self._stamp_of(self._file) == self._stamp:
                return
            self._read(self._file)
        except ConfigurationError as error:
            # The old ones stay valid: a half-written file must not lock everybody out.
            logger.error(  # noqa: TRY400 - the text tells what happened
                "kept the old tokens: %s", error, extra={"event": "tokens.refused"}
            )
            self._stamp = self._stamp_of(self._file)
        else:
            count = len(self._from_file)
            logger.info(
                "%d tokens were read again",
                count,
                extra={"event": "tokens.changed", "count": count},
            )

    def _read(self, file: Path) -> None:
        stamp = self._stamp_of(file)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigurationError(f"can't read the tokens in {file}: {error}") from None
        known = {token.secret: token for token in self._from_file}
        tokens = parse_tokens(text, str(file))
        self._from_file = [known.get(token.secret, token).updated(token) for token in tokens]
        self._stamp = stamp

    @staticmethod
    def _stamp_of(file: Path) -> tuple[int, int, int] | None:
        try:
            found = file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
