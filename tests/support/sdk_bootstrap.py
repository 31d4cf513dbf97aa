"""Makes Redis the SDK's World before any workflow is loaded, as an application does it.

Import it before `support.sdk_flows`, or import `support.sdk`, which does so.
"""

from __future__ import annotations

from redis_world.vercel import use_redis_world

ADAPTER = use_redis_world("memory://sdk-bootstrap")
