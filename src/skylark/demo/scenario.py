"""The steps of the demo, in order.

::

    skylark up -> consumers join -> everything is sent -> everything is consumed
      -> a poison message becomes a dead letter -> billing is fixed -> redrive -> Spark -> audit

A step that waits for a figure stops waiting after :data:`PATIENCE_S` and does not fail; the audit
reports wrong figures at the end. If Spark fails, the audit covers the steps before it, and the
outcome names the cause.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from skylark.admin.errors import NotFoundError
from skylark.aio import Admin, LitePullConsumer, PushConsumer
from skylark.client.public_names import ClientOptions, ConsumeFromWhere
from skylark.core.clock import LoopClock, SystemClock
from skylark.core.errors import SkylarkError
from skylark.core.interrupts import run_whole
from skylark.demo.demo_audit import TOTALS, Facts, Outcome, audit, flows_of
from skylark.demo.shop_consumers import Billing, Calling, Cashier, PriceBoard, Tracking
from skylark.demo.shop_producer import (
    HOURS,
    ORDERS,
    PAYMENTS,
    PRICES,
    REMINDERS,
    STEPS,
    STEPS_OF_AN_ORDER,
    OrderService,
    orders_of_the_day,
)
from skylark.launch.launch_plan import EPHEMERAL

ORDER_COUNT: Final = 300
TRACKED_COUNT: Final = 12  # orders with step messages
REMINDER_COUNT: Final = 10
PAYMENT_COUNT: Final = 20
PRICE_COUNT: Final = 8
DELAY: Final = timedelta(seconds=1)
TOPICS: Final = {ORDERS: 4, STEPS: 4, REMINDERS: 2, PAYMENTS: 2, PRICES: 2, TOTALS: 2}
PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.02
STOP_WITHIN_S: Final = 30
#: Check-backs come soon after the timeout of a transaction.
SERVER_SETTINGS: Final = {"transactionCheckInterval": "1000", "transactionTimeOut": "1000"}


#: Reports a step of the demo that lasts as long as the block; yields a function that takes its
#: result.
Step: TypeAlias = Callable[[str], AbstractContextManager[Callable[[str], None]]]


def play(folder: Path, step: Step, *, with_spark: bool, quiet: bool = True) -> Outcome:
    """Run the demo, with all files below ``folder``; raises SkylarkError.

    ``quiet``: hide Spark's log.
    """
    clock = SystemClock()
    began = clock.monotonic()
    with ExitStack() as stack:
        with step("skylark up") as report_result:
            servers = stack.enter_context(running_servers(folder, TOPICS))
            report_result(", ".join(f"{name} {address}" for name, address in servers.items()))
        namesrv = servers["namesrv"]
        options = ClientOptions(namesrv=namesrv)
        facts = run_whole(_Day(options, folder, step).trade)
        spark_problem = None
        if with_spark:
            try:
                _run_spark(options, folder, step, facts, quiet=quiet)
            except SkylarkError as error:
                spark_problem = error
    seconds = round(clock.monotonic() - began, 1)
    return Outcome(
        flows=flows_of(facts), checks=audit(facts), seconds=seconds, spark_problem=spark_problem
    )


def _run_spark(
    options: ClientOptions, folder: Path, step: Step, facts: Facts, *, quiet: bool
) -> None:
    """The steps that need Spark; adds their figures. Raises SkylarkError, and then adds none."""
    from skylark.demo.lake_pipeline import fill_lake

    namesrv = options.namesrv
    assert isinstance(namesrv, str)
    with step("Spark: totals per hour, and a lake") as report_result:
        counts = fill_lake(namesrv, folder, quiet=quiet)
        report_result(f"{counts.read} orders read, {counts.archived} archived as Parquet")
    facts.spark_read = counts.read
    facts.totals_sent = counts.sent
    facts.spark_read_again = counts.read_again
    facts.archived = counts.archived
    with step("finance reads the totals") as report_result:
        run_whole(partial(_read_totals, options, facts))
        report_result(f"{facts.totals_seen} hours, {facts.revenue / 100:,.2f} in all")


class _Day:
    """The steps that need no Spark."""

    def __init__(self, options: ClientOptions, folder: Path, step: Step) -> None:
        self._options = options
        self._step = step
        self._clock = LoopClock()
        # The first version of billing has no rate for francs.
        self._billing = Billing(options, rates={"EUR": 100})
        self._repaired = Billing(options, rates={"EUR": 100, "CHF": 104})
        self._tracking = Tracking(options)
        self._calling = Calling(options, DELAY)
        self._cashier = Cashier(options)
        self._boards = {
            name: PriceBoard(name, options, folder / "boards") for name in ("left", "right")
        }
        self._orders = orders_of_the_day(ORDER_COUNT)

    async def trade(self) -> Facts:
        """Run all steps."""
        async with AsyncExitStack() as stack:
            members = await self._join(stack)
            service = await stack.enter_async_context(OrderService(self._options))
            await self._send(service)
            await self._consume(service)
            admin = await stack.enter_async_context(Admin(self._options))
            dead_letters = await self._wait_for_dead_letter(admin)
            await asyncio.gather(*(member.stop() for member in members))
            redriven = await self._redrive(admin)
            return await self._facts(service, admin, dead_letters, redriven)

    async def _join(self, stack: AsyncExitStack) -> list[PushConsumer]:
        with self._step("consumers join their groups") as report_result:
            members = [self._billing.member(name) for name in ("desk-1", "desk-2")]
            consumers = [
                *members,
                self._tracking.consumer,
                self._calling.consumer,
                self._cashier.consumer,
                *(board.consumer for board in self._boards.values()),
            ]
            await asyncio.gather(*map(stack.enter_async_context, consumers))
            shares = self._billing.queue_counts
            await self._until(lambda: sorted(shares.values()) == [2, 2])
            report_result(f"{len(consumers)} consumers: clustering, in order, broadcasting")
        return members

    async def _send(self, service: OrderService) -> None:
        with self._step("normal messages") as report_result:
            await service.place_orders(self._orders)
            await service.close_the_day()
            await service.announce_prices(PRICE_COUNT)
            report_result(f"{service.sent[ORDERS]} orders, {service.sent[PRICES]} prices")
        with self._step("ordered messages") as report_result:
            await service.report_steps(self._orders[:TRACKED_COUNT])
            report_result(f"{service.sent[STEPS]} steps of {TRACKED_COUNT} orders")
        with self._step("delayed messages") as report_result:
            await service.remind(REMINDER_COUNT, DELAY)
            report_result(f"{service.sent[REMINDERS]} reminders, due in {DELAY.seconds} s")
        with self._step("transactional messages") as report_result:
            for number in range(PAYMENT_COUNT):
                await service.take_payment(
                    number, is_declined=number % 5 == 0, is_cut_off=number % 7 == 1
                )
            report_result(f"{service.sent[PAYMENTS]} payments, {service.declined} rolled back")

    async def _consume(self, service: OrderService) -> None:
        with self._step("consumers receive everything") as report_result:
            due = service.payments()
            await self._until(
                lambda: (
                    len(self._billing.bills) == service.sent[ORDERS] - 1
                    and self._tracked() == service.sent[STEPS]
                    and len(self._calling.called) == service.sent[REMINDERS]
                    and self._cashier.payments == due
                    and all(len(it.prices) == PRICE_COUNT for it in self._boards.values())
                )
            )
            shares = self._billing.by_member
            report_result(
                ", ".join(f"{name} billed {count}" for name, count in sorted(shares.items()))
            )

    def _tracked(self) -> int:
        return sum(map(len, self._tracking.steps.values()))

    async def _wait_for_dead_letter(self, admin: Admin) -> int:
        """Wait until the message that billing cannot process is a dead letter."""

        async def count() -> int:
            try:
                return (await admin.dlq.of(Billing.GROUP)).count
            except NotFoundError:
                return 0

        with self._step("a poison message fails") as report_result:
            found = 0
            deadline = self._clock.monotonic() + PATIENCE_S
            while not found and self._clock.monotonic() < deadline:
                await self._clock.sleep(5 * _POLL_S)
                found = await count()
            report_result(
                f"an order in francs failed {self._billing.failures} times: now a dead letter"
            )
        return found

    async def _redrive(self, admin: Admin) -> int:
        """Start a fixed version of billing, and redrive the dead letter."""
        with self._step("fixed, and redriven") as report_result:
            async with self._repaired.member("desk-1"):
                report = await admin.dlq.redrive(Billing.GROUP, to="group")
                await self._until(lambda: len(self._repaired.bills) == report.counts.sent)
            report_result(
                f"{report.counts.sent} dead letter redriven, {len(self._repaired.bills)} billed"
            )
        return report.counts.sent

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a condition, with a timeout."""
        deadline = self._clock.monotonic() + PATIENCE_S
        while not is_so() and self._clock.monotonic() < deadline:
            await self._clock.sleep(_POLL_S)

    async def _facts(
        self, service: OrderService, admin: Admin, dead_letters: int, redriven: int
    ) -> Facts:
        progress = await admin.groups.progress(Billing.GROUP, ORDERS)
        return Facts(
            sent=dict(service.sent),
            stored={topic: await _stored(admin, topic) for topic in TOPICS},
            orders=len(self._orders) + 1,  # and the last one of the day
            billed=len(self._billing.bills),
            billed_by=dict(self._billing.by_member),
            worth=sum(order.cents for order in self._orders),
            billing_failures=self._billing.failures,
            billing_lag=sum(queue.lag for queue in progress.queues),
            dead_letters=dead_letters,
            redriven=redriven,
            billed_afterwards=len(self._repaired.bills),
            tracked=self._tracked(),
            orders_in_order=sum(
                steps == list(STEPS_OF_AN_ORDER) for steps in self._tracking.steps.values()
            ),
            orders_with_steps=TRACKED_COUNT,
            called=len(self._calling.called),
            called_too_early=self._calling.too_early,
            payments_in_database=len(service.payments()),
            payments_declined=service.declined,
            payments_seen=len(self._cashier.payments),
            boards={name: len(board.prices) for name, board in self._boards.items()},
            hours=HOURS,
        )


async def _stored(admin: Admin, topic: str) -> int:
    """The number of messages in the queues of a topic."""
    return sum(queue.count for queue in (await admin.offsets.bounds(topic)).queues)


async def _read_totals(options: ClientOptions, facts: Facts) -> None:
    """Consume and add up the totals that Spark has sent."""
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer = LitePullConsumer("finance", options, consume_from_where=first)
    async with Admin(options) as admin:
        facts.stored = {**facts.stored, TOTALS: await _stored(admin, TOTALS)}
    async with consumer.subscribe(TOTALS):
        while facts.totals_seen < facts.stored[TOTALS]:
            messages = await consumer.poll(PATIENCE_S)
            if not messages:
                return
            for message in messages:
                facts.totals_seen += 1
                facts.revenue += int(msgspec.json.decode(message.body)["cents"])


# ---- servers -------------------------------------------------------------------------------------


@contextmanager
def running_servers(folder: Path, topics: Mapping[str, int]) -> Iterator[dict[str, str]]:
    """Run ``skylark up`` in a child process on free ports; yields the addresses of the servers.

    ``topics``: name -> number of queues. Raises SkylarkError if the servers do not start. Their log
    is ``up.log`` in ``folder``.
    """
    log = folder / "up.log"
    command = [
        *(sys.executable, "-P", "-m", "skylark", "--log-level", "warning", "up"),
        *("--data", str(folder / "store"), "--namesrv-port", "0", "--broker-port", "0"),
    ]
    for key, value in {**EPHEMERAL, **SERVER_SETTINGS}.items():
        command += ["--set", f"{key}={value}"]
    for topic, queue_count in topics.items():
        command += ["--topic", f"{topic}:{queue_count}"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert process.stdout is not None
        ready, *pairs = process.stdout.readline().split() or [""]
        if ready != "ready":
            lines = log.read_text().strip().splitlines() or ["its log is empty"]
            raise SkylarkError(f"skylark up did not start: {lines[-1].removeprefix('Error: ')}")
        yield dict(pair.split("=", 1) for pair in pairs)
    finally:
        process.terminate()
        try:
            process.communicate(timeout=STOP_WITHIN_S)
        except subprocess.TimeoutExpired:  # its folder will be removed
            process.kill()
            process.communicate()
