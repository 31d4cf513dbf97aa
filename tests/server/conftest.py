"""A server over each backend, and the World that it serves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from redis_world import RedisWorld
from support.backends import Backend
from support.http_server import Client, Served, serving


@pytest_asyncio.fixture
async def served(backend: Backend, world: RedisWorld) -> AsyncIterator[Served]:
    """A server without tokens, for the namespace of the World."""
    async with serving(backend, namespace=world.config.namespace) as served:
        yield served


@pytest_asyncio.fixture
async def client(served: Served) -> Client:
    """A client of it."""
    return served.client
