"""Explanations against real brokers on loopback: each thing that can be in a message's way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from skylark.admin.admin_client import Admin
from skylark.admin.errors import NotFoundError
from skylark.admin.explain import Explanation, explain_group, explain_message
from skylark.admin.explain_checks import Check, Reader, check_lock
from skylark.admin.message_lookup import find_message
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_message import Message, MessageExt, RetryLater, TxState
from skylark.client.producer.producer import Producer
from skylark.core.errors import ClientError
from skylark.wire.bodies.admin_body import ProcessQueueInfo, QueueLock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import SubscriptionGroupConfig
from skylark.wire.bodies.heartbeat import ConsumeFromWhere, MessageModel
from tests.unit.admin.sites import Site, bury, eventually, indexed, running_site

TOPIC = "T"
GROUP = "g"
BROADCASTING = MessageModel.BROADCASTING
CLUSTERING = MessageModel.CLUSTERING


async def sent(site: Site, admin: Admin, message: Message) -> str:
    """The id of a message that can be found."""
    (result,) = await site.send(message)
    await indexed(admin, TOPIC, result.msg_id)
    return result.msg_id


async def account(admin: Admin, msg_id: str, group: str = GROUP) -> Explanation:
    (found,) = await explain_message(admin.session, msg_id, topic=TOPIC, group=group)
    return found


def check(found: Explanation, name: str) -> Check:
    return next(each for each in found.checks if each.check == name)


@asynccontextmanager
async def member(
    site: Site,
    *,
    tags: str | None = None,
    sql: str | None = None,
    fails: bool = False,
    topic: str = TOPIC,
    offset_folder: Path | None = None,
    trace: bool = False,
) -> AsyncIterator[list[str]]:
    """A consumer of the group, and the ids of what its handler got.

    With a folder for its offsets it is a broadcasting one.
    """
    seen: list[str] = []
    consumer = PushConsumer(
        GROUP,
        site.options(trace=trace),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        message_model=BROADCASTING if offset_folder else CLUSTERING,
        offset_folder=offset_folder,
    )

    async def take(message: MessageExt) -> None:
        seen.append(message.msg_id)
        if fails:
            raise RetryLater

    consumer.subscribe(topic, handler=take, tags=tags, sql=sql)
    async with consumer:
        yield seen


async def has_seen(seen: list[str], msg_id: str) -> None:
    async def found() -> bool:
        return msg_id in seen

    await eventually(found)


async def is_committed(admin: Admin, offset: int) -> None:
    queue = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=0)

    async def found() -> bool:
        return (await admin.offsets.committed(GROUP, TOPIC))[queue] == offset

    await eventually(found)


async def test_from_sent_to_consumed(tmp_path: Path) -> None:
    async with running_site(tmp_path, enablePropertyFilter="true") as (site, admin):
        await admin.topics.create(TOPIC, queue_count=1)
        msg_id = await sent(site, admin, Message(TOPIC, b"x", tag="A"))
        (alone,) = await admin.messages.explain(msg_id)
        assert (alone.group, alone.consumed) == (None, False)
        assert "no group subscribes to T" in alone.verdict
        unknown = await account(admin, msg_id)
        assert unknown.verdict.startswith("not consumed: no broker knows group g")
        async with member(site, tags="A || B") as seen:
            await has_seen(seen, msg_id)
            late = await sent(site, admin, Message(TOPIC, b"y", tag="A"))
            await has_seen(seen, late)
            online = await account(admin, msg_id)
            assert check(online, "subscription").finding == "TAG A || B"
            assert {check(online, name).status for name in ("filter", "owner", "lock")} == {"ok"}
            assert "reads queue broker-a:0" in check(online, "owner").finding
        await is_committed(admin, 2)
        offline = await account(admin, msg_id)
        assert (offline.consumed, check(offline, "offset").status) == (None, "ok")
        (by_topic,) = await explain_message(admin.session, msg_id)
        assert by_topic.group == GROUP
        whole = await admin.messages.explain_group(GROUP)
        assert (whole.consumed, [each.check for each in whole.causes]) == (True, ["members"])


async def test_filters_by_tag_and_by_sql(tmp_path: Path) -> None:
    async with running_site(tmp_path, enablePropertyFilter="true") as (site, admin):
        await admin.topics.create(TOPIC, queue_count=1)
        other = await sent(site, admin, Message(TOPIC, b"x", tag="BB", properties={"n": "1"}))
        wanted = await sent(site, admin, Message(TOPIC, b"y", tag="Aa", properties={"n": "7"}))
        async with member(site, tags="Aa") as seen:  # BB has the same hash
            await has_seen(seen, wanted)
            refused = await account(admin, other)
            assert check(refused, "filter").status == "not"
            assert "tag BB" in check(refused, "filter").finding
            assert check(await account(admin, wanted), "filter").status == "ok"
        await admin.groups.delete(GROUP)
        async with member(site, sql="n > 5") as seen:
            await has_seen(seen, wanted)
            refused = await account(admin, other)
            assert check(refused, "filter").status == "not"
            assert "it does not match SQL92 n > 5" in check(refused, "filter").finding
            assert check(await account(admin, wanted), "filter").status == "ok"
        await is_committed(admin, 2)
        async with member(site, sql="n > 5"):

            async def is_online() -> bool:
                return check(await account(admin, wanted), "subscription").status == "ok"

            await eventually(is_online)
            assert (await account(admin, other)).consumed is False
            assert (await account(admin, wanted)).consumed is True


async def test_a_message_that_fails_waits_for_its_retry_and_then_is_dead(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create(TOPIC, queue_count=1)
        msg_id = await sent(site, admin, Message(TOPIC, b"x", tag="A"))
        async with member(site, fails=True) as seen:
            await has_seen(seen, msg_id)

            async def waits() -> bool:
                return check(await account(admin, msg_id), "retry").status == "not"

            await eventually(waits)
        waiting = await account(admin, msg_id)
        assert waiting.consumed is False
        assert "it failed" in check(waiting, "retry").finding
        message = await admin.messages.get(msg_id, TOPIC)
        await bury(admin, GROUP, message)

        async def is_dead() -> bool:
            return check(await account(admin, msg_id), "dlq").status == "not"

        await eventually(is_dead)
        dead = await account(admin, msg_id)
        assert "a dead letter since" in dead.verdict
        (letter,) = [each async for each in admin.dlq.messages(GROUP)]
        assert check(dead, "dlq").fix == f"skylark dlq redrive g --id {letter.offset_msg_id}"
        by_letter = await find_message(admin.session, letter.offset_msg_id)
        assert by_letter.record.topic == TOPIC  # the message itself, not its letter
        whole = await explain_group(admin.session, GROUP)
        assert "1 dead letter not redriven" in whole.verdict
        await admin.dlq.redrive(GROUP)
        assert "was sent again at" in check(await account(admin, msg_id), "dlq").finding
        whole = await explain_group(admin.session, GROUP)
        assert check(whole, "dlq").finding == "1 dead letter, all processed by a redrive"


class Undecided:
    """A producer that never knows."""

    async def execute(self, message: Message, arg: object) -> TxState:
        del message, arg
        return TxState.UNKNOWN

    async def check(self, message: MessageExt) -> TxState:
        del message
        return TxState.UNKNOWN


async def test_messages_that_are_not_in_their_topic_yet(tmp_path: Path) -> None:
    async with running_site(tmp_path, timerWheelEnable="true") as (site, admin):
        await admin.topics.create(TOPIC, queue_count=1)
        undecided = Undecided()
        async with Producer("pg", site.options(), transaction_listener=undecided) as producer:
            level = await producer.send(Message(TOPIC, b"x"), delay_level=5)
            timed = await producer.send(Message(TOPIC, b"x"), delay=timedelta(hours=1))
            half = (await producer.send_in_transaction(Message(TOPIC, b"x"))).sent
            for msg_id, said in (
                (level.msg_id, "it is delayed (level 5), and will be delivered to T"),
                (timed.msg_id, "it is delayed until 20"),
                (half.msg_id, "its transaction is undecided: producer group pg must commit it"),
            ):

                async def is_found(msg_id: str = msg_id) -> bool:
                    try:
                        await find_message(admin.session, msg_id)
                    except NotFoundError:
                        return False
                    return True

                await eventually(is_found)
                (found,) = await explain_message(admin.session, msg_id, group=GROUP)
                assert found.consumed is False
                assert check(found, "message").finding.startswith(said)
                assert len(found.checks) == 1
                (with_topic,) = await explain_message(admin.session, msg_id, topic=TOPIC)
                assert with_topic.checks == found.checks


async def test_routes_and_groups_that_are_in_the_way(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create(TOPIC, queue_count=2)
        (result,) = await site.send_to_queue(TOPIC, 1, b"x")
        await indexed(admin, TOPIC, result.msg_id)
        await admin.groups.put(SubscriptionGroupConfig(group_name=GROUP, consume_enable=False))
        found = await account(admin, result.msg_id)
        assert check(found, "group").finding == "consumption of g is disabled on broker-a"
        await admin.groups.put(SubscriptionGroupConfig(group_name=GROUP))
        for changes, said in (
            ({"perm": "w"}, "T is not readable on broker-a"),
            ({"perm": "rw", "read_queue_count": 1}, "consumers do not read queue 1: T has 1 queue"),
        ):
            await admin.topics.update(TOPIC, **changes)

            async def is_told(said: str = said) -> bool:
                return check(await account(admin, result.msg_id), "route").finding.startswith(said)

            await eventually(is_told)
        await admin.topics.update(TOPIC, read_queue_count=2)
        nothing = await account(admin, result.msg_id)
        assert "has no committed offset in this queue" in check(nothing, "offset").finding
        queue = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=1)
        await site.send_to_queue(TOPIC, 1, b"y")
        second = (await admin.messages.at(queue, 1)).msg_id
        await indexed(admin, TOPIC, second)
        await admin.offsets.commit(GROUP, {queue: 0})
        behind = await account(admin, second)
        finding = check(behind, "offset").finding
        assert finding == "committed offset 0: 1 message of the queue is before it"
        behind_group = await explain_group(admin.session, GROUP, topic=TOPIC)
        assert "lag: 2 messages" in behind_group.verdict


async def test_subscriptions_conflicts_and_broadcasting(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create(TOPIC, queue_count=1)
        await admin.topics.create("U", queue_count=1)
        msg_id = await sent(site, admin, Message(TOPIC, b"x", tag="A"))
        async with member(site, topic="U"):
            found = await account(admin, msg_id)
            finding = check(found, "subscription").finding
            assert finding == "g does not subscribe to T, but to U"
            assert (await explain_group(admin.session, GROUP, topic=TOPIC)).causes
            async with member(site):

                async def in_conflict() -> bool:
                    return check(await account(admin, msg_id), "conflict").status == "not"

                await eventually(in_conflict)
        async with member(site, offset_folder=tmp_path) as seen:
            await has_seen(seen, msg_id)
            found = await account(admin, msg_id)
            assert check(found, "offset").status == "unknown"


async def test_a_trace_is_certain(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create(TOPIC, queue_count=1)
        msg_id = await sent(site, admin, Message(TOPIC, b"x"))
        async with member(site, trace=True) as seen:
            await has_seen(seen, msg_id)

        async def is_traced() -> bool:
            return (await account(admin, msg_id)).consumed is True

        await eventually(is_traced)
        found = await account(admin, msg_id)
        assert found.verdict.startswith("consumed: a handler of g processed it at ")
        other = await account(admin, msg_id, "other")
        assert check(other, "group").status == "not"


async def test_locks(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create(TOPIC, queue_count=1)
        msg_id = await sent(site, admin, Message(TOPIC, b"x"))
        async with member(site) as seen:
            await has_seen(seen, msg_id)
            description = await admin.groups.describe(GROUP)
            message = await admin.messages.get(msg_id, TOPIC)
        queue = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=0)
        session = admin.session

        def lock(holder: str | None, reader: str, *, locked: bool = True) -> Check:
            locks = [QueueLock(message_queue=MessageQueue(topic="other"), client_id="x")]
            if holder is not None:
                expires_ms = session.clock.now_ms() + 30_500
                locks.append(
                    QueueLock(message_queue=queue, client_id=holder, expires_ms=expires_ms)
                )
            members = msgspec.structs.replace(description.members, locks=tuple(locks))
            state = ProcessQueueInfo(locked=locked)
            readers = {queue: Reader(client_id=reader, state=state)}
            told = msgspec.structs.replace(description, members=members)
            return check_lock(session, message, told, readers)

        assert lock("c1", "c1").finding == "c1 holds the lock of the queue, for 30 s"
        other = lock("c1", "c2")
        assert (other.status, "but c2 reads it" in other.finding) == ("not", True)
        assert lock(None, "c2", locked=False).status == "not"
        assert lock(None, "c2").status == "ok"


async def test_brokers_that_do_not_answer(tmp_path: Path) -> None:
    """What they may know is not known: neither "not found" nor "consumed" would be right."""
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        await admin.topics.create(TOPIC, queue_count=1)
        here, there = [(await site.send_to_queue(TOPIC, n, b"x"))[0].msg_id for n in (0, 1)]
        await indexed(admin, TOPIC, here, there)
        async with member(site) as seen:
            await has_seen(seen, here)
            await has_seen(seen, there)
        await is_committed(admin, 1)
        late = (await site.send_to_queue(TOPIC, 0, b"y"))[0].msg_id
        await indexed(admin, TOPIC, late)
        before = await explain_group(admin.session, GROUP)
        assert (before.consumed, before.failures) == (False, ())
        await admin.groups.create("idle", broker="broker-b")
        await site.fall_silent("broker-b")
        session = admin.session.asking_once()  # all of this is one question to a dead broker

        async def told(msg_id: str, group: str = GROUP) -> Explanation:
            (found,) = await explain_message(session, msg_id, topic=TOPIC, group=group)
            return found

        passed = await told(here)
        assert (passed.consumed, passed.verdict) == (None, "unknown: broker-b did not respond")
        assert check(passed, "dlq").status == "ok"  # there is no such topic, and that is certain
        for name in ("members", "retry"):
            assert check(passed, name).status == "unknown"
            assert check(passed, name).finding == "broker-b did not respond"
        assert [failure.server for failure in passed.failures] == ["broker-b"]
        waits = await told(late)
        assert (
            waits.verdict == "not consumed: committed offset 1: it is the next message of the queue"
        )
        (by_topic,) = await explain_message(session, late)
        assert by_topic == waits
        elsewhere = await told(here, "idle")
        assert "idle has no committed offset" in elsewhere.verdict

        for given in (None, TOPIC):
            with pytest.raises(
                ClientError, match="was not found, but broker-b did not respond"
            ) as caught:
                await explain_message(session, there, topic=given)
            assert not isinstance(caught.value, NotFoundError)
        whole = await explain_group(session, GROUP)
        assert whole.consumed is False
        assert whole.verdict.startswith("problems: lag: 1 message")
        await admin.offsets.commit(GROUP, {queue_of("broker-a"): 2})
        whole = await explain_group(session, GROUP)
        assert (whole.consumed, whole.verdict) == (None, "unknown: broker-b did not respond")
        assert check(whole, "offset").status == check(whole, "retry").status == "unknown"


def queue_of(broker: str) -> MessageQueue:
    return MessageQueue(topic=TOPIC, broker_name=broker, queue_id=0)


async def test_what_is_not_there(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (_, admin):
        await admin.topics.create(TOPIC, queue_count=1)
        for given in (None, TOPIC):
            with pytest.raises(NotFoundError, match="no message ABC"):
                await explain_message(admin.session, "ABC", topic=given)
        with pytest.raises(NotFoundError, match="group g does not exist"):
            await explain_group(admin.session, GROUP)
