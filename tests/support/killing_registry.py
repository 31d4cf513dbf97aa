"""Loads the workflows of `support.killing_flows` under a World of their own.

They are in the registry that has no namespace, as those of other tests are; two of them under
one World are refused.
"""

from __future__ import annotations

from vercel.workflow._internal import world as sdk_world

from redis_world.vercel import use_redis_world

__all__ = ["flows"]

_present = sdk_world.the_world
use_redis_world("memory://killing-registry")
try:
    from support import killing_flows as flows
finally:
    sdk_world.set_world(_present)
