"""The admin functions against real brokers on loopback: groups, offsets, states, messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from skylark.admin.admin_client import Admin
from skylark.admin.errors import NotFoundError, PartialFailureError
from skylark.admin.message_operations import view
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_message import Message, MessageExt
from skylark.core.errors import (
    BrokerError,
    ClientError,
    ClientStateError,
    InvalidParameterError,
    NoPermissionError,
    RequestNotSupportedError,
)
from skylark.wire.bodies.admin_body import CMResult
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import SubscriptionGroupConfig
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.unit.admin.sites import Site, eventually, indexed, running_site

GROUP = "readers"
TOPIC = "T"


@asynccontextmanager
async def reader(site: Site, seen: list[bytes], **given: Any) -> AsyncIterator[PushConsumer]:
    consumer = PushConsumer(
        GROUP,
        site.options(),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        **given,
    )

    @consumer.subscribe(TOPIC, tags="*")
    async def take(message: MessageExt) -> None:
        seen.append(message.body)

    async with consumer:
        yield consumer


def queue(number: int, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic=TOPIC, broker_name=broker, queue_id=number)


async def has_seen(seen: list[bytes], count: int) -> None:
    async def enough() -> bool:
        return len(seen) >= count

    await eventually(enough)


async def has_read_all(site: Site, admin: Admin) -> None:
    """A member comes, reads what :func:`filled` has sent, commits and goes."""
    seen: list[bytes] = []
    async with reader(site, seen):
        await has_seen(seen, 4)
    assert await admin.offsets.committed(GROUP, TOPIC) == {queue(0): 3, queue(1): 1}


async def filled(site: Site, admin: Admin) -> None:
    """Two queues, with three messages and with one."""
    await admin.topics.create(TOPIC, queue_count=2)
    await site.send_to_queue(TOPIC, 0, b"a", b"b", b"c")
    await site.send_to_queue(TOPIC, 1, b"d")


def refuse(admin: Admin, patch: pytest.MonkeyPatch, code: int, error: BrokerError) -> None:
    """Let brokers refuse one kind of request."""
    session = admin.session
    call = session.call

    async def refusing(address: str, request: Command, *also: int, **given: Any) -> Command:
        if request.code == code:
            raise error
        return await call(address, request, *also, **given)

    patch.setattr(session, "call", refusing)


# ---- groups --------------------------------------------------------------------------------------


async def test_groups_are_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (_, admin):
        assert [made.broker for made in await admin.groups.create("g")] == ["broker-a", "broker-b"]
        await admin.groups.put(
            SubscriptionGroupConfig(group_name="g", retry_max_times=3), broker="broker-a"
        )
        again = await admin.groups.create("g")
        assert [made.config.retry_max_times for made in again] == [3, 16]
        listing = await admin.groups.all()
        assert [(g.group, g.brokers) for g in listing.groups] == [("g", ("broker-a", "broker-b"))]
        everything = await admin.groups.all(with_internal=True)
        assert {"g", "TOOLS_CONSUMER"} <= {group.group for group in everything.groups}
        described = await admin.groups.describe("g")
        assert not described.is_online
        assert [entry.config.retry_max_times for entry in described.configs] == [3, 16]
        assert described.progress.queues == ()
        assert await admin.groups.delete("g") == ["broker-a", "broker-b"]
        assert (await admin.groups.all()).groups == ()
        with pytest.raises(NotFoundError, match="group g does not exist"):
            await admin.groups.delete("g")
        with pytest.raises(NotFoundError, match="group g does not exist"):
            await admin.groups.describe("g")
        with pytest.raises(InvalidParameterError):
            await admin.groups.create("a b")


async def test_a_group_with_members_is_described(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await filled(site, admin)
        await has_read_all(site, admin)
        seen: list[bytes] = []
        async with reader(site, seen):
            await site.send_to_queue(TOPIC, 1, b"e")
            await has_seen(seen, 1)
            found = await admin.groups.describe(GROUP, with_owners=True)
            (member,) = found.members.members
            assert found.is_online
            assert (member.brokers, member.language, member.version) == (
                ("broker-a",), "PYTHON", "V5_5_0",
            )  # fmt: skip
            assert [(s.topic, s.expression) for s in found.members.subscriptions] == [
                ("%RETRY%readers", "*"),
                (TOPIC, "*"),
            ]
            assert found.members.message_model == "CLUSTERING"
            by_queue = {q.queue: q for q in found.progress.queues}
            first = by_queue[queue(0)]
            assert (first.broker_offset, first.consumer_offset, first.lag) == (3, 3, 0)
            assert first.client_id == member.client_id
            assert first.last_time_ms is not None
            info = await admin.groups.running_info(GROUP, member.client_id)
            assert queue(0) in info.mq_table
            with pytest.raises(NotFoundError, match="no member nobody of group readers"):
                await admin.groups.running_info(GROUP, "nobody")
            assert await admin.topics.groups(TOPIC) == [GROUP]
        offline = await admin.groups.members(GROUP)
        assert (offline.members, offline.failures) == ((), ())
        progress = await admin.groups.progress(GROUP)
        assert progress.lag == 0
        with pytest.raises(NotFoundError):
            await admin.groups.progress("unheard-of")


async def test_producers_show_after_their_heartbeat(tmp_path: Path) -> None:
    from skylark.client.producer.producer import Producer

    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create(TOPIC)
        async with Producer("senders", site.options()) as producer:
            await producer.send(Message(TOPIC, b"x"))

            async def shown() -> bool:
                try:
                    found = await admin.groups.producers("senders")
                except NotFoundError:
                    return False
                return len(found.members) == 1

            await eventually(shown)
        with pytest.raises(NotFoundError, match="no producer of group nobody"):
            await admin.groups.producers("nobody")


# ---- offsets -------------------------------------------------------------------------------------


async def test_offsets_are_found_and_committed(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await filled(site, admin)
        bounds = await admin.offsets.bounds(TOPIC)
        assert [(q.min_offset, q.max_offset) for q in bounds.queues] == [(0, 3), (0, 1)]
        second = await admin.messages.at(queue(0), 1)
        there = await admin.offsets.at_time(TOPIC, second.record.store_timestamp)
        assert there[queue(0)] in (0, 1)  # messages of one millisecond cannot be told apart
        assert await admin.offsets.at_time(TOPIC, second.record.store_timestamp + 60_000) == {
            queue(0): 3,
            queue(1): 1,
        }
        await admin.groups.create(GROUP)
        assert await admin.offsets.committed(GROUP, TOPIC) == {queue(0): None, queue(1): None}
        await admin.offsets.commit(GROUP, {queue(0): 2})
        assert await admin.offsets.committed(GROUP, TOPIC) == {queue(0): 2, queue(1): None}
        await admin.groups.create("others")
        assert await admin.offsets.clone(GROUP, "others", TOPIC) == {queue(0): 2}
        assert (await admin.offsets.committed("others", TOPIC))[queue(0)] == 2
        with pytest.raises(NotFoundError, match="has no committed offsets"):
            await admin.offsets.clone("empty", "others", TOPIC)
        with pytest.raises(InvalidParameterError):
            await admin.offsets.commit(GROUP, {queue(0): -1})
        with pytest.raises(NotFoundError, match="broker broker-x does not exist"):
            await admin.offsets.commit(GROUP, {queue(0, "broker-x"): 1})


async def test_a_topic_of_ten_thousand_queues(tmp_path: Path) -> None:
    """What the broker says of them takes more than what strangers may send in Java's dialect."""
    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create(TOPIC, queue_count=10_000)
        await site.send_to_queue(TOPIC, 9_999, b"a", b"b")
        bounds = await admin.offsets.bounds(TOPIC)
        assert len(bounds.queues) == 10_000
        assert sum(entry.count for entry in bounds.queues) == 2
        assert bounds.queues[-1].queue == queue(9_999)
        assert bounds.queues[-1].max_offset == 2
        await admin.groups.create(GROUP)
        done = await admin.offsets.reset(GROUP, TOPIC, "latest")
        assert {entry.offset for entry in done.queues} == {0, 2}
        progress = await admin.groups.progress(GROUP)
        assert (len(progress.queues), progress.lag) == (10_000, 0)


@pytest.mark.parametrize("server_side", ["true", "false"])
async def test_a_group_that_is_offline_is_reset(tmp_path: Path, server_side: str) -> None:
    async with running_site(tmp_path, useServerSideResetOffset=server_side) as (site, admin):
        await filled(site, admin)
        await admin.groups.create(GROUP)
        await admin.offsets.commit(GROUP, {queue(0): 2, queue(1): 1})
        plan = await admin.offsets.plan_reset(GROUP, TOPIC, "earliest")
        assert [(q.queue, q.committed, q.new_offset, q.step) for q in plan.queues] == [
            (queue(0), 2, 0, -2),
            (queue(1), 1, 0, -1),
        ]
        assert not plan.is_online
        assert (await admin.offsets.committed(GROUP, TOPIC))[queue(0)] == 2  # only a plan
        done = await admin.offsets.apply(plan)
        assert [(q.old_offset, q.offset) for q in done.queues] == [(2, 0), (1, 0)]
        assert not done.by_members
        by_offset = await admin.offsets.reset(GROUP, TOPIC, 2)
        assert [q.offset for q in by_offset.queues] == [2, 1]  # brought into bounds
        one = await admin.offsets.reset(GROUP, TOPIC, "latest", queue_id=0)
        assert [(q.queue, q.offset) for q in one.queues] == [(queue(0), 3)]
        later = datetime(2099, 1, 1, tzinfo=UTC)
        assert [q.new_offset for q in (
            await admin.offsets.plan_reset(GROUP, TOPIC, later)
        ).queues] == [3, 1]  # fmt: skip
        (skipped,) = await admin.offsets.skip(GROUP)
        assert [q.offset for q in skipped.queues] == [3, 1]


@pytest.mark.parametrize("server_side", ["true", "false"])
async def test_members_that_are_connected_jump(
    tmp_path: Path, server_side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.client.consumer.push.push_member.RESET_WAIT_S", 0.2)
    async with running_site(tmp_path, useServerSideResetOffset=server_side) as (site, admin):
        await filled(site, admin)
        await has_read_all(site, admin)
        seen: list[bytes] = []
        async with reader(site, seen):
            await site.send_to_queue(TOPIC, 0, b"e")
            await has_seen(seen, 1)
            plan = await admin.offsets.plan_reset(GROUP, TOPIC, "earliest")
            assert plan.is_online
            done = await admin.offsets.apply(plan)
            assert done.by_members is (server_side == "false")
            for number in range(2):  # pulls that are held hear of it when something comes
                await site.send_to_queue(TOPIC, number, b"f")

            async def again() -> bool:
                return {b"a", b"b", b"c", b"d"} <= set(seen) and seen.count(b"e") == 2

            await eventually(again, 30)
            if server_side == "false":
                with pytest.raises(ClientError, match="while members are connected"):
                    await admin.offsets.reset(GROUP, TOPIC, 1)


async def test_a_commit_that_a_pending_reset_swallows_is_an_error(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await filled(site, admin)
        await admin.groups.create(GROUP)
        await admin.offsets.reset(GROUP, TOPIC, "latest")
        with pytest.raises(BrokerError, match="previously reset"):
            await admin.offsets.commit(GROUP, {queue(0): 1})
        assert (await admin.offsets.committed(GROUP, TOPIC))[queue(0)] == 3
        again = await admin.offsets.reset(GROUP, TOPIC, 1, queue_id=0)
        assert [entry.offset for entry in again.queues] == [1]


async def test_settings_that_are_hidden_do_not_stop_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_site(tmp_path) as (site, admin):
        await filled(site, admin)
        await admin.groups.create(GROUP)
        refuse(admin, monkeypatch, RequestCode.GET_BROKER_CONFIG, NoPermissionError("hidden"))
        done = await admin.offsets.reset(GROUP, TOPIC, "latest")
        assert [entry.offset for entry in done.queues] == [3, 1]


async def test_old_brokers_are_asked_for_all_their_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_site(tmp_path) as (site, admin):
        await filled(site, admin)
        error = RequestNotSupportedError("request type 351 not supported")
        refuse(admin, monkeypatch, RequestCode.GET_TOPIC_CONFIG, error)
        await admin.topics.update(TOPIC, perm="r")
        (part,) = (await admin.topics.describe(TOPIC)).parts
        assert (part.read_queue_count, part.perm) == (2, "r")


async def test_a_reset_of_nothing_is_refused(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await filled(site, admin)
        with pytest.raises(NotFoundError, match="group unheard-of does not exist"):
            await admin.offsets.plan_reset("unheard-of", TOPIC, "earliest")
        with pytest.raises(NotFoundError, match="topic Missing does not exist"):
            await admin.offsets.plan_reset(GROUP, "Missing", "earliest")
        await admin.groups.create(GROUP)
        with pytest.raises(NotFoundError, match="no such queue"):
            await admin.offsets.plan_reset(GROUP, TOPIC, "earliest", queue_id=9)
        with pytest.raises(InvalidParameterError):
            await admin.offsets.plan_reset(GROUP, TOPIC, -1)
        with pytest.raises(NotFoundError, match="has no offsets"):
            await admin.offsets.skip(GROUP)


# ---- states --------------------------------------------------------------------------------------


async def test_clusters_and_brokers_tell_about_themselves(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        await filled(site, admin)
        report = await admin.stats.clusters()
        assert [(b.cluster, b.broker, b.broker_id) for b in report.brokers] == [
            ("DefaultCluster", "broker-a", 0),
            ("DefaultCluster", "broker-b", 0),
        ]
        first = report.brokers[0]
        assert (first.version, first.is_active) == ("V5_5_0", True)
        assert first.put_count_today == 4
        assert first.disk_ratio is not None
        assert (await admin.stats.runtime("broker-a"))["brokerVersionDesc"] == "V5_5_0"
        assert (await admin.stats.runtime(first.address))["brokerVersionDesc"] == "V5_5_0"
        ha = await admin.stats.ha("broker-a")
        assert (ha.broker, ha.status.master, ha.status.ha_connection_info) == (
            "broker-a", True, [],
        )  # fmt: skip
        rate = await admin.stats.put_rate(TOPIC)
        assert (rate.name, rate.key, rate.failures) == ("TOPIC_PUT_NUMS", TOPIC, ())
        with pytest.raises(NotFoundError, match="no broker has a statistic"):
            await admin.stats.view("TOPIC_PUT_NUMS", "Missing")
        with pytest.raises(NotFoundError, match="cluster Other does not exist"):
            await admin.stats.clusters("Other")
        assert (await admin.stats.groups("broker-a")).lag == 0
        assert (await admin.stats.topic(TOPIC)).queues[0].count == 3
        await site.fall_silent("broker-b")
        partial = await admin.stats.clusters()
        assert [failure.server for failure in partial.failures] == ["broker-b"]
        assert [broker.version for broker in partial.brokers] == ["V5_5_0", None]


async def test_settings_are_read_and_changed(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        report = await admin.settings.brokers()
        assert [entry.settings["brokerName"] for entry in report.servers] == [
            "broker-a",
            "broker-b",
        ]
        changes = {"fileReservedTime": "48"}
        assert await admin.settings.set_brokers(changes, broker="broker-b") == ["broker-b"]
        again = await admin.settings.brokers()
        assert [s.settings["fileReservedTime"] for s in again.servers] == ["72", "48"]
        with pytest.raises(NoPermissionError):
            await admin.settings.set_brokers({"rocketmqHome": "/"}, broker="broker-a")
        (name_server,) = (await admin.settings.name_servers()).servers
        assert name_server.address == site.namesrv
        assert name_server.settings["listenPort"] == "0"
        await admin.settings.set_name_servers({"deleteTopicWithBrokerRegistration": "true"})
        (changed,) = (await admin.settings.name_servers()).servers
        assert changed.settings["deleteTopicWithBrokerRegistration"] == "true"
        await admin.settings.kv_put("space", "k", "v")
        assert await admin.settings.kv("space", "k") == "v"
        assert await admin.settings.kv_list("space") == {"k": "v"}
        await admin.settings.kv_delete("space", "k")
        with pytest.raises(NotFoundError):
            await admin.settings.kv("space", "k")
        with pytest.raises(InvalidParameterError):
            await admin.settings.set_brokers({})


async def test_write_permission_is_wiped_and_given_back(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create(TOPIC)
        wiped = await admin.settings.wipe_write_perm("broker-a")
        assert wiped[site.namesrv] > 0
        assert [topic.perm for topic in await admin.topics.all()] == ["r"]
        await admin.settings.add_write_perm("broker-a")
        assert [topic.perm for topic in await admin.topics.all()] == ["rw"]
        with pytest.raises(NotFoundError):
            await admin.settings.wipe_write_perm("broker-x")


# ---- messages ------------------------------------------------------------------------------------


async def test_messages_are_found_by_id_key_and_place(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        await admin.topics.create(TOPIC, queue_count=1)
        sent = await site.send(
            *(Message(TOPIC, b"%d" % n, keys=["odd" if n % 2 else "even"]) for n in range(6))
        )
        assert {result.queue.broker_name for result in sent} == {"broker-a", "broker-b"}
        await indexed(admin, TOPIC, *(result.msg_id for result in sent))
        for number, result in enumerate(sent):
            assert result.offset_msg_id is not None
            by_place = await admin.messages.get(result.offset_msg_id)
            by_id = await admin.messages.get(result.msg_id, TOPIC)
            at = await admin.messages.at(result.queue, result.queue_offset)
            for found in (by_place, by_id, at):
                assert (found.body, found.msg_id) == (b"%d" % number, result.msg_id)
                assert found.broker_name == result.queue.broker_name
        odd = await admin.messages.by_key(TOPIC, "odd")
        assert sorted(message.body for message in odd) == [b"1", b"3", b"5"]
        assert len(await admin.messages.by_key(TOPIC, "odd", limit=2)) == 2
        assert await admin.messages.by_key(TOPIC, "odd", begin=2**50) == []
        first, *_, last = (message.record.store_timestamp for message in odd)
        within = await admin.messages.by_key(TOPIC, "odd", begin=first, end=last + 1)
        assert len(within) == 3  # the index keeps seconds, the bounds are milliseconds
        assert await admin.messages.by_key(TOPIC, "odd", begin=last + 1) == []
        assert await admin.messages.by_key(TOPIC, "odd", end=first) == []
        assert await admin.messages.by_key(TOPIC, "none") == []
        for missing in (sent[0].msg_id, "F" * 32, "no id", "0" * 56):
            with pytest.raises(NotFoundError, match="no message"):
                await admin.messages.get(missing)
        with pytest.raises(NotFoundError, match="it has offsets 0 to 2"):
            await admin.messages.at(queue(0), 99)
        with pytest.raises(NotFoundError, match="topic Missing does not exist"):
            await admin.messages.by_key("Missing", "k")


async def test_messages_are_found_by_time_in_order(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        await admin.topics.create(TOPIC, queue_count=2)
        times = []
        for number in range(100):
            (result,) = await site.send(Message(TOPIC, b"%d" % number, tag="AB"[number % 2]))
            times.append(
                (await admin.messages.at(result.queue, result.queue_offset)).record.store_timestamp
            )

        async def bodies(*args: Any, **given: Any) -> list[int]:
            return [int(m.body) async for m in admin.messages.between(TOPIC, *args, **given)]

        everything = await bodies()
        assert sorted(everything) == list(range(100))
        assert [times[number] for number in everything] == sorted(times)
        middle = await bodies(times[30], times[60])
        assert sorted(middle) == [n for n in range(100) if times[30] <= times[n] < times[60]]
        assert len(await bodies(limit=7)) == 7
        assert sorted(await bodies(tags="B")) == list(range(1, 100, 2))
        assert await bodies(times[99] + 60_000) == []
        one = await bodies(broker="broker-a", queue_id=0)
        assert 0 < len(one) < 100
        with pytest.raises(NotFoundError, match="no such queue"):
            await bodies(queue_id=7)
        with pytest.raises(InvalidParameterError):
            await bodies(limit=0)


async def test_a_member_consumes_a_message_on_demand(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await filled(site, admin)
        message = await admin.messages.at(queue(0), 0)
        with pytest.raises(NotFoundError, match="no member at all"):
            await admin.messages.consume_directly(GROUP, message)
        seen: list[bytes] = []
        async with reader(site, seen):
            await has_seen(seen, 4)
            result = await admin.messages.consume_directly(GROUP, message)
            assert result.consume_result is CMResult.CR_SUCCESS
            assert seen.count(b"a") == 2
            with pytest.raises(NotFoundError, match="no member nobody"):
                await admin.messages.consume_directly(GROUP, message, "nobody")


async def test_a_message_is_shown_as_text_or_base64(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create(TOPIC, queue_count=1)
        bodies = ("grün".encode(), b"\xff\x00", b"x" * 5000, "ü".encode() * 10)
        await site.send(*(Message(TOPIC, body, tag="A", keys=["k"]) for body in bodies))
        shown = [view(await admin.messages.at(queue(0), offset), 11) for offset in range(4)]
        assert [(v.body, v.is_base64, v.is_cut, v.body_size) for v in shown] == [
            ("grün", False, False, 5),
            ("/wA=", True, False, 2),
            ("x" * 11, False, True, 5000),  # it was compressed on its way
            ("ü" * 5, False, True, 20),
        ]
        assert (shown[0].tag, shown[0].keys, shown[0].topic) == ("A", ("k",), TOPIC)


# ---- life ----------------------------------------------------------------------------------------


async def test_an_admin_is_started_once_and_leaves_nothing(tmp_path: Path) -> None:
    from skylark.client.core.instance_registry import instance_count

    async with running_site(tmp_path) as (site, _):
        before = instance_count()
        admin = site.admin()
        with pytest.raises(ClientStateError, match="has not been started"):
            await admin.topics.all()
        async with admin:
            await asyncio.gather(admin.topics.all(), admin.stats.clusters(), admin.groups.all())
        assert instance_count() == before
        with pytest.raises(ClientStateError, match="has been stopped"):
            await admin.topics.all()


async def test_an_admin_belongs_to_its_loop(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (_, admin):

        def elsewhere() -> None:
            with pytest.raises(ClientStateError, match="belongs to another event loop"):
                asyncio.run(admin.topics.all())

        await asyncio.to_thread(elsewhere)


async def test_errors_of_all_servers_are_told(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        for name in ("broker-a", "broker-b"):
            await site.fall_silent(name)
        with pytest.raises(PartialFailureError, match="2 of 2 servers failed"):
            await admin.groups.all()
        with pytest.raises(PartialFailureError):
            await admin.groups.create("g")


async def test_a_refusal_of_the_only_broker_stays_what_it_is(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (_, admin):
        with pytest.raises(BrokerError) as caught:
            await admin.topics.delete("SCHEDULE_TOPIC_XXXX")
        assert caught.value.code == 29
