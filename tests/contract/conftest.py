"""The contract holds on a cluster, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redis_world import claims, queue, scatter
from support.backends import CLUSTER, KINDS, SENTINEL, Backend, Servers


@pytest.fixture(params=[*KINDS, CLUSTER, SENTINEL])
def backend(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Backend]:
    """A server, or a cluster, without data; tests leave nothing outside their namespaces."""
    with servers.backend(request.param).at_work() as backend:
        yield backend


@pytest.fixture(autouse=True)
def _nobody_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim of several partitions hears them all, however slow the machine that tests is.

    What it does without those that are late is for the unit tests of lost partitions.
    """
    monkeypatch.setattr(scatter, "GRACE_SECONDS", 60.0)
    for module in (claims, queue):
        monkeypatch.setattr(module, "CLAIM_SECONDS", 60.0)
