"""The order service of the demo: one producer, and every kind of message.

::

    orders       normal         an order; concurrent sends are combined into batches
    steps        ordered        progress of an order; equal sharding keys: one queue, in order
    reminders    delayed        delivered when it is due
    payments     transactional  delivered if and only if the payment is in the database
    prices       normal         consumed by broadcast: each price board gets all of them

``sent`` counts acknowledged messages by topic.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Final, Self

import msgspec

from skylark.aio import Producer
from skylark.client.public_names import ClientOptions, Message, MessageExt, TxState

ORDERS: Final = "orders"
STEPS: Final = "steps"
REMINDERS: Final = "reminders"
PAYMENTS: Final = "payments"
PRICES: Final = "prices"

STEPS_OF_AN_ORDER: Final = ("placed", "paid", "packed", "shipped")
OPENING: Final = datetime(2026, 11, 2, 8, tzinfo=UTC)
HOURS: Final = 10  # opening hours of the shop
CLOSING: Final = OPENING + timedelta(hours=HOURS)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An order of a customer."""

    number: int
    customer: str
    cents: int
    currency: str
    at: datetime


class CardDeclinedError(Exception):
    """The bank declined the card."""


def orders_of_the_day(count: int) -> list[Order]:
    """Orders of the opening hours, the same in every run.

    One is paid in francs, which the first version of billing cannot process.
    """
    customers = ("c-01", "c-02", "c-03", "c-04", "c-05")
    pause = (CLOSING - OPENING) / count
    return [
        Order(
            number=number,
            customer=customers[number % len(customers)],
            cents=500 + 37 * number % 9_000,
            currency="CHF" if number == count // 2 else "EUR",
            at=OPENING + number * pause,
        )
        for number in range(count)
    ]


class OrderService:
    """The order service: ``async with OrderService(options) as service``."""

    def __init__(self, options: ClientOptions) -> None:
        self.sent: Counter[str] = Counter()
        self.declined = 0  # payments that were rolled back
        # A long timeout: on a busy machine, a retry after a timeout may store a message twice.
        self._producer = Producer("order-service", options, send_timeout=30)
        self._producer.transaction_checker(self._check_payment)
        self._database = sqlite3.connect(":memory:")
        self._database.execute("create table payments (number integer, transaction_id text)")

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._producer.stop()
        self._database.close()

    # ---- normal ----------------------------------------------------------------------------------

    async def place_orders(self, orders: list[Order]) -> None:
        messages = [
            Message(
                ORDERS, msgspec.json.encode(order), tag=order.currency, keys=[f"o-{order.number}"]
            )
            for order in orders
        ]
        results = await asyncio.gather(*map(self._producer.send, messages))
        self.sent[ORDERS] += len(results)

    async def close_the_day(self) -> None:
        """Send an order of 0 at closing time, which completes the last hour for Spark."""
        last = Order(number=-1, customer="nobody", cents=0, currency="EUR", at=CLOSING)
        await self.place_orders([last])

    async def announce_prices(self, count: int) -> None:
        for number in range(count):
            await self._producer.send(Message(PRICES, b"tea costs %d" % (100 + number)))
            self.sent[PRICES] += 1

    # ---- ordered ---------------------------------------------------------------------------------

    async def report_steps(self, orders: list[Order]) -> None:
        """Send the first step of all orders, then the second, and so on."""
        for step in STEPS_OF_AN_ORDER:
            for order in orders:
                name = f"o-{order.number}"
                await self._producer.send(Message(STEPS, step.encode(), keys=[name]), shard=name)
                self.sent[STEPS] += 1

    # ---- delayed ---------------------------------------------------------------------------------

    async def remind(self, count: int, delay: timedelta) -> None:
        """Send reminders: half with a delivery time, half with delay level 1 (one second)."""
        for number in range(count):
            message = Message(REMINDERS, b"customer %d" % number)
            if number % 2:
                await self._producer.send(message, delay_level=1)
            else:
                await self._producer.send(message, delay=delay)
            self.sent[REMINDERS] += 1

    # ---- transactional ---------------------------------------------------------------------------

    async def take_payment(self, number: int, *, is_declined: bool, is_cut_off: bool) -> None:
        """Insert the row and send the message, or neither.

        If the connection is lost after the database commit, the broker sends a check-back.
        """
        message = Message(PAYMENTS, b"%d" % number)
        try:
            async with self._producer.transaction(message) as tx:
                with self._database:
                    row = (number, tx.id)
                    self._database.execute("insert into payments values (?, ?)", row)
                    if is_declined:
                        raise CardDeclinedError  # noqa: TRY301 - rolls back the row and the message
                if is_cut_off:
                    tx.unknown()
        except CardDeclinedError:
            self.declined += 1
        self.sent[PAYMENTS] += 1

    async def _check_payment(self, message: MessageExt) -> TxState:
        """Answer a check-back of the broker from the database.

        Without a row the transaction may still be running, so the broker must ask again.
        """
        query = "select count(*) from payments where transaction_id = ?"
        (count,) = self._database.execute(query, [message.transaction_id]).fetchone()
        return TxState.COMMIT if count else TxState.UNKNOWN

    def payments(self) -> set[int]:
        """The payments in the database."""
        rows = self._database.execute("select number from payments")
        return {number for (number,) in rows}
