"""How texts call workflows and steps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from redis_world.messages import Message, step_name_of, topic_of

__all__ = ["called", "moment", "plain_name", "short"]

_MOST: Final = 5


def plain_name(name: str) -> str:
    """The function of a step or a workflow: `step//app.workflows//charge` is `charge`."""
    return name.rpartition("//")[2]


def called(message: Message) -> str:
    """What a message asks for."""
    step = step_name_of(message.payload)
    if step or message.is_step:
        return f"step {plain_name(step) or '(without a name)'}"
    name = message.queue_name.removeprefix(topic_of(message.queue_name))
    return f"workflow {plain_name(name)}"


def short(names: Sequence[str]) -> str:
    """The first of many names."""
    shown = ", ".join(names[:_MOST])
    return shown + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")


def moment(time: datetime) -> str:
    """A moment of the virtual clock."""
    return time.isoformat(" ", "milliseconds").replace("+00:00", " UTC").replace(".000", "")
