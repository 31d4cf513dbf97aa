"""Events, entities and answers as pydantic models.

Snake_case in Python, camelCase on the wire (`to_wire`, `from_wire`).
"""

from redis_world.models.base import *  # noqa: F403
from redis_world.models.entities import *  # noqa: F403
from redis_world.models.events import *  # noqa: F403
from redis_world.models.results import *  # noqa: F403
