"""The single checks of an explanation (:mod:`skylark.admin.explain`).

Each check examines one possible reason why a group does not consume a message. Its status is ``ok``
(not the reason), ``not`` (a reason, with a fix) or ``unknown`` (with the cause). Checks change
nothing. "Not found" counts only if all brokers that could have it have responded. Texts have the
names of the application; arguments have names with namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

import msgspec

from skylark.admin.admin_session import Session, masters_of
from skylark.admin.connected_clients import Members, Subscription, running_info
from skylark.admin.errors import NotFoundError, ServerFailure
from skylark.admin.fan_out import few_at_a_time
from skylark.admin.group_operations import GroupDescription
from skylark.admin.message_lookup import copies_in, pull_one, silence
from skylark.admin.redrive_sender import REDRIVEN_FROM
from skylark.admin.topic_queues import committed_offset
from skylark.admin.trace_query import message_trace
from skylark.client.consumer.pop.pop_source import ANY_QUEUE
from skylark.client.consumer.subscription import TAG, make_subscription
from skylark.client.core.client_message import MessageExt
from skylark.core.errors import SkylarkError
from skylark.core.names import (
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    dlq_topic,
    is_retry_topic,
    retry_topic,
)
from skylark.wire import properties as names
from skylark.wire.bodies.admin_body import ProcessQueueInfo
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeType
from skylark.wire.codes import Perm

Status: TypeAlias = Literal["ok", "not", "unknown"]

#: Maximum number of members queried for their queues; in larger groups an owner may be unknown.
MEMBERS_ASKED_MAX: Final = 64
MEMBERS_AT_ONCE: Final = 8
BROADCASTING: Final = "BROADCASTING"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    check: str
    status: Status
    finding: str
    fix: str | None = None  #: what to do, if the status is ``not``


def ok(check: str, finding: str) -> Check:
    return Check(check=check, status="ok", finding=finding)


def problem(check: str, finding: str, fix: str) -> Check:
    return Check(check=check, status="not", finding=finding, fix=fix)


def unknown(check: str, finding: str) -> Check:
    return Check(check=check, status="unknown", finding=finding)


def unanswered(check: str, failures: Iterable[ServerFailure]) -> Check:
    """The result is unknown because brokers did not respond."""
    return unknown(check, silence({failure.server for failure in failures}))


def time_text(time_ms: int) -> str:
    """A time as text, in the local time zone."""
    found = datetime.fromtimestamp(time_ms / 1000, tz=UTC).astimezone()
    return found.isoformat(" ", "milliseconds")


# ---- the message ---------------------------------------------------------------------------------


def check_message(session: Session, message: MessageExt) -> Check:
    """Whether it is in its topic, or still delayed or in a transaction."""
    properties = message.properties
    real = session.unwrap(properties.get(names.PROPERTY_REAL_TOPIC, "?"))
    match message.record.topic:
        case topic if topic == SCHEDULE_TOPIC:
            level = properties.get(names.PROPERTY_DELAY, "?")
            return problem(
                "message",
                f"it is delayed (level {level}), and will be delivered to {real}",
                "wait, or send without delay",
            )
        case topic if topic == TIMER_TOPIC:
            due = properties.get(names.PROPERTY_TIMER_OUT_MS, "")
            until = f"until {time_text(int(due))}" if due.isdigit() else "until an unknown time"
            return problem(
                "message",
                f"it is delayed {until}, and will be delivered to {real}",
                "wait, or recall it",
            )
        case topic if topic == HALF_TOPIC:
            group = properties.get(names.PROPERTY_PGROUP, "?")
            return problem(
                "message",
                f"its transaction is undecided: producer group {group} must commit it",
                f"run a producer of group {group}: the broker sends it a check-back",
            )
        case topic:
            tag = f", tag {message.tag}" if message.tag else ""
            return ok(
                "message",
                f"it is in {session.unwrap(topic)}, queue {message.broker_name}:{message.queue_id}"
                f" at offset {message.queue_offset}, since"
                f" {time_text(message.record.store_timestamp)}{tag}",
            )


async def check_route(session: Session, message: MessageExt) -> Check:
    """Whether the route has the queue, and a master to read it from."""
    topic, broker = session.unwrap(message.record.topic), message.broker_name
    route = await session.find_route(message.record.topic)
    queues = (
        next((q for q in route.queue_datas if q.broker_name == broker), None) if route else None
    )
    if route is None or queues is None:
        where = "" if route is None else f" on {broker}"
        return problem(
            "route",
            f"the name server has no route of {topic}{where}: consumers cannot find the queue",
            f"start {broker} again, or create {topic} there with `skylark topic create {topic}`",
        )
    if not queues.perm & Perm.READ:
        return problem(
            "route",
            f"{topic} is not readable on {broker}",
            f"skylark topic set {topic} --perm rw --broker {broker}",
        )
    if message.queue_id >= queues.read_queue_nums:
        return problem(
            "route",
            f"consumers do not read queue {message.queue_id}: {topic} has"
            f" {plural(queues.read_queue_nums, 'queue')} to read on {broker}",
            f"skylark topic set {topic} --broker {broker} --read-queues {message.queue_id + 1}",
        )
    if broker not in masters_of(route):
        return unknown("route", f"{broker} has no master now; its slaves may serve the message")
    return ok("route", f"{topic} has {plural(queues.read_queue_nums, 'queue')} to read on {broker}")


async def check_queue(session: Session, message: MessageExt) -> Check:
    """Whether the message is still within its queue."""
    try:
        _, address = await session.broker(message.broker_name)
        first = await session.calls.min_offset(address, stored_queue(message))
    except SkylarkError as error:
        return unknown(
            "queue", f"{message.broker_name} does not return the first offset of the queue: {error}"
        )
    if message.queue_offset < first:
        return problem(
            "queue",
            f"it has expired: the first offset of the queue is {first} now",
            "lengthen the retention: fileReservedTime of the broker, in hours",
        )
    return ok("queue", f"the queue still has it: its first offset is {first}")


# ---- the group -----------------------------------------------------------------------------------


def check_group(description: GroupDescription) -> Check:
    """Whether consumption is enabled for the group."""
    group = description.group
    off = [entry.broker for entry in description.configs if not entry.config.consume_enable]
    if off:
        return problem(
            "group",
            f"consumption of {group} is disabled on {', '.join(off)}",
            "set its consume_enable to true with `skylark apply`",
        )
    if not description.configs and description.failures:
        return unanswered("group", description.failures)
    if not description.configs:
        return ok("group", f"{group} has default settings")
    tries = sorted({entry.config.retry_max_times for entry in description.configs})
    return ok("group", f"consumption is enabled, with at most {', '.join(map(str, tries))} retries")


def check_members(members: Members) -> Check:
    """Whether members are connected."""
    if not members.members and members.failures:
        return unanswered("members", members.failures)
    if not members.members:
        return problem(
            "members", f"no member of {members.group} is connected", "start a consumer of the group"
        )
    model = (members.message_model or "unknown").lower()
    ids = [member.client_id for member in members.members]
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return ok("members", f"{len(ids)} connected, {model}: {', '.join(ids[:3])}{more}")


def check_subscription(members: Members, topic: str) -> Check:
    """Whether the group subscribes to the topic (name without namespace)."""
    if not members.members:
        return unknown("subscription", "brokers do not know it while the group is offline")
    found = subscription_of(members, topic)
    if found is None and members.failures:
        return unanswered("subscription", members.failures)
    if found is None:
        topics = [each.topic for each in members.subscriptions if not is_retry_topic(each.topic)]
        others = ", ".join(topics) or "nothing"
        return problem(
            "subscription",
            f"{members.group} does not subscribe to {topic}, but to {others}",
            f"subscribe to {topic} in all members of the group",
        )
    return ok("subscription", f"{found.expression_type} {found.expression}")


def subscription_of(members: Members, topic: str) -> Subscription | None:
    """The subscription of the group to a topic."""
    return next((each for each in members.subscriptions if each.topic == topic), None)


def check_conflict(members: Members, topic: str | None) -> Check:
    """Whether all members have the same subscription to a topic, or to all topics."""
    if not members.members:
        return unknown("conflict", "brokers do not know it while the group is offline")
    found = [each for each in members.conflicts if topic in (None, each.topic)]
    if not found:
        return ok("conflict", "brokers report no different subscriptions of its members")
    sides = "; ".join(
        f"{conflict.topic}: "
        + " but ".join(
            f"{', '.join(side.client_ids[:2])} {side.expression or 'nothing'}"
            for side in conflict.sides
        )
        for conflict in found
    )
    return problem(
        "conflict",
        f"its members have different subscriptions, so messages are skipped ({sides})",
        "use one group per application, with the same subscription in all members",
    )


async def check_filter(
    session: Session, message: MessageExt, subscription: Subscription | None
) -> Check:
    """Whether the message matches the group's filter; the broker evaluates SQL."""
    if subscription is None:
        return unknown("filter", "the filter of the group is unknown")
    kind, expression = subscription.expression_type, subscription.expression
    try:
        if kind == TAG:
            passed = make_subscription("T", expression, now_ms=0).matches(message.tag)
        else:
            passed = await _passes(session, message, subscription)
    except SkylarkError as error:
        return unknown("filter", f"cannot evaluate {kind} {expression}: {error}")
    what = f"tag {message.tag}" if kind == TAG else "its properties"
    if passed:
        return ok("filter", f"it matches {kind} {expression}")
    return problem(
        "filter",
        f"it does not match {kind} {expression} ({what}): it is never delivered",
        "subscribe with a filter that matches, then reset the offset to read it again",
    )


async def _passes(session: Session, message: MessageExt, subscription: Subscription) -> bool:
    """Pull this one message with the filter of the group, so that the broker evaluates it."""
    _, address = await session.broker(message.broker_name)
    found, _ = await pull_one(
        session,
        address,
        stored_queue(message),
        message.queue_offset,
        subscription.expression,
        subscription.expression_type,
    )
    return found is not None


# ---- readers and offsets -------------------------------------------------------------------------


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A member that reads a queue, and its running info about it."""

    client_id: str
    state: ProcessQueueInfo


async def find_readers(
    session: Session, group: str, members: Members
) -> dict[MessageQueue, Reader] | None:
    """The readers of all queues, as members report them; None if one does not respond."""
    asked = members.members[:MEMBERS_ASKED_MAX]

    async def queues_of(client_id: str) -> dict[MessageQueue, Reader] | None:
        try:
            info = await running_info(session, group, client_id)
        except SkylarkError:  # it has left or hangs
            return None
        popped = {
            queue: Reader(client_id=client_id, state=ProcessQueueInfo())
            for queue, each in info.mq_pop_table.items()
            if not each.dropped
        }
        return popped | {
            queue: Reader(client_id=client_id, state=state)
            for queue, state in info.mq_table.items()
            if not state.dropped
        }

    answers = await few_at_a_time(
        [member.client_id for member in asked], queues_of, MEMBERS_AT_ONCE
    )
    if len(asked) < len(members.members) or any(answer is None for answer in answers):
        return None
    return {queue: reader for answer in answers for queue, reader in (answer or {}).items()}


def is_popped(
    members: Members, readers: Mapping[MessageQueue, Reader], queue: MessageQueue
) -> bool:
    """Whether members take the messages of a queue without owning it."""
    if members.consume_type == ConsumeType.CONSUME_POP.value:
        return True
    return msgspec.structs.replace(queue, queue_id=ANY_QUEUE) in readers


def check_owner(
    message: MessageExt, members: Members, readers: dict[MessageQueue, Reader] | None
) -> Check:
    """Whether a member reads the queue, and has already pulled the message."""
    where = f"{message.broker_name}:{message.queue_id}"
    if not members.members:
        return unknown("owner", "no member is connected")
    if readers is None:
        return unknown("owner", "not every member reports which queues it reads")
    if is_popped(members, readers, stored_queue(message)):
        return ok("owner", "members pop: any of them may get a message of any queue")
    reader = readers.get(stored_queue(message))
    if reader is None and members.failures:
        return unanswered("owner", members.failures)
    if reader is None:
        return problem(
            "owner",
            f"no member reads queue {where}",
            "wait for the next rebalance (20 s); if it persists, members use different allocation"
            " strategies",
        )
    state = reader.state
    held = state.cached_msg_count > 0 and (
        state.cached_msg_min_offset <= message.queue_offset <= state.cached_msg_max_offset
    )
    suffix = ", and has pulled the message: its handler runs, or has not started" if held else ""
    return ok("owner", f"{reader.client_id} reads queue {where}{suffix}")


def check_lock(
    session: Session,
    message: MessageExt,
    description: GroupDescription,
    readers: dict[MessageQueue, Reader] | None,
) -> Check:
    """Whether the member that reads the queue in order holds the queue lock."""
    if not description.members.members:
        return unknown("lock", "brokers do not know it while the group is offline")
    queue = stored_queue(message)
    held = next((q for q in description.members.locks if q.message_queue == queue), None)
    reader = (readers or {}).get(queue)
    if held is not None:
        left_s = max(0, held.expires_ms - session.clock.now_ms()) // 1000
        if reader is not None and reader.client_id != held.client_id:
            return problem(
                "lock",
                f"{held.client_id} holds the lock of the queue for {left_s} s, but"
                f" {reader.client_id} reads it",
                f"wait until the lock expires, or shut down {held.client_id}",
            )
        return ok("lock", f"{held.client_id} holds the lock of the queue, for {left_s} s")
    if description.members.locks and reader is not None and not reader.state.locked:
        return problem(
            "lock",
            f"{reader.client_id} reads in order and does not hold the lock of the queue",
            "wait: it requests the lock every 20 s",
        )
    if description.members.failures:
        return unanswered("lock", description.members.failures)
    return ok("lock", "not needed: the group does not read the queue in order")


async def check_offset(
    session: Session, message: MessageExt, description: GroupDescription, next_pop: int | None
) -> Check:
    """The offset of the group in the queue of the message; ``next_pop``: where it pops next."""
    group, queue = session.wrap(description.group), stored_queue(message)
    if description.members.message_model == BROADCASTING:
        return unknown("offset", "members of a broadcast group store their offsets locally")
    try:
        _, address = await session.broker(message.broker_name)
        committed = await committed_offset(session, address, group, queue)
    except SkylarkError as error:
        return unknown("offset", f"{message.broker_name} does not return it: {error}")
    if next_pop is not None and next_pop > max(message.queue_offset, committed or 0):
        # The committed offset waits until the messages before it are acknowledged or written.
        popped = f"popped up to offset {next_pop}, which is past offset {message.queue_offset}"
        return ok("offset", f"{popped}; committed offset {committed}")
    topic = session.unwrap(message.record.topic)
    reset = (
        f"skylark group reset-offset {description.group} {topic} --broker {message.broker_name}"
        f" --queue {message.queue_id} --to {message.queue_offset}"
    )
    if committed is None:
        return problem(
            "offset",
            f"{description.group} has no committed offset in this queue; a new group starts at the"
            " end by default",
            reset,
        )
    if committed > message.queue_offset:
        return ok("offset", f"committed offset {committed} is past offset {message.queue_offset}")
    shown = session.unwrap_queue(queue)
    pulled = next(
        (q.pull_offset for q in description.progress.queues if q.queue == shown), committed
    )
    before = message.queue_offset - committed
    if pulled > message.queue_offset and description.is_online:
        return problem(
            "offset",
            f"committed offset {committed}: a member has pulled it and not finished it"
            f" ({before} before it are unfinished)",
            "check the handler of the member: `skylark group describe --owners` names it",
        )
    return problem(
        "offset",
        f"committed offset {committed}: {_before(before)}",
        "wait, add consumers, or skip the backlog with `skylark group skip`",
    )


# ---- retries, dead letters, trace----------------------------------------------------------------


async def check_retry(session: Session, message: MessageExt, group: str) -> Check:
    """Whether it failed and waits for a retry; ``group`` with namespace."""
    topic = retry_topic(group)
    copies = await copies_in(session, topic, message.msg_id)
    delayed = await copies_in(session, SCHEDULE_TOPIC, message.msg_id)
    waiting = [
        copy for copy in delayed.messages if copy.properties.get(names.PROPERTY_REAL_TOPIC) == topic
    ]
    silent = copies.silent | delayed.silent
    # A waiting copy has the number of its next attempt.
    last = max((*copies.messages, *waiting), key=lambda copy: copy.reconsume_times, default=None)
    if last is None and silent:
        return unknown("retry", silence(silent))
    if last is None:
        return ok("retry", "it is not in the retry topic of the group")
    tries = last.reconsume_times
    if last.record.topic == SCHEDULE_TOPIC:
        level = last.properties.get(names.PROPERTY_DELAY, "?")
        return problem(
            "retry",
            f"it failed {_times(tries)}, and waits for its next retry (delay level {level})",
            "fix the handler; see the log of the consumer",
        )
    queue = stored_queue(last)
    try:
        _, address = await session.broker(last.broker_name)
        committed = await committed_offset(session, address, group, queue)
    except SkylarkError as error:
        return unknown(
            "retry", f"it failed {_times(tries)}; the outcome of the last retry is unknown: {error}"
        )
    if committed is not None and committed > last.queue_offset:
        if silent:
            return unknown(
                "retry",
                f"it failed {_times(tries)}; whether it failed again is unknown: {silence(silent)}",
            )
        return ok("retry", f"it failed {_times(tries)}; the group has consumed the last retry")
    return problem(
        "retry",
        f"it failed {_times(tries)}, and its next retry is due",
        "start a consumer of the group, or fix its handler",
    )


async def check_dlq(session: Session, message: MessageExt, group: str) -> Check:
    """Whether it is a dead letter of the group; ``group`` with namespace."""
    letters = await copies_in(session, dlq_topic(group), message.msg_id)
    if not letters.messages and letters.silent:
        return unknown("dlq", silence(letters.silent))
    if not letters.messages:
        return ok("dlq", "it is not among the dead letters of the group")
    letter = letters.messages[-1]
    since = time_text(letter.record.store_timestamp)
    silent: set[str] = set()
    for topic in (message.record.topic, retry_topic(group)):
        copies = await copies_in(session, topic, message.msg_id)
        silent |= copies.silent
        for copy in copies.messages:
            if copy.properties.get(REDRIVEN_FROM) == letter.offset_msg_id:
                sent = time_text(copy.record.store_timestamp)
                return ok(
                    "dlq", f"it was a dead letter since {since}, and was sent again at {sent}"
                )
    if silent:
        return unknown(
            "dlq",
            f"it was a dead letter since {since}; unknown whether it was sent again:"
            f" {silence(silent)}",
        )
    shown = session.unwrap(group)
    return problem(
        "dlq",
        f"{shown} gave it up after {_times(letter.reconsume_times)}: a dead letter since {since}",
        f"skylark dlq redrive {shown} --id {letter.offset_msg_id}",
    )


async def check_trace(session: Session, message: MessageExt, group: str) -> Check:
    """What the trace records say; ``group`` without namespace."""
    try:
        trace = await message_trace(session, message.msg_id, TRACE_TOPIC)
    except NotFoundError:
        return unknown("trace", "it has no trace: clients write one with trace=True")
    except SkylarkError as error:
        return unknown("trace", f"cannot read the trace: {error}")
    ours = [each for each in trace.deliveries if session.unwrap(each.group or "") == group]
    if not ours:
        return unknown(
            "trace", f"the trace has {len(trace.sends)} sends, and no delivery to {group}"
        )
    for delivery in ours:
        if delivery.after is not None and delivery.after.success:
            return ok(
                "trace",
                f"a handler of {group} processed it at {time_text(delivery.time_ms)},"
                f" in {delivery.after.cost_ms} ms",
            )
    last = ours[-1]
    how = "it did not finish" if last.after is None else "it failed"
    return problem(
        "trace",
        f"the trace has {len(ours)} deliveries to {group}; the last at {time_text(last.time_ms)}:"
        f" {how}",
        "fix the handler; see the log of the consumer",
    )


def stored_queue(message: MessageExt) -> MessageQueue:
    """The queue of a message, with namespace."""
    return MessageQueue(
        topic=message.record.topic, broker_name=message.broker_name, queue_id=message.queue_id
    )


def _before(count: int) -> str:
    if count == 0:
        return "it is the next message of the queue"
    return f"{plural(count, 'message')} of the queue {'is' if count == 1 else 'are'} before it"


def plural(count: int, noun: str) -> str:
    """A number with its noun, in singular or plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
