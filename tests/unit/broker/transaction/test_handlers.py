"""Transaction requests of producers and administrators, and the records that they leave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from skylark.core.hashing import encode_offset_id
from skylark.wire.codes import RequestCode
from skylark.wire.message import decode_record
from tests.unit.broker.stored import stored
from tests.unit.broker.transaction.halves import (
    GIVEN_UP,
    HALF,
    OP,
    ROLLBACK,
    UNKNOWN,
    Producer,
    Sent,
    killed,
    shop,
)

ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}


@pytest.mark.spec("broker.13.18")
async def test_a_half_message_is_seen_once_it_is_committed(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        one = await world.producer.send("U1", body=b"one", TAGS="A", KEYS="k")
        two = await world.producer.send("U2", body=b"two")
        assert (one.queue_offset, two.queue_offset) == (0, 1)
        assert world.bodies() == []
        properties = {
            **ADDED, "TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "U1", "TAGS": "A",
            "KEYS": "k", "__transactionId__": "U1",
        }  # fmt: skip
        half = world.records(HALF)[0]
        assert half.properties == {**properties, "REAL_TOPIC": "T", "REAL_QID": "1"}
        assert (half.sys_flag, half.prepared_transaction_offset) == (0, 0)

        answer = await world.producer.end(one)
        assert (answer.code, answer.remark) == (0, None)
        (final,) = world.records("T", 1)
        assert final.properties == properties
        assert (final.body, final.sys_flag) == (b"one", 8)
        assert final.prepared_transaction_offset == one.log_offset
        assert final.born_timestamp == half.born_timestamp
        assert final.born_host == half.born_host

        assert (await world.producer.end(two, ROLLBACK)).code == 0
        await world.rounds(3)
        assert world.bodies() == [b"one"]
        assert world.producer.check_backs == []
        (op,) = world.records(OP)
        assert op.body == b"0,1,"  # the rollback waits for an answer, so both are written with it
        assert op.properties == {"TAGS": "d", "WAIT": "true"}
        assert op.born_host == op.store_host == world.features.store.log.store_host
        assert world.features.stats.broker_stats.topic_puts["T"].count == 1
        assert world.features.stats.broker_stats.topic_puts[HALF].count == 2
        assert world.features.stats.broker_stats.topic_puts[OP].count == 1
        counts = world.transactions.counts
        assert (counts.committed["T"], counts.rolled_back["T"], counts.waiting["T"]) == (1, 1, 0)


async def test_op_messages_are_collected(tmp_path: Path) -> None:
    async with shop(tmp_path, transactionOpMsgMaxSize="20") as world:
        sent = [await world.producer.send(f"U{number}") for number in range(12)]
        await world.producer.end_oneway(sent[0])
        await world.producer.end_oneway(sent[1], ROLLBACK)
        await world.clock.advance(seconds=2.9)
        assert world.op_bodies() == []
        await world.clock.advance(seconds=0.2)
        assert world.op_bodies() == [b"0,1,"]
        for each in sent[2:]:  # the last makes it more than 20 bytes
            await world.producer.end_oneway(each)
        assert world.op_bodies() == [b"0,1,", b"2,3,4,5,6,7,8,9,10,11,"]
        assert world.bodies() == [b"x"] * 11


async def test_repeated_decisions_store_nothing(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        one, two = [await world.producer.send(unique_id) for unique_id in ("U1", "U2")]
        for _ in range(3):
            assert (await world.producer.end(one)).code == 0
            assert (await world.producer.end(two, ROLLBACK)).code == 0
        refused = await world.producer.end(one, ROLLBACK)
        assert refused.code == 1
        assert (refused.remark or "").startswith("half already committed")
        refused = await world.producer.end(two)
        assert refused.code == 1
        assert (refused.remark or "").startswith("half already rolled back")
        assert world.bodies() == [b"x"]
        assert world.transactions.counts.committed["T"] == 1


async def test_errors_of_wrong_decisions(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U1")
        plain = await world.send("T", properties="UNIQ_KEY\x01P\x02PGROUP\x01pg\x02")
        assert plain.code == 0
        nowhere = Sent(sent.log_offset + 1, sent.queue_offset, "U1")
        no_half = Sent(world.records("T")[0].log_offset, 0, "P")
        cases: list[tuple[Sent, dict[str, Any], str]] = [
            (nowhere, {}, "Find prepared transaction message failed"),
            (no_half, {}, "Find prepared transaction message failed"),
            (sent, {"transactionId": "other"}, "Find prepared transaction message failed"),
            (sent, {"producerGroup": "other"}, "The producer group wrong"),
            (sent, {"tranStateTableOffset": "5"}, "The transaction state table offset wrong"),
        ]
        for which, changes, remark in cases:
            answer = await world.producer.end(which, **changes)
            assert answer.code == 1
            assert (answer.remark or "").startswith(remark)
        assert world.bodies() == []
        assert world.bodies("T", 0) == [b"hello"]


async def test_an_unknown_decision_gets_no_response(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U1")
        for decision in (UNKNOWN, 4):
            task = asyncio.create_task(world.producer.end(sent, decision))
            await world.clock.drain()
            assert not task.done()
            task.cancel()
        assert world.transactions.counts.waiting["T"] == 1


@pytest.mark.spec("broker.13.18")
async def test_an_undecided_message_is_checked_and_given_up(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U1", body=b"one", TAGS="A")
        await world.producer.end_oneway(sent, UNKNOWN)
        await world.clock.advance(seconds=29)
        assert world.producer.check_backs == []
        for count in range(1, 16):
            await world.clock.advance(seconds=1 if count == 1 else 30)
            assert len(world.producer.check_backs) == count
            question = world.producer.check_backs[-1]
            copy = world.records(HALF)[-1]
            assert question.is_oneway
            assert question.ext == {
                "bname": "broker-a", "topic": HALF, "msgId": "U1", "transactionId": "U1",
                "commitLogOffset": str(copy.log_offset), "tranStateTableOffset": str(count),
                "offsetMsgId": encode_offset_id(copy.store_host, copy.log_offset),
            }  # fmt: skip
            assert copy.properties["TRANSACTION_CHECK_TIMES"] == str(count)
            assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
            body = decode_record(question.body or b"")
            assert (body.topic, body.queue_id, body.queue_offset) == ("T", 1, count)
            assert body.log_offset == copy.log_offset
            assert body.body == b"one"
            assert body.properties == {**copy.properties, "WAIT": "false"}
        assert world.features.stats.broker_stats.topic_puts[HALF].count == 16
        assert world.records(GIVEN_UP) == []  # the last question can be answered, too
        await world.rounds(3)
        assert len(world.producer.check_backs) == 15
        (kept,) = world.records(GIVEN_UP)
        assert (kept.body, kept.properties["TRANSACTION_CHECK_TIMES"]) == (b"one", "15")
        topic = world.features.topics.table.get(GIVEN_UP)
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
        assert world.transactions.counts.waiting["T"] == 0
        assert world.bodies() == []
        # An answer that comes after all still counts, once.
        late = world.producer.checked()
        assert (await world.producer.end(late, check=True)).code == 0
        assert (await world.producer.end(sent, check=True)).code == 0
        assert world.bodies() == [b"one"]
        assert world.transactions.counts.waiting["T"] == 0


async def test_answers_to_two_check_backs_commit_once(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U1")
        await world.rounds(2)
        assert len(world.producer.check_backs) == 2
        for which in (world.producer.checked(0), world.producer.checked(1), sent):
            assert (await world.producer.end(which, check=True)).code == 0
        assert world.bodies() == [b"x"]
        (final,) = world.records("T", 1)
        assert final.prepared_transaction_offset == world.producer.checked(0).log_offset
        assert final.properties["TRANSACTION_CHECK_TIMES"] == "1"
        await world.clock.advance(seconds=3)
        assert world.op_bodies() == [b"1,0,2,"]
        await world.rounds(3)
        assert len(world.producer.check_backs) == 2


async def test_check_backs_alternate_between_the_producers_of_a_group(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        second, stranger = Producer(world), Producer(world, "other")
        try:
            await second.join()
            await stranger.join()
            for number in range(4):
                await world.producer.send(f"U{number}")
            await world.rounds()
            assert (len(world.producer.check_backs), len(second.check_backs)) == (2, 2)
            assert stranger.check_backs == []
        finally:
            await second.client.close()
            await stranger.client.close()


async def test_a_check_counts_without_a_producer(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        await world.producer.send("U1")
        await world.producer.client.close()
        world.producer = Producer(world)
        await world.rounds(2)
        await world.producer.join()
        await world.rounds()
        (question,) = world.producer.check_backs
        body = decode_record(question.body or b"")
        assert body.properties["TRANSACTION_CHECK_TIMES"] == "3"


async def test_an_immune_message_stays_where_it_is(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        immune = await world.producer.send("U1", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
        plain = await world.producer.send("U2")
        await world.rounds(3)
        # Only the plain one was asked about, though the immune one stands before it.
        assert [world.producer.checked(index).unique_id for index in range(3)] == ["U2"] * 3
        assert len(world.records(HALF)) == 5
        assert (await world.producer.end(plain)).code == 0
        await world.clock.advance(seconds=9)
        late = await world.producer.send("U3", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        assert (await world.producer.end(late)).code == 0
        await world.clock.advance(seconds=2)  # 101 s after the first
        refused = await world.producer.end(immune)
        assert refused.code == 604
        assert (await world.producer.end(immune, ROLLBACK)).code == 604
        await world.rounds()
        assert len(world.producer.check_backs) == 4
        answer = world.producer.checked()
        assert answer.unique_id == "U1"
        assert (await world.producer.end(answer, check=True)).code == 0
        # Decided now: whoever repeats it, by whatever name, hears that it is done.
        assert (await world.producer.end(immune)).code == 0
        assert sorted(world.bodies()) == [b"x"] * 3
        await world.flushed()
        await world.rounds(2)
        await world.flushed()
        await world.rounds(1)
        assert world.position()[0] == len(world.records(HALF))
        assert world.transactions.is_idle


async def test_a_delay_begins_at_the_commit(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U1", DELAY="3")
        assert [record.properties["DELAY"] for record in world.records(HALF)] == ["3"]
        assert world.bodies("SCHEDULE_TOPIC_XXXX", 2) == []
        assert (await world.producer.end(sent)).code == 0
        (delayed,) = world.records("SCHEDULE_TOPIC_XXXX", 2)
        assert delayed.properties["REAL_TOPIC"] == "T"
        assert delayed.sys_flag == 8
        assert (await world.producer.end(sent)).code == 0
        assert len(world.records("SCHEDULE_TOPIC_XXXX", 2)) == 1
        assert world.features.stats.broker_stats.topic_puts["SCHEDULE_TOPIC_XXXX"].count == 1


async def test_a_timed_message_is_put_into_the_timer_when_it_is_committed(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        soon, late = world.clock.now_ms() + 60_000, world.clock.now_ms() + 400 * 3_600_000
        sent = await world.producer.send("U1", TIMER_DELIVER_MS=str(soon))
        assert (await world.producer.end(sent)).code == 0
        assert (await world.producer.end(sent)).code == 0
        (timed,) = world.records("rmq_sys_wheel_timer")
        assert (timed.properties["REAL_TOPIC"], timed.sys_flag) == ("T", 8)
        # What the timer does not take cannot be committed, and stays undecided.
        sent = await world.producer.send("U2", TIMER_DELIVER_MS=str(late))
        answer = await world.producer.end(sent)
        assert (answer.code, (answer.remark or "")[:21]) == (13, "timer message illegal")
        assert world.transactions.counts.waiting["T"] == 1
        assert (await world.producer.end(sent, ROLLBACK)).code == 0
        assert world.bodies() == []


async def test_an_invalid_delay_is_refused_at_once(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        properties = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02DELAY\x01many\x02"
        answer = await world.send(properties=properties)
        assert (answer.code, (answer.remark or "")[:16]) == (1, "For input string")
        assert world.records(HALF) == []


async def test_a_producer_cannot_choose_the_identity(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        one = await world.producer.send("U1")
        assert (await world.producer.end(one)).code == 0
        two = await world.producer.send("U2", TRAN_PREPARED_QUEUE_OFFSET="0")
        assert (await world.producer.end(two)).code == 0
        assert world.bodies() == [b"x", b"x"]


async def test_half_messages_can_be_refused(tmp_path: Path) -> None:
    async with stored(tmp_path, rejectTransactionMessage="true") as world:
        answer = await world.send(properties="TRAN_MSG\x01true\x02PGROUP\x01pg\x02", f="4")
        assert answer.code == 16
        assert answer.remark == "the broker[127.0.0.2] sending transaction message is forbidden"
        assert world.records(HALF) == []
        # A retry by an old client is no transaction, and neither is one that says so.
        retry = "TRAN_MSG\x01true\x02DELAY\x011\x02"
        assert (await world.send(properties=retry, j="1")).code == 0
        assert (await world.send(properties="TRAN_MSG\x01false\x02")).code == 0


async def test_a_slave_refuses_decisions(tmp_path: Path) -> None:
    async with stored(tmp_path, brokerRole="SLAVE", brokerId="1") as world:
        ext = {
            "producerGroup": "pg", "tranStateTableOffset": "0", "commitLogOffset": "0",
            "commitOrRollback": "8", "msgId": "U", "fromTransactionCheck": "false",
        }  # fmt: skip
        assert (await world.call(RequestCode.END_TRANSACTION, ext)).code == 11
        resume = await world.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": "0" * 32})
        assert resume.code == 11


async def test_a_message_that_was_given_up_can_be_resumed(tmp_path: Path) -> None:
    async with shop(tmp_path, transactionCheckMax="1") as world:
        await world.producer.send("U1")
        await world.rounds(3)
        (kept,) = world.records(GIVEN_UP)
        resume = RequestCode.RESUME_CHECK_HALF_MESSAGE
        for message_id in ("nonsense", encode_offset_id(kept.store_host, 0)):
            answer = await world.call(resume, {"topic": GIVEN_UP, "msgId": message_id})
            assert answer.code == 1
            assert (answer.remark or "").startswith("Put message back to RMQ_SYS_TRANS_HALF_TOPIC")
        assert (await world.call(resume, {"topic": GIVEN_UP, "msgId": kept.offset_id})).code == 0
        copy = world.records(HALF)[-1]
        assert copy.properties["TRANSACTION_CHECK_TIMES"] == "0"
        assert world.transactions.counts.waiting["T"] == 1
        await world.rounds()
        assert len(world.producer.check_backs) == 2
        assert (await world.producer.end(world.producer.checked(), check=True)).code == 0
        assert (await world.producer.end(world.producer.checked(0), check=True)).code == 0
        assert world.bodies() == [b"x"]
        answer = await world.call(resume, {"topic": GIVEN_UP, "msgId": kept.offset_id})
        assert answer.code == 1


async def test_request_26_reports_that_decisions_count_once(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        answer = await world.call(RequestCode.GET_BROKER_CONFIG)
        assert b"transactionEndIdempotent=true\n" in (answer.body or b"")


async def test_with_sync_flush_a_decision_is_answered_when_it_is_on_disk(tmp_path: Path) -> None:
    async with shop(tmp_path, flushDiskType="SYNC_FLUSH") as world:
        one, two = [await world.producer.send(unique_id) for unique_id in ("U1", "U2")]
        ends = [
            asyncio.create_task(world.producer.end(one)),
            asyncio.create_task(world.producer.end(one)),
            asyncio.create_task(world.producer.end(two, ROLLBACK)),
        ]
        files = world.features.store.log.files
        for task in ends:
            assert (await task).code == 0
            assert files.flushed_where >= world.records("T", 1)[0].log_offset
        assert files.flushed_where == world.features.store.log.max_offset
        assert world.op_bodies() == [b"0,1,"]
        root = killed(world, tmp_path / "copy")
    async with shop(root, start_ms=world.clock.now_ms(), flushDiskType="SYNC_FLUSH") as world:
        assert (await world.producer.end(one)).code == 0
        assert world.bodies() == [b"x"]
