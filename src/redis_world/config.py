"""The options of a World, validated before the first command is sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from redis_world.errors import ConfigurationError
from redis_world.values import plain_scalar, shown, text

__all__ = ["ENVIRONMENT_PREFIX", "WorldConfig"]

ENVIRONMENT_PREFIX = "REDIS_WORLD_"

_LEAST_NAME_BYTES: Final = 256
_LONGEST_TEXT: Final = 4096
_LONGEST_WAIT: Final = 86_400.0
_LONGEST_TIME: Final = timedelta(days=365_000)
"""What is added to or taken from dates has to stay within the years that there are."""


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number, not True or False")  # noqa: TRY004 - what pydantic collects
    return value


_Number = BeforeValidator(_no_truth)
_Text = Annotated[str, AfterValidator(lambda value: text(value, "it", _LONGEST_TEXT))]


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
        max_payload_bytes: the most bytes of each part of a request: a payload, message or chunk,
            an id, name, token, key or reason, the headers, and the rest of an event's data. Names
            and the rest of the data may have 256 bytes in any case.
        hook_retention_limit: how far ahead the `tokenRetentionUntil` of a hook may lie.
        retention: how long finished runs stay, at least a minute: then a sweep removes them with
            all that is theirs, but no earlier than the last of their hooks; None: for ever.
        serialize_runs: at most one replay of a run is leased at a time.
        max_failures: failed deliveries after which a message is a dead letter.
        max_lost_leases: lost leases after which a message is a dead letter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    namespace: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "world"
    partitions: Annotated[int, _Number, Field(ge=1, le=1024)] = 1
    deployment_id: _Text = ""
    environment: _Text | None = None
    max_connections: Annotated[int, _Number, Field(ge=1, le=10_000)] = 32
    connect_timeout: Annotated[float, _Number, Field(gt=0, le=_LONGEST_WAIT)] = 5.0
    socket_timeout: Annotated[float, _Number, Field(gt=0, le=_LONGEST_WAIT)] = 10.0
    retry_timeout: Annotated[float, _Number, Field(ge=0, le=600)] = 30.0
    durability: Literal["memory", "replica", "disk"] = "memory"
    durability_timeout: Annotated[float, _Number, Field(gt=0, le=600)] = 5.0
    sweep_interval: Annotated[float, _Number, Field(gt=0, le=86_400)] = 15.0
    max_events_per_run: Annotated[int, _Number, Field(ge=1, le=2**53)] | None = 25_000
    max_payload_bytes: Annotated[int, _Number, Field(ge=1, le=512 * 1024 * 1024 - 1)] = (
        64 * 1024 * 1024
    )
    hook_retention_limit: Annotated[
        timedelta, _Number, Field(ge=timedelta(0), le=_LONGEST_TIME)
    ] = timedelta(days=365)
    retention: (
        Annotated[timedelta, _Number, Field(ge=timedelta(minutes=1), le=_LONGEST_TIME)] | None
    ) = timedelta(days=30)
    serialize_runs: bool = True
    max_failures: Annotated[int, _Number, Field(ge=1, le=2**53)] = 64
    max_lost_leases: Annotated[int, _Number, Field(ge=1, le=2**53)] = 1000

    @model_validator(mode="after")
    def _wait_less_than_a_command_may(self) -> Self:
        if self.durability != "memory" and self.durability_timeout >= self.socket_timeout:
            raise ValueError("durability_timeout has to be less than socket_timeout")
        return self

    @property
    def max_name_bytes(self) -> int:
        """The most bytes of an id, a name, a token or a key."""
        return max(self.max_payload_bytes, _LEAST_NAME_BYTES)

    @classmethod
    def create(cls, **options: Any) -> Self:
        """Validate options.

        Raises:
            ConfigurationError: an option is unknown or out of range; the text names it.
        """
        try:
            return cls(**{name: _plain(name, value) for name, value in options.items()})
        except ValidationError as error:
            problems = "; ".join(map(_problem, error.errors(include_url=False)))
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


def _plain(name: str, value: Any) -> Any:
    """An option whose value may be of a subclass, as numpy's numbers are."""
    try:
        return plain_scalar(value)
    except ValueError:
        raise ConfigurationError(
            f"bad configuration of the World: {name} can't be {shown(value)}"
        ) from None


def _problem(item: Mapping[str, Any]) -> str:
    """What is wrong with an option; the value of an unknown one may be a password."""
    name = ".".join(map(str, item["loc"]))
    problem = f"{name}: {item['msg']}" if name else str(item["msg"])
    if not name or item["type"] == "extra_forbidden":
        return problem
    return f"{problem} (got {shown(item['input'])})"
