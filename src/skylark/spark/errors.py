"""What goes wrong in pipelines and nowhere else, and how to find it in what Spark makes of it.

An error in a Python source reaches the user inside a Spark exception, behind the stack of the
process that it happened in. :func:`find_cause` gets our sentence out of it again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from skylark.client.errors import Missing
from skylark.core.errors import ClientError
from skylark.wire.bodies.common_body import MessageQueue

_OURS: Final = re.compile(r"^(?:\w+: )?skylark(?:\.\w+)+Error: (.+)$", re.MULTILINE)


class DataLossError(ClientError):
    """Messages that a query still needs are gone."""


def queue_name(queue: MessageQueue) -> str:
    """A queue as errors and logs name it."""
    return f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}"


def aged_out(missing: Missing) -> DataLossError:
    """Messages were deleted before they were read, or their topic was."""
    if missing.available < missing.wanted:
        return made_anew(missing.queue, missing.wanted, missing.available)
    return DataLossError(
        f"{missing.count} messages of {queue_name(missing.queue)} are gone: offset"
        f" {missing.wanted} is wanted, the first available is {missing.available}",
        hint="raise fileReservedTime of the broker; failOnDataLoss=false goes on without them",
    )


def made_anew(queue: MessageQueue, wanted: int, end: int) -> DataLossError:
    """A queue ends before the place where reading should go on."""
    return DataLossError(
        f"{queue_name(queue)} ends at offset {end}, and {wanted} is wanted: the topic was deleted"
        " and made anew, or the broker lost its last messages",
        hint="begin with a new checkpoint; failOnDataLoss=false reads the queue from its start",
    )


def shrunk(queues: Collection[MessageQueue], *, is_planned: bool = False) -> ClientError:
    """Queues have messages to be read that their brokers do not hand out any more.

    ``is_planned``: a batch has begun that needs them, so the stream cannot go on without them.
    """
    names = "; ".join(map(queue_name, sorted(queues)))
    counts: dict[str, int] = {}
    for queue in sorted(queues):
        counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
    fixes = ", ".join(f"readQueueNums of {topic} to {count}" for topic, count in counts.items())
    hint = f"raise {fixes} until it is read"
    if not is_planned:
        hint += "; failOnDataLoss=false goes on with the others"
    return ClientError(f"readQueueNums was lowered before everything was read: {names}", hint=hint)


def find_cause(error: BaseException | str) -> str | None:
    """The sentence of ours in a Spark exception, or in its text; None if there is none."""
    found = _OURS.findall(str(error))
    return found[-1].strip() if found else None
