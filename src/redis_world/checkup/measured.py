"""What runs take of a server and of their workers, as it was measured.

`make capacity` measures and writes this module, and the tables of docs/operations.md.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BASIS", "MEASURED"]

BASIS: Final[dict[str, str]] = {
    "date": "2026-12-03",
    "machine": "2 cores, Linux x86_64",
    "server": "Redis 7.0.15",
    "sdk": "vercel-workflow 0.12.0",
}
MEASURED: Final[dict[str, float]] = {
    "run_us": 560,
    "step_us": 534,
    "hook_us": 556,
    "hook_across_us": 752,
    "sleep_us": 344,
    "stream_us": 273,
    "chunk_us": 5.85,
    "chunk_kib_us": 3.98,
    "payload_kib_us": 33,
    "large_us": 86.4,
    "large_kib_us": 6.13,
    "removal_us": 127,
    "look_us": 242,
    "cluster_run_us": 899,
    "cluster_step_us": 952,
    "cluster_hook_us": 1090,
    "cluster_share_percent": 35.5,
    "worker_run_us": 2060,
    "worker_step_us": 2960,
    "run_bytes": 6000,
    "step_bytes": 785,
    "hook_bytes": 306,
    "sleep_bytes": 313,
    "free_bytes": 0,
    "payload_percent": 123,
    "stream_bytes": 4230,
    "chunk_bytes": 2.18,
    "chunk_percent": 148,
    "time_error_percent": 12.3,
    "memory_error_percent": 16.6,
}
