"""Values of an application instead of bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from skylark import (
    ConsumeFromWhere,
    InvalidMessageError,
    Message,
    MessageExt,
    aio,
    json_deserializer,
    json_serializer,
    msgpack_deserializer,
    msgpack_serializer,
    sync,
)
from skylark.client.core.serializers import serialized
from skylark.testing import ThreadBroker, sync_broker
from skylark.wire.message import decode_record, encode_record, pack_host


class Order(msgspec.Struct):
    number: int
    at: datetime


@dataclass
class Item:
    name: str


ORDER = Order(7, datetime(2026, 11, 18, tzinfo=UTC))


def received(body: bytes) -> MessageExt:
    host = pack_host("10.0.0.1", 5)
    record = encode_record(
        topic="T", body=body, properties=b"", queue_id=0, queue_offset=0, log_offset=0,
        sys_flag=0, born_timestamp=0, born_host=host, store_timestamp=0, store_host=host,
    )  # fmt: skip
    return MessageExt(decode_record(record), "broker-a")


@pytest.mark.parametrize(
    ("serialize", "deserialize"),
    [(json_serializer, json_deserializer), (msgpack_serializer, msgpack_deserializer)],
)
def test_the_ready_made_ones_read_what_they_write(serialize: Any, deserialize: Any) -> None:
    assert deserialize(Order)(serialize(ORDER)) == ORDER
    assert deserialize(list[Item])(serialize([Item("tea")])) == [Item("tea")]
    assert deserialize()(serialize({"a": [1, None, "x"]})) == {"a": [1, None, "x"]}
    with pytest.raises(msgspec.ValidationError):
        deserialize(Order)(serialize({"number": "seven"}))


def test_a_message_has_a_body_or_a_value() -> None:
    message = Message("T", value=ORDER, tag="A")
    made = serialized(message, json_serializer)
    assert (made.body, made.tag, made.value) == (json_serializer(ORDER), "A", msgspec.UNSET)
    plain = Message("T", b"x")
    assert serialized(plain, json_serializer) is plain
    assert serialized(Message("T", value=None), json_serializer).body == b"null"
    with pytest.raises(InvalidMessageError, match="a body or a value, not both"):
        serialized(Message("T", b"x", value=1), json_serializer)
    with pytest.raises(InvalidMessageError, match="cannot serialize a object: TypeError"):
        serialized(Message("T", value=object()), json_serializer)
    with pytest.raises(InvalidMessageError, match="must return bytes, not 'text'"):
        serialized(Message("T", value=1), lambda value: "text")  # type: ignore[arg-type,return-value]
    assert repr(plain) == "Message(topic='T', body=b'x')"


def test_json_of_a_received_message() -> None:
    message = received(json_serializer(ORDER))
    assert message.json() == {"number": 7, "at": "2026-11-18T00:00:00Z"}
    assert message.json(Order) == ORDER
    assert message.value == message.body  # without a deserializer
    with pytest.raises(InvalidMessageError, match="not the expected JSON: Expected `int`"):
        received(b'{"number": "x", "at": ""}').json(Order)
    with pytest.raises(InvalidMessageError, match="not the expected JSON"):
        received(b"tea").json()


@pytest.fixture(scope="module")
def site() -> Iterator[ThreadBroker]:
    with sync_broker() as broker:
        yield broker


async def test_values_travel_by_asyncio(site: ThreadBroker) -> None:
    topic = site.topic(queue_count=1)
    message = Message(topic, value=ORDER)
    async with aio.Producer("p", site.options, value_serializer=json_serializer) as producer:
        await producer.send(message)
        await (await producer.submit(message))
        await producer.send_oneway(message)
        await producer.send_batch([message, message])
        producer.transaction_checker(lambda message: None)
        async with producer.transaction(message):
            pass
    async with aio.Producer("q", site.options) as plain:
        with pytest.raises(InvalidMessageError, match="the producer has no value_serializer"):
            await plain.send(message)
    found: list[Any] = []
    lite = aio.LitePullConsumer(
        "lite",
        site.options,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        value_deserializer=json_deserializer(Order),
    )
    async with lite.subscribe(topic) as reader:
        while len(found) < 6:
            found += [each.value for each in await reader.poll(timeout=30)]
    assert found == [ORDER] * 6


def test_values_travel_by_threads(site: ThreadBroker) -> None:
    topic = site.topic(queue_count=1)
    message = Message(topic, value={"number": 7})
    threads: set[str] = set()

    def serialize(value: Any) -> bytes:
        threads.add(threading.current_thread().name)
        return msgpack_serializer(value)

    with sync.Producer("p", site.options, value_serializer=serialize) as producer:
        producer.send(message)
        producer.submit(message).result(30)
        producer.send_oneway(message)
        producer.send_batch([message])
    assert threads == {threading.current_thread().name}  # not the loop that all clients share
    arrived = threading.Semaphore(0)
    values: list[Any] = []

    def handle(received: MessageExt) -> None:
        values.append(received.value)
        arrived.release()

    consumer = sync.PushConsumer(
        "push",
        site.options,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        value_deserializer=msgpack_deserializer(),
    )
    consumer.subscribe(topic, handle)
    with consumer:
        assert all(arrived.acquire(timeout=30) for _ in range(4))
    assert values == [{"number": 7}] * 4
    with sync.PullConsumer(
        "pull", site.options, value_deserializer=msgpack_deserializer()
    ) as classic:
        (queue,) = classic.fetch_queues(topic)
        assert classic.pull(queue, 0, 1).messages[0].value == {"number": 7}


async def test_a_value_that_cannot_be_read_fails_in_the_handler(site: ThreadBroker) -> None:
    """The message fails as others that a handler does not accept, and holds up no other."""
    topic = site.topic(queue_count=1)
    values: list[Any] = []
    failed: list[str] = []
    done = asyncio.Event()

    async def handle(received: MessageExt) -> None:
        try:
            values.append(received.value)
        except msgspec.DecodeError as error:
            failed.append(str(error))
            raise
        finally:
            if len(values) + len(failed) == 2:
                done.set()

    async with aio.Producer("p", site.options) as producer:
        await producer.send(Message(topic, b"no JSON"))
        await producer.send(Message(topic, b"[1]"))
    consumer = aio.PushConsumer(
        "reads",
        site.options,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        max_reconsume_times=0,
        value_deserializer=json_deserializer(),
    )
    consumer.subscribe(topic, handle)
    async with consumer:
        await asyncio.wait_for(done.wait(), 30)
    assert values == [[1]]
    assert len(failed) == 1
