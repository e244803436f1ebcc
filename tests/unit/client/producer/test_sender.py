"""Attempts to send: which broker is tried next, which is avoided, and what hooks see."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from skylark.client.core.client_message import Message, SendStatus
from skylark.client.core.hooks import SendContext
from skylark.client.producer.producer import Producer
from skylark.core.errors import (
    BrokerError,
    NoNameServerError,
    NoRouteError,
    SendFailedError,
    SendTimeoutError,
    TooManyRequestsError,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.unit.client.producer_world import (
    MESSAGE,
    letters,
    properties,
    scripted,
    stored,
)

# ---- attempts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.spec("client.8.10", "client.8.8")
async def test_another_broker_is_tried_for_some_codes(tmp_path: Path, batching: bool) -> None:
    async with scripted(tmp_path, batching=batching) as script:
        script.answer(lambda request: stored(14 if len(script.sent()) == 1 else 0)(request))
        result = await script.producer.send(MESSAGE)
        assert result.status is SendStatus.SEND_OK
        (from_a,), (from_b,) = script.sent("a"), script.sent("b")
        # the id is kept, and each attempt names its own broker
        assert properties(from_a)["UNIQ_KEY"] == properties(from_b)["UNIQ_KEY"] == result.msg_id
        assert (letters(from_a)["n"], letters(from_b)["n"]) == ("a", "b")
        script.answer(13)
        with pytest.raises(BrokerError) as raised:
            await script.producer.send(MESSAGE)
        assert raised.value.code == 13
        assert len(script.sent()) == 3


@pytest.mark.spec("client.8.11")
async def test_a_broker_that_never_answers(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.answer(None)
        sending = await script.later(script.producer.send(MESSAGE))
        await script.clock.advance(seconds=2.9)
        assert not sending.done()
        await script.clock.advance(seconds=0.1)
        with pytest.raises(TooManyRequestsError, match="the send has timed out") as raised:
            await sending
        assert isinstance(raised.value, SendTimeoutError)
        assert len(script.sent()) == 1


@pytest.mark.parametrize("batching", [True, False])
async def test_an_early_timer_does_not_send_a_message_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batching: bool
) -> None:
    """As uvloop's timers, which count in whole milliseconds: see the rules of ``core.clock``."""
    async with scripted(tmp_path, batching=batching) as script:
        script.answer(None)
        call_at = script.clock.call_at
        with monkeypatch.context() as patched:
            patched.setattr(
                script.clock, "call_at", lambda when, *rest: call_at(when - 0.0015, *rest)
            )
            with pytest.raises(SendTimeoutError, match="1 attempts"):
                await script.world.finish(script.producer.send(MESSAGE))
            future = await script.producer.submit(MESSAGE)
            with pytest.raises(SendTimeoutError, match="1 attempts"):
                await script.world.finish(future)
        assert len(script.sent()) == 2


@pytest.mark.spec("client.8.11")
async def test_attempts_with_a_time_of_their_own(tmp_path: Path) -> None:
    async with scripted(tmp_path, attempt_timeout=0.5) as script:
        script.answer(None)
        sending = await script.later(script.producer.send(MESSAGE))
        await script.clock.advance(seconds=3)
        with pytest.raises(SendFailedError, match=r"Send \[3\] times") as raised:
            await sending
        assert raised.value.response_code == 10002
        assert len(script.sent()) == 3


async def test_a_send_may_have_a_time_of_its_own(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.answer(None)
        sending = await script.later(script.producer.send(MESSAGE, timeout=timedelta(seconds=1)))
        await script.clock.advance(seconds=1)
        with pytest.raises(TimeoutError):
            await sending


@pytest.mark.spec("client.8.12")
async def test_stored_but_not_flushed(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.answer(stored(10))
        result = await script.producer.send(MESSAGE)
        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(script.sent()) == 1
    async with scripted(tmp_path, retry_another_broker=True) as script:
        script.answer(stored(10))
        result = await script.producer.send(MESSAGE)
        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(script.sent()) == 3


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.spec("client.8.13")
async def test_asynchronous_sends_follow_rules_of_their_own(tmp_path: Path, batching: bool) -> None:
    async with scripted(tmp_path, batching=batching) as script:
        script.answer(14)
        future = await script.producer.submit(MESSAGE)
        with pytest.raises(BrokerError) as raised:
            await future
        assert raised.value.code == 14
        assert len(script.sent()) == 1

        def cut(request: Command) -> Command | None:
            if len(script.sent()) > 3:
                return stored()(request)
            for server in script.brokers.values():
                for connection in tuple(server.connections):
                    connection.abort()
            return None

        script.answer(cut)
        result = await script.world.finish(await script.producer.submit(MESSAGE))
        assert len(script.sent()) == 4
        last = [
            r for r in script.sent() if r.code == 310 and properties(r)["UNIQ_KEY"] == result.msg_id
        ]
        assert len(last) == 3
        assert result.queue.broker_name in script.brokers
        for name in script.brokers:  # every frame names the broker that got it, and a queue of it
            assert all(letters(request)["n"] == name for request in script.sent(name))
            assert all(int(letters(request)["e"]) < 4 for request in script.sent(name))


async def test_without_route_or_name_server(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        with pytest.raises(NoRouteError, match="No route info of this topic: U") as raised:
            await script.world.finish(script.producer.send(Message("U", b"x")))
        assert raised.value.response_code == 10005
        lost = Producer("other", script.options(namesrv="127.0.0.1:1"), runtime=script.runtime)
        await lost.start()
        with pytest.raises(NoNameServerError) as nobody:
            await script.world.finish(lost.send(MESSAGE))
        assert nobody.value.response_code == 10004
        await script.world.finish(lost.stop())


# ---- brokers that are down -----------------------------------------------------------------------


@pytest.mark.parametrize("batching", [True, False])
async def test_a_broker_that_is_down_does_not_hold_up_what_others_can_take(
    tmp_path: Path, batching: bool
) -> None:
    async with scripted(tmp_path, batching=batching) as script:
        await script.world.finish(script.brokers["a"].stop())
        began = script.clock.monotonic()
        for _ in range(8):
            result = await script.world.finish(script.producer.send(MESSAGE))
            assert result.queue.broker_name == "b"
            future = await script.producer.submit(MESSAGE)
            assert (await script.world.finish(future)).queue.broker_name == "b"
        assert script.clock.monotonic() == began


async def test_a_send_waits_for_the_only_broker(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        await script.world.finish(script.brokers["a"].stop())
        began = script.clock.monotonic()
        with pytest.raises(SendFailedError, match=r"Send \[3\] times"):
            await script.world.finish(script.producer.send(MESSAGE))
        assert script.clock.monotonic() - began >= 0.3  # the pauses before the second and the third


# ---- latency fault tolerance ---------------------------------------------------------------------


@pytest.mark.spec("client.8.14")
async def test_a_slow_broker_is_avoided(tmp_path: Path) -> None:
    async with scripted(tmp_path, given={"send_latency": True}, batching=False) as script:
        held: list[Command] = []
        script.answer(held.append, broker="a")
        while not held:
            sending = await script.later(script.producer.send(MESSAGE))
        await script.clock.advance(ms=600)
        for connection in script.brokers["a"].connections:
            connection.send(stored()(held[0]))
        assert (await sending).queue.broker_name == "a"
        script.answer(stored())
        await script.clock.advance(ms=1999)
        for _ in range(8):
            await script.producer.send(MESSAGE)
        assert len(script.sent("a")) == 1
        await script.clock.advance(ms=1)
        for _ in range(8):
            await script.producer.send(MESSAGE)
        assert len(script.sent("a")) == 5


@pytest.mark.spec("client.8.14")
async def test_a_broker_that_failed_is_avoided_longer(tmp_path: Path) -> None:
    async with scripted(tmp_path, given={"send_latency": True}, batching=False) as script:

        def cut(request: Command) -> None:
            for connection in tuple(script.brokers["a"].connections):
                connection.abort()

        script.answer(cut, broker="a")
        while not script.sent("a"):
            await script.world.finish(script.producer.send(MESSAGE))
        count = len(script.sent("a"))
        await script.clock.advance(seconds=9)
        for _ in range(8):
            await script.world.finish(script.producer.send(MESSAGE))
        assert len(script.sent("a")) == count
        script.answer(stored(), broker="a")
        await script.clock.advance(seconds=1)
        for _ in range(8):
            await script.producer.send(MESSAGE)
        assert len(script.sent("a")) == count + 4
        # both in trouble: still sends
        script.answer(2)
        with pytest.raises(SendFailedError):
            await script.producer.send(MESSAGE)
        script.answer(stored())
        assert (await script.producer.send(MESSAGE)).status is SendStatus.SEND_OK


async def test_the_detector_asks_brokers_out_of_reach(tmp_path: Path) -> None:
    given = {"send_latency": True, "start_detector": True}
    async with scripted(tmp_path, given=given, batching=False) as script:
        await script.producer.send(MESSAGE)
        faults = script.producer._use().faults
        assert faults is not None
        faults.update("a", 0.0, isolated=True, reachable=False)
        faults.update("gone", 0.0, isolated=True, reachable=False)
        await script.clock.advance(seconds=3.5)
        assert len(script.brokers["a"].of(RequestCode.GET_MAX_OFFSET)) == 1
        assert not faults.is_reachable("a")  # the answer was an error
        assert faults.is_reachable("gone")  # forgotten
        script.brokers["a"].answer_ok(RequestCode.GET_MAX_OFFSET, {"offset": "1"})
        await script.clock.advance(seconds=3)
        assert faults.is_reachable("a")
        assert script.brokers["b"].of(RequestCode.GET_MAX_OFFSET) == []


# ---- hooks ---------------------------------------------------------------------------------------


async def test_hooks_see_every_message_and_attempt_once(tmp_path: Path) -> None:
    class Hook:
        def __init__(self) -> None:
            self.seen: list[tuple[str, SendContext]] = []

        def before_send(self, context: SendContext) -> None:
            self.seen.append(("before", msgspec.structs.replace(context)))

        def after_send(self, context: SendContext) -> None:
            self.seen.append(("after", context))

    hook = Hook()
    async with scripted(tmp_path, hooks=(hook, object())) as script:
        result = await script.producer.send(Message("T", b"1"), delay_level=1)
        before, after = hook.seen
        assert (before[0], before[1].result, before[1].message_type) == ("before", None, "Delay")
        assert (after[0], after[1].result, after[1].mode) == ("after", result, "SYNC")
        assert after[1].broker_address == script.brokers[result.queue.broker_name].address
        hook.seen.clear()
        results = await asyncio.gather(*(script.producer.send(MESSAGE) for _ in range(3)))
        shown = [context.result for when, context in hook.seen if when == "after"]
        assert shown == results  # of a batch: each its own
        hook.seen.clear()
        script.answer(13)
        with pytest.raises(BrokerError):
            await script.producer.send(MESSAGE)
        assert [when for when, _ in hook.seen] == ["before", "after"]
        assert isinstance(hook.seen[1][1].error, BrokerError)
        hook.seen.clear()
        await script.producer.send_oneway(MESSAGE)
        assert [context.mode for _, context in hook.seen] == ["ONEWAY", "ONEWAY"]


async def test_a_hook_may_forbid_a_message_and_only_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Hook:
        def check_forbidden(self, context: SendContext) -> None:
            if context.message.body == b"bad":
                raise PermissionError("not this one")

        def after_send(self, context: SendContext) -> None:
            raise ZeroDivisionError

    async with scripted(tmp_path, hooks=(Hook(),)) as script:
        outcomes = await asyncio.gather(
            *(script.producer.send(Message("T", body)) for body in (b"good", b"bad", b"good")),
            return_exceptions=True,
        )
        assert isinstance(outcomes[1], PermissionError)
        assert [getattr(o, "status", None) for o in outcomes[::2]] == [SendStatus.SEND_OK] * 2
        assert len(script.sent()) == 2
    assert "ZeroDivisionError" in caplog.text
