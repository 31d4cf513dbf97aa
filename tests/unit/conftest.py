from __future__ import annotations

import pytest

from support.tls import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Issues certificates that the tests of a module trust."""
    return Authority.make(tmp_path_factory.mktemp("authority"))
