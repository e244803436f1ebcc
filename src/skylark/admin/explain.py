"""Why a message was or was not consumed: one ordered account for each group, and a verdict.

::

    for account in await admin.messages.explain(message_id, group="billing"):
        for check in account.checks:
            print(check.check, check.status, check.finding, check.fix)
        print(account.verdict)

The account follows the way of a message, so the first ``not`` is what to look at first:

==============  ====================================================================================
message         is it in its topic, or does it wait for a delay or a transaction?
route, queue    do readers find its queue, and does the queue still have it?
group           may the group consume?
members         is anybody there?
subscription    does the group want the topic, and
conflict        do all of its members want the same?
filter          does the filter let it through?
owner, lock     does a member read its queue, and in an ordered group hold its lock?
offset          is the group past it?
retry, dlq      did it fail: does it wait for another try, or was it given up?
trace           what have members told that write traces?
==============  ====================================================================================

:func:`explain_group` does the same for a group without a message: why it does not get on. Where a
broker that may know better does not answer, the verdict is ``unknown`` and names it.

What brokers of Apache do not tell (conflicts, locks) is found only with Skylark's. Answers to
``queryMsgByUniqueKey`` (its "CONSUMED"), ``consumerStatus`` and ``checkMsg`` of mqadmin, in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from skylark.admin import explain_checks as checks
from skylark.admin.admin_session import Session, masters_of
from skylark.admin.dlq import DeadLetterQueues
from skylark.admin.errors import NotFoundError, ServerFailure
from skylark.admin.explain_checks import Check, in_the_way, ok, plural, unanswered, unknown
from skylark.admin.group_operations import GroupDescription, Groups
from skylark.admin.message_id_search import find_message, silence
from skylark.admin.topic_operations import groups_reading
from skylark.client.core.client_message import MessageExt
from skylark.core.errors import SkylarkError
from skylark.core.names import is_retry_topic

#: Groups of a topic that are explained when none is given.
GROUPS_MAX: Final = 32


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One account; ``consumed`` is None where nobody can tell.

    Of a group without a message, ``consumed`` says whether it has consumed all that is there.
    """

    group: str | None
    topic: str | None = None
    message_id: str | None = None
    checks: tuple[Check, ...]
    consumed: bool | None
    verdict: str
    failures: tuple[ServerFailure, ...] = ()  #: brokers that did not answer

    @property
    def causes(self) -> tuple[Check, ...]:
        """What is in the way."""
        return tuple(check for check in self.checks if check.status == "not")


# ---- a message -----------------------------------------------------------------------------------


async def explain_message(
    session: Session, message_id: str, *, topic: str | None = None, group: str | None = None
) -> list[Explanation]:
    """Accounts of a message for one group, or for each group that reads its topic.

    Raises NotFoundError if there is no such message or topic, and ClientError if it was not found
    and brokers did not answer.
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
            in_the_way(
                "group",
                f"no group subscribes to {shown} or has offsets of it",
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
            in_the_way(
                "group",
                f"no broker knows group {group}: nobody has ever consumed with this name",
                "start a consumer, or check the name: `skylark group list` shows all",
            )
        )
        return _account(message, group, found)
    wrapped = session.wrap(group)
    members = description.members
    topic = session.unwrap(message.record.topic)
    readers = await checks.find_readers(session, wrapped, members)
    wanted = checks.subscription_of(members, topic)
    found += (
        checks.check_group(description),
        checks.check_members(members),
        checks.check_subscription(members, topic),
        checks.check_conflict(members, topic),
        await checks.check_filter(session, message, wanted),
        checks.check_owner(message, members, readers),
        checks.check_lock(session, message, description, readers),
        await checks.check_offset(session, message, description),
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
    """Whether a message was consumed, by what the checks found, and a sentence about it.

    What is known for certain comes first: a trace, a dead letter, a retry. A group that is past the
    message has seen it unless its filter or a reset left it out. Only for a message that the group
    has yet to reach, what is in its way counts. What decides and is not known leaves it open.
    """
    by_name = {check.check: check for check in found}

    def status(name: str) -> str | None:
        return by_name[name].status if name in by_name else None

    if status("trace") == "ok":
        return True, f"consumed: {by_name['trace'].finding}"
    for name in ("message", "dlq", "retry"):
        if status(name) == "not":
            return False, f"not consumed: {by_name[name].finding}"
    if status("offset") in ("ok", "unknown") and status("filter") == "not":
        return False, f"not consumed: {by_name['filter'].finding}"
    if status("offset") != "not":
        # Without an offset nobody got as far as that: it is the group that is not known.
        for name in ("group",) if status("offset") is None else ("offset", "dlq", "retry"):
            if status(name) == "unknown":
                return None, f"unknown: {by_name[name].finding}"
    if status("offset") == "ok":
        return _judge_passed(status("conflict"), status("filter"))
    first = next(check for check in found if check.status == "not")
    return False, f"not consumed: {first.finding}"


def _judge_passed(conflict: str | None, passes: str | None) -> tuple[bool | None, str]:
    """The verdict on a message that the group is past, and that is no retry and no dead letter."""
    if conflict == "not":
        return None, "passed, and perhaps never delivered: members subscribe differently"
    if passes == "ok":
        return True, "consumed: the group is past it, and it is neither a retry nor a dead letter"
    return None, (
        "passed: the group is past it, and it is neither a retry nor a dead letter; whether its"
        " filter let it through, nobody tells while the group is offline"
    )


# ---- a group -------------------------------------------------------------------------------------


async def explain_group(session: Session, group: str, *, topic: str | None = None) -> Explanation:
    """Why a group does not get on: in all of its topics, or in one.

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
    verdict = "nothing is in its way"
    if causes:
        verdict = f"in its way: {'; '.join(check.finding for check in causes)}"
    elif description.failures:
        verdict = f"unknown: {silence({failure.server for failure in description.failures})}"
    progress = description.progress
    is_certain = bool(progress.lag or (progress.queues and not progress.failures))
    return Explanation(
        group=group,
        topic=topic,
        checks=tuple(found),
        consumed=progress.lag == 0 if is_certain else None,
        verdict=verdict,
        failures=description.failures,
    )


async def _route_of(session: Session, topic: str) -> Check:
    route = await session.find_route(session.wrap(topic))
    if route is None:
        return in_the_way(
            "route",
            f"there is no topic {topic}",
            f"create it with `skylark topic create {topic}`, or start its brokers",
        )
    masters = masters_of(route)
    away = sorted({q.broker_name for q in route.queue_datas} - masters.keys())
    if away:
        return in_the_way(
            "route", f"{topic} has no master on {', '.join(away)}", f"start {', '.join(away)} again"
        )
    count = sum(queues.read_queue_nums for queues in route.queue_datas)
    return ok("route", f"{topic} has {plural(count, 'queue')} on {', '.join(sorted(masters))}")


async def _owners(session: Session, description: GroupDescription, topic: str | None) -> Check:
    members = description.members
    readers = await checks.find_readers(session, session.wrap(description.group), members)
    if readers is None:
        return unknown("owner", "not every member says which queues it reads")
    read = {session.unwrap_queue(queue) for queue in readers}
    alone = [
        f"{entry.queue.topic} {entry.queue.broker_name}:{entry.queue.queue_id}"
        for entry in description.progress.queues
        if entry.queue not in read and entry.lag and topic in (None, entry.queue.topic)
    ]
    if alone and members.failures:
        return unanswered("owner", members.failures)
    if alone:
        return in_the_way(
            "owner",
            f"no member reads {', '.join(alone[:5])}"
            + (f" and {len(alone) - 5} more" if len(alone) > 5 else ""),
            "wait for the next rebalance (20 s); if it stays so, members share queues by different"
            " strategies",
        )
    return ok("owner", f"members: {len(members.members)}, queues that they read: {len(read)}")


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
        return unknown("offset", f"{description.group} has committed nothing")
    if not lag:
        return ok("offset", "it has consumed all that is there")
    held = f", {in_flight} of them with its members" if description.is_online else ""
    return in_the_way(
        "offset",
        f"{plural(lag, 'message')} {'waits' if lag == 1 else 'wait'}{held}",
        "add consumers, make handlers quicker, or leave out the backlog with `skylark group skip`",
    )


def _retries(description: GroupDescription) -> Check:
    waiting = sum(
        entry.lag for entry in description.progress.queues if is_retry_topic(entry.queue.topic)
    )
    if not waiting and description.progress.failures:
        return unanswered("retry", description.progress.failures)
    if not waiting:
        return ok("retry", "no retry is due")
    return in_the_way(
        "retry",
        f"retries that are due: {waiting}",
        "repair the handler; its log says why it failed",
    )


async def _letters(session: Session, group: str) -> Check:
    try:
        letters = await DeadLetterQueues(session).of(group)
    except NotFoundError:
        return ok("dlq", "it has no dead letters")
    except SkylarkError as error:
        return unknown("dlq", f"the dead letters cannot be counted: {error}")
    if not letters.pending and letters.failures:
        return unanswered("dlq", letters.failures)
    if not letters.pending:
        return ok("dlq", f"{plural(letters.count, 'dead letter')}, all dealt with")
    return in_the_way(
        "dlq",
        f"{plural(letters.pending, 'dead letter')} not sent again",
        f"`skylark dlq show {group}`, then `skylark dlq redrive {group}`",
    )
