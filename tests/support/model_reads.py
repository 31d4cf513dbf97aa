"""Everything that can be read of a World."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, get_args

from redis_world.models import ResolveData, RunStatus, SortOrder
from support.model_twins import AnyWorld, Call

MODES: Final[tuple[ResolveData, ...]] = get_args(ResolveData)
ORDERS: Final[tuple[SortOrder, ...]] = get_args(SortOrder)
STATUSES: Final[tuple[RunStatus, ...]] = get_args(RunStatus)

_MANY_PAGES: Final = 500

Pages = Callable[[AnyWorld, str | None], Awaitable[Any]]
"""Reads the page behind a cursor."""


# Each function closes over its own arguments: lambdas made in a loop would share the last ones.


def reads_of_run(run_id: str, mode: ResolveData) -> dict[str, Call]:
    """What there is of a run, whether or not it exists."""
    what = f"of {run_id} ({mode})"
    return {
        f"run {what}": lambda w: w.runs.get(run_id, resolve_data=mode),
        f"steps {what}": lambda w: w.steps.list(run_id, resolve_data=mode),
        f"hooks {what}": lambda w: w.hooks.list(run_id, resolve_data=mode),
        f"waits {what}": lambda w: w.waits.list(run_id),
        f"events {what}": lambda w: w.events.list(run_id, resolve_data=mode),
        f"events backwards {what}": lambda w: w.events.list(
            run_id, sort_order="desc", resolve_data=mode
        ),
        f"streams {what}": lambda w: w.streams.list(run_id),
    }


def reads_of_stream(run_id: str, name: str) -> dict[str, Call]:
    return {
        f"stream {name} of {run_id}": lambda w: w.streams.get_info(run_id, name),
        f"chunks of {name} of {run_id}": lambda w: w.streams.get_chunks(run_id, name),
    }


def reads_of_entity(run_id: str, name: str, mode: ResolveData) -> dict[str, Call]:
    """What there is of a correlation id: a step, hook or wait, or none of them."""
    what = f"{name} of {run_id} ({mode})"
    return {
        f"events of {what}": lambda w: w.events.list_by_correlation_id(
            run_id, name, resolve_data=mode
        ),
        f"step {what}": lambda w: w.steps.get(run_id, name, resolve_data=mode),
        f"hook {what}": lambda w: w.hooks.get(name, run_id=run_id, resolve_data=mode),
        f"wait {what}": lambda w: w.waits.get(run_id, name),
    }


def reads_of_all(run_ids: Sequence[str], order: SortOrder) -> dict[str, Call]:
    """What spans runs."""
    return {
        "many runs": lambda w: w.runs.get_many(run_ids),
        "topics": lambda w: w.queue.topics(),
        f"runs {order}": lambda w: w.runs.list(sort_order=order),
        f"all hooks {order}": lambda w: w.hooks.list(sort_order=order),
    }


def reads_of_status(status: RunStatus, workflow: str) -> dict[str, Call]:
    return {
        f"{status} runs": lambda w: w.runs.list(status=status),
        f"{status} runs of {workflow}": lambda w: w.runs.list(
            status=[status, "failed"], workflow_name=workflow
        ),
    }


def reads_of_hook(hook: str, token: str) -> dict[str, Call]:
    return {
        f"hook {hook}": lambda w: w.hooks.get(hook),
        f"token {token}": lambda w: w.hooks.get_by_token(token),
    }


def reads_of_topic(topic: str) -> dict[str, Call]:
    return {
        f"stats of {topic}": lambda w: w.queue.stats(topic),
        f"dead letters of {topic}": lambda w: w.queue.dead_letters(topic),
    }


def listings(
    run_id: str, stream: str, topic: str, limit: int, order: SortOrder
) -> dict[str, Pages]:
    """Every listing, by pages."""
    return {
        "runs": lambda w, c: w.runs.list(limit=limit, cursor=c, sort_order=order),
        "steps": lambda w, c: w.steps.list(run_id, limit=limit, cursor=c, sort_order=order),
        "hooks": lambda w, c: w.hooks.list(run_id, limit=limit, cursor=c, sort_order=order),
        "all hooks": lambda w, c: w.hooks.list(limit=limit, cursor=c, sort_order=order),
        "waits": lambda w, c: w.waits.list(run_id, limit=limit, cursor=c, sort_order=order),
        "events": lambda w, c: w.events.list(run_id, limit=limit, cursor=c, sort_order=order),
        "chunks": lambda w, c: w.streams.get_chunks(run_id, stream, limit=limit, cursor=c),
        "dead letters": lambda w, c: w.queue.dead_letters(topic, limit=limit, cursor=c),
    }


def walk(pages: Pages) -> Call:
    """Read a listing page by page, each behind the last one's cursor."""

    async def call(world: AnyWorld) -> list[Any]:
        found = [await pages(world, None)]
        while found[-1].has_more:
            assert len(found) < _MANY_PAGES, "a listing without an end"
            found.append(await pages(world, found[-1].cursor))
        return found

    return call


def read_live(run_id: str, name: str, start_index: int) -> Call:
    """Read what a live reader gets now: to the end of a closed stream, else what is there."""

    async def call(world: AnyWorld) -> list[bytes]:
        info = await world.streams.get_info(run_id, name)
        chunks: AsyncIterator[bytes] = world.streams.read(run_id, name, start_index=start_index)
        if info.done:
            return [chunk async for chunk in chunks]
        length = info.tail_index + 1
        first = start_index if start_index >= 0 else max(0, length + start_index)
        page = await world.streams.get_chunks(run_id, name)
        there = [chunk.data for chunk in page.data[first:] if chunk.data]
        found = [await anext(chunks) for _ in there]
        await chunks.aclose()  # type: ignore[attr-defined]
        return found

    return call
