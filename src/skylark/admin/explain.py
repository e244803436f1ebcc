"""Explains why a message was or was not consumed: a list of checks per group, and a verdict.

::

    for account in await admin.messages.explain(message_id, group="billing"):
        for check in account.checks:
            print(check.check, check.status, check.finding, check.fix)
        print(account.verdict)

The checks follow the path of a message, so look at the first ``not`` first:

==============  ====================================================================================
message         is it in its topic, or still delayed or in a transaction?
route, queue    does the route have its queue, and does the queue still have the message?
group           is consumption enabled for the group?
members         are members connected?
subscription    does the group subscribe to the topic?
conflict        do all members have the same subscription?
filter          does the message match the filter?
owner, lock     does a member read its queue and, in an ordered group, hold the queue lock?
offset          has the group consumed past it?
pop             is it popped, without an acknowledgement yet?
retry, dlq      did it fail: is it waiting for a retry, or a dead letter?
trace           what do the trace records say?
==============  ====================================================================================

:func:`explain_group` explains why a group makes no progress, without a message. If a broker that
could change the verdict does not respond, the verdict is ``unknown`` and names the broker.

Only Skylark brokers report subscription conflicts, queue locks and what is popped.
Counterpart of mqadmin's ``queryMsgByUniqueKey`` (its "CONSUMED"), ``consumerStatus`` and
``checkMsg``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from skylark.admin import explain_checks as checks
from skylark.admin.admin_session import Session, masters_of
from skylark.admin.dlq import DeadLetterQueues
from skylark.admin.errors import NotFoundError, ServerFailure
from skylark.admin.explain_checks import Check, ok, plural, problem, unanswered, unknown
from skylark.admin.explain_pop import ACKNOWLEDGED, check_pop, next_pop
from skylark.admin.group_operations import GroupDescription, Groups
from skylark.admin.message_lookup import find_message, silence
from skylark.admin.topic_operations import groups_reading
from skylark.client.core.client_message import MessageExt
from skylark.core.errors import SkylarkError
from skylark.core.names import is_retry_topic

#: Maximum number of groups that are explained when none is given.
GROUPS_MAX: Final = 32


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation for one group; ``consumed`` is None if it is unknown.

    For a group without a message, ``consumed`` says whether it has consumed all messages.
    """

    group: str | None
    topic: str | None = None
    message_id: str | None = None
    checks: tuple[Check, ...]
    consumed: bool | None
    verdict: str
    failures: tuple[ServerFailure, ...] = ()  #: brokers that did not respond

    @property
    def causes(self) -> tuple[Check, ...]:
        """The checks that prevent consumption."""
        return tuple(check for check in self.checks if check.status == "not")


# ---- a message -----------------------------------------------------------------------------------


async def explain_message(
    session: Session, message_id: str, *, topic: str | None = None, group: str | None = None
) -> list[Explanation]:
    """Explain a message for one group, or for each group of its topic.

    Raises NotFoundError if the message or topic does not exist, and ClientError if it was not found
    and some brokers did not respond.
    """
    session = session.asking_once()
    message = await find_message(session, message_id, topic)
    shared = [checks.check_message(session, message)]
    if shared[0].status == "not":
        return [_account(message, group, shared)]
    shared.append(await checks.check_route(session, message))
    shared.append(await checks.check_queue(session, message))
    if group is not None:
        return [await _explain_for(session, message, group, shared)]
    answers = await groups_reading(session, message.record.topic)
    readers = sorted({group for groups in answers.results.values() for group in groups})
    if not readers and answers.failures:
        shared.append(unanswered("group", answers.failures))
        return [_account(message, None, shared, answers.failures)]
    if not readers:
        shown = session.unwrap(message.record.topic)
        shared.append(
            problem(
                "group",
                f"no group subscribes to {shown} or has offsets in it",
                f"start a consumer of {shown}",
            )
        )
        return [_account(message, None, shared)]
    return [await _explain_for(session, message, reader, shared) for reader in readers[:GROUPS_MAX]]


async def _explain_for(
    session: Session, message: MessageExt, group: str, shared: Sequence[Check]
) -> Explanation:
    found = list(shared)
    try:
        description = await Groups(session).describe(group)
    except NotFoundError:
        found.append(
            problem(
                "group",
                f"no broker knows group {group}: no consumer has used this name",
                "start a consumer, or check the name: `skylark group list` lists all",
            )
        )
        return _account(message, group, found)
    wrapped = session.wrap(group)
    members = description.members
    topic = session.unwrap(message.record.topic)
    readers = await checks.find_readers(session, wrapped, members)
    wanted = checks.subscription_of(members, topic)
    pops = checks.is_popped(members, readers or {}, checks.stored_queue(message))
    popped_until = await next_pop(session, message, wrapped)
    found += (
        checks.check_group(description),
        checks.check_members(members),
        checks.check_subscription(members, topic),
        checks.check_conflict(members, topic),
        await checks.check_filter(session, message, wanted),
        checks.check_owner(message, members, readers),
        checks.check_lock(session, message, description, readers),
        await checks.check_offset(session, message, description, popped_until),
        await check_pop(session, message, wrapped, pops=pops),
        await checks.check_retry(session, message, wrapped),
        await checks.check_dlq(session, message, wrapped),
        await checks.check_trace(session, message, group),
    )
    return _account(message, group, found, description.failures)


def _account(
    message: MessageExt,
    group: str | None,
    found: Sequence[Check],
    failures: tuple[ServerFailure, ...] = (),
) -> Explanation:
    consumed, verdict = judge(found)
    return Explanation(
        group=group,
        topic=message.topic,
        message_id=message.msg_id,
        checks=tuple(found),
        consumed=consumed,
        verdict=verdict,
        failures=failures,
    )


def judge(found: Sequence[Check]) -> tuple[bool | None, str]:
    """Decide from the checks whether a message was consumed; returns a verdict for people too.

    Certain evidence comes first: a trace, a dead letter, a retry, a pop. A group whose offset is
    past the message has consumed it, unless its filter or a reset skipped it. The other checks
    count only for a message that the group has not reached. If a decisive check is unknown, so is
    the verdict.
    """
    by_name = {check.check: check for check in found}

    def status(name: str) -> str | None:
        return by_name[name].status if name in by_name else None

    if status("trace") == "ok":
        return True, f"consumed: {by_name['trace'].finding}"
    for name in ("message", "dlq", "retry", "pop"):
        if status(name) == "not":
            return False, f"not consumed: {by_name[name].finding}"
    if status("offset") in ("ok", "unknown") and status("filter") == "not":
        return False, f"not consumed: {by_name['filter'].finding}"
    if status("offset") != "not":
        # Without an offset no member has reached the message, unless the group is unknown.
        for name in ("group",) if status("offset") is None else ("offset", "dlq", "retry", "pop"):
            if status(name) == "unknown":
                return None, f"unknown: {by_name[name].finding}"
    if status("offset") == "ok":
        if status("pop") == "ok" and by_name["pop"].finding.startswith(ACKNOWLEDGED):
            return True, f"consumed: {by_name['pop'].finding}"
        return _judge_passed(status("conflict"), status("filter"))
    first = next(check for check in found if check.status == "not")
    return False, f"not consumed: {first.finding}"


def _judge_passed(conflict: str | None, passes: str | None) -> tuple[bool | None, str]:
    """The verdict if the offset is past the message, and it is neither a retry nor dead letter."""
    if conflict == "not":
        return (
            None,
            "unknown: the offset is past it, but members have different subscriptions",
        )
    if passes == "ok":
        return True, "consumed: the offset is past it, and it is neither a retry nor a dead letter"
    return None, (
        "passed: the offset is past it, and it is neither a retry nor a dead letter; its filter"
        " is unknown while the group is offline"
    )


# ---- a group -------------------------------------------------------------------------------------


async def explain_group(session: Session, group: str, *, topic: str | None = None) -> Explanation:
    """Explain why a group makes no progress, in all of its topics or in one.

    Raises NotFoundError for a group that no broker knows.
    """
    session = session.asking_once()
    description = await Groups(session).describe(group)
    members = description.members
    topics = sorted(
        {each.topic for each in members.subscriptions}
        | {queue.queue.topic for queue in description.progress.queues}
    )
    wanted = [each for each in topics if topic in (None, each) and not is_retry_topic(each)]
    found = [checks.check_group(description), checks.check_members(members)]
    if topic is not None:
        found.append(checks.check_subscription(members, topic))
    found.append(checks.check_conflict(members, topic))
    found += [await _route_of(session, each) for each in wanted]
    if members.members:
        found.append(await _owners(session, description, topic))
    found += (
        _lag(description, topic),
        _retries(description),
        await _letters(session, group),
    )
    causes = [check for check in found if check.status == "not"]
    verdict = "no problem found"
    if causes:
        verdict = f"problems: {'; '.join(check.finding for check in causes)}"
    elif description.failures:
        verdict = f"unknown: {silence({failure.server for failure in description.failures})}"
    progress = description.progress
    left = progress.lag + sum(entry.popped_in_flight for entry in progress.queues)
    is_certain = bool(left or (progress.queues and not progress.failures))
    return Explanation(
        group=group,
        topic=topic,
        checks=tuple(found),
        consumed=left == 0 if is_certain else None,
        verdict=verdict,
        failures=description.failures,
    )


async def _route_of(session: Session, topic: str) -> Check:
    route = await session.find_route(session.wrap(topic))
    if route is None:
        return problem(
            "route",
            f"topic {topic} does not exist",
            f"create it with `skylark topic create {topic}`, or start its brokers",
        )
    masters = masters_of(route)
    away = sorted({q.broker_name for q in route.queue_datas} - masters.keys())
    if away:
        return problem(
            "route", f"{topic} has no master on {', '.join(away)}", f"start {', '.join(away)} again"
        )
    count = sum(queues.read_queue_nums for queues in route.queue_datas)
    return ok("route", f"{topic} has {plural(count, 'queue')} on {', '.join(sorted(masters))}")


async def _owners(session: Session, description: GroupDescription, topic: str | None) -> Check:
    members = description.members
    readers = await checks.find_readers(session, session.wrap(description.group), members)
    if readers is None:
        return unknown("owner", "not every member reports which queues it reads")
    read = {session.unwrap_queue(queue) for queue in readers}
    alone = [
        f"{entry.queue.topic} {entry.queue.broker_name}:{entry.queue.queue_id}"
        for entry in description.progress.queues
        if entry.queue not in read
        and entry.lag
        and topic in (None, entry.queue.topic)
        and not checks.is_popped(members, readers, session.namespace.wrap_queue(entry.queue))
    ]
    if alone and members.failures:
        return unanswered("owner", members.failures)
    if alone:
        return problem(
            "owner",
            f"no member reads {', '.join(alone[:5])}"
            + (f" and {len(alone) - 5} more" if len(alone) > 5 else ""),
            "wait for the next rebalance (20 s); if it persists, members use different allocation"
            " strategies",
        )
    return ok("owner", f"{len(members.members)} members read {len(read)} queues")


def _lag(description: GroupDescription, topic: str | None) -> Check:
    queues = [
        entry
        for entry in description.progress.queues
        if topic in (None, entry.queue.topic) and not is_retry_topic(entry.queue.topic)
    ]
    lag = sum(entry.lag for entry in queues)
    in_flight = sum(entry.in_flight for entry in queues)
    if not lag and description.progress.failures:
        return unanswered("offset", description.progress.failures)
    if not queues:
        return unknown("offset", f"{description.group} has no committed offsets")
    popped = sum(entry.popped_in_flight for entry in queues)
    if not lag and popped:
        return problem(
            "offset",
            f"{plural(popped, 'message')} popped and not acknowledged yet",
            "wait: messages that are not acknowledged in time are delivered again",
        )
    if not lag:
        return ok("offset", "it has consumed all messages")
    held = f", {in_flight} of them in flight" if description.is_online else ""
    return problem(
        "offset",
        f"lag: {plural(lag, 'message')}{held}",
        "add consumers, make handlers faster, or skip the backlog with `skylark group skip`",
    )


def _retries(description: GroupDescription) -> Check:
    waiting = sum(
        entry.lag for entry in description.progress.queues if is_retry_topic(entry.queue.topic)
    )
    if not waiting and description.progress.failures:
        return unanswered("retry", description.progress.failures)
    if not waiting:
        return ok("retry", "no retry is due")
    return problem(
        "retry",
        f"retries that are due: {waiting}",
        "fix the handler; see the log of the consumer",
    )


async def _letters(session: Session, group: str) -> Check:
    try:
        letters = await DeadLetterQueues(session).of(group)
    except NotFoundError:
        return ok("dlq", "it has no dead letters")
    except SkylarkError as error:
        return unknown("dlq", f"cannot count the dead letters: {error}")
    if not letters.pending and letters.failures:
        return unanswered("dlq", letters.failures)
    if not letters.pending:
        return ok("dlq", f"{plural(letters.count, 'dead letter')}, all processed by a redrive")
    return problem(
        "dlq",
        f"{plural(letters.pending, 'dead letter')} not redriven",
        f"`skylark dlq show {group}`, then `skylark dlq redrive {group}`",
    )
