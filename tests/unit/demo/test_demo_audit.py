"""demo/demo_audit.py: numbers that agree pass, and each number that is off by one is noticed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from skylark.demo.demo_audit import Facts, audit, flows_of
from skylark.demo.shop_consumers import RETRIES
from skylark.demo.shop_producer import CLOSING, HOURS, OPENING, orders_of_the_day


def facts(*, with_spark: bool = True) -> Facts:
    found = Facts(
        sent={"orders": 31, "steps": 8, "reminders": 4, "payments": 5, "prices": 3},
        stored={
            "orders": 31,
            "steps": 8,
            "reminders": 4,
            "payments": 4,
            "prices": 3,
            "totals": 10 if with_spark else 0,
        },
        orders=31,
        billed=30,
        billed_by={"desk-1": 20, "desk-2": 10},
        worth=700,
        billing_failures=1 + RETRIES,
        billing_lag=0,
        dead_letters=1,
        redriven=1,
        billed_afterwards=1,
        tracked=8,
        orders_in_order=2,
        orders_with_steps=2,
        called=4,
        called_too_early=0,
        payments_in_database=4,
        payments_declined=1,
        payments_seen=4,
        boards={"left": 3, "right": 3},
        hours=10,
    )
    if with_spark:
        found.spark_read, found.archived = 31, 31
        found.totals_sent, found.totals_seen, found.revenue = 10, 10, 700
    return found


def wrong(given: Facts) -> list[str]:
    return [check.check for check in audit(given) if not check.ok]


@pytest.mark.parametrize("with_spark", [True, False])
def test_numbers_that_agree_pass(with_spark: bool) -> None:
    checks = audit(facts(with_spark=with_spark))
    assert [check for check in checks if not check.ok] == []
    assert len(checks) == (28 if with_spark else 21)


@pytest.mark.parametrize("name", Facts.__struct_fields__)
def test_a_number_that_is_off_by_one_is_reported(name: str) -> None:
    value = getattr(facts(), name)
    keys = list(value) if isinstance(value, Mapping) else [None]
    for key in keys:
        broken = facts()
        off = value + 1 if key is None else {**value, key: value[key] + 1}
        setattr(broken, name, off)
        assert wrong(broken), (name, key)


def test_a_consumer_that_lost_one_is_named() -> None:
    broken = facts()
    broken.boards = {"left": 3, "right": 2}
    assert wrong(broken) == ["prices: seen by board right"]


def test_a_member_without_a_share_is_reported() -> None:
    broken = facts()
    broken.billed_by = {"desk-1": 30}
    assert wrong(broken) == ["orders: members that billed some"]


def test_the_table_has_a_line_for_each_topic() -> None:
    lines = [msgspec.structs.astuple(flow) for flow in flows_of(facts())]
    assert lines[0] == ("orders", "clustering", 31, 31, 31, 3, 1, 1, 31)
    assert lines[4][:5] == ("prices", "broadcast", 3, 3, 6)
    assert lines[5][:5] == ("totals", "Spark", 10, 10, 10)
    without = flows_of(facts(with_spark=False))
    assert len(without) == 5
    assert without[0].archived is None


def test_the_orders_of_a_day_fill_all_hours() -> None:
    orders = orders_of_the_day(60)
    assert len({(order.at - OPENING).seconds // 3600 for order in orders}) == HOURS
    assert all(OPENING <= order.at < CLOSING for order in orders)
    assert sum(order.currency != "EUR" for order in orders) == 1
