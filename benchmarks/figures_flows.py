"""The workflows of `figures_sdk`: the SDK executes their module again for replays."""

from __future__ import annotations

import asyncio

from vercel.workflow import SandboxPolicy, Workflows

# As the SDK advises for speed: a new sandbox for each replay costs more than the replay.
workflows = Workflows(sandbox_policy=SandboxPolicy(share_sandboxes=True))


@workflows.step
async def one_more(number: int) -> int:
    """Count."""
    return number + 1


@workflows.workflow
async def sequence(steps: int) -> int:
    """Steps one after the other."""
    number = 0
    for _ in range(steps):
        number = await one_more(number)
    return number


@workflows.workflow
async def gather(steps: int) -> int:
    """Steps all at once."""
    return len(await asyncio.gather(*(one_more(number) for number in range(steps))))
