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
    "run_us": 438,
    "step_us": 478,
    "hook_us": 461,
    "hook_across_us": 536,
    "sleep_us": 344,
    "stream_us": 181,
    "chunk_us": 6.73,
    "chunk_kib_us": 3.52,
    "payload_kib_us": 19.4,
    "large_us": 96.3,
    "large_kib_us": 5.19,
    "removal_us": 91.4,
    "look_us": 206,
    "cluster_run_us": 838,
    "cluster_step_us": 831,
    "cluster_hook_us": 874,
    "cluster_share_percent": 35.5,
    "worker_run_us": 1470,
    "worker_step_us": 2550,
    "run_bytes": 6000,
    "step_bytes": 785,
    "hook_bytes": 307,
    "sleep_bytes": 314,
    "free_bytes": 0,
    "payload_percent": 123,
    "stream_bytes": 4220,
    "chunk_bytes": 0,
    "chunk_percent": 149,
    "time_error_percent": 11.4,
    "memory_error_percent": 16.5,
}
