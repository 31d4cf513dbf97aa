"""Text that goes to Redis."""

from __future__ import annotations

from redis_world.errors import InvalidInputError

__all__ = ["utf8"]


def utf8(text: str) -> bytes:
    """Encode text.

    Raises:
        InvalidInputError: it has lone surrogates, which UTF-8 does not carry.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{text[:80]!r} is not valid Unicode text") from None
