"""Callbacks that are called with each new value: changed settings, changed tables, deleted topics.

::

    changes: Subscribers[Config] = Subscribers()
    changes.subscribe(store.apply_settings)
    changes.publish(config)         # calls store.apply_settings(config)

Subscribers are called at once, in the order in which they subscribed, by the code that publishes:
when ``publish`` returns, every one of them works with the new value. A subscriber that raises ends
the call: what it raises is an error of ours. Subscriptions last as long as the object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class Subscribers(Generic[ValueT]):
    """The callbacks for one kind of event."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[ValueT], object]] = []

    def subscribe(self, callback: Callable[[ValueT], object]) -> None:
        """Call ``callback`` with each value that is published from now on."""
        self._callbacks.append(callback)

    def publish(self, value: ValueT) -> None:
        """Call all callbacks with a value."""
        for callback in self._callbacks:
            callback(value)
