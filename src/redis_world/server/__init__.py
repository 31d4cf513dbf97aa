"""`redis-world serve`: the World over HTTP, for the TypeScript SDK and others (docs/http.md).

Needs the extra `server`.
"""

from redis_world.server.access import Access, Role, Token, parse_tokens
from redis_world.server.app import App, Limits

__all__ = ["Access", "App", "Limits", "Role", "Token", "parse_tokens"]
