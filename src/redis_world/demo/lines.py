"""The demo in a pipe: a plain line for each thing that happens, then the event log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, TextIO

from redis_world.demo.story import Entry, Story

__all__ = ["PlainView"]

_SENTENCES: Final = {
    "run_created": "run {} created",
    "run_started": "run started",
    "run_completed": "run completed",
    "run_failed": "run failed",
    "run_cancelled": "run cancelled",
    "step_created": "step {} created",
    "step_started": "step {} started",
    "step_retrying": "step {} will be retried",
    "step_completed": "step {} completed",
    "step_failed": "step {} failed",
    "wait_created": "sleep started",
    "wait_completed": "sleep ended",
    "hook_created": "hook {} waits for an answer",
    "hook_received": "hook {} answered",
    "hook_disposed": "hook {} disposed",
    "hook_conflict": "hook {} refused",
    "attr_set": "attributes: {}",
}


class PlainView:
    """Writes lines, at once, in the order of what happens."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._story: Story | None = None
        self._pending = ""

    @contextlib.contextmanager
    def begin(self, story: Story) -> Iterator[None]:
        """Name the run and who does the work; then lines follow."""
        self._story = story
        self._print(f"run {story.run_id}, {story.workers}")
        yield

    def happened(self, entry: Entry) -> None:
        """One line per event."""
        sentence = _SENTENCES.get(entry.event_type, entry.event_type).format(entry.subject)
        detail = f" ({entry.detail})" if entry.detail else ""
        self._at(entry.offset, sentence + detail)

    def said(self, text: str) -> None:
        """One line."""
        self._now(text)

    def streamed(self, piece: str) -> None:
        """One line per line of the text."""
        *lines, self._pending = (self._pending + piece).split("\n")
        for line in lines:
            self._now(f"stream: {line}")

    def tick(self) -> None:
        """Nothing: time is in every line."""

    def end(self, result: str, *, expected: bool) -> None:
        """The event log and the result."""
        assert self._story is not None
        entries = self._story.entries
        density = "no gaps" if self._story.dense else "WITH GAPS"
        self._print(f"event log ({len(entries)} events, {density}):")
        for entry in entries:
            what = "  ".join(part for part in (entry.subject, entry.detail) if part)
            line = f"{entry.slot:5}  {entry.offset:7.3f} s  {entry.event_type:14}  {what}"
            self._print(line.rstrip())
        self._print(f"result: {result}" + ("" if expected else " (NOT AS EXPECTED)"))

    def _now(self, text: str) -> None:
        assert self._story is not None
        self._at(self._story.now(), text)

    def _at(self, offset: float, text: str) -> None:
        self._print(f"{offset:7.3f} s  {text}")

    def _print(self, line: str) -> None:
        # Flushed, or a pipe would get everything at the end.
        print(line, file=self._output, flush=True)
