"""The order service of the demo: one producer, and every kind of message.

::

    orders       normal         an order; many are sent at once and travel together
    steps        ordered        what happens to an order; equal shard: the same queue, in order
    reminders    delayed        appears when its time has come
    payments     transactional  appears if, and only if, the payment is in the database
    prices       normal         consumed by broadcasting: each price board gets all of them

``sent`` has what brokers have acknowledged, by topic.
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
HOURS: Final = 10  # the shop is open
CLOSING: Final = OPENING + timedelta(hours=HOURS)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a customer has bought."""

    number: int
    customer: str
    cents: int
    currency: str
    at: datetime


class CardDeclinedError(Exception):
    """The customer's bank says no."""


def orders_of_the_day(count: int) -> list[Order]:
    """Orders from opening to closing time, the same ones each time.

    One is paid in francs, which not everybody expects.
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
    """``async with OrderService(options) as service``; see the module."""

    def __init__(self, options: ClientOptions) -> None:
        self.sent: Counter[str] = Counter()
        self.declined = 0  # payments that were rolled back
        # Long: a send that is given up and repeated on a busy machine may be stored twice.
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
        """An order of nothing at closing time, for those who count by the hour."""
        last = Order(number=-1, customer="nobody", cents=0, currency="EUR", at=CLOSING)
        await self.place_orders([last])

    async def announce_prices(self, count: int) -> None:
        for number in range(count):
            await self._producer.send(Message(PRICES, b"tea costs %d" % (100 + number)))
            self.sent[PRICES] += 1

    # ---- ordered ---------------------------------------------------------------------------------

    async def report_steps(self, orders: list[Order]) -> None:
        """All orders get on by one step, then by the next."""
        for step in STEPS_OF_AN_ORDER:
            for order in orders:
                name = f"o-{order.number}"
                await self._producer.send(Message(STEPS, step.encode(), keys=[name]), shard=name)
                self.sent[STEPS] += 1

    # ---- delayed ---------------------------------------------------------------------------------

    async def remind(self, count: int, delay: timedelta) -> None:
        """Every other one by time, the others by the broker's first delay level, one second."""
        for number in range(count):
            message = Message(REMINDERS, b"customer %d" % number)
            if number % 2:
                await self._producer.send(message, delay_level=1)
            else:
                await self._producer.send(message, delay=delay)
            self.sent[REMINDERS] += 1

    # ---- transactional ---------------------------------------------------------------------------

    async def take_payment(self, number: int, *, is_declined: bool, is_cut_off: bool) -> None:
        """Row and message, or neither.

        When we are cut off behind the commit of the database, the broker asks how it ended.
        """
        message = Message(PAYMENTS, b"%d" % number)
        try:
            async with self._producer.transaction(message) as tx:
                with self._database:
                    row = (number, tx.id)
                    self._database.execute("insert into payments values (?, ?)", row)
                    if is_declined:
                        raise CardDeclinedError  # noqa: TRY301 - takes back the row and the message
                if is_cut_off:
                    tx.unknown()
        except CardDeclinedError:
            self.declined += 1
        self.sent[PAYMENTS] += 1

    async def _check_payment(self, message: MessageExt) -> TxState:
        """The broker has not heard how a transaction ended: the database knows.

        Without a row it may still go on, so the broker shall ask again.
        """
        query = "select count(*) from payments where transaction_id = ?"
        (count,) = self._database.execute(query, [message.transaction_id]).fetchone()
        return TxState.COMMIT if count else TxState.UNKNOWN

    def payments(self) -> set[int]:
        """The payments in the database."""
        rows = self._database.execute("select number from payments")
        return {number for (number,) in rows}
