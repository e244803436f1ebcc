"""Faults of requests and responses inside a broker: lost, late, duplicated or refused.

:class:`RequestFaults` is an interceptor for :class:`~skylark.net.dispatch.Dispatcher`. A lost
*request* never reaches its handler; a lost *response* belongs to a request that was handled. A
client cannot distinguish the two. Points of the plan: ``request.CODE`` before the handler and
``response.CODE`` (the request's code) before the response is sent. Actions: DROP, DELAY, DUPLICATE,
ERROR (respond with a code), CLOSE, CUT.

:class:`MessageFaults` is a plan for applications, in terms of messages; the pytest marker
``faults`` creates it from its arguments::

    plan = MessageFaults(duplicate=0.1, drop_ack=0.05, delay_ms=(0, 50), seed=7)
    b.faults = plan                     # a broker of skylark.testing
    ...
    assert plan.hit_count               # a run without any fault proves nothing

=============  ===================================================================================
``duplicate``  the chance that a message, or a batch, is stored twice
``drop_ack``   the chance that the connection breaks in place of an acknowledgement: after a message
               was stored, so that its producer sends it again, or before a consume offset is
               stored, so that the consumer gets messages again
``delay_ms``   how late responses are, drawn between two limits for each; a number alone is both
``seed``       decides all of it; drawn if it is not given
=============  ===================================================================================

A plan decides by the number of the request among those of its code, see
:mod:`skylark.testing.fault_plan`: the same seed does the same to the same requests in the same
order. Clients that run in parallel may arrive in another order next time; the fault of the n-th
request stays the same.
"""

from __future__ import annotations

import random
from contextvars import ContextVar
from typing import Final

from skylark.core.clock import Clock
from skylark.core.errors import ConfigError
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher, NoAnswerError
from skylark.net.write_queue import ViewResponse
from skylark.testing.fault_plan import Fault, FaultAction, FaultPlan
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to

SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
DELAY_MS_MAX: Final = 60_000
_SEED_MAX: Final = 1_000_000
_INJECTED: Final = "injected by the fault plan"

# Set while a request that has had its fault passes the dispatcher again. A task that the dispatcher
# starts for it inherits the mark; requests of other tasks do not have it.
_passing: ContextVar[RequestFaults | None] = ContextVar("passing", default=None)


class RequestFaults:
    """Carries out the decisions of a plan; add it to ``dispatcher.interceptors``."""

    def __init__(self, plan: FaultPlan, dispatcher: Dispatcher, clock: Clock) -> None:
        self._plan = plan
        self._dispatcher = dispatcher
        self._clock = clock

    def before(self, connection: Connection, request: Command) -> Command | None:
        if _passing.get() is self:
            _passing.set(None)
            return None
        fault = self._draw(f"request.{request.code}")
        if fault.action is FaultAction.NONE:
            return None
        if fault.action is FaultAction.DELAY:
            self._clock.call_later(fault.delay_ms / 1000, self._repeat, connection, request)
        elif fault.action is FaultAction.DUPLICATE:
            self._repeat(connection, request)
            return None
        elif fault.action is FaultAction.ERROR:
            return response_to(request, fault.error, _INJECTED)
        else:
            _end(connection, fault)
        raise NoAnswerError

    def after(
        self, connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        if response is None:
            return None
        fault = self._draw(f"response.{request.code}")
        if fault.action is FaultAction.NONE:
            return response
        if isinstance(response, ViewResponse):
            response.copy_body()  # it may be sent later, or twice
        if fault.action is FaultAction.DELAY:
            self._clock.call_later(fault.delay_ms / 1000, connection.reply, request, response)
        elif fault.action is FaultAction.DUPLICATE:
            connection.reply(request, response)
            return response
        elif fault.action is FaultAction.ERROR:
            return response_to(request, fault.error, _INJECTED)
        else:
            _end(connection, fault)
        return None

    def _draw(self, point: str) -> Fault:
        """The fault of this visit, counted as a hit: it always takes effect."""
        fault = self._plan.draw(point)
        if fault.action is not FaultAction.NONE:
            self._plan.hit(point, fault.action)
        return fault

    def _repeat(self, connection: Connection, request: Command) -> None:
        if not connection.is_closing:
            mark = _passing.set(self)
            try:
                self._dispatcher.dispatch(connection, request)
            finally:
                _passing.reset(mark)


def _end(connection: Connection, fault: Fault) -> None:
    if fault.action is FaultAction.CLOSE:
        connection.close()
    elif fault.action is FaultAction.CUT:
        connection.abort()
    elif fault.action is not FaultAction.DROP:
        raise ValueError(f"{fault.action} cannot happen to a request")


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
