"""Push: messages go to an app that can't poll, by HTTP requests to its route (docs/http.md)."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx

from redis_world.errors import ConfigurationError, WorldError
from redis_world.messages import Message
from redis_world.server.signing import SIGNATURE_HEADER, sign
from redis_world.server.wire import CBOR, encode
from redis_world.values import shown
from redis_world.worker import Postpone, Worker
from redis_world.world import RedisWorld

__all__ = ["DeliveryError", "PushOptions", "Pusher", "check_target", "delivery_body"]

logger = logging.getLogger(__name__)

_ROUTES: Final = {
    "workflow": "/.well-known/workflow/v1/flow",
    "step": "/.well-known/workflow/v1/step",
}
"""Of the SDK; older generations have one of their own for steps."""
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]+")
_QUEUE_NAMESPACE: Final = re.compile("[a-z][a-z0-9]*")
_POSTPONING: Final = (404, 503)
"""The app is not there yet, or has no such workflow."""
_DONE_WITH: Final = (409, 410, 422)
"""Another try would have the same answer."""
_CONNECT_SECONDS: Final = 10.0
_MAX_ANSWER: Final = 64 * 1024
_MAX_DELAY: Final = 10 * 365 * 86_400.0
_SHOWN: Final = 300


class DeliveryError(WorldError):
    """The app did not handle a message. It is delivered again later."""

    status = 502
    code = "delivery"


@dataclass(frozen=True, slots=True)
class _Continuation:
    delay_seconds: float
    idempotency_key: str | None = None


def check_target(url: str) -> str:
    """The address of an app, without a slash at its end.

    Raises:
        ConfigurationError: it is not one.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError, TypeError) as error:
        raise ConfigurationError(f"--push must be the address of an app: {error}") from None
    is_there = _HOST.fullmatch(parsed.host) and 0 < (parsed.port or 80) < 65536
    if parsed.scheme not in ("http", "https") or not is_there:
        raise ConfigurationError(
            "--push must be the address of an app, such as https://app.example.com"
        )
    if parsed.query or parsed.fragment or parsed.userinfo:
        raise ConfigurationError("--push must have no user, query or fragment")
    return str(parsed).rstrip("/")


@dataclass(frozen=True)
class PushOptions:
    """Where to push, and how much.

    Attributes:
        target: the address of the app.
        concurrency: how many messages are with the app at a time, from each process.
        queue_namespace: the namespace in the app's queue names; "" for none.
        timeout: seconds that the app may take for a message.

    Raises:
        ConfigurationError: the address is not one, or the namespace.
    """

    target: str
    concurrency: int = 32
    queue_namespace: str = ""
    timeout: float = 900.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", check_target(self.target))
        namespace = self.queue_namespace
        if namespace and not _QUEUE_NAMESPACE.fullmatch(namespace):
            raise ConfigurationError(
                "the queue namespace must be lower-case letters and digits, not "
                f"{shown(namespace)}"
            )

    @property
    def topics(self) -> dict[str, str]:
        """The topics of the app, each with its route."""
        prefix = f"__{self.queue_namespace}_wkf_" if self.queue_namespace else "__wkf_"
        return {f"{prefix}{kind}_": route for kind, route in _ROUTES.items()}


def delivery_body(message: Message) -> bytes:
    """What is delivered of a message."""
    body: dict[str, Any] = {
        "queueName": message.queue_name,
        "messageId": message.message_id,
        "attempt": message.attempt,
        "postponed": message.postponed,
        "payload": message.payload,
    }
    if message.headers is not None:
        body["headers"] = message.headers
    if message.deployment_id is not None:
        body["deploymentId"] = message.deployment_id
    return encode(body, CBOR)


class Pusher:
    """Delivers the messages of a namespace to one app.

    Args:
        world: the namespace.
        options: where to push.
        secrets: tells the valid tokens of the app, which it checks the signatures by.
    """

    def __init__(
        self, world: RedisWorld, options: PushOptions, secrets: Callable[[], Sequence[str]]
    ) -> None:
        self._options = options
        self._topics = options.topics
        self._secrets = secrets
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(options.timeout, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=options.concurrency
            ),
            follow_redirects=False,
        )
        self._worker = Worker(
            world, dict.fromkeys(self._topics, self.deliver), concurrency=options.concurrency
        )

    async def run(self) -> None:
        """Push until SIGTERM, SIGINT or `stop`."""
        target = self._options.target
        logger.info("pushing to %s", target, extra={"event": "push.started", "target": target})
        try:
            await self._worker.run()
        finally:
            await self._client.aclose()

    def stop(self) -> None:
        """Deliver nothing more."""
        self._worker.stop()

    async def deliver(self, message: Message) -> _Continuation | None:
        """Deliver one message.

        Returns:
            How it continues, if the app has said so.

        Raises:
            Postpone: the app is not there, or has no such workflow.
            DeliveryError: the app failed.
        """
        body = delivery_body(message)
        headers = {
            "content-type": CBOR,
            "accept": "application/json",
            SIGNATURE_HEADER: sign(body, self._secrets(), time.time()),
        }
        url = self._options.target + self._topics[message.topic]
        try:
            async with self._client.stream("POST", url, content=body, headers=headers) as response:
                answer = await _read(response)
        except httpx.ConnectError as error:
            # Nobody has seen it: that is no failure of the message.
            raise Postpone from error
        except httpx.HTTPError as error:
            raise DeliveryError(f"{type(error).__name__}: {error}") from error
        return self._judge(message, response, answer)

    def _judge(
        self, message: Message, response: httpx.Response, answer: bytes
    ) -> _Continuation | None:
        if response.is_success:
            return _continuation(answer)
        if response.status_code in _POSTPONING:
            raise Postpone(_retry_after(response.headers.get("retry-after")))
        text = answer[:_SHOWN].decode("utf-8", "replace")
        if response.status_code in _DONE_WITH:
            logger.warning(
                "the app refused message %s with status %d",
                message.message_id,
                response.status_code,
                extra={
                    "event": "push.refused",
                    "message_id": message.message_id,
                    "status": response.status_code,
                    "answer": text,
                },
            )
            return None
        raise DeliveryError(f"the app answered {response.status_code}: {text}")


async def _read(response: httpx.Response) -> bytes:
    """The beginning of the answer: what an app tells us is short."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > _MAX_ANSWER:
            break
    return b"".join(parts)


def _continuation(answer: bytes) -> _Continuation | None:
    """`{"timeoutSeconds": n}`, where 0 counts; everything else is no continuation."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    seconds = value.get("timeoutSeconds") if isinstance(value, dict) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if not 0 <= seconds <= _MAX_DELAY:
        return None
    return _Continuation(float(seconds))


def _retry_after(value: str | None) -> float | None:
    """Seconds, or a date, of a Retry-After header; None for none that can be read."""
    if value is None:
        return None
    if value.strip().isdigit():
        return min(float(value), _MAX_DELAY)
    try:
        moment = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
