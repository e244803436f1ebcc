"""The faults that an application must be able to bear, in words of messages.

::

    plan = MessageFaults(duplicate=0.1, drop_ack=0.05, delay_ms=(0, 50), seed=7)
    b.faults = plan                     # a broker of skylark.testing
    ...
    assert plan.hit_count               # a run in which nothing went wrong proves nothing

=============  ===================================================================================
``duplicate``  the chance that a message, or a batch, is stored twice
``drop_ack``   the chance that the connection breaks in place of an acknowledgement: after a message
               was stored, so that its producer sends it again, or before a consumer's progress is
               noted, so that it gets messages again
``delay_ms``   how late answers are, drawn between two limits for each; a number alone is both
``seed``       decides all of it; drawn if it is not given
=============  ===================================================================================

A plan decides by the how-manieth request of its kind comes in, see
:mod:`skylark.testing.fault_plan`. So the same seed does the same to the same requests in the same
order. Clients that run side by side may come in another order next time; what happens to the n-th
request stays.

This is what the pytest marker ``faults`` makes of its arguments.
"""

from __future__ import annotations

import random
from typing import Final

from skylark.core.errors import ConfigError
from skylark.testing.fault_plan import Fault, FaultAction, FaultPlan
from skylark.wire.codes import RequestCode

SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
DELAY_MS_MAX: Final = 60_000
_SEED_MAX: Final = 1_000_000


class MessageFaults(FaultPlan):
    """A fault plan in words of messages; see the module."""

    def __init__(
        self,
        *,
        duplicate: float = 0.0,
        drop_ack: float = 0.0,
        delay_ms: int | tuple[int, int] = 0,
        seed: int | None = None,
    ) -> None:
        """Raises ConfigError for what is no chance, no time or no seed."""
        self.duplicate = _chance("duplicate", duplicate)
        self.drop_ack = _chance("drop_ack", drop_ack)
        self.delay_ms = _limits(delay_ms)
        if not (self.duplicate or self.drop_ack or self.delay_ms[1]):
            raise ConfigError("no fault is asked for", hint="give duplicate, drop_ack or delay_ms")
        super().__init__(_seed(seed))
        for code in SENDS:
            if self.duplicate:
                self.chance(f"request.{code:d}", self.duplicate, action=FaultAction.DUPLICATE)
            if self.drop_ack:
                self.chance(f"response.{code:d}", self.drop_ack, action=FaultAction.CUT)
        if self.drop_ack:
            progress = f"request.{RequestCode.UPDATE_CONSUMER_OFFSET:d}"
            self.chance(progress, self.drop_ack, action=FaultAction.CUT)

    def draw(self, point: str, detail: str = "") -> Fault:
        """As in any plan; an answer that is not lost is late."""
        fault = super().draw(point, detail)
        if fault.action is not FaultAction.NONE or not point.startswith("response."):
            return fault
        delay_ms = self.stream(f"delay.{point}").randint(*self.delay_ms)
        return Fault(FaultAction.DELAY, delay_ms=delay_ms) if delay_ms else fault

    @property
    def hit_count(self) -> int:
        """How many faults had an effect so far; delays count if nothing else was asked for."""
        if not (self.duplicate or self.drop_ack):
            return super().hit_count
        delays = f"/{FaultAction.DELAY.value}"
        return sum(count for name, count in self.hits.items() if not name.endswith(delays))

    def __str__(self) -> str:
        """The marker that gives the same faults again, and what they did."""
        arguments = {"duplicate": self.duplicate, "drop_ack": self.drop_ack}
        given = [f"{name}={value:g}" for name, value in arguments.items() if value]
        if self.delay_ms[1]:
            given.append(f"delay_ms={self.delay_ms}")
        hits = ", ".join(f"{count} x {name}" for name, count in sorted(self.hits.items()))
        marker = ", ".join([*given, f"seed={self.seed}"])
        return f"faults({marker}); what took effect: {hits or 'nothing'}"


def _chance(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a probability from 0 to 1, not {value!r}")
    return float(value)


def _limits(value: object) -> tuple[int, int]:
    pair = value if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) == 2 and all(type(each) is int for each in pair):
        low, high = pair
        if 0 <= low <= high <= DELAY_MS_MAX:
            return low, high
    raise ConfigError(
        f"delay_ms must be milliseconds, or the least and the most of them, not {value!r}",
        hint=f"delay_ms=(0, 50); at most {DELAY_MS_MAX}",
    )


def _seed(value: object) -> int:
    if value is None:
        return random.SystemRandom().randrange(_SEED_MAX)
    if type(value) is not int:
        raise ConfigError(f"seed must be an integer, not {value!r}")
    return value
