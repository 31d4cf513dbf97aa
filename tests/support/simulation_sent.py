"""A message as a script was told to send it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from redis_world.codec import decode_data
from redis_world.messages import run_of, step_of

__all__ = ["Sent"]


class Sent(NamedTuple):
    """A message as it was to be sent."""

    run_id: str
    message_id: str
    kind: bytes
    step: bytes
    key: bytes
    queue: bytes
    deployment: bytes
    headers: bytes
    body: bytes
    delay: bytes

    @property
    def envelope(self) -> tuple[bytes, bytes, bytes]:
        """What one wake must have in common with another that stands for it."""
        return self.queue, self.deployment, self.headers

    @classmethod
    def of(cls, args: Mapping[str, bytes]) -> Sent:
        """As `queue/send` has it."""
        names = (
            "kind", "step_id", "idempotency", "queue_name", "deployment_id", "headers", "body",
            "delay",
        )  # fmt: skip
        return cls(
            args["run_id"].decode(), args["message_id"].decode(), *(args[name] for name in names)
        )

    @classmethod
    def along(cls, outbox: bytes) -> Sent:
        """As an event brings it along."""
        _, message_id, run_id, *rest = _texts(outbox)[: 1 + len(cls._fields)]
        return cls(run_id.decode(), message_id.decode(), *rest)

    @classmethod
    def behind(cls, args: Mapping[str, bytes], done: Sent) -> Sent:
        """As a continuation of a message."""
        payload = decode_data(args["body"])
        return cls(
            run_of(payload),
            args["follow_up_id"].decode(),
            args["kind"],
            step_of(payload).encode(),
            args["idempotency"],
            done.queue,
            done.deployment,
            done.headers,
            args["body"],
            args["delay"],
        )

    @classmethod
    def rescuing(cls, args: Mapping[str, bytes]) -> Sent:
        """As the sweeper sends it."""
        step = args.get("step_id", b"")
        return cls(
            args["run_id"].decode(),
            args["message_id"].decode(),
            b"step" if step else b"wake",
            step,
            args.get("idempotency", b""),
            args["queue_name"],
            args["deployment_id"],
            b"",
            args["body"],
            b"0",
        )


def _texts(packed: bytes) -> list[bytes]:
    lengths, _, rest = packed.partition(b" \n")
    found = []
    for length in lengths.split(b" "):
        found.append(rest[: int(length or 0)])
        rest = rest[len(found[-1]) :]
    return found
