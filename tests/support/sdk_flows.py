"""Workflows for the official Python SDK: in worker processes, and in the tests' own one.

Every replay executes this module again, in the SDK's sandbox: what only steps need is imported
where they run.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from vercel import workflow as sdk

# One registry has the SDK's default, a new sandbox for every replay, the other one what is
# advised for speed: in a new sandbox every replay imports this module again.
app = sdk.Workflows(sandbox_policy=sdk.SandboxPolicy(share_sandboxes=True))
orders = sdk.Workflows(namespace="orders")


@dataclass
class Approval(sdk.BaseHook):
    """What a hook is resumed with."""

    by: str


# -- steps ---------------------------------------------------------------------------------


@app.step
async def add_one(value: int) -> int:
    _note()
    return value + 1


@app.step
async def total(values: list[int]) -> int:
    """Slow enough for every replay that is on its way to find it running."""
    _note()
    await asyncio.sleep(0.3)
    return sum(values)


@app.step
async def third_time_lucky() -> int:
    _note()
    attempt = sdk.get_step_metadata().attempt
    if attempt < 3:
        raise ValueError(f"attempt {attempt}")
    return attempt


@app.step
async def busy_at_first(seconds: float) -> int:
    _note()
    attempt = sdk.get_step_metadata().attempt
    if attempt == 1:
        raise sdk.RetryableError("busy", retry_after=seconds)
    return attempt


@app.step(max_retries=0)
async def hopeless() -> int:
    _note()
    raise ValueError("no")


@app.step
async def label(**attributes: str) -> None:
    _note()
    await sdk.set_attributes(attributes)


@app.step
async def stream(name: str, gate: str) -> None:
    """Write two values, wait for the one who reads them, and write one more."""
    from support.sdk_files import gate_opened

    _note()
    writer = sdk.get_writable(namespace=name or None)
    await writer.write({"part": 1})
    await writer.write(b"part 2")
    await gate_opened(gate)
    await writer.write("part 3")
    await writer.close()


@app.step
async def slow(gate: str) -> str:
    """End when the gate is opened from outside."""
    from support.sdk_files import gate_opened

    _note()
    await gate_opened(gate)
    return gate


@app.step(cancellable=True)
async def endless() -> None:
    _note()
    await asyncio.Event().wait()


@app.step
async def start_child(value: int) -> str:
    _note()
    return (await sdk.start(sequential, value)).run_id


@orders.step
async def charge(amount: int) -> str:
    _note()
    return f"charged {amount}"


def _note() -> None:
    from support.sdk_files import note_body

    note_body()


# -- workflows -----------------------------------------------------------------------------


@app.workflow
async def no_step(value: int) -> int:
    return value + 1


@app.workflow
async def fails(text: str) -> None:
    raise ValueError(text)


@app.workflow
async def sequential(count: int) -> int:
    value = 0
    for _ in range(count):
        value = await add_one(value)
    return value


@app.workflow
async def sleeps(seconds: float) -> tuple[datetime, datetime]:
    before = sdk.now()
    await sdk.sleep(seconds)
    return before, sdk.now()


@app.workflow
async def sleeps_until(until: str) -> str:
    """To a date, as the sandbox makes one: of a subclass of its own."""
    await sdk.sleep(datetime.fromisoformat(until))
    return until


@app.workflow
async def fan_out(count: int) -> list[int]:
    return await asyncio.gather(*(add_one(value) for value in range(count)))


@app.workflow
async def fan_out_and_in(count: int) -> int:
    return await total(await asyncio.gather(*(add_one(value) for value in range(count))))


@app.workflow
async def retried() -> int:
    return await third_time_lucky()


@app.workflow
async def retried_later(seconds: float) -> int:
    return await busy_at_first(seconds)


@app.workflow
async def given_up() -> str:
    try:
        await hopeless()
    except sdk.FatalError as error:
        return str(error)
    return "it did not fail"


@app.workflow
async def approved(token: str) -> str:
    approval = await Approval.wait(token=token, metadata={"for": token})
    return approval.by


@app.workflow
async def approved_twice(token: str) -> list[str]:
    names = []
    async with Approval.wait(token=token) as hook:
        async for approval in hook:
            names.append(approval.by)
            if len(names) == 2:
                break
    return names


@app.workflow
async def first_of_a_token(token: str) -> str:
    """Ask whether the token is taken before waiting."""
    hook = Approval.wait(token=token)
    other = await hook.get_conflict()
    if other is not None:
        return f"taken by {other.run_id}"
    return (await hook).by


@app.workflow
async def unaware_of_a_token(token: str) -> str:
    try:
        return (await Approval.wait(token=token)).by
    except sdk.HookConflictError as error:
        return f"conflict with {error.conflicting_run_id}"


@app.workflow
async def labelled() -> None:
    await sdk.set_attributes(phase="begin", spare="x")
    await label(tier="gold")
    await sdk.set_attributes({"phase": "end"})
    await sdk.remove_attributes("spare")


@app.workflow
async def too_many_attributes() -> None:
    await sdk.set_attributes({f"key {number}": "" for number in range(64)})
    await sdk.set_attributes(one="more")


@app.workflow
async def streamed(gate: str) -> None:
    await asyncio.gather(stream("", gate), stream("other", gate))


@app.workflow
async def cancelled_step(token: str) -> str:
    """Cancel a step that runs, as soon as somebody says so."""
    step = asyncio.ensure_future(endless())
    approval = await Approval.wait(token=token)
    step.cancel(f"{approval.by} is in a hurry")
    try:
        await step
    except asyncio.CancelledError as error:
        return f"cancelled: {error}"
    return "it ended"


@app.workflow
async def never_ends(gate: str) -> None:
    await slow(gate)
    await add_one(1)
    await sdk.sleep("30 days")


@app.workflow
async def parent(value: int) -> int:
    child: sdk.Run[int] = sdk.get_run(await start_child(value), type=int)
    return await child.return_value()


@orders.workflow
async def order(amount: int) -> str:
    first = await charge(amount)
    await sdk.sleep(0.1)
    return f"{first}, {await charge(amount + 1)}"


@app.workflow
async def everything(token: str, gate: str) -> dict[str, object]:
    await sdk.set_attributes(phase="begin")
    counted = 0
    for _ in range(3):
        counted = await add_one(counted)
    fanned, attempts, late, _ = await asyncio.gather(
        total(await asyncio.gather(*(add_one(value) for value in range(10)))),
        third_time_lucky(),
        busy_at_first(1.0),
        sdk.sleep(1.0),
    )
    child = sdk.get_run(await start_child(2), type=int)
    step = asyncio.ensure_future(endless())
    async with Approval.wait(token=token) as hook:
        approval = await hook
        step.cancel("enough")
    cancelled = await asyncio.gather(step, return_exceptions=True)
    await stream("", gate)
    await label(tier="gold")
    await sdk.set_attributes(phase="end")
    return {
        "counted": counted,
        "fanned": fanned,
        "attempts": attempts,
        "late": late,
        "child": await child.return_value(),
        "by": approval.by,
        "cancelled": type(cancelled[0]).__name__,
    }
