"""Measures how fast a World is on your server.

It works in a separate namespace, and removes it at the end, also after an error.
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
