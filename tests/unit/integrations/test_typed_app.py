"""integrations/typed_app.py: values in and out, beside a real broker in this process."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pydantic
import pytest

import skylark.testing
from skylark import ConfigError, Message, MessageExt
from skylark.integrations.typed_app import TypedApp, decoder_for, encode
from skylark.testing.local_broker import LocalBroker


class Order(msgspec.Struct):
    number: int
    item: str = "tea"


class Invoice(pydantic.BaseModel):
    number: int
    cents: int


@dataclasses.dataclass
class Point:
    x: int


@pytest.fixture
async def local() -> AsyncIterator[LocalBroker]:
    async with skylark.testing.broker() as made:
        yield made


async def test_values_travel_from_topic_to_topic(local: LocalBroker) -> None:
    orders, invoices = await local.topic("orders"), await local.topic("invoices")
    app = TypedApp("billing", local.options)
    seen: asyncio.Queue[tuple[Invoice, str]] = asyncio.Queue()

    @app.subscriber(orders, publish=invoices)
    async def bill(order: Order) -> Invoice | None:
        return Invoice(number=order.number, cents=250) if order.item == "tea" else None

    @app.subscriber(invoices)
    async def file(invoice: Invoice, message: MessageExt) -> None:
        seen.put_nowait((invoice, message.topic))

    async with app, asyncio.timeout(60):
        await app.publish(orders, Order(1, "milk"))
        await app.publish(orders, Order(2))
        assert await seen.get() == (Invoice(number=2, cents=250), invoices)
    assert seen.empty()


async def test_a_body_that_cannot_be_read_is_a_dead_letter_at_once(local: LocalBroker) -> None:
    topic = await local.topic()
    app = TypedApp("readers", local.options)
    seen: asyncio.Queue[Order] = asyncio.Queue()

    @app.subscriber(topic)
    async def read(order: Order) -> None:
        seen.put_nowait(order)

    async with app, asyncio.timeout(60):
        await app.producer.send(Message(topic, b"not JSON"))
        await app.publish(topic, {"number": "one"})
        await app.publish(topic, {"number": 1, "more": True})
        assert await seen.get() == Order(1)
        while (await local.admin.dlq.of("readers")).count < 2:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.01)


async def test_a_failure_is_a_retry(local: LocalBroker) -> None:
    topic = await local.topic()
    app = TypedApp("again", local.options)
    attempts: list[int] = []
    done = asyncio.Event()

    @app.subscriber(topic)
    async def fail_once(number: int, message: MessageExt) -> None:
        attempts.append(message.reconsume_times)
        if not message.reconsume_times:
            raise skylark.RetryLater(level=1)
        done.set()

    async with app, asyncio.timeout(60):
        await app.publish(topic, 7)
        await done.wait()
    assert attempts == [0, 1]


@pytest.mark.parametrize(
    ("annotation", "value", "body"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, "tea", b"tea"),
        (Order, Order(1, "x"), b'{"number":1,"item":"x"}'),
        (Invoice, Invoice(number=1, cents=2), b'{"number":1,"cents":2}'),
        (Point, Point(3), b'{"x":3}'),
        (list[int], [1, 2], b"[1,2]"),
        (dict[str, Any], {"a": None}, b'{"a":null}'),
    ],
)
def test_values_and_bodies(annotation: Any, value: Any, body: bytes) -> None:
    assert encode(value) == body
    assert decoder_for(annotation)(body) == value


@pytest.mark.parametrize(("annotation", "body"), [(str, b"\xff"), (Order, b"{}"), (Invoice, b"1")])
def test_wrong_bodies_are_value_errors(annotation: Any, body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoder_for(annotation)(body)


def test_functions_that_cannot_be_called_are_refused() -> None:
    app = TypedApp("g", skylark.ClientOptions(namesrv="127.0.0.1:1"))

    def plain(order: Order) -> None: ...

    async def bare(order) -> None: ...  # type: ignore[no-untyped-def]

    async def three(a: Order, b: MessageExt, c: int) -> None: ...

    async def other(a: Order, b: int) -> None: ...

    async def strange(a: asyncio.Queue[int]) -> None: ...

    for function, problem in (
        (plain, "not a coroutine function"),
        (bare, "no annotation"),
        (three, "takes 3 arguments"),
        (other, "must be a MessageExt"),
        (strange, "cannot be read as"),
    ):
        with pytest.raises(ConfigError, match=problem):
            app.subscriber("T")(function)  # type: ignore[type-var]
