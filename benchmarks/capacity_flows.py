"""The workflows of `capacity_sdk`: the SDK executes their module again for replays."""

from __future__ import annotations

from pydantic import BaseModel
from vercel import workflow as sdk

# As the SDK advises for speed: a new sandbox for each replay costs more than the replay.
workflows = sdk.Workflows(sandbox_policy=sdk.SandboxPolicy(share_sandboxes=True))

SLEEP = 0.05
"""Seconds of each sleep: Redis has as much work with a longer one."""


class Answer(BaseModel, sdk.BaseHook):
    """What a hook is resumed with."""

    text: str


@workflows.step
async def echo(text: bytes) -> bytes:
    """Have a payload in and a payload out."""
    return text


@workflows.step
async def talk(chunks: int, size: int) -> None:
    """Write a stream, chunk by chunk."""
    writer = sdk.get_writable()
    for _ in range(chunks):
        await writer.write(b"x" * size)
    await writer.close()


@workflows.workflow
async def planned(parts: dict[str, int], name: str, text: bytes) -> bytes:
    """All that a plan has, one after the other."""
    for _ in range(parts["steps"]):
        text = await echo(text)
    for number in range(parts["hooks"]):
        await Answer.wait(token=f"{name}/{number}")
    for _ in range(parts["sleeps"]):
        await sdk.sleep(SLEEP)
    if parts["chunks"]:
        await talk(parts["chunks"], parts["chunk"])
    return text
