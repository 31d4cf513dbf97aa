"""A first look at an installed package: run it with the Python that has it, anywhere.

Run outside a checkout, so that nothing but what was installed can answer.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import fakeredis

import redis_world
from redis_world import RedisWorld
from redis_world.lua import default_library, script_root


def check_scripts() -> int:
    """Every script came along, can be assembled, and is accepted by a server."""
    package = Path(redis_world.__file__).parent
    if not script_root().is_relative_to(package):
        raise SystemExit(f"the scripts are not taken from the package: {script_root()}")
    scripts = list(default_library())
    if not scripts:
        raise SystemExit("the package has no scripts")
    with fakeredis.FakeRedis() as client:
        for script in scripts:
            if client.script_load(script.source) != script.sha:
                raise SystemExit(f"{script.name}: the server has another SHA")
    return len(scripts)


async def check_run() -> str:
    """A run can be created and read back."""
    async with RedisWorld("memory://smoke") as world:
        created = await world.events.create(
            None,
            {
                "eventType": "run_created",
                "eventData": {
                    "deploymentId": "smoke",
                    "workflowName": "workflow//smoke",
                    "input": b"a first look",
                },
            },
        )
        if created.run is None:
            raise SystemExit("run_created returned no run")
        run = await world.runs.get(created.run.run_id)
        if (run.status, run.input) != ("pending", b"a first look"):
            raise SystemExit(f"the run came back changed: {run!r}")
        return run.run_id


def main() -> None:
    if not (Path(redis_world.__file__).parent / "py.typed").is_file():
        raise SystemExit("the package has no py.typed: type checkers would ignore its types")
    scripts = check_scripts()
    run_id = asyncio.run(check_run())
    sys.stdout.write(f"redis-world {redis_world.__version__}: {scripts} scripts, {run_id}\n")


if __name__ == "__main__":
    main()
