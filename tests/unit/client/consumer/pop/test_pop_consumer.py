"""The pop consumer against a broker on virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark import ClientError, ClientStateError, ConfigError, ConsumeFromWhere
from skylark.client.consumer.pop.popped_message import PoppedMessage
from skylark.client.errors import ReceiptExpiredError
from skylark.core.errors import BrokerError, NoRouteError
from tests.unit.client.consumer.pops import (
    ACK,
    BATCH_ACK,
    CHANGE,
    POP,
    SEND_BACK,
    pop_world,
)


def bodies(messages: list[PoppedMessage]) -> list[bytes]:
    return [each.body for each in messages]


async def test_what_is_received_is_acknowledged_in_one_request(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(b"a", b"b", queue_id=0)
        w.server.put(b"c", queue_id=1)
        found = await w.finish(consumer.receive(wait=5))
        assert bodies(found) == [b"a", b"b", b"c"]
        assert [each.attempt for each in found] == [1, 1, 1]
        assert found[0].topic == "T"
        assert found[0].invisible_until.timestamp() * 1000 == pytest.approx(
            w.clock.steady_ms() + 60_000, abs=1000
        )
        await w.finish(consumer.ack(found))
        assert w.server.acked == [b"a", b"b", b"c"]
        assert len(w.server.of(BATCH_ACK)) == 1
        assert not w.server.of(ACK)


async def test_acks_of_many_tasks_share_a_request(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(20)))
        found = await w.finish(consumer.receive())
        await w.finish(asyncio.gather(*(each.ack() for each in found)))
        assert len(w.server.acked) == 20
        assert len(w.server.of(BATCH_ACK)) == 1


async def test_a_broker_without_batches_gets_single_acks(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        w.server.refuses[BATCH_ACK] = 3
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(b"a", b"b")
        await w.finish(consumer.ack(await w.finish(consumer.receive())))
        w.server.put(b"c", b"d")
        await w.finish(consumer.ack(await w.finish(consumer.receive())))
        assert w.server.acked == [b"a", b"b", b"c", b"d"]
        assert len(w.server.of(BATCH_ACK)) == 1  # not asked a second time
        assert w.server.ext_of(ACK)[0]["extraInfo"] == w.server.of_body(b"a").handles[0]


async def test_an_ack_without_response_is_repeated(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(b"a")
        found = await w.finish(consumer.receive())
        w.server.silent.add(ACK)
        acking = asyncio.ensure_future(found[0].ack())
        await w.clock.advance(seconds=3.1)
        assert not acking.done()
        w.server.silent.clear()
        await w.finish(acking)
        assert w.server.acked == [b"a"]
        assert len(w.server.of(ACK)) == 2


async def test_a_refused_ack_raises_and_may_be_repeated(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(b"a")
        (message,) = await w.finish(consumer.receive())
        w.server.refuses[ACK] = 13
        with pytest.raises(BrokerError, match="refused by the test"):
            await w.finish(message.ack())
        w.server.refuses.clear()
        await w.finish(message.ack())
        await w.finish(message.ack())  # again: nothing happens
        assert w.server.acked == [b"a"]
        assert len(w.server.of(ACK)) == 2


async def test_nack_brings_it_again_as_the_next_attempt(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(b"a", b"b")
        first, second = await w.finish(consumer.receive())
        await w.finish(first.nack(delay=5))
        await w.finish(second.nack())  # the first step of the retry delays
        assert [ext["invisibleTime"] for ext in w.server.ext_of(CHANGE)] == ["5000", "10000"]
        assert [ext["suspend"] for ext in w.server.ext_of(CHANGE)] == ["false", "false"]
        again = await w.finish(consumer.receive(wait=8))
        assert bodies(again) == [b"a"]
        assert again[0].attempt == 2
        with pytest.raises(ClientStateError, match="was given back"):
            await first.ack()
        with pytest.raises(ClientStateError, match="was given back"):
            await first.extend(10)


async def test_a_late_receipt_raises_and_the_others_are_acknowledged(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(invisible=10)
        await w.start(consumer)
        w.server.put(b"a")
        (old,) = await w.finish(consumer.receive())
        await w.clock.advance(seconds=10)
        w.server.put(b"b")
        again = await w.finish(consumer.receive())
        new = next(each for each in again if each.body == b"b")
        with pytest.raises(ReceiptExpiredError) as raised:
            await w.finish(consumer.ack([old, new]))
        assert raised.value.messages == (old,)
        assert w.server.acked == [b"b"]
        for late in (old.nack(), old.extend(5)):
            with pytest.raises(ReceiptExpiredError, match="may be delivered again"):
                await w.finish(late)


async def test_the_newest_receipt_is_used(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(invisible=10)
        await w.start(consumer)
        w.server.put(b"x", b"a")
        found = await w.finish(consumer.receive())
        message = found[1]
        before = message.receipt_handle
        # The ack is called while the change is on its way: it must wait for the new receipt.
        await w.finish(asyncio.gather(message.extend(30), message.ack()))
        held = w.server.of_body(b"a")
        assert held.acked
        assert held.handles[0] == before
        assert w.server.ext_of(ACK)[0]["extraInfo"] == held.handles[1]
        assert held.handles[1].split()[0] == "1"  # starts at the message itself
        assert int(held.handles[1].split()[2]) == 30_000


async def test_extend_moves_the_deadline_and_keeps_the_attempt(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(invisible=10)
        await w.start(consumer)
        w.server.put(b"a")
        (message,) = await w.finish(consumer.receive())
        await w.clock.advance(seconds=8)
        await w.finish(message.extend(10))
        await w.clock.advance(seconds=8)
        assert await w.finish(consumer.receive(wait=0)) == []
        await w.finish(message.ack())
        assert w.server.acked == [b"a"]


async def test_clocks_that_differ_make_nothing_look_expired(tmp_path: Path) -> None:
    for ahead_ms in (-3_600_000, 3_600_000):
        async with pop_world(tmp_path / str(ahead_ms)) as w:
            w.server.clock_ahead_ms = ahead_ms
            consumer = w.pop_consumer(invisible=10)
            await w.start(consumer)
            w.server.put(b"a", b"b")
            found = await w.finish(consumer.receive())
            await w.clock.advance(seconds=9)
            await w.finish(found[0].ack())
            assert w.server.acked == [b"a"]
            await w.clock.advance(seconds=1)
            with pytest.raises(ReceiptExpiredError):
                await w.finish(found[1].ack())


async def test_a_receive_waits_and_returns_nothing_in_the_end(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        since = w.clock.monotonic()
        assert await w.finish(consumer.receive(wait=20)) == []
        assert 20 <= w.clock.monotonic() - since < 22
        assert {ext["pollTime"] for ext in w.server.ext_of(POP)} >= {"15000"}
        assert {ext["bornTime"] for ext in w.server.ext_of(POP)} == {"0"}
        (client_id,) = {ext["clientId"] for ext in w.server.ext_of(POP)}
        assert client_id.startswith("127.0.0.1@")
        assert await w.finish(consumer.receive(wait=0)) == []


async def test_a_cancelled_receive_loses_nothing(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        waiting = asyncio.ensure_future(consumer.receive(wait=15))
        await w.clock.advance(seconds=1)
        waiting.cancel()
        await w.clock.drain()
        w.server.put(b"a")
        await w.clock.drain()
        pops = len(w.server.of(POP))
        assert bodies(await w.finish(consumer.receive(wait=5))) == [b"a"]
        assert len(w.server.of(POP)) == pops  # the request that was there already


async def test_a_short_receive_does_not_wait_for_the_request_of_a_cancelled_one(
    tmp_path: Path,
) -> None:
    for broker_count in (1, 2):
        async with pop_world(tmp_path / str(broker_count), broker_count) as w:
            consumer = w.pop_consumer()
            await w.start(consumer)
            waiting = asyncio.ensure_future(consumer.receive(wait=15))
            await w.clock.advance(seconds=1)
            waiting.cancel()
            await w.clock.drain()
            since = w.clock.monotonic()
            assert await w.finish(consumer.receive(wait=0)) == []
            assert w.clock.monotonic() - since < 1
            assert await w.finish(consumer.receive(wait=2)) == []
            assert w.clock.monotonic() - since < 4
            w.servers[-1].put(b"a")
            assert bodies(await w.finish(consumer.receive(wait=2))) == [b"a"]


async def test_a_receive_that_no_broker_answers_raises(tmp_path: Path) -> None:
    for broker_count in (1, 2):
        async with pop_world(tmp_path / str(broker_count), broker_count) as w:
            consumer = w.pop_consumer()
            await w.start(consumer)
            for server in w.servers:
                server.refuses[POP] = 16
            with pytest.raises(BrokerError, match="refused by the test"):
                await w.finish(consumer.receive(wait=5))
            w.servers[-1].refuses.clear()  # one of them is enough
            w.servers[-1].put(b"a")
            assert bodies(await w.finish(consumer.receive(wait=5))) == [b"a"]


async def test_a_waiting_receive_gets_what_a_cancelled_one_brings(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(invisible=60)
        await w.start(consumer)
        cancelled = asyncio.ensure_future(consumer.receive(wait=15))
        await w.clock.drain()
        waiting = asyncio.ensure_future(consumer.receive(wait=15))
        await w.clock.advance(seconds=1)
        cancelled.cancel()
        await w.clock.drain()
        w.server.put(b"a")  # wakes both requests; one of them finds it
        await w.clock.advance(seconds=2)
        assert waiting.done()
        assert bodies(waiting.result()) == [b"a"]


async def test_messages_that_no_receive_takes_are_given_back(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(invisible=30)
        await w.start(consumer)
        waiting = asyncio.ensure_future(consumer.receive(wait=15))
        await w.clock.advance(seconds=1)
        waiting.cancel()
        w.server.put(b"a", b"b")
        await w.clock.advance(seconds=9)
        assert not w.server.of(CHANGE)
        await w.clock.advance(seconds=2)
        assert [(ext["invisibleTime"], ext["suspend"]) for ext in w.server.ext_of(CHANGE)] == [
            ("1000", "true")
        ] * 2
        again = await w.finish(consumer.receive(wait=5))
        assert [(each.body, each.attempt) for each in again] == [(b"a", 1), (b"b", 1)]


async def test_a_stop_gives_back_what_was_not_handed_out(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(5)))
        messages = consumer.messages()
        first = await w.finish(anext(messages))
        await messages.aclose()
        await w.finish(first.ack())
        await w.finish(consumer.stop())
        assert len(w.server.of(CHANGE)) == 4
        assert {ext["suspend"] for ext in w.server.ext_of(CHANGE)} == {"true"}
        with pytest.raises(ClientStateError, match="has been stopped"):
            await consumer.receive()


async def test_iteration_never_acknowledges(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(3)))

        async def three() -> list[bytes]:
            found = []
            async for message in consumer:
                found.append(message.body)
                if len(found) == 3:
                    break
            return found

        assert await w.finish(three()) == [b"0", b"1", b"2"]
        assert w.server.acked == []


async def test_two_brokers_are_asked_in_turn_and_waited_for_together(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=2) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        one, other = w.servers
        one.put(b"a")
        other.put(b"b")
        found = await w.finish(consumer.receive(32))
        assert sorted(bodies(found)) == [b"a", b"b"]
        await w.finish(consumer.ack(found))
        assert (one.acked, other.acked) == ([b"a"], [b"b"])
        waiting = asyncio.ensure_future(consumer.receive(wait=15))
        await w.clock.advance(seconds=1)
        other.put(b"c")
        assert bodies(await w.finish(waiting)) == [b"c"]
        one.put(b"d")  # its request still waits, and serves the next receive
        await w.clock.drain()
        assert bodies(await w.finish(consumer.receive(wait=0))) == [b"d"]


async def test_more_than_a_batch_takes_several_requests(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(batch=8)
        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(20)))
        assert len(await w.finish(consumer.receive(18))) == 18
        assert [ext["maxMsgNums"] for ext in w.server.ext_of(POP)] == ["8", "8", "2"]


async def test_unwanted_tags_are_acknowledged(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        consumer.unsubscribe("T")
        consumer.subscribe("T", tags="x")
        await w.start(consumer)
        w.server.put(b"a", tag="x")
        w.server.put(b"b", tag="y")  # as if the hashes were equal
        found = await w.finish(consumer.receive())
        assert bodies(found) == [b"a"]
        await w.clock.drain()
        assert w.server.acked == [b"b"]
        assert w.server.ext_of(POP)[0]["exp"] == "x"


async def test_dead_letters(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(max_reconsume_times=2)
        await w.start(consumer)
        w.server.put(b"last", times=2)
        w.server.put(b"over", times=3)  # its consumers died on it
        (last,) = await w.finish(consumer.receive())
        await w.clock.drain()
        assert w.server.acked == [b"over"]
        await w.finish(last.nack(delay=1))
        assert w.server.acked == [b"last", b"over"]
        assert [ext["delayLevel"] for ext in w.server.ext_of(SEND_BACK)] == ["-1", "-1"]
        assert not w.server.of(CHANGE)


async def test_errors_say_what_to_do(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        for wrong in ({"invisible": 0.5}, {"batch": 33}, {"batch": 0}, {"invisible": 50_000}):
            with pytest.raises(ConfigError, match="out of range"):
                w.pop_consumer(**wrong)
        with pytest.raises(ConfigError, match="cannot start at a time"):
            w.pop_consumer(consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP)
        consumer = w.pop_consumer()
        with pytest.raises(ClientStateError, match="has not been started"):
            await consumer.receive()
        with pytest.raises(ClientError, match="subscribed with tags"):
            consumer.subscribe("T", tags="other")
        consumer.unsubscribe("T")
        with pytest.raises(ClientError, match="subscribes nothing"):
            await consumer.start()
        consumer.subscribe("Nowhere")
        await w.start(consumer)
        with pytest.raises(NoRouteError, match="Nowhere"):
            await w.finish(consumer.receive())
        for count in (0, 1025, True, "3"):
            with pytest.raises(ClientError, match="n must be"):
                await consumer.receive(count)  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="wait must be"):
            await consumer.receive(wait=-1)
        w.server.serve_route("Nowhere", **{w.server.name: w.server.address})
        w.server.put(b"a")
        (message,) = await w.finish(consumer.receive())
        for delay in (-1, 43_201):
            with pytest.raises(ClientError, match="delay must be"):
                await message.nack(delay=delay)
        with pytest.raises(ClientError, match="a received message"):
            await consumer.ack("no message")  # type: ignore[arg-type]


async def test_a_subscription_may_come_later(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        consumer.unsubscribe("T")
        consumer.subscribe("Other")
        await w.start(consumer)
        consumer.subscribe("T")
        await w.clock.advance(seconds=1)
        w.server.put(b"a")
        assert bodies(await w.finish(consumer.receive())) == [b"a"]


async def test_a_stop_ends_receives_that_wait(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        waiting = asyncio.ensure_future(consumer.receive(wait=15))
        await w.clock.advance(seconds=1)
        await w.finish(consumer.stop())
        assert await w.finish(waiting) == []


async def test_a_full_broker_is_asked_again_after_a_pause(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.refuses[POP] = 209
        waiting = asyncio.ensure_future(consumer.receive(wait=15))
        await w.clock.advance(seconds=3.5)
        assert len(w.server.of(POP)) == 4
        w.server.refuses.clear()
        w.server.put(b"a")
        assert bodies(await w.finish(waiting)) == [b"a"]
