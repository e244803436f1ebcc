"""core/subscribers.py: who is called, in which order, and with what."""

from __future__ import annotations

import pytest

from skylark.core.subscribers import Subscribers


def test_each_value_reaches_all_subscribers_in_the_order_of_subscription() -> None:
    calls: list[tuple[str, int]] = []
    values: Subscribers[int] = Subscribers()
    values.publish(1)
    values.subscribe(lambda value: calls.append(("first", value)))
    values.subscribe(lambda value: calls.append(("second", value)))
    values.publish(2)
    values.publish(3)
    assert calls == [("first", 2), ("second", 2), ("first", 3), ("second", 3)]


def test_an_error_of_a_subscriber_reaches_the_publisher() -> None:
    values: Subscribers[str] = Subscribers()
    values.subscribe(int)
    with pytest.raises(ValueError, match="invalid literal"):
        values.publish("x")
