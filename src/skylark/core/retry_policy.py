"""The dead-letter decision: retry a message that a consumer could not process, or give it up.

Two requests of the broker, and those who hand out popped messages, use :func:`decide_retry`:

* send back (36): the broker makes the copy. The stored message has the number of earlier retries,
  so it has failed once more than that;
* a plain send to the retry topic of the group, by a client that made the copy itself. The client
  has already increased the number, so the message has failed that often. The delay, if any, is in
  the properties of the copy, and there is nothing to postpone here;
* a pop consumer or a proxy, for a message that could not be processed. The message has the number
  of earlier retries. To postpone it is to change its invisible time; a dead letter is sent back
  (36) with a level below 0 and then acknowledged. The broker itself makes no dead letters of
  popped messages: it delivers them until a consumer decides.

::

    failed more often than allowed, a level below 0, or an ordered group  -> dead letter
    a level that the consumer asks for, 0: the broker chooses             -> postpone to that level
    no level, the copy knows its delay                                    -> deliver

With the default of 16 retries a message is delivered 17 times, after 10 s, 30 s, 1 m, 2 m ... 2 h
(levels 3 to 18). A group that has queue locks consumes in order: a retry would be out of order, so
a message that it sends to its retry topic is a dead letter at once.

Counterpart of Java's ``AbstractSendMessageProcessor.consumerSendMsgBack`` and
``SendMessageProcessor.handleRetryAndDLQ``, which have the comparison twice, as ``>=`` and as ``>``.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

#: Delay level after the first failure, where the broker chooses; one more after each further one.
FIRST_RETRY_LEVEL: Final = 3


class RetryAction(enum.Enum):
    """What to do with a message that failed."""

    DELIVER = enum.auto()  #: store it among the retries as it is
    POSTPONE = enum.auto()  #: store it among the retries, with a delay level
    DEAD_LETTER = enum.auto()  #: store it among the dead letters of the group


class RetryDecision(msgspec.Struct, frozen=True):
    """An action, and the delay level where it is to postpone."""

    action: RetryAction
    delay_level: int = 0

    @property
    def is_dead(self) -> bool:
        return self.action is RetryAction.DEAD_LETTER


_DELIVER: Final = RetryDecision(RetryAction.DELIVER)
_DEAD_LETTER: Final = RetryDecision(RetryAction.DEAD_LETTER)


def decide_retry(
    failure_count: int,
    retry_count_max: int,
    *,
    delay_level: int | None = None,
    is_ordered: bool = False,
) -> RetryDecision:
    """The action for a message that has failed ``failure_count`` times, this time included.

    ``retry_count_max`` is the consumer's limit, or else the group's ``retryMaxTimes``.
    ``delay_level`` is None if the message has its own delivery time, 0 if the broker chooses, and
    below 0 for a dead letter at once. ``is_ordered``: the group has queue locks.
    """
    if failure_count > retry_count_max or is_ordered or (delay_level or 0) < 0:
        return _DEAD_LETTER
    if delay_level is None:
        return _DELIVER
    level = delay_level or FIRST_RETRY_LEVEL + max(0, failure_count - 1)
    return RetryDecision(RetryAction.POSTPONE, level)
