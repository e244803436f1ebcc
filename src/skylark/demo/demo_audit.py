"""The audit of the demo: compares figures from independent sources.

Producers count acknowledgements, consumers count handled messages, brokers report the offsets of
their queues, and Spark counts what it read and the rows in the lake. :func:`audit` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from skylark.core.errors import SkylarkError
from skylark.demo.shop_consumers import RETRIES

TOTALS: Final = "totals"


class Flow(msgspec.Struct, kw_only=True):
    """The figures of one topic; None where it has none."""

    topic: str
    kind: str
    sent: int
    stored: int  #: messages in its queues, from the broker
    consumed: int
    retried: int | None = None
    dead: int | None = None
    redriven: int | None = None
    archived: int | None = None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Two figures that must be equal."""

    check: str
    expected: int
    found: int

    @property
    def ok(self) -> bool:
        return self.expected == self.found


class Facts(msgspec.Struct, kw_only=True):
    """The figures of all parts of the demo."""

    sent: Mapping[str, int]  #: by topic
    stored: Mapping[str, int]  #: by topic, from the broker
    orders: int
    billed: int  #: orders, billed by the first version
    billed_by: Mapping[str, int]  #: by member
    worth: int  #: value of all orders, in cents
    billing_failures: int  #: deliveries that failed
    billing_lag: int  #: from the broker
    dead_letters: int
    redriven: int
    billed_afterwards: int  #: by the fixed version
    tracked: int  #: steps
    orders_in_order: int
    orders_with_steps: int
    called: int
    called_too_early: int
    payments_in_database: int
    payments_declined: int
    payments_seen: int
    boards: Mapping[str, int]  #: prices that each has received
    hours: int
    totals_sent: int = 0  #: from the log of the sink
    totals_seen: int = 0  #: messages
    revenue: int = 0  #: sum of them, in cents
    spark_read: int | None = None  #: None: Spark was skipped
    spark_read_again: int = 0
    archived: int = 0


def flows_of(facts: Facts) -> list[Flow]:
    """The figures per topic."""
    sent, stored = facts.sent, facts.stored
    with_spark = facts.spark_read is not None
    retries = facts.billing_failures - facts.dead_letters
    rows = [
        ("orders", "clustering", facts.billed + facts.billed_afterwards),
        ("steps", "ordered", facts.tracked),
        ("reminders", "delayed", facts.called),
        ("payments", "transacted", facts.payments_seen),
        ("prices", "broadcast", sum(facts.boards.values())),
    ]
    flows = [
        Flow(topic=topic, kind=kind, sent=sent[topic], stored=stored[topic], consumed=consumed)
        for topic, kind, consumed in rows
    ]
    flows[0].retried = retries
    flows[0].dead = facts.dead_letters
    flows[0].redriven = facts.redriven
    if with_spark:
        flows[0].archived = facts.archived
        flows.append(
            Flow(
                topic=TOTALS,
                kind="Spark",
                sent=facts.totals_sent,
                stored=stored[TOTALS],
                consumed=facts.totals_seen,
            )
        )
    return flows


def audit(facts: Facts) -> list[Check]:
    """All checks."""
    f = facts
    pairs: list[tuple[str, int, int]] = [
        ("orders: stored by the broker", f.sent["orders"], f.stored["orders"]),
        ("orders: billed, all but the one in francs", f.orders - 1, f.billed),
        ("orders: billed by the two members together", f.billed, sum(f.billed_by.values())),
        ("orders: members that billed some", 2, sum(count > 0 for count in f.billed_by.values())),
        ("orders: lag of billing at the broker", 0, f.billing_lag),
        ("poison: deliveries that failed", 1 + RETRIES, f.billing_failures),
        ("poison: dead letters", 1, f.dead_letters),
        ("poison: sent again", 1, f.redriven),
        ("poison: billed after the fix", 1, f.billed_afterwards),
        ("steps: stored by the broker", f.sent["steps"], f.stored["steps"]),
        ("steps: consumed", f.sent["steps"], f.tracked),
        ("steps: orders whose steps came in order", f.orders_with_steps, f.orders_in_order),
        ("reminders: stored by the broker", f.sent["reminders"], f.stored["reminders"]),
        ("reminders: consumed", f.sent["reminders"], f.called),
        ("reminders: consumed too early", 0, f.called_too_early),
        (
            "payments: in the database",
            f.sent["payments"] - f.payments_declined,
            f.payments_in_database,
        ),
        ("payments: consumed", f.payments_in_database, f.payments_seen),
        ("payments: stored by the broker", f.payments_in_database, f.stored["payments"]),
        ("prices: stored by the broker", f.sent["prices"], f.stored["prices"]),
        *(
            (f"prices: seen by board {name}", f.sent["prices"], seen)
            for name, seen in f.boards.items()
        ),
    ]
    if f.spark_read is not None:
        pairs += [
            ("Spark: orders read", f.sent["orders"], f.spark_read),
            ("Spark: hours that were sent", f.hours, f.totals_sent),
            ("Spark: stored by the broker", f.totals_sent, f.stored[TOTALS]),
            ("Spark: hours that were consumed", f.totals_sent, f.totals_seen),
            ("Spark: revenue of all hours, in cents", f.worth, f.revenue),
            ("Spark: found by a second run", 0, f.spark_read_again),
            ("lake: orders archived", f.stored["orders"], f.archived),
        ]
    return [Check(check=name, expected=expected, found=found) for name, expected, found in pairs]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the demo."""

    flows: list[Flow]
    checks: list[Check]
    seconds: float
    spark_problem: SkylarkError | None = None  #: why Spark's part has no figures

    @property
    def disagreements(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]
