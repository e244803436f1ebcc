"""Consumers of JSON, one by a typed function and one that decodes by itself, on one event loop."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final, Protocol

import msgspec

from bench.harness import Case
from bench.tasks_load.counter import Counter
from skylark import ClientOptions, ConsumeFromWhere, Message, MessageExt
from skylark.aio import PushConsumer
from skylark.client.blocking.event_loop_thread import shared_loop_thread
from skylark.integrations.typed_app import TypedApp
from skylark.sync import Producer

PLAIN: Final = "typed-plain"
TYPED: Final = "typed-app"
#: All that is sent is there for a new group, whenever it starts.
START: Final = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Order(msgspec.Struct):
    number: int
    item: str
    cents: int


class Consumer(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def plain_consumer(counter: Counter, options: ClientOptions) -> PushConsumer:
    """What a typed subscriber is compared with."""
    consumer = PushConsumer(PLAIN, options, consume_from_where=START)
    decode = msgspec.json.Decoder(Order).decode

    @consumer.subscribe(PLAIN)
    async def take(message: MessageExt) -> None:
        counter.count(decode(message.body).number)

    return consumer


def typed_app(counter: Counter, options: ClientOptions) -> TypedApp:
    app = TypedApp(TYPED, options, consume_from_where=START)

    @app.subscriber(TYPED)
    async def take(order: Order) -> None:
        counter.count(order.number)

    return app


class Site:
    """A running consumer of a topic, and the batch that it is sent in each run."""

    def __init__(
        self,
        stack: ExitStack,
        topic: str,
        consumer: Consumer,
        counter: Counter,
        producer: Producer,
        count: int,
    ) -> None:
        self._counter = counter
        self._producer = producer
        orders = (Order(number, "tea", 250) for number in range(count))
        self._batch = [Message(topic, msgspec.json.encode(order)) for order in orders]
        loop = shared_loop_thread()
        loop.call(consumer.start())
        stack.callback(lambda: loop.call(consumer.stop()))

    def run(self) -> None:
        self._counter.expect(len(self._batch))
        self._producer.send_batch(self._batch)
        self._counter.wait()


def typed_cases(stack: ExitStack, namesrv: str, count: int) -> list[Case]:
    """The same messages for both consumers; the topics are there."""
    options = ClientOptions(namesrv=namesrv)
    producer = stack.enter_context(Producer("typed-sender", options))
    plain, typed = Counter(), Counter()
    sites = [
        Site(stack, PLAIN, plain_consumer(plain, options), plain, producer, count),
        Site(stack, TYPED, typed_app(typed, options), typed, producer, count),
    ]
    names = ("consume, decoded by hand", "consume, TypedApp")
    return [
        Case(name, site.run, count, "message", floor)
        for name, site, floor in zip(names, sites, (None, names[0]), strict=True)
    ]
