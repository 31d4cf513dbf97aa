"""Signatures of what is delivered to an app's route, which only holders of its token can make."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

__all__ = ["MAX_AGE_SECONDS", "SIGNATURE_HEADER", "is_signed", "sign"]

SIGNATURE_HEADER: Final = "redis-world-signature"
MAX_AGE_SECONDS: Final = 300
"""How far the clocks of both sides may be apart; what was recorded is of no use after that."""

_SIGNATURE: Final = re.compile(r"t=(\d{1,12})((?:,v1=[0-9a-f]{64}){1,16})")


def sign(body: bytes, secrets: Sequence[str], now: float) -> str:
    """The header that goes with a body.

    Args:
        body: what is delivered.
        secrets: the valid tokens of the app; it has one of them.
        now: seconds since the epoch.
    """
    time = str(int(now))
    signatures = (f",v1={_signature(body, secret, time)}" for secret in secrets)
    return f"t={time}{''.join(signatures)}"


def is_signed(header: str, body: bytes, secrets: Iterable[str], now: float) -> bool:
    """Whether a body comes from a holder of one of the tokens, and was signed just now."""
    match = _SIGNATURE.fullmatch(header)
    if match is None or abs(now - int(match[1])) > MAX_AGE_SECONDS:
        return False
    given = [each.removeprefix("v1=") for each in match[2].split(",") if each]
    expected = [_signature(body, secret, match[1]) for secret in secrets]
    return any(hmac.compare_digest(one, other) for one in given for other in expected)


def _signature(body: bytes, secret: str, time: str) -> str:
    return hmac.new(secret.encode(), f"{time}.".encode() + body, sha256).hexdigest()
