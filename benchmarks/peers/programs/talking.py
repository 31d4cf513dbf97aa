"""How our programs talk to the benchmark: lines of JSON, one answer for each request.

This module and those beside it also run where only a backend's own packages are installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

__all__ = ["Answer", "serve"]

Answer: TypeAlias = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def serve(answer: Answer) -> None:
    """Say that we are ready, and answer requests until the benchmark closes our input."""
    # What a library prints must not get between the answers.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("{}", file=output, flush=True)
    while line := await reader.readline():
        print(json.dumps(await answer(json.loads(line))), file=output, flush=True)
