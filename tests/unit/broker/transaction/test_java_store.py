"""Half messages of a real broker (RocketMQ 5.5.0, Java): the same records made, and its store used.

``store-basic`` has a half message that was committed (0), one that was rolled back (1), one that
was committed when its producer was asked (2, copy 4), and one undecided (3) with eleven copies, of
which the last, 14, is behind the committed offset.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.transaction.half_message import Half, read_half, turn_into_half
from skylark.broker.transaction.op_messages import op_draft, parse_op
from skylark.store.commit_log import Draft
from skylark.wire.message import decode_record, encode_record, format_host
from skylark.wire.properties import encode_properties, parse_properties
from tests.unit.broker.transaction.halves import COMMIT, GROUP, HALF, OP, ROLLBACK, Sent, shop

DATA = Path(__file__).parents[3] / "golden" / "data"
SETTINGS = {
    "mappedFileSizeCommitLog": "32768",
    "mappedFileSizeConsumeQueue": "6000",
    "mapperFileSizeBatchConsumeQueue": "4600",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "fileReservedTime": "720",
}


def messages(topic: str) -> list[dict[str, Any]]:
    text = gzip.decompress((DATA / "expected/store-basic.messages.jsonl.gz").read_bytes())
    return [line for line in map(json.loads, text.splitlines()) if line["topic"] == topic]


HALVES = messages(HALF)


def half_of_java(offset: int) -> Half:
    line = HALVES[offset]
    assert line["queueOffset"] == offset
    raw = encode_record(
        HALF,
        base64.b64decode(line["body"]),
        encode_properties(line["properties"]).encode(),
        queue_offset=offset,
        log_offset=line["commitLogOffset"],
        born_timestamp=line["bornTimestamp"],
        store_timestamp=line["storeTimestamp"],
        sys_flag=line["sysFlag"],
    )
    half = read_half(decode_record(raw))
    assert half is not None
    return half


def test_a_half_message_equals_that_of_java() -> None:
    line = HALVES[0]
    properties = dict(line["properties"])
    for name in ("REAL_TOPIC", "REAL_QID", "__transactionId__"):
        del properties[name]
    text = encode_properties(properties).encode()
    draft = Draft("GoldenTx", 0, b"x", text, sys_flag=4)
    turn_into_half(draft, properties["UNIQ_KEY"])
    assert parse_properties(draft.properties) == line["properties"]
    assert (draft.topic, draft.queue_id, draft.sys_flag) == (HALF, 0, line["sysFlag"])


@pytest.mark.parametrize(("half_offset", "final_offset"), [(0, 0), (4, 1)])
def test_a_final_message_equals_that_of_java(half_offset: int, final_offset: int) -> None:
    line = messages("GoldenTx")[final_offset]
    draft = half_of_java(half_offset).final_message()
    assert parse_properties(draft.properties) == line["properties"]
    assert draft.prepared_transaction_offset == line["preparedTransactionOffset"]
    assert (draft.topic, draft.queue_id) == (line["topic"], line["queueId"])
    assert (draft.sys_flag, draft.flag) == (line["sysFlag"], line["flag"])
    assert draft.born_timestamp == line["bornTimestamp"]
    assert draft.body == base64.b64decode(line["body"])


@pytest.mark.parametrize(("offset", "copy"), [(2, 4), (3, 5), (5, 6), (13, 14)])
def test_a_copy_equals_that_of_java_but_names_its_original(offset: int, copy: int) -> None:
    draft = half_of_java(offset).next_copy()
    first = {"TRAN_PREPARED_QUEUE_OFFSET": str(offset)}
    assert parse_properties(draft.properties) == {**HALVES[copy]["properties"], **first}
    assert draft.body == base64.b64decode(HALVES[copy]["body"])
    assert draft.born_timestamp == HALVES[copy]["bornTimestamp"]


def test_op_messages_are_like_javas() -> None:
    ops = messages(OP)
    assert [parse_op(base64.b64decode(op["body"])) for op in ops] == [[0, 1], [4]]
    draft = op_draft(b"0,1,", b"host", 5)
    assert parse_properties(draft.properties) == ops[0]["properties"]
    assert (draft.topic, draft.queue_id, draft.born_host) == (OP, 0, b"host")


def test_a_check_back_equals_that_of_java_but_names_its_original() -> None:
    lines = map(json.loads, (DATA / "frames/transaction.jsonl").read_text().splitlines())
    line = [line for line in lines if line["code"] == 39][1]
    raw = base64.b64decode(line["raw"])
    java = decode_record(raw[-line["body_len"] :])
    properties = {**java.properties, "WAIT": "true"}
    del properties["TRANSACTION_CHECK_TIMES"]
    record = encode_record(
        HALF,
        java.body,
        encode_properties(properties).encode(),
        queue_offset=2,
        log_offset=9688,
        born_timestamp=java.born_timestamp,
        born_host=java.born_host,
        store_timestamp=java.store_timestamp,
        store_host=java.store_host,
    )
    half = read_half(decode_record(record))
    assert half is not None
    question = half.check_request(java.log_offset, java.queue_offset, "broker-a")
    assert question.ext == line["header"]["extFields"]
    ours = decode_record(question.body or b"")
    assert ours.properties == {**java.properties, "TRAN_PREPARED_QUEUE_OFFSET": "2"}
    for name in (
        "topic", "queue_id", "queue_offset", "log_offset", "body", "body_crc", "flag", "sys_flag",
        "born_timestamp", "born_host", "store_timestamp", "store_host", "reconsume_times",
        "prepared_transaction_offset", "magic",
    ):  # fmt: skip
        assert getattr(ours, name) == getattr(java, name), name
    assert format_host(ours.store_host) == "127.0.0.2:20911"


async def test_a_store_of_java_is_recovered(tmp_path: Path) -> None:
    shutil.copytree(DATA / "store-basic", tmp_path / "store")
    now_ms = HALVES[14]["storeTimestamp"] + 1_000
    async with shop(tmp_path, start_ms=now_ms, **SETTINGS) as world:
        world.producer.group = "golden_tx_pg"
        await world.producer.join()
        assert world.position() == (14, 2)

        def sent(offset: int) -> Sent:
            return Sent(HALVES[offset]["commitLogOffset"], offset, HALVES[offset]["uniqKey"])

        before = len(world.records("GoldenTx"))
        assert before == 2
        for offset, decision, code, remark in [
            (0, COMMIT, 0, ""),
            (0, ROLLBACK, 1, "half already committed"),
            (1, ROLLBACK, 0, ""),
            (1, COMMIT, 1, "half already rolled back"),
            (4, COMMIT, 0, ""),
        ]:
            answer = await world.producer.end(sent(offset), decision, check=True)
            assert (answer.code, (answer.remark or "")[: len(remark)]) == (code, remark)
        assert len(world.records("GoldenTx")) == before
        await world.rounds()
        question = world.producer.checked()
        assert question.queue_offset == 15
        assert world.records(HALF)[-1].properties["TRAN_PREPARED_QUEUE_OFFSET"] == "14"
        # The answer to a question that Java asked, and one to ours: once.
        for which in (sent(3), sent(9), question, sent(14)):
            assert (await world.producer.end(which, COMMIT, check=True)).code == 0
        assert [record.body for record in world.records("GoldenTx")][before:] == [b"never decided"]
        await world.flushed()
        await world.rounds(2)
        assert world.features.groups.offsets.get(GROUP, HALF, 0) == 16
