from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from redis_world.vercel import VercelWorld
from redis_world.vercel.log_cache import DEFAULT_BYTES
from support.backends import EMBEDDED, KINDS, Servers
from support.marks import slow
from support.sdk import Site, workers
from support.sdk_files import FOLDER

UNCACHED: Final = "without kept logs"
"""The embedded World, whose worker reads each log from its beginning."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sdk")


@pytest.fixture(scope="session", params=[*KINDS, slow(UNCACHED)])
def site(request: pytest.FixtureRequest, folder: Path) -> Iterator[Site]:
    """The embedded World, or a real server of its own with two worker processes."""
    kind = request.param
    if kind in (EMBEDDED, UNCACHED):
        log_cache = 0 if kind == UNCACHED else DEFAULT_BYTES
        yield Site(EMBEDDED, f"memory://sdk-{secrets.token_hex(6)}", "sdk", log_cache)
        return
    with contextlib.closing(Servers()) as servers:
        url = servers.backend(kind).url
        with workers(url, folder) as namespace:
            yield Site(kind, url, namespace)


@pytest_asyncio.fixture
async def adapter(
    site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[VercelWorld]:
    monkeypatch.setenv(FOLDER, str(folder))
    async with site.adapter() as adapter:
        yield adapter
