"""Who consumes in the demo: each desk is a consumer group, and writes down what it has done.

Delivery is at least once: a desk that must not do a thing twice remembers what it has done by the
name of the thing, as :class:`Billing` does with orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from skylark.aio import PushConsumer
from skylark.client.public_names import (
    ClientOptions,
    ConsumeFromWhere,
    MessageExt,
    MessageModel,
    RetryLater,
)
from skylark.core.clock import SystemClock
from skylark.demo.shop_producer import ORDERS, PAYMENTS, PRICES, REMINDERS, STEPS, Order

#: Deliveries after the first, before a message becomes a dead letter.
RETRIES: Final = 3
#: A message is made a moment after its time was worked out.
ROUNDING: Final = timedelta(milliseconds=50)


class Billing:
    """Clustering: the members of the group share the orders; each bill is written once."""

    GROUP: Final = "billing"

    def __init__(self, options: ClientOptions, rates: Mapping[str, int]) -> None:
        """``rates``: what one hundred of a currency are worth. Without one, it cannot bill."""
        self.bills: dict[int, int] = {}  # order -> what it is worth
        self.by_member: Counter[str] = Counter()
        self.failures = 0
        self.queue_counts: dict[str, int] = {}  # of each member
        self._options = options
        self._rates = rates

    def member(self, name: str) -> PushConsumer:
        consumer = PushConsumer(
            self.GROUP,
            self._options,
            max_reconsume_times=RETRIES,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            queue_listener=lambda topic, _, mine: self._shared(name, topic, len(mine)),
        )

        @consumer.subscribe(ORDERS)
        async def bill(message: MessageExt) -> None:
            order = msgspec.json.decode(message.body, type=Order)
            if order.currency not in self._rates:
                self.failures += 1
                raise RetryLater(f"no rate for {order.currency}", level=1)  # in a second
            if order.number not in self.bills:
                self.bills[order.number] = order.cents * self._rates[order.currency] // 100
                self.by_member[name] += 1

        return consumer

    def _shared(self, name: str, topic: str, queue_count: int) -> None:
        if topic == ORDERS:  # there is the topic of its retries, too
            self.queue_counts[name] = queue_count


class Tracking:
    """In order: one message of a queue at a time."""

    def __init__(self, options: ClientOptions) -> None:
        self.steps: dict[str, list[str]] = {}  # of each order
        self.consumer = PushConsumer("tracking", options)
        self.consumer.subscribe(STEPS, self._on_step, orderly=True)

    async def _on_step(self, message: MessageExt) -> None:
        (order,) = message.keys
        self.steps.setdefault(order, []).append(message.body.decode())


class Calling:
    """Reminds customers, not before it is time."""

    def __init__(self, options: ClientOptions, delay: timedelta) -> None:
        self.called: set[bytes] = set()
        self.too_early = 0
        self._delay = delay
        self._clock = SystemClock()
        self.consumer = PushConsumer("calling", options)
        self.consumer.subscribe(REMINDERS, self._on_reminder)

    async def _on_reminder(self, message: MessageExt) -> None:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, tz=UTC)
        self.too_early += now - message.born_time < self._delay - ROUNDING
        self.called.add(message.body)


class Cashier:
    """Sees the payments that were committed."""

    def __init__(self, options: ClientOptions) -> None:
        self.payments: set[int] = set()
        self.consumer = PushConsumer("cashier", options)
        self.consumer.subscribe(PAYMENTS, self._on_payment)

    async def _on_payment(self, message: MessageExt) -> None:
        self.payments.add(int(message.body))


class PriceBoard:
    """Broadcasting: each board gets all prices, and keeps its place in a file."""

    def __init__(self, name: str, options: ClientOptions, folder: Path) -> None:
        self.prices: set[bytes] = set()
        self.consumer = PushConsumer(
            "price-boards",
            msgspec.structs.replace(options, instance_name=name),
            message_model=MessageModel.BROADCASTING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            offset_folder=folder / name,
        )
        self.consumer.subscribe(PRICES, self._on_price)

    async def _on_price(self, message: MessageExt) -> None:
        self.prices.add(message.body)
