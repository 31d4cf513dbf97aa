"""A look at what a subscriber of hints sends."""

from __future__ import annotations

from redis_world.hints import Subscriber

__all__ = ["noting"]


def noting(subscriber: Subscriber, sent: list[str]) -> Subscriber:
    """The subscriber, which adds its commands to a list from now on."""
    send = subscriber.send

    def noted(command: str, *channels: bytes) -> None:
        sent.append(command)
        send(command, *channels)

    subscriber.send = noted  # type: ignore[method-assign]
    return subscriber
