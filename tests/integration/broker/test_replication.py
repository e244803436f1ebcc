"""A master and its slave as whole brokers, on real sockets."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.broker.app import Broker
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_message import MessageExt
from skylark.core.clock import LoopClock
from skylark.core.errors import ServiceNotAvailableError
from skylark.replication.slave import SlavePhase
from skylark.wire.bodies.common_body import KVTable
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.bodies.ha_body import HARuntimeInfo
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.fastjson import decode_body
from tests.support.broker_pairs import Pair, bodies, pair, until

SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}


async def fill(place: Pair, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        assert (await place.send(b"m%d" % number)).code == 0
    place.master.features.groups.table.find("g")  # created, as by its first pull


@asynccontextmanager
async def following(root: Path, count: int) -> AsyncIterator[Pair]:
    """A slave that has what its master had when it came: so many messages."""
    async with pair(root) as place:
        await place.start_master()
        await fill(place, count)
        await place.start_slave()
        await place.followed()
        yield place


@pytest.mark.spec("store.12.45")
@pytest.mark.serves(RequestCode.LOG_CHECK)
async def test_a_slave_has_the_log_the_topics_and_the_offsets_of_its_master(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as place:
        await place.start_master()
        await fill(place, 20)
        assert await place.commit(place.master, 7) == 0
        await place.start_slave()
        await place.followed()
        assert place.same_logs()
        question = {
            "logOffset": str(place.master.features.store.log.max_offset),
            "size": "100",
        }
        answers = [
            await place.call(broker, RequestCode.LOG_CHECK, question)
            for broker in (place.master, place.slave)
        ]
        assert answers[0].code == 0
        assert answers[0].ext == answers[1].ext
        topic = place.slave.features.topics.table.get("T")
        assert topic is not None
        assert topic == place.master.features.topics.table.get("T")
        assert place.committed(place.slave) == 7
        assert "g" in place.slave.features.groups.table
        await fill(place, 5, 20)
        await until(lambda: place.slave.features.store.reader.max_offset("T", 0) == 25)
        found = await place.pull(place.slave)
        assert bodies(found) == [b"m%d" % number for number in range(25)]


async def test_a_slave_that_lost_its_topics_has_those_of_its_master_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as place:
        await place.start_master()
        await fill(place, 3)
        assert await place.commit(place.master, 2) == 0
        await place.start_slave()
        await place.followed()
        await place.stop("slave")
        shutil.rmtree(tmp_path / "slave" / "store" / "config")
        await place.start_slave()
        await place.followed()
        assert bodies(await place.pull(place.slave)) == [b"m0", b"m1", b"m2"]
        assert place.committed(place.slave) == 2
        await place.stop("slave")
        assert (tmp_path / "slave" / "store" / "config" / "topics.json").exists()


@pytest.mark.spec("store.12.45")
async def test_a_slave_refuses_what_only_a_master_does(tmp_path: Path) -> None:
    async with pair(tmp_path) as place:
        await place.start_master()
        await fill(place, 1)
        await place.start_slave(slaveReadEnable="false")
        await place.followed()
        refused = await place.send(b"x", to=place.slave)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert (refused.remark or "").startswith(
            "[REJECTREQUEST]system busy, start flow control for a while"
        )
        assert (await place.pull(place.slave)).code == ResponseCode.SYSTEM_BUSY
        end = {
            "producerGroup": "pg", "tranStateTableOffset": "0", "commitLogOffset": "0",
            "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "",
        }  # fmt: skip
        answer = await place.call(place.slave, RequestCode.END_TRANSACTION, end)
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        back = {"offset": "0", "group": "g", "delayLevel": "0"}
        answer = await place.call(place.slave, RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        features = place.slave.features
        assert features.delay.timer is None
        assert not features.delay.schedule.is_running
        with pytest.raises(ServiceNotAvailableError):
            _ = features.transaction.service.rounds


@pytest.mark.spec("store.12.44")
async def test_a_synchronous_master_answers_when_the_slave_has_the_message(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as place:
        await place.start_master(**SYNC, slaveTimeout="300")
        late = await place.send(b"alone")
        assert late.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert (late.ext or {})["queueOffset"] == "0"
        assert bodies(await place.pull(place.master)) == [b"alone"], "it is stored all the same"
        assert (await place.send(b"no", properties="WAIT\x01false\x02")).code == 0
        await place.start_slave()
        await place.followed()
        answers = await asyncio.gather(*(place.send(b"s%d" % number) for number in range(50)))
        assert {answer.code for answer in answers} == {0}
        assert place.same_logs(), "the slave has what was acknowledged"
        await place.stop("slave")
        assert (await place.send(b"alone again")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_readers_do_not_wait_for_the_slave(tmp_path: Path) -> None:
    async with pair(tmp_path) as place:
        await place.start_master(**SYNC, slaveTimeout="5000")
        sending = asyncio.create_task(place.send(b"first"))
        await until(lambda: "T" in place.master.features.topics.table)
        await until(lambda: place.master.features.store.reader.max_offset("T", 0) == 1)
        assert bodies(await place.pull(place.master)) == [b"first"]
        assert not sending.done()
        await place.start_slave()
        assert (await sending).code == 0


async def test_one_copy_is_no_reason_to_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as place:
        with caplog.at_level(logging.WARNING):
            await place.start_master(brokerRole="SYNC_MASTER")
        assert "does not wait for slaves with inSyncReplicas=1" in caplog.text
        assert (await place.send(b"x")).code == 0


@pytest.mark.spec("store.12.44")
async def test_without_any_slave_a_master_of_4x_says_so_at_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as place:
        await place.start_master(brokerRole="SYNC_MASTER", haCompatible4x="true")
        assert (await place.send(b"x")).code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_messages_wake_a_pull_that_waits_at_the_slave(tmp_path: Path) -> None:
    async with following(tmp_path, 1) as place:
        await place.stop("master")
        await until(lambda: place.slave.features.replication.service.status.is_cut_off)
        held = asyncio.create_task(place.pull(place.slave, 1, sys_flag=6))
        await until(lambda: len(place.slave.features.pull.service.held) == 1)
        await place.start_master()
        await fill(place, 1, 1)
        assert bodies(await held) == [b"m1"]


async def test_commits_at_the_slave_reach_a_master_that_was_away(tmp_path: Path) -> None:
    async with pair(tmp_path) as place:
        await place.start_master()
        await fill(place, 10)
        assert await place.commit(place.master, 3) == 0
        await place.start_slave()
        await place.followed()
        await place.stop("master")
        assert bodies(await place.pull(place.slave, 3)) == [b"m%d" % n for n in range(3, 10)]
        assert await place.commit(place.slave, 8) == 0
        # The slave may be restarted meanwhile.
        await place.stop("slave")
        await place.start_slave()
        assert place.committed(place.slave) == 8
        await place.start_master()
        await until(lambda: place.committed(place.master) == 8)
        await place.copied()
        assert place.committed(place.slave) == 8
        # From now on the master is right again, also if it goes back.
        assert await place.commit(place.master, 2) == 0
        await until(lambda: place.committed(place.slave) == 2)


async def test_commits_at_the_slave_do_not_take_a_master_back(tmp_path: Path) -> None:
    async with following(tmp_path, 10) as place:
        await place.stop("master")
        assert await place.commit(place.slave, 5) == 0
        await place.stop("slave")
        await place.start_master()
        assert await place.commit(place.master, 9) == 0
        await place.start_slave()
        await place.followed()
        assert (place.committed(place.master), place.committed(place.slave)) == (9, 9)


async def test_tables_follow_the_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as place:
        await place.start_master()
        await place.start_slave()
        await fill(place, 3)
        features = place.master.features
        features.topics.table.update(
            TopicConfig(topic_name="ordered", read_queue_nums=3, write_queue_nums=3, order=True)
        )
        features.groups.table.update(
            SubscriptionGroupConfig(group_name="slow", consume_enable=False)
        )
        await until(lambda: "ordered" in place.slave.features.topics.table)
        await until(lambda: "slow" in place.slave.features.groups.table)
        assert place.slave.features.topics.table.is_order("ordered")
        await until(lambda: place.slave.features.store.reader.max_offset("T", 0) == 3)
        ext = {"topic": "T"}
        answer = await place.call(place.master, RequestCode.DELETE_TOPIC_IN_BROKER, ext)
        assert answer.code == 0
        await until(lambda: "T" not in place.slave.features.topics.table)
        assert place.slave.features.store.reader.max_offset("T", 0) == 0
        await fill(place, 1)
        await until(lambda: place.slave.features.store.reader.max_offset("T", 0) == 1)


async def test_name_servers_know_the_topics_of_the_slave_as_well(tmp_path: Path) -> None:
    async with pair(tmp_path) as place:
        await place.start_master()
        await place.start_slave()
        await fill(place, 1)
        await until(lambda: "T" in place.slave.features.topics.table)
        await place.stop("master")
        tables = place.name_server.tables

        def addresses() -> list[dict[int, str]]:
            route = tables.route("T")
            return [] if route is None else [data.broker_addrs for data in route.broker_datas]

        await until(lambda: addresses() == [{1: str(place.slave.address)}])


async def test_both_roles_tell_how_replication_stands(tmp_path: Path) -> None:
    async with pair(tmp_path) as place:
        await place.start_master(**SYNC)
        await place.start_slave()
        await fill(place, 2)
        answer = await place.call(place.master, RequestCode.GET_BROKER_HA_STATUS)
        status = decode_body(HARuntimeInfo, answer.body or b"")
        end = place.master.features.store.log.max_offset
        assert (status.master, status.in_sync_slave_nums) == (True, 1)
        assert status.master_commit_log_max_offset == end
        (link,) = status.ha_connection_info
        assert (link.slave_ack_offset, link.diff, link.in_sync) == (end, 0, True)
        answer = await place.call(place.slave, RequestCode.GET_BROKER_HA_STATUS)
        status = decode_body(HARuntimeInfo, answer.body or b"")
        assert not status.master
        assert status.ha_client_runtime_info is not None
        assert status.ha_client_runtime_info.max_offset == end
        assert status.ha_client_runtime_info.master_addr == place.master.config.ha_server_addr
        rows = await runtime_rows(place, "master")
        assert (rows["haSlaves"], rows["haSlavesInSync"], rows["haBehindBytes"]) == ("1", "1", "0")
        rows = await runtime_rows(place, "slave")
        assert (rows["haPhase"], rows["haDivergence"], rows["brokerActive"]) == (
            "FOLLOWING", "", "false",
        )  # fmt: skip


async def test_metrics_tell_how_replication_stands(tmp_path: Path) -> None:
    async with pair(tmp_path, metricsExporterType="PROM", metricsPromExporterPort="0") as place:
        await place.start_master(**SYNC, slaveTimeout="50")
        assert (await place.send(b"x")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        await place.start_slave()
        await place.followed()
        of_master, of_slave = samples(place.master), samples(place.slave)
        assert of_master["skylark_ha_slaves"] == of_master["skylark_ha_slaves_in_sync"] == "1"
        assert of_master["skylark_ha_behind_bytes"] == of_master["skylark_ha_waiting_puts"] == "0"
        assert of_master["skylark_ha_timed_out_puts_total"] == "1"
        assert (of_slave["skylark_ha_following"], of_slave["skylark_ha_diverged"]) == ("1", "0")
        assert "skylark_ha_slaves" not in of_slave


def samples(broker: Broker) -> dict[str, str]:
    """The metrics of replication, by name."""
    lines = "".join(broker.features.stats.exporter._registry.render_parts()).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("skylark_ha_"))
    return {name.partition("{")[0]: value for name, value in pairs}


async def runtime_rows(place: Pair, name: str) -> dict[str, str]:
    broker = place.master if name == "master" else place.slave
    answer = await place.call(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
    return decode_body(KVTable, answer.body or b"").table


async def diverged(place: Pair) -> None:
    """The slave has three messages that the master has lost."""
    await place.start_master()
    await fill(place, 2)
    await place.start_slave()
    await place.followed()
    await place.stop("slave")
    await place.stop("master")
    files = place.root / "master"
    kept = place.root / "kept"
    files.rename(kept)
    await place.start_master()
    await fill(place, 1)
    await place.start_slave()
    features = place.slave.features
    await until(lambda: features.replication.service.status.phase == SlavePhase.DIVERGED.name)


async def test_a_slave_that_has_other_bytes_stops_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as place:
        with caplog.at_level(logging.ERROR):
            await diverged(place)
        assert "set haTruncateAhead=true" in caplog.text
        assert bodies(await place.pull(place.slave)) == [b"m0", b"m1"], "its messages stay"
        await fill(place, 5, 10)
        rows = await runtime_rows(place, "slave")
        assert rows["haPhase"] == "DIVERGED"
        assert "this log ends at" in rows["haDivergence"]
        assert place.slave.features.store.reader.max_offset("T", 0) == 2
        await place.stop("slave")
        await place.start_slave(haTruncateAhead="true")
        await place.followed()
        assert place.same_logs()


async def test_an_orderly_stop_leaves_the_slave_with_everything(tmp_path: Path) -> None:
    async with pair(tmp_path) as place:
        await place.start_master()
        await place.start_slave()
        await place.followed()
        await asyncio.gather(*(place.send(b"x" * 1000) for _ in range(100)))
        end = place.master.features.store.log.max_offset
        await place.stop("master")
        assert place.slave.features.store.log.max_offset == end


async def test_a_master_without_slaves_stops_at_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as place:
        await place.start_master(**SYNC, slaveTimeout="60000")
        sending = asyncio.create_task(place.send(b"x"))
        await until(lambda: place.master.features.replication.service.status.waiting_count == 1)
        clock = LoopClock()
        began_at = clock.monotonic()
        await place.stop("master")
        assert clock.monotonic() - began_at < 10
        assert (await sending).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_a_consumer_goes_on_at_the_slave_and_then_at_the_master(tmp_path: Path) -> None:
    async with following(tmp_path, 10) as place:
        seen: list[bytes] = []
        consumer = PushConsumer(
            "readers",
            place.options,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        may_read = asyncio.Event()

        @consumer.subscribe("T", tags="*")
        async def take(message: MessageExt) -> None:
            await may_read.wait()
            seen.append(message.body)

        async with consumer:
            await until(lambda: place.master.features.stats.store_stats.found_count > 0)
            await place.stop("master")
            may_read.set()
            await until(lambda: len(seen) == 10)
            await until(lambda: place.slave.features.pull.service.held)  # it has come to the slave
        assert place.slave.features.groups.offsets.get("readers", "T", 0) == 10
        await place.start_master()
        await until(lambda: place.master.features.groups.offsets.get("readers", "T", 0) == 10)


async def test_a_consumer_may_begin_while_the_master_is_away(tmp_path: Path) -> None:
    """Its group is new, too: the master hears of it from the slave."""
    async with following(tmp_path, 10) as place:
        await place.stop("master")
        for expected in (10, 0):  # the second one finds what the first has committed
            seen: list[bytes] = []
            consumer = PushConsumer(
                "newcomers",
                place.options,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            )

            @consumer.subscribe("T", tags="*")
            async def take(message: MessageExt, seen: list[bytes] = seen) -> None:
                seen.append(message.body)

            async with consumer:
                await until(
                    lambda: ("T", 0) in place.slave.features.pull.service.waiting.awaited
                )  # at its end
            assert len(seen) == expected
            assert place.slave.features.groups.offsets.get("newcomers", "T", 0) == 10
        await place.start_master()
        await until(lambda: place.master.features.groups.offsets.get("newcomers", "T", 0) == 10)
        assert "newcomers" in place.master.features.groups.table
        await place.copied()
        assert "newcomers" in place.slave.features.groups.table


async def test_a_slave_that_becomes_the_master_delivers_what_is_left(tmp_path: Path) -> None:
    async with pair(tmp_path, flushDiskType="SYNC_FLUSH") as place:
        await place.start_master()
        await place.start_slave()
        assert (await place.send(b"soon", properties="DELAY\x011\x02")).code == 0
        assert (await place.send(b"later", properties="DELAY\x012\x02")).code == 0
        reader = place.master.features.store.reader
        await until(lambda: reader.max_offset("T", 0) == 1)
        await place.followed()
        copies = place.slave.features.slave.sync
        assert copies is not None
        await until(lambda: copies.delays().offset_table.get(1) == 1)
        await place.stop("master")
        await place.stop("slave")
        (place.root / "master").rename(place.root / "old master")
        (place.root / "slave").rename(place.root / "master")
        await place.start_master()
        features = place.master.features
        await until(lambda: features.store.reader.max_offset("T", 0) == 2)
        found = await place.pull(place.master)
        assert bodies(found) == [b"soon", b"later"], "each once"
