"""The single checks of an explanation (:mod:`skylark.admin.explain`): each looks at one thing that
can keep a message from a group, and says what it found.

A check is ``ok`` (this is not what keeps it), ``not`` (this does, with what to do about it) or
``unknown`` (nobody could tell, and why). Checks ask and never change anything. That something is
not there counts only if all brokers that could have it have answered. Names in their texts are
those of the application; names in arguments are as servers know them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

import msgspec

from skylark.admin.admin_session import Session, masters_of
from skylark.admin.connected_clients import Members, Subscription, running_info
from skylark.admin.dead_letter_sender import REDRIVEN_FROM
from skylark.admin.errors import NotFoundError, ServerFailure
from skylark.admin.fan_out import few_at_a_time
from skylark.admin.group_operations import GroupDescription
from skylark.admin.message_id_search import copies_in, silence
from skylark.admin.message_lookup import PULL_TIMEOUT_S, records_of
from skylark.admin.topic_queues import committed_offset
from skylark.admin.trace_query import message_trace
from skylark.client.consumer.subscription import TAG, make_subscription
from skylark.client.core.broker_calls import PullStatus
from skylark.client.core.client_message import MessageExt
from skylark.core.errors import SkylarkError
from skylark.core.names import (
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TOOLS_GROUP,
    TRACE_TOPIC,
    dlq_topic,
    is_retry_topic,
    retry_topic,
)
from skylark.wire import properties as names
from skylark.wire.bodies.admin_body import ProcessQueueInfo
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import Perm, PullSysFlag
from skylark.wire.headers.pull import PullMessageRequestHeader

Status: TypeAlias = Literal["ok", "not", "unknown"]

#: Members that are asked what they do; in a larger group the owner of a queue may stay unknown.
MEMBERS_ASKED_MAX: Final = 64
MEMBERS_AT_ONCE: Final = 8
BROADCASTING: Final = "BROADCASTING"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    check: str
    status: Status
    finding: str
    fix: str | None = None  #: what to do about it, where it is in the way


def ok(check: str, finding: str) -> Check:
    return Check(check=check, status="ok", finding=finding)


def in_the_way(check: str, finding: str, fix: str) -> Check:
    return Check(check=check, status="not", finding=finding, fix=fix)


def unknown(check: str, finding: str) -> Check:
    return Check(check=check, status="unknown", finding=finding)


def unanswered(check: str, failures: Iterable[ServerFailure]) -> Check:
    """Nobody could tell, because brokers did not answer."""
    return unknown(check, silence({failure.server for failure in failures}))


def time_text(time_ms: int) -> str:
    """A time for a sentence, as the machine of the reader has it."""
    found = datetime.fromtimestamp(time_ms / 1000, tz=UTC).astimezone()
    return found.isoformat(" ", "milliseconds")


# ---- the message ---------------------------------------------------------------------------------


def check_message(session: Session, message: MessageExt) -> Check:
    """Whether it is in its topic, or waits for a delay or a transaction."""
    properties = message.properties
    real = session.unwrap(properties.get(names.PROPERTY_REAL_TOPIC, "?"))
    match message.record.topic:
        case topic if topic == SCHEDULE_TOPIC:
            level = properties.get(names.PROPERTY_DELAY, "?")
            return in_the_way(
                "message",
                f"it waits for the end of its delay, level {level}, and then goes to {real}",
                "wait, or send without delay",
            )
        case topic if topic == TIMER_TOPIC:
            due = properties.get(names.PROPERTY_TIMER_OUT_MS, "")
            until = f"until {time_text(int(due))}" if due.isdigit() else "for its time"
            return in_the_way(
                "message", f"it waits {until}, and then goes to {real}", "wait, or recall it"
            )
        case topic if topic == HALF_TOPIC:
            group = properties.get(names.PROPERTY_PGROUP, "?")
            return in_the_way(
                "message",
                f"its transaction is not decided: producer group {group} has to commit it",
                f"run a producer of group {group}: the broker asks it again by itself",
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
    """Whether readers find the queue: the topic has a route, its broker a master to read from."""
    topic, broker = session.unwrap(message.record.topic), message.broker_name
    route = await session.find_route(message.record.topic)
    queues = (
        next((q for q in route.queue_datas if q.broker_name == broker), None) if route else None
    )
    if route is None or queues is None:
        where = "" if route is None else f" on {broker}"
        return in_the_way(
            "route",
            f"the name server has no route of {topic}{where}: readers do not find the queue",
            f"start {broker} again, or create {topic} there with `skylark topic create {topic}`",
        )
    if not queues.perm & Perm.READ:
        return in_the_way(
            "route",
            f"{topic} may not be read on {broker}",
            f"skylark topic set {topic} --perm rw --broker {broker}",
        )
    if message.queue_id >= queues.read_queue_nums:
        return in_the_way(
            "route",
            f"queue {message.queue_id} is not read: {topic} has"
            f" {plural(queues.read_queue_nums, 'queue')} to read on {broker}",
            f"skylark topic set {topic} --broker {broker} --read-queues {message.queue_id + 1}",
        )
    if broker not in masters_of(route):
        return unknown("route", f"{broker} has no master now; slaves may serve what they have")
    return ok("route", f"{topic} has {plural(queues.read_queue_nums, 'queue')} to read on {broker}")


async def check_queue(session: Session, message: MessageExt) -> Check:
    """Whether the message is still within its queue."""
    try:
        _, address = await session.broker(message.broker_name)
        first = await session.calls.min_offset(address, _stored_queue(message))
    except SkylarkError as error:
        return unknown(
            "queue", f"{message.broker_name} does not say where the queue begins: {error}"
        )
    if message.queue_offset < first:
        return in_the_way(
            "queue",
            f"it has expired: the queue begins at offset {first} by now",
            "keep messages longer: setting fileReservedTime of the broker, in hours",
        )
    return ok("queue", f"the queue begins at offset {first} and still has it")


# ---- the group -----------------------------------------------------------------------------------


def check_group(description: GroupDescription) -> Check:
    """Whether the group may consume at all."""
    group = description.group
    off = [entry.broker for entry in description.configs if not entry.config.consume_enable]
    if off:
        return in_the_way(
            "group",
            f"{group} may not consume on {', '.join(off)}",
            "set its consume_enable to true with `skylark apply`",
        )
    if not description.configs and description.failures:
        return unanswered("group", description.failures)
    if not description.configs:
        return ok("group", f"{group} has no settings of its own")
    tries = sorted({entry.config.retry_max_times for entry in description.configs})
    return ok("group", f"{group} may consume, with at most {', '.join(map(str, tries))} retries")


def check_members(members: Members) -> Check:
    """Whether anybody of the group is there."""
    if not members.members and members.failures:
        return unanswered("members", members.failures)
    if not members.members:
        return in_the_way(
            "members", f"no member of {members.group} is connected", "start a consumer of the group"
        )
    model = (members.message_model or "unknown").lower()
    ids = [member.client_id for member in members.members]
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return ok("members", f"{len(ids)} connected, {model}: {', '.join(ids[:3])}{more}")


def check_subscription(members: Members, topic: str) -> Check:
    """Whether the group wants the topic, named as the application knows it."""
    if not members.members:
        return unknown("subscription", "nobody tells while the group is offline")
    found = subscription_of(members, topic)
    if found is None and members.failures:
        return unanswered("subscription", members.failures)
    if found is None:
        topics = [each.topic for each in members.subscriptions if not is_retry_topic(each.topic)]
        others = ", ".join(topics) or "nothing"
        return in_the_way(
            "subscription",
            f"{members.group} does not subscribe to {topic}, but to {others}",
            f"subscribe to {topic} in all members of the group",
        )
    return ok("subscription", f"{found.expression_type} {found.expression}")


def subscription_of(members: Members, topic: str) -> Subscription | None:
    """What the group wants of a topic."""
    return next((each for each in members.subscriptions if each.topic == topic), None)


def check_conflict(members: Members, topic: str | None) -> Check:
    """Whether all members want the same of a topic, or of all topics."""
    if not members.members:
        return unknown("conflict", "nobody tells while the group is offline")
    found = [each for each in members.conflicts if topic in (None, each.topic)]
    if not found:
        return ok("conflict", "its members subscribe alike, as far as brokers tell")
    sides = "; ".join(
        f"{conflict.topic}: "
        + " but ".join(
            f"{', '.join(side.client_ids[:2])} {side.expression or 'nothing'}"
            for side in conflict.sides
        )
        for conflict in found
    )
    return in_the_way(
        "conflict",
        f"its members subscribe differently, and messages are skipped ({sides})",
        "give each application a group of its own, and let all members of one subscribe alike",
    )


async def check_filter(
    session: Session, message: MessageExt, subscription: Subscription | None
) -> Check:
    """Whether the group's filter lets the message through; SQL is put to the broker."""
    if subscription is None:
        return unknown("filter", "the group's filter is not known")
    kind, expression = subscription.expression_type, subscription.expression
    try:
        if kind == TAG:
            passed = make_subscription("T", expression, now_ms=0).matches(message.tag)
        else:
            passed = await _passes(session, message, subscription)
    except SkylarkError as error:
        return unknown("filter", f"whether {kind} {expression} lets it through: {error}")
    what = f"tag {message.tag}" if kind == TAG else "its properties"
    if passed:
        return ok("filter", f"{kind} {expression} lets it through")
    return in_the_way(
        "filter",
        f"{kind} {expression} does not let it through ({what}): it is never delivered",
        "subscribe with a filter that matches, then reset the offset to read it again",
    )


async def _passes(session: Session, message: MessageExt, subscription: Subscription) -> bool:
    """Let the broker filter this one message, as it would for a member of the group."""
    _, address = await session.broker(message.broker_name)
    header = PullMessageRequestHeader(
        consumer_group=TOOLS_GROUP,
        topic=message.record.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        max_msg_nums=1,
        sys_flag=int(PullSysFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=subscription.expression,
        sub_version=0,
        expression_type=subscription.expression_type,
    )
    pulled = await session.calls.pull(address, header, message.broker_name, PULL_TIMEOUT_S)
    if pulled.status is not PullStatus.FOUND:
        return False
    return any(each.queue_offset == message.queue_offset for each in records_of(pulled))


# ---- who reads it, and how far -------------------------------------------------------------------


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A member that reads a queue, and what it says about it."""

    client_id: str
    state: ProcessQueueInfo


async def find_readers(
    session: Session, group: str, members: Members
) -> dict[MessageQueue, Reader] | None:
    """Who reads which queue, as the members say; None if one of them does not answer."""
    asked = members.members[:MEMBERS_ASKED_MAX]

    async def queues_of(client_id: str) -> dict[MessageQueue, Reader] | None:
        try:
            info = await running_info(session, group, client_id)
        except SkylarkError:  # it left, or hangs
            return None
        return {
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


def check_owner(
    message: MessageExt, members: Members, readers: dict[MessageQueue, Reader] | None
) -> Check:
    """Whether a member reads the queue, and whether it has the message already."""
    where = f"{message.broker_name}:{message.queue_id}"
    if not members.members:
        return unknown("owner", "nobody is there to read the queue")
    if readers is None:
        return unknown("owner", "not every member says which queues it reads")
    reader = readers.get(_stored_queue(message))
    if reader is None and members.failures:
        return unanswered("owner", members.failures)
    if reader is None:
        return in_the_way(
            "owner",
            f"no member reads queue {where}",
            "wait for the next rebalance (20 s); if it stays so, members share queues by different"
            " strategies",
        )
    state = reader.state
    held = state.cached_msg_count > 0 and (
        state.cached_msg_min_offset <= message.queue_offset <= state.cached_msg_max_offset
    )
    suffix = ", and has the message: its handler is at work, or waits for its turn" if held else ""
    return ok("owner", f"{reader.client_id} reads queue {where}{suffix}")


def check_lock(
    session: Session,
    message: MessageExt,
    description: GroupDescription,
    readers: dict[MessageQueue, Reader] | None,
) -> Check:
    """Whether the member that reads the queue in order holds its lock."""
    if not description.members.members:
        return unknown("lock", "nobody tells while the group is offline")
    queue = _stored_queue(message)
    held = next((q for q in description.members.locks if q.message_queue == queue), None)
    reader = (readers or {}).get(queue)
    if held is not None:
        left_s = max(0, held.expires_ms - session.clock.now_ms()) // 1000
        if reader is not None and reader.client_id != held.client_id:
            return in_the_way(
                "lock",
                f"{held.client_id} holds the lock of the queue for {left_s} s, but"
                f" {reader.client_id} reads it",
                f"wait until the lock expires, or end {held.client_id} in order",
            )
        return ok("lock", f"{held.client_id} holds the lock of the queue, for {left_s} s")
    if description.members.locks and reader is not None and not reader.state.locked:
        return in_the_way(
            "lock",
            f"{reader.client_id} reads in order and does not hold the lock of the queue",
            "wait: it asks for the lock every 20 s",
        )
    if description.members.failures:
        return unanswered("lock", description.members.failures)
    return ok("lock", "nobody needs a lock: the group does not read the queue in order")


async def check_offset(
    session: Session, message: MessageExt, description: GroupDescription
) -> Check:
    """Where the group stands in the queue of the message."""
    group, queue = session.wrap(description.group), _stored_queue(message)
    if description.members.message_model == BROADCASTING:
        return unknown("offset", "members of a broadcasting group keep their offsets themselves")
    try:
        _, address = await session.broker(message.broker_name)
        committed = await committed_offset(session, address, group, queue)
    except SkylarkError as error:
        return unknown("offset", f"{message.broker_name} does not say: {error}")
    topic = session.unwrap(message.record.topic)
    reset = (
        f"skylark group reset-offset {description.group} {topic} --broker {message.broker_name}"
        f" --queue {message.queue_id} --to {message.queue_offset}"
    )
    if committed is None:
        return in_the_way(
            "offset",
            f"{description.group} has committed nothing in this queue; a new group begins at the"
            " end unless it asks for something else",
            reset,
        )
    if committed > message.queue_offset:
        return ok(
            "offset", f"committed {committed}: the group is past offset {message.queue_offset}"
        )
    shown = session.unwrap_queue(queue)
    pulled = next(
        (q.pull_offset for q in description.progress.queues if q.queue == shown), committed
    )
    before = message.queue_offset - committed
    if pulled > message.queue_offset and description.is_online:
        return in_the_way(
            "offset",
            f"committed {committed}: it was delivered to a member, which is not done with it"
            f" ({before} before it are open)",
            "look at the handler of the member: `skylark group describe --owners` names it",
        )
    return in_the_way(
        "offset",
        f"committed {committed}: {_before(before)}",
        "wait, add consumers, or leave out the backlog with `skylark group skip`",
    )


# ---- what became of it ---------------------------------------------------------------------------


async def check_retry(session: Session, message: MessageExt, group: str) -> Check:
    """Whether it failed, and waits for another try; ``group`` as servers know it."""
    topic = retry_topic(group)
    copies = await copies_in(session, topic, message.msg_id)
    delayed = await copies_in(session, SCHEDULE_TOPIC, message.msg_id)
    waiting = [
        copy for copy in delayed.messages if copy.properties.get(names.PROPERTY_REAL_TOPIC) == topic
    ]
    silent = copies.silent | delayed.silent
    # A copy that waits has the number of the try that it is for.
    last = max((*copies.messages, *waiting), key=lambda copy: copy.reconsume_times, default=None)
    if last is None and silent:
        return unknown("retry", silence(silent))
    if last is None:
        return ok("retry", "it is not among the retries of the group")
    tries = last.reconsume_times
    if last.record.topic == SCHEDULE_TOPIC:
        level = last.properties.get(names.PROPERTY_DELAY, "?")
        return in_the_way(
            "retry",
            f"it failed {_times(tries)}, and waits for its next try (delay level {level})",
            "repair the handler; its log says why it failed",
        )
    queue = _stored_queue(last)
    try:
        _, address = await session.broker(last.broker_name)
        committed = await committed_offset(session, address, group, queue)
    except SkylarkError as error:
        return unknown("retry", f"it failed {_times(tries)}; how the last try went: {error}")
    if committed is not None and committed > last.queue_offset:
        if silent:
            return unknown(
                "retry", f"it failed {_times(tries)}; whether it did again: {silence(silent)}"
            )
        return ok("retry", f"it failed {_times(tries)}; the group is past the last retry")
    return in_the_way(
        "retry",
        f"it failed {_times(tries)}, and its next try is due",
        "start a consumer of the group, or repair its handler",
    )


async def check_dlq(session: Session, message: MessageExt, group: str) -> Check:
    """Whether the group gave it up; ``group`` as servers know it."""
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
            f"it was a dead letter since {since}; whether it was sent again: {silence(silent)}",
        )
    shown = session.unwrap(group)
    return in_the_way(
        "dlq",
        f"{shown} gave it up after {_times(letter.reconsume_times)}: a dead letter since {since}",
        f"skylark dlq redrive {shown} --id {letter.offset_msg_id}",
    )


async def check_trace(session: Session, message: MessageExt, group: str) -> Check:
    """What members with tracing have told about it; ``group`` as the application knows it."""
    try:
        trace = await message_trace(session, message.msg_id, TRACE_TOPIC)
    except NotFoundError:
        return unknown("trace", "there is no trace of it: clients write one with trace=True")
    except SkylarkError as error:
        return unknown("trace", f"the traces cannot be read: {error}")
    ours = [each for each in trace.deliveries if session.unwrap(each.group or "") == group]
    if not ours:
        return unknown("trace", f"{len(trace.sends)} sends are traced, and no delivery to {group}")
    for delivery in ours:
        if delivery.after is not None and delivery.after.success:
            return ok(
                "trace",
                f"a handler of {group} was done with it at {time_text(delivery.time_ms)},"
                f" in {delivery.after.cost_ms} ms",
            )
    last = ours[-1]
    how = "it did not end" if last.after is None else "it failed"
    return in_the_way(
        "trace",
        f"{len(ours)} deliveries to {group} are traced; the last at {time_text(last.time_ms)}:"
        f" {how}",
        "repair the handler; its log says why it failed",
    )


def _stored_queue(message: MessageExt) -> MessageQueue:
    """The queue of a message as servers know it."""
    return MessageQueue(
        topic=message.record.topic, broker_name=message.broker_name, queue_id=message.queue_id
    )


def _before(count: int) -> str:
    if count == 0:
        return "it is the next message of the queue"
    return f"{plural(count, 'message')} of the queue {'comes' if count == 1 else 'come'} before it"


def plural(count: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
