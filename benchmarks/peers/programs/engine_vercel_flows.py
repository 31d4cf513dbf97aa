"""The workflow of `engine_vercel`: the SDK executes its module again for replays."""

from __future__ import annotations

from vercel.workflow import SandboxPolicy, Workflows

# As the SDK advises for speed: a new sandbox for each replay costs more than the replay.
workflows = Workflows(sandbox_policy=SandboxPolicy(share_sandboxes=True))


@workflows.step
async def one_more(number: int) -> int:
    return number + 1


@workflows.workflow
async def count(steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await one_more(number)
    return number
