"""The consumers of the demo: each class is a consumer group that counts its work.

Delivery is at least once: a consumer that must not process something twice remembers the ids of
what it has processed, as :class:`Billing` does with orders.
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

#: Retries before a message becomes a dead letter.
RETRIES: Final = 3
#: Tolerance: a message is created a moment after its due time was computed.
ROUNDING: Final = timedelta(milliseconds=50)


class Billing:
    """Clustering: the members of the group share the orders; each is billed once."""

    GROUP: Final = "billing"

    def __init__(self, options: ClientOptions, rates: Mapping[str, int]) -> None:
        """``rates``: value of 100 units per currency. Orders in other currencies fail."""
        self.bills: dict[int, int] = {}  # order -> value
        self.by_member: Counter[str] = Counter()
        self.failures = 0
        self.queue_counts: dict[str, int] = {}  # per member
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
        if topic == ORDERS:  # not the retry topic
            self.queue_counts[name] = queue_count


class Tracking:
    """Orderly: one message of a queue at a time."""

    def __init__(self, options: ClientOptions) -> None:
        self.steps: dict[str, list[str]] = {}  # per order
        self.consumer = PushConsumer("tracking", options)
        self.consumer.subscribe(STEPS, self._on_step, orderly=True)

    async def _on_step(self, message: MessageExt) -> None:
        (order,) = message.keys
        self.steps.setdefault(order, []).append(message.body.decode())


class Calling:
    """Receives reminders, and counts those that arrive too early."""

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
    """Receives committed payments."""

    def __init__(self, options: ClientOptions) -> None:
        self.payments: set[int] = set()
        self.consumer = PushConsumer("cashier", options)
        self.consumer.subscribe(PAYMENTS, self._on_payment)

    async def _on_payment(self, message: MessageExt) -> None:
        self.payments.add(int(message.body))


class PriceBoard:
    """Broadcast: each board gets all prices, and stores its offsets in a file."""

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
