"""A workflow that does what it is told, for the workers that are killed.

Every replay executes this module again, in the SDK's sandbox: what only steps need is imported
where they run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from vercel import workflow as sdk

app = sdk.Workflows(sandbox_policy=sdk.SandboxPolicy(share_sandboxes=True))

OFTEN = 1000
"""Retries of a step: each worker that dies in its body costs an attempt, and none may be the
last one, or the run would end otherwise than its workflow says."""


@dataclass
class Approval(sdk.BaseHook):
    """What a hook is resumed with."""

    by: str


# -- steps ---------------------------------------------------------------------------------


@app.step(max_retries=OFTEN)
async def add_one(value: int) -> int:
    _count()
    return value + 1


@app.step(max_retries=OFTEN)
async def third_time_lucky() -> str:
    _count()
    attempt = sdk.get_step_metadata().attempt
    if attempt < 3:
        raise ValueError(f"attempt {attempt}")
    return "lucky"


@app.step(max_retries=OFTEN)
async def busy_at_first(seconds: float) -> str:
    _count()
    if sdk.get_step_metadata().attempt == 1:
        raise sdk.RetryableError("busy", retry_after=seconds)
    return "free"


@app.step(max_retries=OFTEN)
async def hopeless(text: str) -> None:
    _count()
    raise sdk.FatalError(text)


@app.step(max_retries=OFTEN)
async def label(key: str, value: str) -> None:
    _count()
    await sdk.set_attributes({key: value})


def _count() -> None:
    from support.killing_effects import count_effect

    count_effect()


# -- parts of a workflow -------------------------------------------------------------------


async def _sequence(count: int) -> int:
    value = 0
    for _ in range(count):
        value = await add_one(value)
    return value


async def _fan_out(count: int) -> list[int]:
    return await asyncio.gather(*(add_one(value) for value in range(count)))


async def _give_up(text: str) -> str:
    try:
        await hopeless(text)
    except sdk.FatalError as error:
        return str(error)
    return "it did not fail"


async def _approved(token: str, dispose: bool) -> str:
    hook = Approval.wait(token=token, metadata={"for": token})
    if not dispose:
        return (await hook).by
    async with hook:
        return (await hook).by


async def _slept(seconds: float) -> str:
    await sdk.sleep(seconds)
    return "slept"


async def _attribute(key: str, value: str, in_step: bool) -> str:
    if in_step:
        await label(key, value)
    else:
        await sdk.set_attributes({key: value})
    return key


async def _together(parts: list[dict[str, Any]]) -> list[Any]:
    return await asyncio.gather(*map(_do, parts))


async def _do(part: dict[str, Any]) -> Any:
    doing: dict[str, Callable[..., Awaitable[Any]]] = {
        "sequence": _sequence,
        "fan_out": _fan_out,
        "retried": third_time_lucky,
        "busy": busy_at_first,
        "give_up": _give_up,
        "hook": _approved,
        "sleep": _slept,
        "attribute": _attribute,
        "together": _together,
    }
    options = {name: value for name, value in part.items() if name != "kind"}
    return await doing[part["kind"]](**options)


@app.workflow
async def mixture(number: int, parts: list[dict[str, Any]], end: str) -> list[Any]:
    """Do some parts one after another, and end as told."""
    results = [await _do(part) for part in parts]
    if end == "raise":
        raise ValueError(f"flow {number} fails")
    if end == "hang":
        # Until it is cancelled: nobody knows the token.
        await Approval.wait(token=f"nobody resumes {number}")
    return results
