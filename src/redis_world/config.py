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

__all__ = ["ENVIRONMENT_PREFIX", "URL_VARIABLE", "WorldConfig", "check_environment", "url_or_env"]

ENVIRONMENT_PREFIX: Final = "REDIS_WORLD_"
URL_VARIABLE: Final = ENVIRONMENT_PREFIX + "URL"

_LEAST_NAME_BYTES: Final = 256
_LONGEST_TEXT: Final = 4096
_LONGEST_WAIT: Final = 86_400.0
_LONGEST_TIME: Final = timedelta(days=365_000)
"""What is added to or taken from dates has to stay within the years that there are."""


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not True or False")  # noqa: TRY004 - what pydantic collects
    return value


_Number = BeforeValidator(_no_truth)
_Text = Annotated[str, AfterValidator(lambda value: text(value, "it", _LONGEST_TEXT))]


class WorldConfig(BaseModel):
    """Options of `RedisWorld`, each a keyword of its constructor.

    Attributes:
        namespace: prefix of every key. Worlds of different namespaces can share a server.
        partitions: number of independent parts of the namespace, 1 to 1,024. They spread over
            the nodes of a cluster. The first opening of a namespace fixes the number. None: take
            the number from the namespace. Such a World creates no namespace: opening it raises
            NamespaceNotFoundError if there is none. Open it with `async with` or `open` before
            its first call.
        deployment_id: the deployment that the SDK writes into its runs and messages.
        environment: the environment that this World reports for every hook; None reports "".
        max_connections: most connections of the command pool. Calls wait for a free one.
        connect_timeout: seconds that a connection attempt may take.
        socket_timeout: seconds to wait for a reply; then the command is sent again.
        retry_timeout: seconds for which a call is retried while the server is down, restarts,
            loads or fails over; then the call raises WorldUnavailableError. A retried call takes
            effect once. 0 disables retries.
        durability: what a write waits for, in its own round trip. `memory`: the server has run
            it. `replica`: a replica has it, too. `disk`: it is in the append-only file on the
            server's disk (Redis 7.2, Valkey 8).
        durability_timeout: seconds to wait for the durability; then the call raises
            NotDurableError. Must be less than `socket_timeout`.
        sweep_interval: seconds after which a sweep sends the missing message of an event, or
            wakes a run without a message. One of the workers sweeps about this often.
        max_events_per_run: event limit of a run. A run above it starts nothing new. None: no
            limit.
        max_payload_bytes: size limit in bytes of each part of a request. A part is a payload,
            message or chunk, an id, name, token, key or reason, the headers, or the rest of an
            event's data. Names and the rest of the data may always have 256 bytes.
        hook_retention_limit: how far in the future the `tokenRetentionUntil` of a hook may be.
        retention: how long finished runs stay, at least a minute. Then a sweep deletes them with
            all their data, but not before the last of their hooks expires. None: for ever.
        serialize_runs: lease at most one replay of a run at a time.
        max_failures: failed deliveries after which a message becomes a dead letter.
        max_lost_leases: lost leases after which a message becomes a dead letter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    namespace: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "world"
    partitions: Annotated[int, _Number, Field(ge=1, le=1024)] | None = 1
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
            raise ValueError("durability_timeout must be less than socket_timeout")
        return self

    @property
    def max_name_bytes(self) -> int:
        """Size limit of an id, a name, a token or a key, in bytes."""
        return max(self.max_payload_bytes, _LEAST_NAME_BYTES)

    @classmethod
    def create(cls, **options: Any) -> Self:
        """Validate options.

        Raises:
            ConfigurationError: an option is unknown or invalid; the text names it.
        """
        try:
            return cls(**{name: _plain(name, value) for name, value in options.items()})
        except ValidationError as error:
            problems = "; ".join(map(_problem, error.errors(include_url=False)))
            raise ConfigurationError(f"invalid options of the World: {problems}") from None

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """Read options from `REDIS_WORLD_<OPTION>` variables; keywords override them.

        The text `none` stands for None, for options that allow None.

        Raises:
            ConfigurationError: an option is unknown or invalid, or a variable looks like a
                misspelled option; the text names it.
        """
        check_environment()
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
            f"invalid options of the World: {name} can't be {shown(value)}"
        ) from None


def _problem(item: Mapping[str, Any]) -> str:
    """Describe an invalid option. The value of an unknown one may be a password."""
    name = ".".join(map(str, item["loc"]))
    problem = f"{name}: {item['msg']}" if name else str(item["msg"])
    if not name or item["type"] == "extra_forbidden":
        return problem
    return f"{problem} (got {shown(item['input'])})"


# -- the environment -----------------------------------------------------------------------


def url_or_env(url: str | None = None) -> str:
    """The URL that was given, or else that of `REDIS_WORLD_URL`.

    Raises:
        ConfigurationError: there is neither. `memory://` loses everything with its process, so it
            has to be given explicitly.
    """
    if url is not None:
        return url
    check_environment()
    found = os.environ.get(URL_VARIABLE)
    if found is not None and found.strip():
        return found
    problem = "is not set" if found is None else "is empty"
    raise ConfigurationError(
        f"no URL of a server: the environment variable {URL_VARIABLE} {problem}. "
        f"Set it, for example {URL_VARIABLE}=redis://localhost:6379/0, or pass a URL (command "
        f"line: --url). For a store inside this process, which ends with it, use memory://"
    )


def check_environment() -> None:
    """Refuse variables whose names are one slip away from that of an option.

    Others that begin with the same prefix are ignored: Kubernetes sets some for a service that
    is called `redis-world`.

    Raises:
        ConfigurationError: the text names the variables and the options.
    """
    options = {name: _squeezed(name) for name in _variables()}
    slips = [
        f"{name} is not an option; did you mean {option}?"
        for name, typed in ((name, _squeezed(name)) for name in os.environ if name not in options)
        for option, squeezed in options.items()
        if _is_one_slip_away(typed, squeezed)
    ]
    if slips:
        raise ConfigurationError(
            f"misspelled environment variable: {' '.join(slips)} Rename or unset the variable"
        )


def _variables() -> list[str]:
    options = (ENVIRONMENT_PREFIX + name.upper() for name in WorldConfig.model_fields)
    return [URL_VARIABLE, *options]


def _squeezed(name: str) -> str:
    """A name without what is easily got wrong: its case, and what is between its words."""
    return "".join(filter(str.isalnum, name.upper()))


def _is_one_slip_away(typed: str, name: str) -> bool:
    """Whether one letter is missing, doubled, wrong or out of place, or none."""
    if abs(len(typed) - len(name)) > 1:
        return False
    start = next(
        (i for i, (a, b) in enumerate(zip(typed, name, strict=False)) if a != b),
        min(len(typed), len(name)),
    )
    rest, expected = typed[start:], name[start:]
    return (
        rest[1:] == expected[1:]  # wrong
        or rest[1:] == expected  # one too many
        or rest == expected[1:]  # missing
        or (rest[1::-1] == expected[:2] and rest[2:] == expected[2:])  # out of place
    )
