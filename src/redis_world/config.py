"""The options of a World, validated before the first command is sent."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from redis_world.errors import ConfigurationError

__all__ = ["ENVIRONMENT_PREFIX", "WorldConfig"]

ENVIRONMENT_PREFIX = "REDIS_WORLD_"


class WorldConfig(BaseModel):
    """Options of `RedisWorld`, each a keyword of its constructor.

    Attributes:
        namespace: prefix of every key; Worlds of different namespaces share a server unseen.
        partitions: how many independent parts the namespace has, 1 to 1,024, pinned at its first
            opening: they spread over the nodes of a cluster.
        deployment_id: what the SDK asks for, and stamps its runs and messages with.
        environment: what this World tells of every hook that it reads; None: "".
        max_connections: the most connections of the command pool; callers wait for one.
        connect_timeout: seconds until a server that does not answer counts as unreachable.
        socket_timeout: seconds that a command may take; then it is sent again.
        retry_timeout: seconds for which a call is sent again, while the server is away, restarts,
            loads or changes its role; then the call fails with WorldUnavailableError. Nothing is
            done twice by it. 0: never again.
        durability: what a write waits for, in its own round trip: `memory`, that the server has
            run it; `replica`, that a replica has it, too; `disk`, that it is in the append-only
            file on the server's disk (Redis 7.2, Valkey 8).
        durability_timeout: seconds that it waits so; then it fails with NotDurableError. Less than
            `socket_timeout`.
        sweep_interval: seconds for which an event may lack its message, and a run be without any,
            before a sweep sends one; workers sweep about as often.
        max_events_per_run: the event ceiling: beyond it a run begins nothing new; None: none.
        max_payload_bytes: the largest payload, message or chunk.
        hook_retention_limit: how far ahead the `tokenRetentionUntil` of a hook may lie.
        retention: how long finished runs stay, at least a minute: then a sweep removes them with
            all that is theirs, but no earlier than the last of their hooks; None: for ever.
        serialize_runs: at most one replay of a run is leased at a time.
        max_failures: failed deliveries after which a message is a dead letter.
        max_lost_leases: lost leases after which a message is a dead letter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "world"
    partitions: Annotated[int, Field(ge=1, le=1024)] = 1
    deployment_id: str = ""
    environment: str | None = None
    max_connections: Annotated[int, Field(ge=1, le=10_000)] = 32
    connect_timeout: Annotated[float, Field(gt=0)] = 5.0
    socket_timeout: Annotated[float, Field(gt=0)] = 10.0
    retry_timeout: Annotated[float, Field(ge=0, le=600)] = 30.0
    durability: Literal["memory", "replica", "disk"] = "memory"
    durability_timeout: Annotated[float, Field(gt=0, le=600)] = 5.0
    sweep_interval: Annotated[float, Field(gt=0, le=86_400)] = 15.0
    max_events_per_run: Annotated[int, Field(ge=1)] | None = 25_000
    max_payload_bytes: Annotated[int, Field(ge=1, le=512 * 1024 * 1024 - 1)] = 64 * 1024 * 1024
    hook_retention_limit: timedelta = timedelta(days=365)
    retention: Annotated[timedelta, Field(ge=timedelta(minutes=1))] | None = timedelta(days=30)
    serialize_runs: bool = True
    max_failures: Annotated[int, Field(ge=1)] = 64
    max_lost_leases: Annotated[int, Field(ge=1)] = 1000

    @model_validator(mode="after")
    def _wait_less_than_a_command_may(self) -> Self:
        if self.durability != "memory" and self.durability_timeout >= self.socket_timeout:
            raise ValueError("durability_timeout has to be less than socket_timeout")
        return self

    @classmethod
    def create(cls, **options: Any) -> Self:
        """Validate options.

        Raises:
            ConfigurationError: an option is unknown or out of range; the text names it.
        """
        try:
            return cls(**options)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, item['loc']))}: {item['msg']} (got {item['input']!r})"
                for item in error.errors()
            )
            raise ConfigurationError(f"bad configuration of the World: {problems}") from None

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """Options from `REDIS_WORLD_<OPTION>` variables; keywords win over the environment.

        The text `none` is None, where an option has it.

        Raises:
            ConfigurationError: an option is unknown or out of range; the text names it.
        """
        found = {
            name: None if value.lower() == "none" else value
            for name in cls.model_fields
            if (value := os.environ.get(ENVIRONMENT_PREFIX + name.upper())) is not None
        }
        return cls.create(**{**found, **options})
