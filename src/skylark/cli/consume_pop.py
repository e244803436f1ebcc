"""``skylark consume --pop``: prints messages as a pop consumer, and acknowledges them.

A message is acknowledged after it was printed. What the command has not taken from its consumer
when it ends is given back, and other consumers of the group get it at once. What it was about to
print, or to acknowledge, is delivered again when its invisible time, a minute, is over.

With ``--follow`` it survives restarts of brokers, once the first receive has succeeded: a topic
that does not exist ends it.

``--from latest`` commits the ends of those queues for which the group has no offset, before the
first pop, but after it has joined, because brokers keep no offsets of a group they do not know.
The ``initMode`` of a pop does not say that: brokers start a new group at the last message, not
behind it, and by default (``initPopOffsetByCheckMsgInMem``) at the first one of a queue whose
messages are all in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skylark.cli.consume_print import Printer

if TYPE_CHECKING:
    from skylark.cli.consume import Wanted
    from skylark.client.consumer.pop.pop_consumer import PopConsumer
    from skylark.client.consumer.pop.popped_message import PoppedMessage
    from skylark.client.core.client_options import ClientOptions


#: Pause after a failure.
RETRY_S: Final = 1.0


async def consume_pop(
    printer: Printer, wanted: Wanted, options: ClientOptions, group: str, idle_s: float
) -> None:
    """Print messages until the count is reached; without ``--follow`` until none comes."""
    from skylark.client.consumer.pop.pop_consumer import PopConsumer
    from skylark.client.consumer.pop.pop_options import POLL_S, POP_BATCH_MAX, PopSettings
    from skylark.core.clock import LoopClock
    from skylark.core.errors import SkylarkError

    where = type(PopSettings().consume_from_where)
    consumer = PopConsumer(group, options, consume_from_where=where.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe(wanted.topic, wanted.tags, sql=wanted.sql)
    async with consumer:
        if wanted.start == "latest":
            await _commit_ends(wanted.topic, options, group)
        may_fail = is_failing = False
        while not printer.is_done:
            try:
                messages = await consumer.receive(
                    printer.at_most(POP_BATCH_MAX), wait=POLL_S if wanted.follow else idle_s
                )
            except SkylarkError as error:
                if not may_fail:
                    raise
                if not is_failing:
                    printer.output.info(f"cannot receive messages, retrying: {error}")
                is_failing = True
                await LoopClock().sleep(RETRY_S)
                continue
            may_fail, is_failing = wanted.follow, False
            if messages:
                printer.show(messages)
                printer.flush()
                await _acknowledge(consumer, messages, printer, may_fail=may_fail)
            elif not wanted.follow:
                break


async def _acknowledge(
    consumer: PopConsumer, messages: list[PoppedMessage], printer: Printer, *, may_fail: bool
) -> None:
    from skylark.core.errors import SkylarkError

    try:
        await consumer.ack(messages)
    except SkylarkError as error:
        if not may_fail:
            raise
        printer.output.info(f"not acknowledged, and delivered again: {error}")


async def _commit_ends(topic: str, options: ClientOptions, group: str) -> None:
    """Commit the end of each queue for which the group has no offset yet."""
    from skylark.admin.admin_client import Admin

    async with Admin(options) as admin:
        bounds = await admin.offsets.bounds(topic)
        committed = await admin.offsets.committed(group, topic)
        ends = {
            stats.queue: stats.max_offset
            for stats in bounds.queues
            if committed.get(stats.queue) is None
        }
        await admin.offsets.commit(group, ends)
