"""Measures what a World does on a server: whoever runs it learns what to expect of their own.

It works in a namespace of its own, which is removed at the end, however that comes.
"""

from __future__ import annotations

from redis_world.bench.figures import Figure, Measurement, Spread
from redis_world.bench.limits import Busy
from redis_world.bench.run import Report, fresh_namespace, run_bench

__all__ = [
    "Busy",
    "Figure",
    "Measurement",
    "Report",
    "Spread",
    "fresh_namespace",
    "run_bench",
]
