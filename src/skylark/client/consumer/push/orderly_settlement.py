"""Settlement of messages after their handler, where the order of a queue is kept: pure decisions.

One task per queue takes the lowest messages, calls the handler, and continues with the next ones.
Two messages of a queue are never processed at once, in this consumer or, while it holds the queue
lock, in any other. A task runs while there are messages::

    step = next_step(queue, now_ms, begun_ms, clustering=True)   # Go, or when to come back
    batch = queue.take(count, now_ms)                            # none: the task ends
    result = ... the handler ...
    published = those of exhausted(batch, result, times_max) that could be published
    settled = settle(queue, batch, result, published)            # offset to commit, when to go on

A message that fails is not skipped: the queue waits a moment, and the handler gets it again, with
its whole batch. After too many deliveries the client publishes it to the retry topic with their
number, and the broker makes it a dead letter. By default the number is practically unlimited: a
message that cannot be processed blocks its queue.

Without *auto commit* messages stay in flight until the handler returns COMMIT, or ROLLBACK to get
all of them again. Counterpart of Java's ``ConsumeMessageOrderlyService``.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from skylark.client.consumer.process_queue import NOTHING_TO_COMMIT, ProcessQueue
from skylark.client.core.client_message import MessageExt
from skylark.core.retry_policy import decide_retry

RECONSUME_TIMES_MAX: Final = 2**31 - 1
SUSPEND_MS: Final = 1_000
SUSPEND_MS_MIN: Final = 10
SUSPEND_MS_MAX: Final = 30_000

CONTINUOUS_MS_MAX: Final = 60_000  # then other queues get their turn
RESUBMIT_DELAY_MS: Final = 10
LOCK_DELAY_MS: Final = 100  # before asking for the lock, at the start of a task
LOCK_DELAY_WITHIN_MS: Final = 10  # and when it was lost on the way
LOCKED_DELAY_MS: Final = 10
NOT_LOCKED_DELAY_MS: Final = 3_000


class OrderlyStatus(enum.Enum):
    """The status that a handler returns; COMMIT and ROLLBACK are for handlers that commit."""

    SUCCESS = "SUCCESS"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class OrderlyResult(msgspec.Struct, frozen=True):
    """The result of one call; ``suspend_ms`` None: as in the settings of the consumer."""

    status: OrderlyStatus = OrderlyStatus.SUCCESS
    auto_commit: bool = True
    suspend_ms: int | None = None


ALL_ACCEPTED: Final = OrderlyResult()
SUSPENDED: Final = OrderlyResult(OrderlyStatus.SUSPEND)  # of a handler that raised


# ---- before the call -----------------------------------------------------------------------------


class Step(enum.Enum):
    """The next step of a task."""

    GO = "take messages"
    END = "the queue was given up"
    LOCK = "ask the broker for the queue after the delay, then come back as after_lock() says"
    RESUBMIT = "come back after the delay, other queues wait"


class NextStep(msgspec.Struct, frozen=True):
    """A step and its delay."""

    step: Step
    delay_ms: int = 0


_GO: Final = NextStep(Step.GO)
_END: Final = NextStep(Step.END)


def next_step(
    queue: ProcessQueue, now_ms: int, begun_ms: int | None, *, clustering: bool
) -> NextStep:
    """Whether a task may take messages; ``begun_ms``: when it first did, None if never."""
    if queue.is_closing:
        return _END
    if clustering and not queue.is_lock_valid(now_ms):
        delay_ms = LOCK_DELAY_MS if begun_ms is None else LOCK_DELAY_WITHIN_MS
        return NextStep(Step.LOCK, delay_ms)
    if begun_ms is not None and now_ms - begun_ms > CONTINUOUS_MS_MAX:
        return NextStep(Step.RESUBMIT, RESUBMIT_DELAY_MS)
    return _GO


def after_lock(queue: ProcessQueue, *, locked: bool, now_ms: int) -> NextStep:
    """The next step after the response to a lock request."""
    if queue.dropped:
        return _END
    if not locked:
        return NextStep(Step.RESUBMIT, NOT_LOCKED_DELAY_MS)
    queue.lock(now_ms)
    return NextStep(Step.RESUBMIT, LOCKED_DELAY_MS)


# ---- after the call ------------------------------------------------------------------------------


class Settlement(msgspec.Struct, frozen=True):
    """``offset`` is to be committed unless None, also backwards.

    ``rerun_ms`` is None to go on with the next messages, else the task ends and comes back then.
    """

    offset: int | None
    rerun_ms: int | None = None


def exhausted(
    batch: Sequence[MessageExt], result: OrderlyResult, reconsume_times_max: int
) -> list[MessageExt]:
    """Failed messages that were delivered too often, to be published to the retry topic.

    See :func:`skylark.client.consumer.consumer_send_back.retry_message`.
    """
    if result.status is not OrderlyStatus.SUSPEND:
        return []
    return [
        message
        for message in batch
        if decide_retry(message.reconsume_times + 1, reconsume_times_max).is_dead
    ]


def settle(
    queue: ProcessQueue,
    batch: Sequence[MessageExt],
    result: OrderlyResult,
    published: Collection[MessageExt] = (),
    *,
    suspend_ms: int = SUSPEND_MS,
) -> Settlement:
    """Settle a batch; ``published`` are the messages of :func:`exhausted` that were published."""
    offset = NOTHING_TO_COMMIT
    rerun_ms = None
    if result.status is OrderlyStatus.SUSPEND:
        if _count_failures(batch, published):
            queue.make_again(batch)
            rerun_ms = clip_suspend_ms(result.suspend_ms, suspend_ms)
        elif result.auto_commit:
            offset = queue.commit()
    elif result.auto_commit or result.status is OrderlyStatus.COMMIT:
        offset = queue.commit()
    elif result.status is OrderlyStatus.ROLLBACK:
        queue.rollback()
        rerun_ms = clip_suspend_ms(result.suspend_ms, suspend_ms)
    committable = offset != NOTHING_TO_COMMIT and not queue.dropped
    return Settlement(offset if committable else None, rerun_ms)


def _count_failures(batch: Sequence[MessageExt], published: Collection[MessageExt]) -> bool:
    """Count one more delivery of each message that is kept; returns whether there are any."""
    gone = {message.queue_offset for message in published}
    kept = [message for message in batch if message.queue_offset not in gone]
    for message in kept:
        message.record.reconsume_times = min(message.reconsume_times + 1, RECONSUME_TIMES_MAX)
    return bool(kept)


def clip_suspend_ms(given_ms: int | None, default_ms: int) -> int:
    """The pause of a queue, within the limits."""
    wanted_ms = default_ms if given_ms is None or given_ms == -1 else given_ms
    return min(max(wanted_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)
