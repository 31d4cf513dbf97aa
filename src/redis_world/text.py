"""Text that goes to Redis."""

from __future__ import annotations

from redis_world.values import text as plain_text

__all__ = ["MAX_CANCEL_REASON_UNITS", "utf8", "utf16_units"]

MAX_CANCEL_REASON_UNITS = 512
"""UTF-16 units of the reason of a cancellation."""


def utf16_units(text: str) -> int:
    """Length as JavaScript counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf8(text: str) -> bytes:
    """Encode text.

    Raises:
        InvalidInputError: it is none, or has lone surrogates, which UTF-8 does not carry. It is
            not shown: it may be a token.
    """
    return plain_text(text, "an argument", secret=True).encode()
