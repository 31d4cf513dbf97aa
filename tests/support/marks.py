"""Parameters that the quick part of the tests leaves out."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["slow"]


def slow(*values: object) -> Any:
    """A parameter whose tests are marked as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)
