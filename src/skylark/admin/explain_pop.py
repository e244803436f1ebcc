"""The check ``pop`` of an explanation (:mod:`skylark.admin.explain`): is a message popped?

For a group that pops, an offset past a message says only that some member got it. The message is
consumed when that member has acknowledged it. Until then it is invisible, and after that time the
broker puts a copy into the retry topic of the group and topic, which is popped as the next attempt.

Skylark's masters report the last pop of a message, and whether it was acknowledged; of Apache's
brokers that is unknown. Which member has it is not recorded anywhere. A message that was
acknowledged while its check-point was in memory leaves no trace: then the check says that nobody
has it popped.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.explain_checks import Check, ok, problem, stored_queue, time_text, unknown
from skylark.admin.message_lookup import copies_in, silence
from skylark.admin.topic_queues import committed_offset
from skylark.client.core.broker_calls import make_request
from skylark.client.core.client_message import MessageExt
from skylark.core.errors import SkylarkError
from skylark.core.names import pop_retry_topic
from skylark.wire.bodies.stats import ConsumeStats, PoppedReport
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body
from skylark.wire.headers.admin import GetConsumeStatsRequestHeader

#: How the finding begins if a member has acknowledged the message.
ACKNOWLEDGED: Final = "it was popped and acknowledged"
_REPORTERS: Final = "only masters of Skylark report whether"


class PopFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What brokers report about a message, or about its last copy in a pop retry topic."""

    held: MessageExt
    is_copy: bool
    report: PoppedReport | None  #: None from brokers that do not report pops
    committed: int | None
    silent: frozenset[str] = frozenset()  #: brokers that may have a later copy
    pops: bool  #: members of the group pop the topic now

    @property
    def is_past(self) -> bool:
        """Whether the group is past it: a pop continues before its offset is committed."""
        popped = None if self.report is None else self.report.next_offset
        return max(self.committed or 0, popped or 0) > self.held.queue_offset

    @property
    def is_known(self) -> bool:
        """Whether the broker has looked for all pops of it."""
        return self.report is not None and (
            self.held.record.store_timestamp >= self.report.known_since
        )


async def check_pop(session: Session, message: MessageExt, group: str, *, pops: bool) -> Check:
    """Whether it is popped and not acknowledged yet; ``group`` with namespace.

    ``pops``: members of the group pop the topic now.
    """
    topic = message.record.topic
    copies: list[MessageExt] = []
    silent: set[str] = set()
    for v2 in (False, True):
        found = await copies_in(session, pop_retry_topic(topic, group, v2=v2), message.msg_id)
        copies += found.messages
        silent |= found.silent
    held = max(copies, key=_order, default=message)
    try:
        _, address = await session.broker(held.broker_name)
        report = await popped_report(session, address, group, held)
        committed = await committed_offset(session, address, group, stored_queue(held))
    except SkylarkError as error:
        return unknown("pop", f"{held.broker_name} does not report pops: {error}")
    return decide(
        PopFacts(
            held=held,
            is_copy=held is not message,
            report=report,
            committed=committed,
            silent=frozenset(silent),
            pops=pops,
        )
    )


def _order(copy: MessageExt) -> tuple[int, int]:
    # A copy of a message that was given back unused has the number of the one before.
    return copy.reconsume_times, copy.record.store_timestamp


def decide(facts: PopFacts) -> Check:
    """The result of the check."""
    report, held = facts.report, facts.held
    attempt = held.reconsume_times + 1 + (0 if report is None else report.earlier_count)
    if report is not None and report.pop_time and not report.acknowledged:
        return _popped(report, attempt)
    if facts.is_copy and not facts.is_past:
        return problem(
            "pop",
            f"it was popped and not acknowledged, and attempt {attempt} is due",
            "start a consumer of the group, or fix its handler",
        )
    if facts.silent:
        return unknown("pop", silence(facts.silent))
    if report is None and (facts.pops or facts.is_copy):
        what = "it was acknowledged" if facts.is_past else "it is popped"
        return unknown("pop", f"{_REPORTERS} {what}")
    if report is None:
        return ok("pop", f"no member pops the topic; {_REPORTERS} it was popped before")
    if not facts.is_past and not facts.is_known:
        return ok("pop", f"the next pop of the group begins at offset {report.next_offset or 0}")
    if not facts.is_past:
        return ok("pop", "no client has popped it")
    if report.acknowledged:
        return ok("pop", f"{ACKNOWLEDGED}, attempt {attempt}")
    if not facts.is_known:
        since = time_text(report.known_since)
        return unknown("pop", f"whether it is popped is known only of pops since {since}")
    return ok("pop", "no consumer holds it: it was acknowledged, or not popped at all")


def _popped(report: PoppedReport, attempt: int) -> Check:
    """It is popped and not acknowledged."""
    popped = f"popped at {time_text(report.pop_time)}"
    until = time_text(report.pop_time + report.invisible_time)
    if report.expired:
        return problem(
            "pop",
            f"{popped} and not acknowledged until {until}, attempt {attempt}; the next one is due",
            "start a consumer of the group, or fix its handler",
        )
    return problem(
        "pop",
        f"{popped}, invisible until {until}, attempt {attempt}",
        "wait: unless it is acknowledged, it is delivered again after that time",
    )


async def next_pop(session: Session, message: MessageExt, group: str) -> int | None:
    """Where the next pop of the queue of a message begins; None if the broker does not report it.

    ``group`` with namespace.
    """
    try:
        _, address = await session.broker(message.broker_name)
        report = await popped_report(session, address, group, message)
    except SkylarkError:
        return None  # the check of the offset says that the broker does not respond
    return None if report is None else report.next_offset


async def popped_report(
    session: Session, address: str, group: str, message: MessageExt
) -> PoppedReport | None:
    """The last pop of a message (208); None if the broker does not report it."""
    header = GetConsumeStatsRequestHeader(
        consumer_group=group,
        topic=message.record.topic,
        popped_queue_id=message.queue_id,
        popped_offset=message.queue_offset,
    )
    answer = await session.call(address, make_request(RequestCode.GET_CONSUME_STATS, header))
    return decode_body(ConsumeStats, answer.body or b"{}").popped
