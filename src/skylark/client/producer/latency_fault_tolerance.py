"""Latency fault tolerance: avoids brokers for a while that were slow or failed.

The producer records the latency of each attempt. The slower it was, the longer the broker counts as
not available; a failure counts as a latency of ten seconds:

===================  ====  ====  ====  =====  =====  ======  ======
latency at least ms    50   100   550   1800   3000    5000   15000
not available for ms    0     0  2000   5000   6000  10000   30000
===================  ====  ====  ====  =====  =====  ======  ======

A broker that is not *reachable* is avoided until an attempt succeeds or the detector gets a
response from it. The detector sends a request to each unreachable broker every ``detect_interval``
seconds, and forgets brokers that are no longer in any route.

Pure state; the caller passes the time. Sends and the detector may use it from two threads, because
each update replaces a whole item. Counterpart of Java's ``LatencyFaultToleranceImpl`` and
``MQFaultStrategy``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

import msgspec

LATENCY_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15000)
NOT_AVAILABLE_MS: Final = (0, 0, 2000, 5000, 6000, 10000, 30000)
#: The latency that a failed attempt counts as.
ISOLATED_S: Final = 10.0
#: How often the detector checks which brokers are due.
DETECTOR_PERIOD_S: Final = 3.0


def avoid_s(latency_s: float) -> float:
    """How long a broker is avoided after an attempt of this latency."""
    index = bisect_right(LATENCY_MS, round(latency_s * 1000)) - 1
    return NOT_AVAILABLE_MS[index] / 1000 if index >= 0 else 0.0


class FaultItem(msgspec.Struct, frozen=True, gc=False):
    """The state of one broker; times are monotonic."""

    available_from: float
    reachable: bool
    detect_at: float


class FaultTable:
    """The brokers that one producer has sent to."""

    def __init__(self, now: Callable[[], float], detect_interval_s: float = 2.0) -> None:
        self._now = now
        self._detect_interval_s = detect_interval_s
        self._items: dict[str, FaultItem] = {}

    def update(
        self, broker_name: str, latency_s: float, *, isolated: bool, reachable: bool
    ) -> None:
        """Record the end of an attempt."""
        now = self._now()
        item = self._items.get(broker_name)
        known_from = item.available_from if item is not None else now
        pause_s = avoid_s(ISOLATED_S if isolated else latency_s)
        self._items[broker_name] = FaultItem(
            max(known_from, now + pause_s) if pause_s else known_from,
            reachable,
            item.detect_at if item is not None else now + self._detect_interval_s,
        )

    def is_available(self, broker_name: str) -> bool:
        """Whether it was not slow recently; true for brokers that were never tried."""
        item = self._items.get(broker_name)
        return item is None or self._now() >= item.available_from

    def is_reachable(self, broker_name: str) -> bool:
        """Whether the last attempt reached it."""
        item = self._items.get(broker_name)
        return item is None or item.reachable

    # ---- detector --------------------------------------------------------------------------------

    def take_due(self) -> list[str]:
        """Unreachable brokers to probe now; each is due again after the interval."""
        now = self._now()
        due = []
        for name, item in tuple(self._items.items()):
            if not item.reachable and now >= item.detect_at:
                due.append(name)
                self._items[name] = msgspec.structs.replace(
                    item, detect_at=now + self._detect_interval_s
                )
        return due

    def answered(self, broker_name: str) -> None:
        """The detector has had an answer."""
        item = self._items.get(broker_name)
        if item is not None:
            self._items[broker_name] = msgspec.structs.replace(item, reachable=True)

    def forget(self, broker_name: str) -> None:
        """The broker has no address any more."""
        self._items.pop(broker_name, None)
