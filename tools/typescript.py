"""What the npm package needs a server for: the suites of the SDK, and the demo.

`python tools/typescript.py conformance [SUITE]...` runs the SDK's own suites for Worlds on the
package, each against a Redis and two processes of `redis-world serve` of its own.
`python tools/typescript.py demo` runs the example app on them, and shows its run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from redis_world.testing import redis_server
from redis_world.testing.ports import free_port
from redis_world.testing.servers import ServerKind, available_kinds

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "typescript"
EXAMPLE: Final = PACKAGE / "examples" / "orders"
COMMAND: Final = [sys.executable, "-m", "redis_world"]
SUITES: Final = ("published", "rebuilt")
"""As published; and its tests on a newer core."""
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 40.0


@contextlib.contextmanager
def serving(*, processes: int) -> Iterator[tuple[str, str]]:
    """A Redis and a server on it; their addresses."""
    with redis_server(kind()) as server:
        port = free_port()
        redis_url, url = f"redis://{server.host}:{server.port}/0", f"http://127.0.0.1:{port}"
        options = ["--url", redis_url, "--port", str(port), "--processes", str(processes)]
        command = [*COMMAND, "serve", *options, "--log-level", "warning"]
        with subprocess.Popen(command) as served:  # noqa: S603 - our own command
            try:
                wait_until_ready(url, served)
                yield redis_url, url
            finally:
                served.terminate()
                try:
                    served.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    served.kill()


def kind() -> ServerKind:
    """Redis 7, or what this machine has."""
    found = available_kinds()
    return "redis7" if "redis7" in found else found[0]


def wait_until_ready(url: str, served: subprocess.Popen[bytes]) -> None:
    """Wait for the server; give up with it."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):  # noqa: S310 - our own server
                return
        except (urllib.error.URLError, OSError) as error:
            if served.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start: {error}") from None
        time.sleep(0.1)


def run(command: list[str], folder: Path, **variables: str) -> None:
    """Run a command in a folder; end with its status if it fails."""
    done = subprocess.run(command, cwd=folder, env={**os.environ, **variables}, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(done.returncode)


def conformance(suites: list[str]) -> None:
    """Run suites of the SDK, or all that are known."""
    for suite in suites or SUITES:
        print(f"== {suite}", flush=True)
        with serving(processes=2) as (_, url):
            run(["node", "conformance/run.mjs", suite], PACKAGE, REDIS_WORLD_SERVER_URL=url)


def demo() -> None:
    """Run the example app, and show what is stored of its run."""
    if not (EXAMPLE / "node_modules" / ".installed").exists():
        run(["npm", "install", "--no-audit", "--no-fund", "--silent"], EXAMPLE)
        (EXAMPLE / "node_modules" / ".installed").touch()
    run(["npm", "run", "--silent", "build"], EXAMPLE)
    with serving(processes=1) as (redis_url, url):
        variables = {"WORKFLOW_TARGET_WORLD": "redis-world", "REDIS_WORLD_SERVER_URL": url}
        run(["npm", "run", "--silent", "demo"], EXAMPLE, **variables)
        print("\n$ redis-world inspect runs", flush=True)
        run([*COMMAND, "inspect", "runs", "--url", redis_url], ROOT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["conformance", "demo"])
    parser.add_argument("suites", nargs="*")
    given = parser.parse_args()
    if given.what == "demo":
        demo()
    else:
        conformance(given.suites)


if __name__ == "__main__":
    main()
