"""Errors of the connector, and :func:`find_cause`, which finds them inside Spark exceptions.

An error in a Python source reaches the user as text of a Spark exception, after the stack trace of
the process that raised it. :func:`find_cause` returns its message. :func:`few_frames` keeps that
trace short where the user has to change an option or a server, and no code.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from skylark.admin.errors import NotFoundError
from skylark.client.blocking.caller_errors import ABOUT_SERVERS, without_frames
from skylark.client.errors import Missing
from skylark.core.errors import ClientError
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

_OURS: Final = re.compile(r"^(?:\w+: )?skylark(?:\.\w+)*\.(\w+Error): (.+)$", re.MULTILINE)


class DataLossError(ClientError):
    """Messages that a query has not read yet are gone."""


class RefusedError(ClientError):
    """A query that cannot go on before somebody has decided or mended something.

    In place of errors of sinks and decoders that cross processes as text; a restart does not help.
    """


#: What ``on_violation: fail`` raises inside Spark: Spark's mark, and :func:`violation_text`.
_VIOLATION: Final = re.compile(
    r"\[USER_RAISED_EXCEPTION\] (pipeline \S+ expects .+?, found .*?)(?:\s+SQLSTATE: |\n\tat |\Z)",
    re.DOTALL,
)


class WorkerStartError(ClientError):
    """A Python worker of Spark has not started in time: the machine is busy. A retry may succeed.

    Spark waits 10 seconds for a worker of a streaming source, and no setting changes that.
    """


def few_frames(method: Callable[P, T]) -> Callable[P, T]:
    """Decorator of methods that Spark calls: errors about servers lose the frames of the client.

    Spark prints all frames of such an error and of its causes, twice, above its message. They go to
    the log at debug level.
    """

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except (*ABOUT_SERVERS, NotFoundError) as error:
            raise without_frames(error) from error.__cause__

    return called


def queue_name(queue: MessageQueue) -> str:
    """The text for a queue in errors and logs."""
    return f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}"


def messages_expired(missing: Missing) -> DataLossError:
    """The error for messages that were deleted before they were read."""
    if missing.available < missing.wanted:
        return queue_recreated(missing.queue, missing.wanted, missing.available)
    return DataLossError(
        f"{missing.count} messages of {queue_name(missing.queue)} are gone: offset"
        f" {missing.wanted} is wanted, the first available is {missing.available}",
        hint="raise fileReservedTime of the broker; failOnDataLoss=false continues without them",
    )


def first_available(queue: MessageQueue, wanted: int, low: int, *, fail: bool) -> int:
    """The first offset from ``wanted`` on that a queue which begins at ``low`` still has.

    Raises DataLossError if messages before it are gone; without ``fail`` it logs a warning.
    """
    if wanted >= low:
        return wanted
    lost = Missing(queue=queue, wanted=wanted, available=low, count=low - wanted)
    if fail:
        raise messages_expired(lost)
    log_missing(lost)
    return low


def log_missing(missing: Missing) -> None:
    """Warn about messages that a query does not read because they are gone."""
    logger.warning("continuing in spite of data loss: %s", messages_expired(missing).message)


def queue_recreated(queue: MessageQueue, wanted: int, end: int) -> DataLossError:
    """The error for a queue whose messages are others now than those that were read before."""
    if end < wanted:
        what = f"ends at offset {end}, and {wanted} is wanted"
    else:
        what = f"has other messages now than when it was read up to offset {wanted}"
    return DataLossError(
        f"{queue_name(queue)} {what}: the topic was deleted and created again, or the broker lost"
        " its last messages",
        hint="start with a new checkpoint; failOnDataLoss=false reads the queue from its start",
    )


def queues_withdrawn(queues: Collection[MessageQueue], *, is_planned: bool = False) -> ClientError:
    """The error for queues with unread messages that their brokers no longer serve.

    ``is_planned``: the checkpoint has a batch that needs them, so the stream cannot skip them.
    """
    names = "; ".join(map(queue_name, sorted(queues)))
    counts: dict[str, int] = {}
    for queue in sorted(queues):
        counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
    fixes = ", ".join(f"readQueueNums of {topic} to {count}" for topic, count in counts.items())
    hint = f"raise {fixes} until they are read"
    if not is_planned:
        hint += "; failOnDataLoss=false continues with the others"
    return ClientError(f"readQueueNums was lowered before everything was read: {names}", hint=hint)


def violation_text(pipeline: str, column: str, condition: str) -> str:
    """The error for a row that violates an expectation, up to the value that was found."""
    return f"pipeline {pipeline} expects {column} {condition}, found "


def find_violation(text: str) -> str | None:
    """The message about a violated expectation in the text of an exception of Spark."""
    found = _VIOLATION.search(text)
    return found and found[1].strip()


def find_cause(error: BaseException | str) -> str | None:
    """The message of our error in a Spark exception, or in its text; None if there is none."""
    found = find_error(full_text(error))
    return found and found[1]


def full_text(error: BaseException | str) -> str:
    """The text of an exception, and for one of the JVM its stack trace, which has the causes."""
    return f"{error}\n{getattr(error, '_stackTrace', None) or ''}".rstrip()


def find_error(text: str) -> tuple[str, str] | None:
    """The class and the message of the last error of ours in a text."""
    found = _OURS.findall(text)
    return (found[-1][0], found[-1][1].strip()) if found else None
