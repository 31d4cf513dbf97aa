"""What the worker tells of its deliveries: one line each."""

from __future__ import annotations

import logging
from typing import Any, Final

from redis_world.queue import Message

__all__ = ["report"]

logger = logging.getLogger(__name__)

_LEVELS: Final = {
    "failed": logging.WARNING,
    "lease_lost": logging.WARNING,
    "unsettled": logging.ERROR,
}
_TEXTS: Final = {
    "lease_lost": "lost the lease, the message is delivered again",
    "unsettled": "can't end the message, it is delivered again after its lease",
}


def report(
    message: Message,
    outcome: str,
    *,
    error: BaseException | None,
    duration: float,
    waited_ms: float,
    is_abandoned: bool,
) -> None:
    """Log the end of a delivery: names and numbers, no payloads.

    Args:
        message: the message.
        outcome: `acked`, `continued`, `failed`, `released`, `postponed`, `lease_lost` or
            `unsettled`.
        error: what went wrong.
        duration: seconds that the delivery took.
        waited_ms: for how long the message was due before.
        is_abandoned: whether its handler still runs.
    """
    level = _LEVELS.get(outcome, logging.WARNING if is_abandoned else logging.INFO)
    if not logger.isEnabledFor(level):
        return
    fields = _fields(message, outcome, duration, waited_ms)
    text = _TEXTS.get(outcome, outcome)
    if is_abandoned:
        text += ", the handler ignores its cancellation"
    # With one id, for logs that do not show the fields.
    logger.log(
        level,
        "%s: %s (message %s)",
        fields["step"] or fields["workflow"],
        text,
        message.message_id,
        exc_info=error,
        extra=fields,
    )


def _fields(message: Message, outcome: str, duration: float, waited_ms: float) -> dict[str, Any]:
    topic = message.topic
    payload = message.payload
    return {
        "event": f"delivery.{outcome}",
        "outcome": outcome,
        "run_id": message.run_id,
        "step_id": payload.get("stepId") if message.is_step else None,
        "workflow": _short(message.queue_name.removeprefix(topic)),
        "step": _short(payload.get("stepName")) if message.is_step else None,
        "message_id": message.message_id,
        "topic": topic,
        "attempt": message.attempt,
        "duration_ms": round(duration * 1000),
        "wait_ms": max(0, round(waited_ms)),
    }


def _short(name: object) -> str | None:
    """The last part of `workflow//<module>//<name>`."""
    return name.rpartition("//")[2] if isinstance(name, str) else None
