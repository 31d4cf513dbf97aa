"""Workflows of a user, for the tests of `workflow_app`.

The module imports what a bootstrap module does, as the modules of real programs end up doing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import redis
from vercel import workflow as sdk

import redis_world
from redis_world.vercel import use_redis_world

IMPORTED = (redis, redis_world, use_redis_world)

# None of its own World's: other modules of this process have the topic already.
shop = sdk.Workflows(as_vercel_job=False)
depot = sdk.Workflows(as_vercel_job=False, namespace="depot")

DAY = 24 * 3600
attempts: list[int] = []
gate: list[asyncio.Event] = []


def close_gate() -> asyncio.Event:
    """Stop whoever comes to the gate; the answer is set when somebody has."""
    gate[:] = [asyncio.Event(), asyncio.Event()]
    return gate[0]


def open_gate() -> None:
    gate[1].set()


@dataclass
class Approval(sdk.BaseHook):
    """What a hook is resumed with."""

    by: str


class Refused(Exception):  # noqa: N818 - a user's own
    """What a workflow raises."""


# -- steps -----------------------------------------------------------------------------------


@shop.step
async def charge(order: str) -> str:
    if sdk.get_step_metadata().attempt == 1:
        raise ValueError("declined")
    return f"charged {order}"


@shop.step
async def note(text: str) -> str:
    return text


@shop.step
async def busy(seconds: float) -> int:
    attempt = sdk.get_step_metadata().attempt
    if attempt == 1:
        raise sdk.RetryableError("busy", retry_after=seconds)
    return attempt


@shop.step(max_retries=2)
async def hopeless() -> None:
    attempts.append(sdk.get_step_metadata().attempt)
    raise ValueError("no")


@shop.step
async def odd() -> Any:
    return object()


@shop.step
async def gated() -> int:
    reached, opened = gate
    reached.set()
    await opened.wait()
    return sdk.get_step_metadata().attempt


@shop.step
async def interrupted(error: str) -> None:
    raise {"exit": SystemExit, "generator": GeneratorExit}[error]("by hand")


async def ask_the_bank() -> str:
    raise NotImplementedError


@shop.step
async def slow() -> str:
    return await ask_the_bank()


@shop.step(cancellable=True)
async def cancellable() -> str:
    return await ask_the_bank()


@shop.step
async def begin_child(seconds: float) -> str:
    return (await sdk.start(nap, seconds)).run_id


@shop.step
async def begin_in_the_depot(item: str) -> str:
    return (await sdk.start(pack, item)).run_id


@shop.step
async def stream(*words: str) -> None:
    writer = sdk.get_writable()
    for word in words:
        await writer.write(word)


@shop.step
async def moment() -> datetime:
    return sdk.get_step_metadata().step_started_at


@depot.step
async def wrap(item: str) -> str:
    return f"wrapped {item}"


# -- workflows -------------------------------------------------------------------------------


@shop.workflow
async def checkout(order: str) -> str:
    """Five steps, a retry, a hook and a sleep of thirty days."""
    receipt = await charge(order)
    for text in ("packed", "labelled"):
        await note(text)
    approval = await Approval.wait(token=f"approval-{order}")
    await sdk.sleep(30 * DAY)
    last = await note("reminded")
    return await note(f"{receipt}, {last}, approved by {approval.by}")


@shop.workflow
async def nap(seconds: float) -> float:
    begin = sdk.now()
    await sdk.sleep(seconds)
    return (sdk.now() - begin).total_seconds()


@shop.workflow
async def naps(*seconds: float) -> list[float]:
    begin = sdk.now()

    async def one(each: float) -> float:
        await sdk.sleep(each)
        return (sdk.now() - begin).total_seconds()

    return list(await asyncio.gather(*map(one, seconds)))


@shop.workflow
async def until(text: str) -> str:
    await sdk.sleep(datetime.fromisoformat(text))
    return sdk.now().isoformat()


@shop.workflow
async def patient(seconds: float) -> int:
    return await busy(seconds)


@shop.workflow
async def unlucky() -> None:
    await hopeless()


@shop.workflow
async def refuse(reason: str) -> None:
    raise Refused(reason)


@shop.workflow
async def strange() -> None:
    await odd()


@shop.workflow
async def echo(value: Any) -> Any:
    return value


@shop.workflow
async def behind_a_gate() -> int:
    return await gated()


@shop.workflow
async def interrupt(error: str) -> None:
    await interrupted(error)


@shop.workflow
async def parent(seconds: float) -> float:
    child = sdk.get_run(await begin_child(seconds))
    slept: float = await child.return_value()
    return slept


@shop.workflow
async def order_in_the_depot(item: str) -> str:
    packed: str = await sdk.get_run(await begin_in_the_depot(item)).return_value()
    return packed


@shop.workflow
async def report(*words: str) -> None:
    await stream(*words)
    await sdk.set_attributes(phase="written")
    await Approval.wait(token="never")


@shop.workflow
async def hurry(seconds: float, can_stop: bool) -> str:
    try:
        return await asyncio.wait_for(cancellable() if can_stop else slow(), seconds)
    except TimeoutError:
        return "too late"


@shop.workflow
async def wait_for_approval(seconds: float) -> str:
    try:
        approval = await asyncio.wait_for(Approval.wait(token="wait"), seconds)
    except TimeoutError:
        return "nobody came"
    return approval.by


@shop.workflow
async def stuck() -> None:
    await asyncio.Future()


@shop.workflow
async def when() -> list[str]:
    first = await moment()
    await sdk.sleep(DAY)
    return [first.isoformat(), (await moment()).isoformat(), sdk.now().isoformat()]


@depot.workflow
async def pack(item: str) -> str:
    return await wrap(item)
