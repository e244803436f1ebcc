"""Batches: what travels together, what fails together, and how much may be under way."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.client.core.client_message import Message, SendResult, SendStatus
from skylark.client.core.permits import Permits
from skylark.client.producer.producer import Producer
from skylark.client.producer.send_options import SendKeywords
from skylark.core.errors import (
    BrokerError,
    ClientStateError,
    InvalidMessageError,
    SendFailedError,
    SendTimeoutError,
    SkylarkError,
    SystemBusyError,
    TooManyRequestsError,
)
from skylark.core.lifecycle import LifecycleError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import V4_9_4, V5_0_0, RequestCode
from skylark.wire.command import Command, response_to
from tests.unit.client.producer_world import (
    MESSAGE,
    letters,
    properties,
    scripted,
    stored,
)

# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.spec("client.8.16")
async def test_messages_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        batch = script.producer.send_batch
        delayed = msgspec.structs.replace(MESSAGE, properties={"DELAY": "1"})
        for messages, problem in (
            ([], "without messages"),
            ([MESSAGE, Message("U", b"x")], "topic"),
            ([MESSAGE, Message("T", b"x", wait_store_ok=False)], "wait_store_ok"),
            ([MESSAGE, delayed], "DELAY"),
            ([Message("%RETRY%g", b"x")], "a retry topic"),
            ([Message("T", bytes(3 << 20))] * 2, "a batch of 6"),
        ):
            with pytest.raises(InvalidMessageError, match=problem):
                await batch(messages)
        for how in ({"delay": 1}, {"delay_level": 1}):
            with pytest.raises(InvalidMessageError, match="cannot be delayed"):
                await batch([MESSAGE], **how)  # type: ignore[arg-type]
        assert script.sent() == []


async def test_a_batch_is_one_request_with_a_result_for_each(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        messages = [Message("T", bytes([n]) * 5000, tag="A", keys=[f"k{n}"]) for n in range(3)]
        results = await script.producer.send_batch(messages, shard="s")
        (request,) = script.sent()
        assert (request.code, letters(request)["m"], letters(request)["f"]) == (320, "true", "0")
        assert [result.queue_offset for result in results] == [5, 6, 7]
        assert len({result.msg_id for result in results}) == 3
        script.answer(13)
        with pytest.raises(BrokerError):
            await script.producer.send_batch(messages)


@pytest.mark.parametrize(
    ("version", "expected"),
    [(None, {"WAIT"}), (V4_9_4, {"WAIT"}), (V5_0_0, {"WAIT", "UNIQ_KEY", "TAGS", "KEYS"})],
)
async def test_old_brokers_would_give_the_properties_of_a_batch_to_each_message(
    tmp_path: Path, version: int | None, expected: set[str]
) -> None:
    """Brokers of 4.x add them to each message, in place of its own; unknown ones may be old."""
    async with scripted(tmp_path, "a") as script:

        def alive(request: Command) -> Command:
            answer = response_to(request, 0)
            answer.version = version or 0
            return answer

        script.brokers["a"].answer(RequestCode.HEART_BEAT, 1 if version is None else alive)
        await script.producer.queues("T")
        await script.clock.advance(seconds=31)
        messages = [Message("T", b"x", tag="A", keys=[f"k{n}"]) for n in range(2)]
        await script.producer.send_batch(messages)
        (request,) = script.sent()
        assert properties(request).keys() == expected


@pytest.mark.parametrize("linger", [0.0, 0.01])
@pytest.mark.spec("client.8.17")
async def test_quick_sends_travel_together(tmp_path: Path, linger: float) -> None:
    async with scripted(tmp_path, linger=linger) as script:
        message = Message("T", b"x", tag="A")
        sends = [asyncio.ensure_future(script.producer.send(message)) for _ in range(10)]
        await script.clock.drain()
        assert len(script.sent()) == (0 if linger else 1)
        await script.clock.advance(seconds=linger)
        results = [await send for send in sends]
        (request,) = script.sent()
        assert request.code == 320
        assert [result.queue_offset for result in results] == list(range(5, 15))
        assert len({result.msg_id for result in results}) == 10
        assert len({result.queue for result in results}) == 1
        assert script.producer._use().collector.size == 0


@pytest.mark.spec("client.8.17")
async def test_a_batch_that_fails_fails_all_of_its_messages(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.answer(13)
        sends = [asyncio.ensure_future(script.producer.send(MESSAGE)) for _ in range(10)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert len(script.sent()) == 1
        assert {type(outcome).__name__ for outcome in outcomes} == {"MessageIllegalError"}
        assert len({id(outcome) for outcome in outcomes}) == 10  # each has its own
        assert all(getattr(outcome, "broker_address", None) for outcome in outcomes)
        parts = script.producer._use()
        assert (parts.collector.size, parts.permits.count, parts.permits.size) == (0, 0, 0)


@pytest.mark.parametrize("batching", [True, False])
async def test_submit_passes_a_busy_broker_by_as_send_does(tmp_path: Path, batching: bool) -> None:
    """A busy broker has stored nothing; Java's client gives the error to the callback instead."""
    async with scripted(tmp_path, batching=batching) as s:
        for method in ("send", "submit"):
            s.answer(2, stored(), broker="a")
            s.answer(2, stored(), broker="b")
            futures = [
                asyncio.ensure_future(s.producer.send(Message("T", b"x")))
                if method == "send"
                else await s.producer.submit(Message("T", b"x"))
                for _ in range(1 + 9 * batching)
            ]
            results = await s.world.finish(asyncio.gather(*futures))
            assert {result.status for result in results} == {SendStatus.SEND_OK}


async def test_a_broker_that_stays_busy_ends_a_submit_after_its_attempts(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        s.answer(2)
        futures = [await s.producer.submit(Message("T", b"%d" % number)) for number in range(10)]
        await s.world.finish(asyncio.gather(*futures, return_exceptions=True))
        for future in futures:
            error = future.exception()
            assert isinstance(error, SendFailedError)
            assert isinstance(error.__cause__, SystemBusyError)
            assert error.response_code == 2
        assert len(s.sent()) == 3  # one batch, one attempt and two retries


async def test_only_what_fits_travels_together(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        send = script.producer.send
        queue = MessageQueue(topic="T", broker_name="a", queue_id=1)
        await asyncio.gather(
            *(send(Message("T", b"x", tag=tag)) for tag in "AABB"),
            *(send(MESSAGE, queue=queue) for _ in range(2)),
            *(send(Message("T", b"x", wait_store_ok=False)) for _ in range(2)),
            send(Message("T", bytes(5000))),  # compressed
            send(MESSAGE, delay_level=1),
            send(MESSAGE, timeout=2),
            send(Message("T", b"x", properties={"INNER_MULTI_DISPATCH": "q"})),
            send(Message("T", b"x", properties={"_SYS_MSG_PRIORITY_": "1"})),
        )
        counts = sorted((r.code, (r.body or b"").count(b"UNIQ_KEY")) for r in script.sent())
        assert counts == [(310, 0)] * 5 + [(320, 2)] * 4


async def test_batches_keep_to_the_limit_of_a_message(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a", max_message_size=800) as script:
        messages = [
            Message("T", bytes(100), properties={"p": "v" * 300} if number % 2 else {})
            for number in range(10)
        ]
        results = await asyncio.gather(*(script.producer.send(message) for message in messages))
        assert len({result.msg_id for result in results}) == 10
        assert 2 < len(script.sent()) < 10
        assert all(len(request.body or b"") <= 800 for request in script.sent())


@pytest.mark.parametrize("count", [3, 4])
async def test_awaited_one_by_one_nothing_waits_for_company(tmp_path: Path, count: int) -> None:
    async with scripted(tmp_path, "a") as script:
        for _ in range(count):
            await script.producer.send(MESSAGE)
        assert [request.code for request in script.sent()] == [310] * count
        # a burst after that: the first by itself, the others together
        await asyncio.gather(*(script.producer.send(MESSAGE) for _ in range(5)))
        await asyncio.gather(*(script.producer.send(MESSAGE) for _ in range(5)))
        assert [request.code for request in script.sent()] == [310] * (count + 1) + [320, 320]


async def test_while_answers_are_awaited_messages_collect(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        held: list[Command] = []

        def hold(request: Command) -> None:
            held.append(request)

        script.answer(hold)
        futures = []
        for _ in range(5):  # each in a turn of its own
            futures.append(await script.producer.submit(MESSAGE))
            await script.clock.drain()
        assert len(held) == 2
        await script.clock.advance(ms=10)
        assert [(r.body or b"").count(b"UNIQ_KEY") for r in held] == [0, 0, 3]
        await script.clock.advance(seconds=3)
        for future in futures:
            with pytest.raises(SendTimeoutError):
                await future


async def test_a_cancelled_send_leaves_the_others_alone(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        sends = [asyncio.ensure_future(script.producer.send(MESSAGE)) for _ in range(3)]
        await asyncio.sleep(0)
        sends[1].cancel()
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        (request,) = script.sent()
        assert (request.body or b"").count(b"UNIQ_KEY") == 3  # it is not undone
        assert script.producer._use().permits.count == 0


# ---- back-pressure -------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", [True, False])
async def test_messages_under_way_are_bounded(tmp_path: Path, batching: bool) -> None:
    async with scripted(tmp_path, "a", batching=batching, pending_max=3) as script:
        script.answer(None)
        futures = [await script.producer.submit(MESSAGE) for _ in range(3)]
        waiting = await script.later(script.producer.submit(MESSAGE, timeout=1))
        patient = await script.later(script.producer.submit(MESSAGE, timeout=20))
        await script.clock.advance(seconds=1)
        with pytest.raises(TooManyRequestsError, match="3 requests of 3 bytes"):
            await waiting
        script.answer(stored())
        await script.clock.advance(seconds=12)
        for future in futures:
            with pytest.raises(TimeoutError):
                await future
        assert (await (await patient)).status is SendStatus.SEND_OK


@pytest.mark.parametrize(
    ("method", "batching"), [("send", True), ("submit", True), ("submit", False)]
)
async def test_the_wait_for_room_is_part_of_the_timeout(
    tmp_path: Path, method: str, batching: bool
) -> None:
    async def send(producer: Producer) -> SendResult:
        if method == "send":
            return await producer.send(MESSAGE, timeout=4)
        return await (await producer.submit(MESSAGE, timeout=4))

    async with scripted(tmp_path, "a", pending_max=1, batching=batching) as script:
        script.answer(None)
        await script.producer.submit(MESSAGE, timeout=3)
        waiting = await script.later(send(script.producer))
        await script.clock.advance(seconds=3.1)
        assert not waiting.done()  # it has its permit, and goes to a broker that does not answer
        await script.clock.advance(seconds=1.5)
        assert waiting.done()
        with pytest.raises(SendTimeoutError):
            await waiting


@pytest.mark.parametrize("batching", [True, False])
async def test_a_send_passes_producer_memory_and_connection_window_and_no_other_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batching: bool
) -> None:
    taken: list[Permits] = []
    try_take = Permits.try_take

    def recorded(permits: Permits, size: int) -> bool:
        taken.append(permits)
        return try_take(permits, size)

    monkeypatch.setattr(Permits, "try_take", recorded)
    async with scripted(tmp_path, "a", batching=batching) as script:
        parts = script.producer._use()
        taken.clear()
        await (await script.world.finish(script.producer.submit(MESSAGE)))
        assert taken == [parts.permits, parts.link.permits]
        taken.clear()
        await script.world.finish(script.producer.send(MESSAGE))
        assert taken in ([parts.permits, parts.link.permits], [parts.link.permits])


@pytest.mark.parametrize(
    ("settings", "message", "how"),
    [
        ({"batching": False}, MESSAGE, {}),
        ({}, MESSAGE, {"delay": 5}),
        ({}, Message("T", bytes(5000)), {}),
    ],
)
async def test_a_burst_of_messages_that_go_alone_waits_for_room(
    tmp_path: Path, settings: dict[str, Any], message: Message, how: SendKeywords
) -> None:
    """Permits of several sends come back in one turn, before their tasks are forgotten."""
    async with scripted(tmp_path, "a", pending_max=4, **settings) as script:

        async def burst() -> list[SendResult]:
            futures = [await script.producer.submit(message, **how) for _ in range(40)]
            return await asyncio.gather(*futures)

        results = await script.world.finish(burst())
        assert len({result.msg_id for result in results}) == 40
        parts = script.producer._use()
        assert (len(parts.sends), parts.permits.count, parts.permits.size) == (0, 0, 0)


@pytest.mark.parametrize("size", [1, 300])
async def test_a_batch_that_cannot_start_fails_and_gives_each_permit_back_once(
    tmp_path: Path, size: int
) -> None:
    """Also a full one, which goes while the next message is taken."""
    async with scripted(tmp_path, "a", max_message_size=800) as script:
        parts = script.producer._use()
        parts.sends.close()
        futures = [await script.producer.submit(Message("T", bytes(size))) for _ in range(5)]
        await script.clock.drain()
        for future in futures:
            assert isinstance(future.exception(), LifecycleError)
        assert (parts.collector.size, parts.permits.count, parts.permits.size) == (0, 0, 0)


async def test_bytes_under_way_are_bounded(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a", pending_bytes_max=1000) as script:
        script.answer(None)
        await script.producer.submit(Message("T", bytes(900)), timeout=1)
        waiting = await script.later(script.producer.submit(Message("T", bytes(200))))
        assert not waiting.done()
        script.answer(stored())
        await script.clock.advance(seconds=1)
        assert (await (await waiting)).status is SendStatus.SEND_OK


async def test_what_failed_is_not_kept_for_ever(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.answer(13)
        futures = [await script.producer.submit(MESSAGE) for _ in range(2)]
        errors = await script.world.finish(asyncio.gather(*futures, return_exceptions=True))
        assert [isinstance(error, BrokerError) for error in errors] == [True, True]
        kept = [weakref.ref(future) for future in futures]
        del futures, errors
        await script.clock.drain()
        gc.collect()  # an error, its traceback and the futures of a batch know each other
        assert [reference() for reference in kept] == [None, None]


@pytest.mark.parametrize("size", [1, 5000])
async def test_who_waits_for_room_hears_of_the_end(tmp_path: Path, size: int) -> None:
    async with scripted(tmp_path, "a", pending_max=1) as script:
        script.answer(None)
        first = await script.producer.submit(MESSAGE, timeout=2)
        waiting = await script.later(script.producer.submit(Message("T", bytes(size)), timeout=9))
        stopping = await script.later(script.producer.stop())
        await script.clock.advance(seconds=2.5)
        await script.world.finish(stopping)
        with pytest.raises(SendTimeoutError):
            await first
        with pytest.raises(ClientStateError, match="stopped meanwhile"):
            await waiting


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_every_message_ends_and_nothing_is_kept(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    async with scripted(tmp_path, attempt_timeout=0.5) as script:

        def moody(request: Command) -> Command | None:
            mood = rng.random()
            if mood < 0.1:
                for server in script.brokers.values():
                    for connection in tuple(server.connections):
                        connection.abort()
            if mood < 0.2:
                return None
            return stored(rng.choice([0, 0, 0, 0, 2, 10, 13]))(request)

        script.answer(moody)
        work: list[asyncio.Future[SendResult]] = []
        for number in range(300):
            message = Message("T", bytes(rng.choice([1, 1, 1, 5000])), tag=rng.choice("AB"))
            if rng.random() < 0.5:
                work.append(await script.producer.submit(message))
            else:
                work.append(asyncio.ensure_future(script.producer.send(message)))
            if rng.random() < 0.02:
                work[rng.randrange(number + 1)].cancel()
            if rng.random() < 0.2:
                await script.clock.advance(ms=rng.choice([0, 1, 20, 300]))
        await script.clock.advance(seconds=10)
        assert all(future.done() for future in work)
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        results = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
        assert len(results) > 30
        assert len({result.msg_id for result in results}) == len(results)
        others = {type(outcome) for outcome in outcomes if not isinstance(outcome, SendResult)}
        assert all(issubclass(each, (SkylarkError, asyncio.CancelledError)) for each in others)
        parts = script.producer._use()
        assert (parts.collector.size, parts.permits.count, parts.permits.size) == (0, 0, 0)
        assert (len(parts.sends), parts.link.permits.count) == (0, 0)
