"""Settlement of messages after their handler, where order does not matter: pure decisions.

Pulled messages are split into batches, one call of the handler each. Its *outcome* has the number
of accepted messages at the front; the others failed::

    outcome = ALL_ACCEPTED | Outcome(ack_index=i) | outcome_of_error(error)
    for each message of send_backs(queue, batch, outcome, clustering=True): try it; else keep it
    settled = settle(queue, batch, kept, now_ms)      # offset to commit, messages to try again here

A failed message is *sent back*: the broker puts it among the retries of the group, for later, and
it counts as consumed here. If the broker refuses, the client publishes it there itself
(:mod:`skylark.client.consumer.consumer_send_back`). If that fails too, it stays in the process
queue, holds the commit back, and a handler gets it again five seconds later. Broadcasting consumers
have no retries: failures are logged and lost.

A message that is no longer in the process queue was sent back because its handler hung; the later
result of the handler is ignored. So is the result for a message that is on its way back already
(``ProcessQueue.going_back``), and all results of a dropped queue: its next owner gets the messages
again.

Counterpart of Java's ``ConsumeMessageConcurrentlyService``.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from skylark.client.consumer.consumer_send_back import BROKER_DECIDES, STRAIGHT_TO_DEAD_LETTERS
from skylark.client.consumer.process_queue import (
    EXPIRED_DELAY_LEVEL,
    NOTHING_TO_COMMIT,
    ProcessQueue,
)
from skylark.client.core.client_message import DeadLetter, MessageExt, RetryLater

MessageT = TypeVar("MessageT", bound=MessageExt)

RESUBMIT_DELAY_MS: Final = 5_000

_ACK_ALL: Final = 2**31 - 1


class ReturnType(enum.IntEnum):
    """How a call of a handler ended, for hooks and traces."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a batch: messages up to ``ack_index`` were accepted, none if -1."""

    ack_index: int = _ACK_ALL
    delay_level: int = BROKER_DECIDES


ALL_ACCEPTED: Final = Outcome()
RECONSUME_LATER: Final = Outcome(ack_index=-1)
#: Of a handler that was cancelled because it took longer than ``consume_timeout``.
HUNG: Final = Outcome(ack_index=-1, delay_level=EXPIRED_DELAY_LEVEL)


def outcome_of_error(error: BaseException) -> Outcome:
    """The outcome of a handler that raised: all failed, with the delay level of the error."""
    if isinstance(error, RetryLater):
        return Outcome(ack_index=-1, delay_level=error.level)
    if isinstance(error, DeadLetter):
        return Outcome(ack_index=-1, delay_level=STRAIGHT_TO_DEAD_LETTERS)
    return RECONSUME_LATER


def return_type(*, failed: bool, raised: bool, took_ms: int, timeout_ms: int) -> ReturnType:
    """The return type for hooks; a slow success is TIME_OUT."""
    if raised:
        return ReturnType.EXCEPTION
    if took_ms >= timeout_ms:
        return ReturnType.TIME_OUT
    return ReturnType.FAILED if failed else ReturnType.SUCCESS


def batches(messages: Sequence[MessageT], size_max: int) -> Iterator[Sequence[MessageT]]:
    """Messages in batches, one for each call of a handler."""
    for start in range(0, len(messages), size_max):
        yield messages[start : start + size_max]


# ---- after the call ------------------------------------------------------------------------------


class Settlement(msgspec.Struct, frozen=True):
    """``offset`` is to be committed unless None; ``resubmit`` is tried again 5 s later."""

    offset: int | None
    resubmit: list[MessageExt]


def send_backs(
    queue: ProcessQueue, batch: Sequence[MessageExt], outcome: Outcome, *, clustering: bool
) -> list[MessageExt]:
    """The failed messages that must be sent back, with the delay level of the outcome."""
    accepted = outcome.ack_index + 1
    if accepted >= len(batch) or not clustering or queue.dropped:
        return []
    failed = [message for message in batch[max(0, accepted) :] if message in queue]
    return [message for message in failed if not queue.is_going_back(message)]


def settle(
    queue: ProcessQueue,
    batch: Sequence[MessageExt],
    kept: Collection[MessageExt],
    now_ms: int,
) -> Settlement:
    """Settle a batch, except for ``kept``: messages that could not be sent back."""
    if queue.dropped:
        return Settlement(None, [])
    done: Sequence[MessageExt] = [each for each in batch if not queue.is_going_back(each)]
    resubmit: list[MessageExt] = []
    if kept:
        kept_offsets = {message.queue_offset for message in kept}
        done = [message for message in done if message.queue_offset not in kept_offsets]
        resubmit = [message for message in batch if message.queue_offset in kept_offsets]
        for message in resubmit:
            message.record.reconsume_times += 1
    offset = queue.remove(done, now_ms)
    committable = offset != NOTHING_TO_COMMIT and not queue.dropped
    return Settlement(offset if committable else None, resubmit)
