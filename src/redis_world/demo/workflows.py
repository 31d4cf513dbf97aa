"""The workflow of the demo: an order, from the stock to the letter.

As every module of workflows it is executed again for replays, in a sandbox. So it imports
nothing of this package: who starts it has made Redis the World already.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from vercel.workflow import (
    BaseHook,
    RetryableError,
    SandboxPolicy,
    Workflows,
    get_run,
    get_step_metadata,
    get_writable,
    set_attributes,
    sleep,
)

__all__ = ["Approval", "Order", "Receipt", "app", "fulfil", "letter_of", "receipt_of"]

# A namespace of its own, or its messages and those of a user's registry would mix.
app = Workflows(
    namespace="demo",
    # This package is imported with its first module, in the sandbox too; Redis can't be there.
    sandbox_policy=SandboxPolicy(
        share_sandboxes=True, passthrough_modules=frozenset({"redis_world.world"})
    ),
)

_STOCK: Final = {"lamp": 12}
_CENTS: Final = {"lamp": 1990}
_FAILURES: Final = 2
"""How often the card can't be charged."""
_WORD_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Order:
    """What a customer wants."""

    order_id: str
    customer: str
    item: str
    amount: int


@dataclass(frozen=True)
class Receipt:
    """What the workflow returns."""

    order_id: str
    total: str
    payment: str
    approved_by: str

    def __str__(self) -> str:
        return (
            f"order {self.order_id} for {self.total}, payment {self.payment}, "
            f"approved by {self.approved_by}"
        )


@dataclass
class Approval(BaseHook):
    """What a manager says about an order."""

    approved: bool
    by: str


@app.workflow
async def fulfil(order: Order) -> Receipt:
    """Check, have approved, charge, pack and confirm an order."""
    await set_attributes(order=order.order_id, phase="checking")
    _, total, _ = await asyncio.gather(
        check_stock(order.item, order.amount),
        compute_price(order.item, order.amount),
        check_fraud(order.customer),
    )
    await set_attributes(phase="approval")
    async with Approval.wait(token=f"approve-{order.order_id}") as hook:
        approval = await hook
    if not approval.approved:
        raise ValueError(f"{approval.by} did not approve order {order.order_id}")
    await set_attributes(phase="payment")
    payment = await charge_card(order.order_id)
    await set_attributes(phase="packing")
    await sleep(1.0)
    await set_attributes(phase="letter")
    await write_letter(order, total, approval.by)
    await set_attributes(phase="done")
    return Receipt(order.order_id, total, payment, approval.by)


@app.step
async def check_stock(item: str, amount: int) -> int:
    """Look how much is left after the order."""
    await asyncio.sleep(0.3)
    return _STOCK[item] - amount


@app.step
async def compute_price(item: str, amount: int) -> str:
    """Compute the total."""
    await asyncio.sleep(0.5)
    return _total(item, amount)


@app.step
async def check_fraud(customer: str) -> str:
    """Look whether the customer is known."""
    await asyncio.sleep(0.7)
    return f"{customer} is known"


@app.step
async def charge_card(order_id: str) -> str:
    """Charge the card, which works at the third attempt only."""
    attempt = get_step_metadata().attempt
    await asyncio.sleep(0.2)
    if attempt <= _FAILURES:
        raise RetryableError("no answer", retry_after=1.0)
    return _payment(order_id)


@app.step
async def write_letter(order: Order, total: str, approved_by: str) -> None:
    """Write the confirmation into the run's stream, word by word.

    An attempt goes on behind the last word that a lost one has written.
    """
    words = letter_of(order, total, approved_by)
    written = await get_run(get_step_metadata().run_id).stream_info()
    if not written.done:
        stream = get_writable(type=str)
        for word in words[written.tail_index + 1 :]:
            await asyncio.sleep(_WORD_SECONDS)
            await stream.write(word)
        await stream.close()
    await set_attributes(letter_words=str(len(words)))


def letter_of(order: Order, total: str, approved_by: str) -> list[str]:
    """The letter in words, each with the space or line break behind it."""
    text = (
        f"Dear {order.customer},\n"
        f"thank you for order {order.order_id}: {order.amount} {order.item}s for {total}.\n"
        "Your bank answered the third call, and charged your card once.\n"
        f"{approved_by} approved the order, and the parcel leaves today.\n"
        "Yours, the workflow\n"
    )
    return [
        word + end
        for line in text.splitlines()
        for words in [line.split()]
        for word, end in zip(words, [" "] * (len(words) - 1) + ["\n"], strict=True)
    ]


def receipt_of(order: Order, approved_by: str) -> Receipt:
    """What `fulfil` must return, whatever happens to it on its way."""
    total = _total(order.item, order.amount)
    return Receipt(order.order_id, total, _payment(order.order_id), approved_by)


def _total(item: str, amount: int) -> str:
    return f"{_CENTS[item] * amount / 100:.2f} EUR"


def _payment(order_id: str) -> str:
    return order_id.replace("A", "P", 1)
