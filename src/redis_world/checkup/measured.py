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
    "run_us": 600,
    "step_us": 750,
    "hook_us": 650,
    "sleep_us": 600,
    "stream_us": 150,
    "chunk_us": 10,
    "payload_kib_us": 14,
    "large_us": 150,
    "large_kib_us": 5,
    "chunk_kib_us": 4,
    "removal_us": 105,
    "look_us": 60,
    "hook_across_us": 900,
    "cluster_run_us": 900,
    "cluster_step_us": 1000,
    "cluster_hook_us": 1300,
    "cluster_share_percent": 36,
    "worker_run_us": 2500,
    "worker_step_us": 4000,
    "run_bytes": 5700,
    "step_bytes": 700,
    "free_bytes": 2700,
    "hook_bytes": 500,
    "sleep_bytes": 500,
    "stream_bytes": 1000,
    "chunk_bytes": 100,
    "payload_percent": 123,
    "chunk_percent": 150,
    "time_error_percent": 20,
    "memory_error_percent": 20,
}
