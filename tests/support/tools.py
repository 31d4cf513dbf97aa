"""The project's own tools, which are no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["load_tool"]

_FOLDER = Path(__file__).parents[2] / "tools"


def load_tool(name: str) -> ModuleType:
    """A tool as a module."""
    spec = importlib.util.spec_from_file_location(name, _FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their own module
    spec.loader.exec_module(module)
    return module
