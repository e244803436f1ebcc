"""Retry decisions of a send: another attempt, the result, or an error.

:class:`SendPlan` is one send with all its attempts; it does no I/O. The caller uses it like this::

    timeout_s = plan.begin(now)         the time for the next attempt; raises when it is over
    plan.done(result, status, now)      the result of the send, or None: try again
    plan.failed(error, now)             the same, or raises the error of the send

There are two sets of rules (:class:`SendMode`), as in Java, except that a busy broker, which has
stored nothing, is passed by in both. One deadline applies to all attempts,
and none starts in the last ``REST_MIN_S`` before it.

======================  ==========================================  ============================
attempt ends with       SYNC, awaited                               ASYNC, a future
======================  ==========================================  ============================
result, not SEND_OK     again if ``retry_another_broker``, else     the result
                        the result
no connection, no       again                                       again
answer, connection lost
too many requests       again                                       the error
client error            again                                       the error
the broker is busy (2)  again if 2 is in ``retry_codes``            as SYNC
answer with an error    again if its code is in ``retry_codes``,    the error
                        else an earlier result, else the error
end of attempts         an earlier result, else SendFailedError     SendFailedError
time is up              an earlier result, else SendTimeoutError    SendTimeoutError
======================  ==========================================  ============================

A send to a given queue has one attempt and raises its error unchanged. Results other than SEND_OK
mean that the message *is stored*: another attempt duplicates it. Counterpart of Java's
``sendDefaultImpl`` of ``DefaultMQProducerImpl`` and of ``onExceptionImpl`` of ``MQClientAPIImpl``.
"""

from __future__ import annotations

import enum
from typing import Final, Generic, TypeVar

from skylark.client.core.client_message import SendStatus
from skylark.client.producer.producer_settings import ProducerSettings
from skylark.core.errors import (
    BrokerError,
    ClientError,
    ClientStateError,
    ConnectError,
    ConnectionClosedError,
    RequestTimeoutError,
    SendFailedError,
    SendTimeoutError,
    SkylarkError,
    SystemBusyError,
    TransportError,
)

T = TypeVar("T")

#: With less time left, no attempt follows. Timers may fire 1.5 ms early (``core.clock``), so an
#: attempt that used all the time could be followed by another one that stores a duplicate.
REST_MIN_S: Final = 0.002

CONNECT_BROKER: Final = 10001
ACCESS_BROKER_TIMEOUT: Final = 10002
BROKER_NOT_EXIST: Final = 10003


class SendMode(enum.Enum):
    """The set of rules of a send; the values are Java's."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


class SendPlan(Generic[T]):
    """The attempts of one send; ``T`` is its result."""

    __slots__ = (
        "_attempts_max",
        "_deadline",
        "_earlier",
        "_mode",
        "_settings",
        "_timeout_s",
        "attempts",
    )

    def __init__(
        self,
        settings: ProducerSettings,
        mode: SendMode,
        timeout_s: float,
        now: float,
        *,
        one_queue: bool = False,
    ) -> None:
        """``one_queue``: the caller has chosen the queue, so no other one is tried."""
        self._settings = settings
        self._mode = mode
        self._timeout_s = timeout_s
        self._deadline = now + timeout_s
        if mode is SendMode.ASYNC:
            self._attempts_max = 1 + settings.retries_async
        else:
            self._attempts_max = 1 if one_queue else 1 + settings.retries
        self._earlier: T | None = None
        self.attempts = 0  #: started so far

    @property
    def is_last(self) -> bool:
        """Whether no attempt can follow the one that has begun."""
        return self.attempts >= self._attempts_max

    def begin(self, now: float) -> float:
        """How long the next attempt may take; raises SendTimeoutError if time is up."""
        left_s = self._deadline - now
        if left_s <= 0:
            raise self._timed_out()
        self.attempts += 1
        cap_s = self._settings.attempt_timeout
        if cap_s is None or self.is_last or left_s < cap_s + REST_MIN_S:
            return left_s
        return cap_s

    def done(self, result: T, status: SendStatus, now: float) -> T | None:
        """The attempt has a result: what the send returns, or None to try again."""
        if (
            status is SendStatus.SEND_OK
            or self._mode is SendMode.ASYNC
            or not self._settings.retry_another_broker
            or self.attempts >= self._attempts_max
            or not self._leaves_time(now)
        ):
            return result
        self._earlier = result
        return None

    def failed(self, error: SkylarkError, now: float) -> T | None:
        """The attempt has failed: raises, or returns an earlier result, or None to try again."""
        if not self._may_follow(error):
            if self._earlier is not None and isinstance(error, BrokerError):
                return self._earlier
            raise error
        if self.attempts < self._attempts_max and self._leaves_time(now):
            return None
        if self._earlier is not None:
            return self._earlier
        if self._attempts_max == 1:
            raise error
        if self.attempts < self._attempts_max:
            raise self._timed_out() from error
        raise self._all_failed(error) from error

    def _leaves_time(self, now: float) -> bool:
        """Whether there is enough time for another attempt."""
        return self._deadline - now >= REST_MIN_S

    def _may_follow(self, error: SkylarkError) -> bool:
        if self._mode is SendMode.ASYNC and not isinstance(error, SystemBusyError):
            return isinstance(error, (ConnectError, ConnectionClosedError, RequestTimeoutError))
        if isinstance(error, BrokerError):
            return error.code in self._settings.retry_codes
        if isinstance(error, ClientStateError):
            return False  # the client has been stopped
        return isinstance(error, (ClientError, TransportError))

    def _timed_out(self) -> SendTimeoutError:
        return SendTimeoutError(
            f"the send has timed out: {self._timeout_s:g} s, {self.attempts} attempts",
            hint="raise send_timeout, or set attempt_timeout to leave time for another broker",
        )

    def _all_failed(self, error: SkylarkError) -> SendFailedError:
        return SendFailedError(
            f"Send [{self.attempts}] times, still failed: {error}", response_code=_code_of(error)
        )


def _code_of(error: SkylarkError) -> int:
    if isinstance(error, BrokerError):
        return error.code
    if isinstance(error, ConnectError):
        return CONNECT_BROKER
    if isinstance(error, RequestTimeoutError):
        return ACCESS_BROKER_TIMEOUT
    if isinstance(error, ClientError):
        return BROKER_NOT_EXIST
    return -1
