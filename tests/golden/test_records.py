"""Every record that a real broker (RocketMQ 5.5.0, Java) left in its stores.

``data/store-*`` are commit logs of a clean, a killed and a damaged store, with some of the files
beside them; ``data/expected`` holds what a second Java broker, started on a copy, served from them
through its pull API. The frames of a batch send and of a replica that joins its master are in
``data/frames``.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skylark.core.hashing import decode_offset_id, index_key_hash, java_hash
from skylark.wire.batch import encode_batch, split_batch
from skylark.wire.frame import decode_frame
from skylark.wire.ha_frame import HaFrameBuffer, ReportBuffer, encode_frame_head, encode_report
from skylark.wire.layout import (
    BATCH_CQ_ENTRY,
    BATCH_CQ_ENTRY_SIZE,
    CHECKPOINT,
    CHECKPOINT_FILE_SIZE,
    CQ_ENTRY,
    CQ_ENTRY_SIZE,
    FLAG_INNER_BATCH,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    batch_cq_dtype,
    cq_dtype,
    index_entry_dtype,
)
from skylark.wire.message import (
    MessageRecord,
    RecordFault,
    Verify,
    decode_record,
    encode_record,
    format_host,
    inflate_record,
    unwrap_record,
)
from tests.support.records import assert_same, plain_records, records_of

DATA = Path(__file__).parent / "data"
STORES = ("store-basic", "store-crashed", "store-torn")
FILE_SIZE = 32768
# Records, end of the log, files closed by a blank, why the scan stops.
SUMMARY = {
    "store-basic": (433, 124586, 3, RecordFault.UNWRITTEN),
    "store-crashed": (449, 144910, 4, RecordFault.UNWRITTEN),
    "store-torn": (443, 142909, 4, RecordFault.BAD_LENGTHS),
}
NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "CLUSTER", "WAIT")


def test_the_files_are_as_java_left_them() -> None:
    """``stores.sha256`` was made with the data; files beside it may have been packed since."""
    for line in (DATA / "stores.sha256").read_text().splitlines():
        digest, name = line.split()
        file = DATA / name
        packed = DATA / f"{name}.gz"
        raw = file.read_bytes() if file.exists() else gzip.decompress(packed.read_bytes())
        assert hashlib.sha256(raw).hexdigest() == digest, name


def commit_log(store: str) -> bytes:
    """The whole log: its files are named by offset and follow each other without a gap."""
    files = sorted((DATA / store / "commitlog").iterdir())
    assert [int(file.name) for file in files] == [n * FILE_SIZE for n in range(len(files))]
    return b"".join(file.read_bytes() for file in files)


def lines(name: str) -> list[dict[str, Any]]:
    text = gzip.decompress((DATA / "expected" / f"{name}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def plain(store: str) -> dict[int, MessageRecord]:
    records, _, _ = plain_records(commit_log(store), verify=Verify.BODY, log_start=0)
    return {record.log_offset: record for record in records}


def vectorised(store: str) -> dict[int, MessageRecord]:
    columns = assert_same(commit_log(store), verify=Verify.BODY, log_start=0, names=NAMES)
    return {record.log_offset: record for record in records_of(columns)}


@pytest.mark.parametrize("store", STORES)
def test_the_log_ends_where_java_says(store: str) -> None:
    count, end, blank_count, fault = SUMMARY[store]
    summary = json.loads((DATA / "expected" / f"{store}.summary.json").read_text())
    assert int(summary["runtime"]["commitLogMaxOffset"]) == end
    columns = assert_same(commit_log(store), verify=Verify.BODY, log_start=0)
    assert (len(columns), columns.end_position, columns.blank_count, columns.fault) == (
        count,
        end,
        blank_count,
        fault,
    )


def test_each_file_can_be_read_alone() -> None:
    files = sorted((DATA / "store-basic" / "commitlog").iterdir())
    counts = [
        len(assert_same(file.read_bytes(), verify=Verify.BODY, log_start=int(file.name)))
        for file in files
    ]
    assert sum(counts) == 433
    assert min(counts) > 0


def seen_by_java(record: MessageRecord) -> dict[str, Any]:
    """The fields of ``record`` as the dump of the pull API names them."""
    properties = record.properties
    seen = {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.log_offset,
        "storeSize": record.total_size,
        "bodyCRC": record.body_crc,
        "sysFlag": record.sys_flag,
        "compressed": bool(record.sys_flag & 1),
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": format_host(record.born_host),
        "storeTimestamp": record.store_timestamp,
        "storeHost": format_host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "msgId": record.offset_id if record.total_size else None,
        "properties": properties,
        "storedBodyLen": len(record.body),
    }
    inflate_record(record)
    seen["sysFlagSeenByConsumer"] = record.sys_flag
    seen["bodyLen"] = len(record.body)
    seen["body"] = base64.b64encode(record.body).decode()
    for key, name in (("uniqKey", "UNIQ_KEY"), ("tags", "TAGS"), ("keys", "KEYS")):
        seen[key] = properties.get(name)
    return seen


@pytest.mark.parametrize("decoder", [plain, vectorised])
@pytest.mark.parametrize("store", STORES)
def test_every_message_is_what_java_served(store: str, decoder: Any) -> None:
    seen: dict[tuple[str, int, int, int], dict[str, Any]] = {}
    for stored in decoder(store).values():
        for record in unwrap_record(stored):
            message = seen_by_java(record)
            seen[record.topic, record.queue_id, record.queue_offset, record.log_offset] = message
    expected = lines(f"{store}.messages")
    assert (
        len(expected)
        == json.loads((DATA / "expected" / f"{store}.summary.json").read_text())["messages"]
    )
    for message in expected:
        key = (
            message["topic"],
            message["queueId"],
            message["queueOffset"],
            message["commitLogOffset"],
        )
        ours = seen.pop(key)
        message.pop("transactionId", None)  # client-side copy of a property
        assert ours == {name: message.get(name) for name in ours}
        assert message.keys() <= ours.keys()
    # What is left was never served: nothing in these stores.
    assert not seen


@pytest.mark.parametrize("store", STORES)
def test_every_record_is_encoded_as_java_did(store: str) -> None:
    log = commit_log(store)
    records = plain(store)
    for position, record in records.items():
        encoded = encode_record(
            record.topic,
            record.body,
            record.raw_properties,
            queue_id=record.queue_id,
            queue_offset=record.queue_offset,
            log_offset=record.log_offset,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_timestamp=record.store_timestamp,
            store_host=record.store_host,
            flag=record.flag,
            sys_flag=record.sys_flag,
            reconsume_times=record.reconsume_times,
            prepared_transaction_offset=record.prepared_transaction_offset,
        )
        assert encoded == log[position : position + record.total_size]
    assert len(records) == SUMMARY[store][0]


@pytest.mark.spec("store.12.10")
def test_offset_ids_lead_back_to_the_record() -> None:
    log = commit_log("store-basic")
    messages = [message for message in lines("store-basic.messages") if message["msgId"]]
    assert len(messages) > 400
    for message in messages:
        found = decode_offset_id(message["msgId"])
        assert (found.ip, found.port) == (bytes((127, 0, 0, 1)), 20911)
        assert decode_record(log, found.log_offset).properties == message["properties"]


# ---- queues and index ----------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_queue_entries_point_to_their_records(store: str) -> None:
    log = commit_log(store)
    entries = lines(f"{store}.cq")
    for entry in entries:
        record = decode_record(log, entry["physicOffset"], log_start=0)
        assert (record.topic, record.queue_id, record.queue_offset, record.total_size) == (
            entry["topic"],
            entry["queueId"],
            entry["queueOffset"],
            entry["size"],
        )
        if record.topic != "SCHEDULE_TOPIC_XXXX":  # there, the code is the due time
            assert java_hash(record.properties.get("TAGS", "")) == entry["tagsCode"]
    assert len(entries) > 400


def test_a_queue_file_holds_the_entries_java_reports() -> None:
    file = next((DATA / "store-basic/consumequeue/GoldenA/0").iterdir()).read_bytes()
    expected = [
        (entry["physicOffset"], entry["size"], entry["tagsCode"])
        for entry in lines("store-basic.cq")
        if entry["topic"] == "GoldenA" and entry["queueId"] == 0
    ]
    assert len(expected) == 8
    assert list(CQ_ENTRY.iter_unpack(file))[:8] == expected
    assert file[8 * CQ_ENTRY_SIZE :] == bytes(6000 - 8 * CQ_ENTRY_SIZE)
    assert np.frombuffer(file, cq_dtype())[:8].tolist() == expected
    assert b"".join(CQ_ENTRY.pack(*entry) for entry in expected) == file[: 8 * CQ_ENTRY_SIZE]


def test_inner_batches_and_their_queue_file() -> None:
    log = commit_log("store-basic")
    file = next((DATA / "store-basic/batchconsumequeue/GoldenBatchCq/0").iterdir()).read_bytes()
    expected = lines("store-basic.batchcq")
    columns = np.frombuffer(file, batch_cq_dtype())
    for index, entry in enumerate(expected):
        values = tuple(
            entry[name]
            for name in (
                "physicOffset",
                "size",
                "tagsCode",
                "storeTime",
                "msgBaseOffset",
                "batchSize",
                "compactedOffset",
                "reserved",
            )
        )
        assert BATCH_CQ_ENTRY.unpack_from(file, index * BATCH_CQ_ENTRY_SIZE) == values
        assert columns[index].item() == values
        record = decode_record(log, entry["physicOffset"])
        assert record.sys_flag & FLAG_INNER_BATCH
        parts = unwrap_record(record)
        assert len(parts) == entry["batchSize"] == int(record.properties["INNER_NUM"])
        assert parts[0].queue_offset == entry["msgBaseOffset"]
        assert encode_batch(split_batch(record.body)) == record.body
    assert len(expected) == 2


def test_the_first_index_file_holds_the_keys_of_the_first_records() -> None:
    """100 slots, 399 entries: unique id, keys and tag of each record, in this order."""
    file = (DATA / "store-basic/index/20261115023454531").read_bytes()
    begin_time, end_time, begin_offset, end_offset, _, count = INDEX_HEADER.unpack_from(file)
    entries = np.frombuffer(file, index_entry_dtype(), offset=INDEX_HEADER_SIZE + 4 * 100)
    assert len(file) == INDEX_HEADER_SIZE + 4 * 100 + INDEX_ENTRY_SIZE * 400
    assert (begin_offset, count) == (0, 400)
    expected = []
    for record in plain("store-basic").values():
        properties = record.properties
        keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
        keys += ["T#" + properties["TAGS"]] if "TAGS" in properties else []
        expected += [
            (index_key_hash(java_hash(f"{record.topic}#{key}")), record.log_offset)
            for key in keys
            if key
        ]
    found = entries[1:][["key_hash", "log_offset"]].tolist()
    assert found == expected[:399]
    assert found[-1][1] == end_offset
    assert begin_time < end_time


def test_checkpoint() -> None:
    file = (DATA / "store-basic/checkpoint").read_bytes()
    records = plain("store-basic")
    physic, logics, index, master, confirm, dispatched = CHECKPOINT.unpack_from(file)
    assert dispatched == 123202
    assert physic == logics == records[dispatched].store_timestamp
    assert index in {record.store_timestamp for record in records.values()}
    assert (master, confirm) == (0, 0)
    assert (len(file), file[CHECKPOINT.size :].strip(b"\x00")) == (CHECKPOINT_FILE_SIZE, b"")


# ---- frames --------------------------------------------------------------------------------------


def frames(name: str) -> list[dict[str, Any]]:
    text = (DATA / "frames" / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.spec("store.12.12")
def test_batches_of_a_java_producer() -> None:
    batches = 0
    for frame in frames("send-batch"):
        command = decode_frame(base64.b64decode(frame["raw"]))
        if frame["code"] == 320 and not frame["response"]:
            assert command.body is not None
            messages = split_batch(command.body)
            assert len(messages) > 1
            assert all(b"UNIQ_KEY\x01" in message.properties for message in messages)
            assert encode_batch(messages) == command.body
            batches += 1
    assert batches > 0


def test_a_replica_joins_its_master() -> None:
    """Both directions of a recorded connection, chunk by chunk as they were read."""
    master, slave = HaFrameBuffer(), ReportBuffer()
    stream = {"s2c": b"", "c2s": b""}
    encoded = b""
    log = b""
    reports = []
    for chunk in frames("ha-stream"):
        raw = base64.b64decode(chunk["raw"])
        stream[chunk["dir"]] += raw
        if chunk["dir"] == "c2s":
            reports.append(slave.feed(raw))
            continue
        for frame in master.feed(raw):
            encoded += encode_frame_head(frame.log_offset, len(frame.body)) + frame.body
            assert frame.log_offset == len(log)
            log += frame.body
    assert master.pending_size == 0
    assert encoded == stream["s2c"]
    assert (
        b"".join(encode_report(report) for report in reports if report is not None)
        == (stream["c2s"])
    )
    assert reports[-1] == len(log)
    assert len(assert_same(log, verify=Verify.BODY, log_start=0)) > 0
