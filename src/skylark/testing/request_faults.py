"""Faults inside a server: requests and answers that are lost, late, doubled or refused.

An interceptor for :class:`~skylark.net.dispatch.Dispatcher`. A lost *request* never reaches its
handler; a lost *answer* was worked on: a producer that sees either must be able to tell neither.

Points of the plan: ``request.CODE`` before the handler and ``response.CODE`` (the request's code)
before the answer leaves. Actions: DROP, DELAY, DUPLICATE, ERROR (answer with a code), CLOSE, CUT.
"""

from __future__ import annotations

from contextvars import ContextVar

from skylark.core.clock import Clock
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher, NoAnswerError
from skylark.net.write_queue import ViewResponse
from skylark.testing.fault_plan import Fault, FaultAction, FaultInterceptor, FaultPlan
from skylark.wire.command import Command, response_to

_INJECTED = "injected by the fault plan"

# Set while a request that has had its fault goes through the dispatcher again. A task that the
# dispatcher starts for it inherits the mark, and nobody else's request can be taken for it.
_passing: ContextVar[RequestFaults | None] = ContextVar("passing", default=None)


class RequestFaults:
    """Carries out what the plan decides; add it to ``dispatcher.interceptors``."""

    def __init__(self, plan: FaultPlan, dispatcher: Dispatcher, clock: Clock) -> None:
        self._decisions = FaultInterceptor(plan)
        self._plan = plan
        self._dispatcher = dispatcher
        self._clock = clock

    def before(self, connection: Connection, request: Command) -> Command | None:
        if _passing.get() is self:
            _passing.set(None)
            return None
        fault = self._decisions.decide(request)
        if fault.action is FaultAction.NONE:
            return None
        self._plan.hit(f"request.{request.code}", fault.action)
        if fault.action is FaultAction.DELAY:
            self._clock.call_later(fault.delay_ms / 1000, self._again, connection, request)
        elif fault.action is FaultAction.DUPLICATE:
            self._again(connection, request)
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
        fault = self._decisions.decide_response(request)
        if fault.action is FaultAction.NONE:
            return response
        self._plan.hit(f"response.{request.code}", fault.action)
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

    def _again(self, connection: Connection, request: Command) -> None:
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
