"""The contract holds on a cluster, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.backends import CLUSTER, KINDS, SENTINEL, Backend, Servers


@pytest.fixture(params=[*KINDS, CLUSTER, SENTINEL])
def backend(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    """A server, or a cluster, without data; tests leave nothing outside their namespaces."""
    with servers.backend(request.param).at_work() as backend:
        yield backend
