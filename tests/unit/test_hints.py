"""Hints: one connection for all readers, and a lost one costs only time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import pytest
import pytest_asyncio
import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection

from redis_world import hints
from redis_world.connection.subscriber import open_subscriber
from redis_world.hints import Hear, HintHub, Subscriber, Subscription
from redis_world.memory import memory_client
from redis_world.outages import Outage
from support.backends import Backend
from support.hearing import noting
from support.resp import fake_server
from support.until import until

LONG: Final = 20.0
"""A wait that a test never reaches the end of."""


@contextlib.contextmanager
def looking_at(backend: Backend) -> Iterator[redis.Redis]:
    with contextlib.closing(backend.client()) as client:
        yield client


def connect_to(backend: Backend) -> redis.asyncio.Redis:
    if backend.is_memory:
        return memory_client(backend.url)
    return redis.asyncio.Redis.from_url(backend.url, protocol=2)


def hub_over(connect: Callable[[], redis.asyncio.Redis]) -> HintHub:
    return HintHub(lambda hear: open_subscriber(connect(), hear))


@pytest_asyncio.fixture
async def hub(backend: Backend) -> AsyncIterator[HintHub]:
    found = hub_over(lambda: connect_to(backend))
    yield found
    async with asyncio.timeout(LONG):
        await found.aclose()


@pytest.fixture
def channel(backend: Backend) -> str:
    return f"{{{backend.namespace()}/0.0}}:v1:channel"


def publish(backend: Backend, channel: str) -> int:
    """Hint; how many subscribers the server knows."""
    with looking_at(backend) as client:
        return int(client.publish(channel, b""))


async def settled(subscription: Subscription) -> None:
    """Take the note that a subscription may begin with."""
    await subscription.wait(0)


async def test_a_subscription_notes_what_comes_between_waits() -> None:
    subscription = Subscription()
    assert await subscription.wait(0) is False
    subscription.notify()
    subscription.notify()
    assert await subscription.wait(LONG) is True
    assert await subscription.wait(0) is False, "a wait takes the note"
    waiting = asyncio.create_task(subscription.wait(LONG))
    await asyncio.sleep(0)
    subscription.notify()
    assert await waiting is True


async def test_a_wait_has_an_end() -> None:
    subscription = Subscription()
    assert await subscription.wait(0.001) is False
    subscription.notify()
    assert await subscription.wait(0.001) is True


async def test_a_hint_wakes_its_waiters_alone(
    hub: HintHub, backend: Backend, channel: str
) -> None:
    other = channel + ":other"
    async with (
        hub.subscribe(channel) as one,
        hub.subscribe(channel) as two,
        hub.subscribe(other) as third,
    ):
        for subscription in (one, two, third):
            await settled(subscription)
        assert publish(backend, channel) == 1, "of one connection, for all waiters"
        assert await one.wait(LONG)
        assert await two.wait(LONG)
        assert publish(backend, other) == 1
        assert await third.wait(LONG)
        assert not await one.wait(0)
        assert not await two.wait(0)


async def test_when_the_block_begins_the_subscription_stands(
    hub: HintHub, backend: Backend, channel: str
) -> None:
    """What is hinted from then on is not lost, however early."""
    for number in range(20):
        name = f"{channel}:{number}"
        async with hub.subscribe(name):
            assert publish(backend, name) == 1


async def test_the_last_to_leave_ends_the_subscription(
    hub: HintHub, backend: Backend, channel: str
) -> None:
    async with hub.subscribe(channel) as stays:
        async with hub.subscribe(channel):
            pass
        await settled(stays)
        assert publish(backend, channel) == 1
        assert await stays.wait(LONG)
    await until(lambda: publish(backend, channel) == 0)
    async with hub.subscribe(channel) as back:
        await settled(back)
        assert publish(backend, channel) == 1
        assert await back.wait(LONG)


async def test_waiters_come_and_go_in_one_tick(
    hub: HintHub, backend: Backend, channel: str
) -> None:
    """Leaving and coming back must not cross on the wire."""

    async def visit() -> bool:
        async with hub.subscribe(channel) as subscription:
            return await subscription.wait(0)

    for _ in range(10):
        await asyncio.gather(*(visit() for _ in range(10)))
        async with hub.subscribe(channel) as subscription:
            await settled(subscription)
            assert publish(backend, channel) == 1
            assert await subscription.wait(LONG)


async def test_a_waiter_that_gives_up_at_any_point(backend: Backend, channel: str) -> None:
    """It takes no other's hints away, and does not hold up the end."""
    for turns in range(30):
        hub = hub_over(lambda: connect_to(backend))

        async def wait(hub: HintHub = hub) -> None:
            async with hub.subscribe(channel) as subscription:
                await subscription.wait(LONG)
                await subscription.wait(LONG)

        waiting = asyncio.create_task(wait())
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        async with asyncio.timeout(LONG / 3):
            with pytest.raises(asyncio.CancelledError):
                await waiting
            async with hub.subscribe(channel) as subscription:
                await settled(subscription)
                assert publish(backend, channel) >= 1, turns
                assert await subscription.wait(LONG)
            await hub.aclose()


async def test_the_end_may_be_repeated_and_is_none(
    hub: HintHub, backend: Backend, channel: str
) -> None:
    await hub.aclose()
    async with hub.subscribe(channel):
        assert publish(backend, channel) >= 1
    await hub.aclose()
    await hub.aclose()
    async with hub.subscribe(channel) as subscription:
        await settled(subscription)
        assert publish(backend, channel) >= 1
        assert await subscription.wait(LONG)


async def test_the_end_leaves_no_connection(real_backend: Backend) -> None:
    hub = hub_over(lambda: connect_to(real_backend))
    with looking_at(real_backend) as client:
        client.ping()
        async with hub.subscribe("any"):
            assert len(client.client_list()) == 2
            await hub.aclose()
            await until(lambda: len(client.client_list()) == 1)


class Deaf:
    """Swallows the cancellation that meets one of a connection's calls, as `wait_for` may."""

    def __init__(self, connection: AbstractConnection, at: str) -> None:
        self._connection = connection
        self._at = at
        self.met = asyncio.Event()
        self.swallowed = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connection, name)
        return self._swallow if name == self._at and not self.swallowed else found

    async def _swallow(self, *args: Any, **options: Any) -> Any:
        self.met.set()
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            self.swallowed = True
        return await getattr(self._connection, self._at)(*args, **options)


@pytest.mark.parametrize("at", ["connect", "read_response"])
def test_a_swallowed_cancellation_does_not_keep_the_loop_from_ending(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the embedded server's connection; over a real one no task waits for messages."""

    async def main() -> None:
        client = memory_client("memory://deaf")
        pool = client.connection_pool
        deaf = Deaf(pool.make_connection(), at)  # type: ignore[no-untyped-call]
        monkeypatch.setattr(pool, "make_connection", lambda: deaf)
        hub = hub_over(lambda: client)

        async def wait(name: str) -> None:
            async with hub.subscribe(name) as subscription:
                await subscription.wait(0.01)

        waiting = [asyncio.create_task(wait(str(number))) for number in range(2)]
        await asyncio.wait_for(deaf.met.wait(), LONG)
        # What `asyncio.run` does at its end, with an end.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        _, pending = await asyncio.wait(tasks, timeout=LONG / 2)
        assert not pending
        assert all(task.done() for task in waiting)
        await client.aclose()

    asyncio.run(main())


# -- trouble -------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "_RECONNECT_SECONDS", 0.01)


async def test_a_lost_connection_is_mended_and_told(
    real_backend: Backend, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits looks once more: it can't know what it missed."""
    hub = hub_over(lambda: connect_to(real_backend))
    with looking_at(real_backend) as client:
        async with hub.subscribe("one") as one, hub.subscribe("two") as two:
            for _ in range(3):
                await settled(one)
                await settled(two)
                client.client_kill_filter(_type="pubsub")
                assert await one.wait(LONG)
                assert await two.wait(LONG)
                await until(lambda: client.publish("one", b"") == 1)
                assert await one.wait(LONG)
    await hub.aclose()
    assert "lost the notification connection" in caplog.text


async def test_a_long_outage_is_told_once_and_so_is_its_end(
    quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redis_world.outages")
    is_away = True
    tries = 0

    def connect() -> redis.asyncio.Redis:
        nonlocal tries
        tries += 1
        if is_away:
            raise redis.exceptions.ConnectionError("refused")
        return memory_client("memory://back")

    async def open_it(hear: Hear) -> Subscriber:
        return await open_subscriber(connect(), hear)

    hub = HintHub(open_it, outage=Outage(lambda: "redis:6379"))
    async with hub.subscribe("one"):
        await until(lambda: tries > 10)
        is_away = False
        await until(lambda: len(caplog.records) > 1)
    await hub.aclose()
    lost, back = (record.getMessage() for record in caplog.records)
    assert lost == (
        "lost the notification connection to redis:6379: refused; "
        "polling every second until it is back"
    )
    assert back.startswith("reconnected after ")


async def test_a_connection_lost_while_nobody_waits(
    real_backend: Backend, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no reason to try and to complain for ever."""
    hub = hub_over(lambda: connect_to(real_backend))
    with looking_at(real_backend) as client:
        client.ping()
        async with hub.subscribe("one"):
            pass
        await until(lambda: client.publish("one", b"") == 0)
        with caplog.at_level(logging.WARNING):
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub")
            # Long enough for many rounds of trouble, if there were any.
            await asyncio.sleep(0.3)
        assert len(caplog.records) <= 2
        async with hub.subscribe("one") as one:
            await until(lambda: client.publish("one", b"") == 1)
            assert await one.wait(LONG)
    await hub.aclose()


async def test_silence_is_no_trouble(
    backend: Backend,
    channel: str,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The subscriber asks whether the server is still there, and is content with the answer."""
    # Long enough for an answer on a busy machine.
    monkeypatch.setattr(hints, "_IDLE_SECONDS", 0.25)
    sent: list[str] = []

    async def connect(hear: Hear) -> Subscriber:
        return noting(await open_subscriber(connect_to(backend), hear), sent)

    hub = HintHub(connect)
    async with hub.subscribe(channel) as subscription:
        await until(lambda: sent.count("PING") >= 3)
        await settled(subscription)
        assert publish(backend, channel) == 1
        assert await subscription.wait(LONG)
    async with hub.subscribe(channel) as subscription:
        await settled(subscription)
        assert publish(backend, channel) == 1
        assert await subscription.wait(LONG)
    await hub.aclose()
    assert not caplog.records


@pytest.mark.parametrize("protocol", [2, 3])
async def test_both_protocols_are_heard(
    real_backend: Backend,
    channel: str,
    protocol: int,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A ready client may have chosen either; what the server says to a PING differs."""
    monkeypatch.setattr(hints, "_IDLE_SECONDS", 0.25)
    hub = hub_over(lambda: redis.asyncio.Redis.from_url(real_backend.url, protocol=protocol))
    with looking_at(real_backend) as client:

        def pings() -> int:
            return int(client.info("commandstats").get("cmdstat_ping", {}).get("calls", 0))

        async with hub.subscribe(channel) as subscription:
            await settled(subscription)
            before = pings()
            await until(lambda: pings() >= before + 3)
            await settled(subscription)
            assert client.publish(channel, b"") == 1
            assert await subscription.wait(LONG)
    await hub.aclose()
    assert not caplog.records


async def test_what_is_sent_behind_the_end_goes_nowhere(real_backend: Backend) -> None:
    """The hub hears of the end a moment later; a transport of TLS can bear no write then."""
    opened: Any = await open_subscriber(connect_to(real_backend), lambda *_: None)
    opened.close(at_once=True)
    transport, opened._transport = opened._transport, None
    opened.send("SUBSCRIBE", b"one")
    opened._transport = transport
    await opened.closed
    await opened.aclose()


async def test_a_server_that_ends_each_connection_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that has confirmed a subscription is no reason to connect again at once, for ever."""
    monkeypatch.setattr(hints, "_RECONNECT_SECONDS", LONG)

    def answer(command: list[bytes]) -> bytes | None:
        if command[0].upper() == b"SUBSCRIBE":
            return b"*3\r\n$9\r\nsubscribe\r\n$3\r\none\r\n:1\r\n" + b"?bye\r\n"
        return b"+OK\r\n"

    async with fake_server(answer) as server:
        hub = hub_over(lambda: redis.asyncio.Redis.from_url(server.url, protocol=2))
        async with hub.subscribe("one") as one:
            assert await one.wait(LONG), "it was confirmed"
            await until(lambda: "lost the notification connection" in caplog.text)
            # Long enough for many connections, if there were any.
            assert not await one.wait(0.3)
        await hub.aclose()
    assert server.names.count(b"SUBSCRIBE") == 1


async def test_a_task_that_others_have_cancelled_is_made_anew(
    hub: HintHub, backend: Backend, channel: str
) -> None:
    async with hub.subscribe(channel):
        pass
    (task,) = (each for each in asyncio.all_tasks() if each is hub._task)
    task.cancel()
    await asyncio.wait({task})
    async with hub.subscribe(channel) as subscription:
        await settled(subscription)
        assert publish(backend, channel) == 1
        assert await subscription.wait(LONG)


async def test_a_server_that_does_not_speak_the_protocol(
    quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(command: list[bytes]) -> bytes | None:
        return b"?what\r\n" if command[0].upper() == b"SUBSCRIBE" else b"+OK\r\n"

    async with fake_server(answer) as server:
        hub = hub_over(lambda: redis.asyncio.Redis.from_url(server.url, protocol=2))
        async with hub.subscribe("one"):
            await until(lambda: server.names.count(b"SUBSCRIBE") >= 3)
        await hub.aclose()
    assert {record.name for record in caplog.records} == {"redis_world.outages"}


async def test_a_line_that_went_dead_is_dropped(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers nothing any more, not even a ping, looks like a silent one."""
    monkeypatch.setattr(hints, "_IDLE_SECONDS", 0.02)

    def answer(command: list[bytes]) -> bytes | None:
        if command[0].upper() == b"SUBSCRIBE":
            name = command[1]
            return b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n" % (len(name), name)
        return b"+OK\r\n" if command[0].upper() == b"CLIENT" else None

    async with fake_server(answer) as server:
        hub = hub_over(lambda: redis.asyncio.Redis.from_url(server.url, protocol=2))
        async with hub.subscribe("one"):
            await until(lambda: server.names.count(b"SUBSCRIBE") >= 3)
        await hub.aclose()


async def test_without_a_server_waiters_live_on_their_own_looks(quick: None) -> None:
    hub = hub_over(lambda: redis.asyncio.Redis(host="127.0.0.1", port=1))
    async with hub.subscribe("one") as subscription:
        assert await subscription.wait(0.01) is False
    await hub.aclose()


async def test_a_user_who_may_not_subscribe_until_later(
    real_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_DENIED_SECONDS", 0.05)
    with looking_at(real_backend) as client:
        client.execute_command(  # type: ignore[no-untyped-call]
            "ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "resetchannels"
        )
        try:
            kwargs = client.connection_pool.connection_kwargs
            hub = hub_over(
                lambda: redis.asyncio.Redis(
                    host=kwargs["host"], port=kwargs["port"], username="deaf", password="secret"
                )
            )
            async with hub.subscribe("one") as subscription:
                assert await subscription.wait(0.01) is False
                await until(lambda: hub._denied)
                client.execute_command("ACL", "SETUSER", "deaf", "allchannels")  # type: ignore[no-untyped-call]
                assert await subscription.wait(LONG)
                assert not hub._denied, "it waits for confirmations again"
                assert client.publish("one", b"") == 1
                assert await subscription.wait(LONG)
            await hub.aclose()
        finally:
            client.execute_command("ACL", "DELUSER", "deaf")  # type: ignore[no-untyped-call]
