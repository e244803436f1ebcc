"""Queues against the log: each way in which an entry can be wrong is found and named."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from skylark.store.inspection.store_check import check_store
from skylark.wire.batch import BatchMessage
from skylark.wire.layout import BATCH_CQ_ENTRY, CQ_ENTRY, CQ_PRE_BLANK
from tests.unit.store.inspection.damage import (
    BATCH_QUEUE,
    ERROR,
    LOG_END,
    LOG_FILES,
    NOTE,
    QUEUE,
    SECOND_QUEUE_FILE,
    WARNING,
    check,
    found,
    kinds,
    own_store,
    patch,
    records,
)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (0, 5, "entry 7 has log offset 5 instead of "),
        (1, 1, "entry 7 has size 1 instead of "),
        (2, -1, "entry 7 has tags code -1 instead of "),
    ],
)
def test_a_wrong_queue_entry(basic: Path, field: int, value: int, text: str) -> None:
    entry = list(CQ_ENTRY.unpack_from((basic / QUEUE).read_bytes(), 140))
    right, entry[field] = entry[field], value
    patch(basic / QUEUE, 140, CQ_ENTRY.pack(*entry))
    report = check(basic)
    assert found(report) == [(ERROR, "queue.wrong", QUEUE, 140)]
    assert report.findings[0].text == f"{text}{right}"


def test_neighbouring_wrong_entries_are_one_finding(basic: Path) -> None:
    content = bytearray((basic / QUEUE).read_bytes()[100:200])
    for position in range(0, 100, 20):
        content[position + 11] ^= 1
    patch(basic / QUEUE, 100, bytes(content))
    report = check(basic)
    assert found(report) == [(ERROR, "queue.wrong", QUEUE, 100)]
    assert report.findings[0].text.startswith("entries 5 to 9 are wrong, the first has size ")


def test_an_entry_that_points_to_a_later_record(basic: Path) -> None:
    content = (basic / QUEUE).read_bytes()
    patch(basic / QUEUE, 0, content[200:220])
    report = check(basic)
    assert found(report) == [(ERROR, "queue.wrong", QUEUE, 0)]
    assert report.findings[0].text.startswith("entry 0 points to later records, and not to ")


def test_missing_entries(basic: Path) -> None:
    patch(basic / QUEUE, 100, bytes(40))  # in the middle
    patch(basic / SECOND_QUEUE_FILE, 980, bytes(20))  # at the end, which has 50 entries
    report = check(basic)
    assert found(report) == [
        (ERROR, "queue.missing", QUEUE, 100),
        (ERROR, "queue.missing", SECOND_QUEUE_FILE, 980),
    ]
    texts = [it.text.partition(",")[0] for it in report.findings]
    assert texts == ["entries 5 to 6 missing", "entry 349 missing"]
    (basic / "abort").touch()
    assert {severity for severity, kind in kinds(check(basic)) if kind == "queue.missing"} == {
        WARNING
    }


def test_many_ranges_of_missing_entries_are_summed_up(basic: Path) -> None:
    for number in range(0, 100, 2):
        patch(basic / QUEUE, number * 20, bytes(20))
    report = check(basic)
    assert len(report.findings) == 17
    assert report.findings[-1].text == "further 34 records without entries of their own"


def test_extra_entries(basic: Path) -> None:
    other = CQ_ENTRY.unpack_from((basic / QUEUE).read_bytes())
    path = basic / "consumequeue/GoldenTx/0/00000000000000000000"
    patch(path, 40, CQ_ENTRY.pack(*other) + CQ_ENTRY.pack(LOG_END, 100, 0))
    report = check(basic)
    name = "consumequeue/GoldenTx/0/00000000000000000000"
    assert found(report) == [
        (ERROR, "log.end", LOG_FILES[3], LOG_END),  # a queue knows more than the log
        (ERROR, "queue.extra", name, 40),
        (ERROR, "queue.extra", name, 60),
    ]
    assert report.findings[1].text == (
        f"entry 2 points to {other[0]}, where no valid record of this queue begins"
    )
    assert report.findings[2].text == (
        f"entry 3 points to {LOG_END}, beyond the end of the log at {LOG_END}"
    )


def test_a_queue_without_records(basic: Path) -> None:
    queue = basic / "consumequeue/Ghost/0"
    queue.mkdir(parents=True)
    (queue / "00000000000000000000").write_bytes(CQ_ENTRY.pack(100, 200, 0).ljust(6000, b"\0"))
    report = check(basic)
    assert found(report) == [(ERROR, "queue.extra", "consumequeue/Ghost/0/00000000000000000000", 0)]


def test_records_whose_numbers_do_not_follow(basic: Path) -> None:
    path = basic / LOG_FILES[1]
    record = [it for it in records(path) if it.topic == "GoldenB"][5]
    within = record.log_offset - 32768
    patch(path, within + 20, struct.pack(">q", record.queue_offset + 100))
    report = check(basic)
    order = [it for it in report.findings if it.kind == "queue.order"]
    assert order[0].text == (
        f"the record at {record.log_offset} has the queue offset {record.queue_offset + 100}, "
        f"and {record.queue_offset} comes next"
    )
    patch(path, within + 20, struct.pack(">q", -4))
    report = check(basic)
    assert (ERROR, "queue.order") in kinds(report)


def test_the_due_time_of_delayed_messages_depends_on_the_levels(basic: Path) -> None:
    report = check_store(basic, delays_ms=(1_000, 2_000))
    wrong = {it.file.parts[-3:-1] for it in report.findings}
    assert kinds(report) == {(ERROR, "queue.wrong")}
    assert wrong == {("SCHEDULE_TOPIC_XXXX", number) for number in ("1", "16", "17")}


def test_a_deleted_topic_is_a_note_if_the_broker_table_lacks_it(basic: Path) -> None:
    shutil.rmtree(basic / "consumequeue/GoldenB")
    report = check(basic)
    assert found(report) == [(ERROR, "queue.missing", "consumequeue/GoldenB/0", 0)]
    topics = basic / "config/topics.json"
    topics.write_text(topics.read_text().replace("GoldenB", "Gone"))
    report = check(basic)
    assert found(report) == [(NOTE, "queue.deleted", "consumequeue/GoldenB/0", 0)]
    assert report.findings[0].text == "the topic was deleted, and the log has 350 records of it"


def test_a_topic_that_was_deleted_and_made_again_and_has_no_message_yet(tmp_path: Path) -> None:
    """Its directory, which stays, tells it from queues that were lost."""
    store = own_store(tmp_path)
    for number in range(10):
        store.put("T", number % 2, b"before", {"TAGS": "A"})
        store.put("Other", 0, b"before", {"TAGS": "A"})
    store.queues.destroy_topic("T")
    store.close()
    report = check(store.root)
    assert found(report) == [
        (NOTE, "queue.deleted", "consumequeue/T/0", 0),
        (NOTE, "queue.deleted", "consumequeue/T/1", 0),
    ]
    (store.root / "consumequeue/T").rmdir()
    assert kinds(check(store.root)) == {(ERROR, "queue.missing")}


@pytest.mark.parametrize("second", [3, 30])
def test_a_topic_that_was_deleted_and_made_again(tmp_path: Path, second: int) -> None:
    store = own_store(tmp_path)
    for _ in range(10):
        store.put("T", 0, b"before", {"TAGS": "A"})
    store.queues.destroy_topic("T")
    for _ in range(second):
        store.put("T", 0, b"after", {"TAGS": "A"})
    store.close()
    report = check(store.root)
    assert kinds(report) == {(NOTE, "queue.deleted")}
    assert "10 records before it without entries" in report.findings[0].text


def test_a_queue_whose_first_messages_have_expired(tmp_path: Path) -> None:
    store = own_store(tmp_path)
    for number in range(200):
        store.put("T", number % 2, bytes(100), {"KEYS": f"k{number}"})
    store.close()
    assert check(store.root).log_files == 5
    for name in ("00000000000000000000", "00000000000000008192"):
        (store.root / "commitlog" / name).unlink()
    report = check(store.root)
    assert report.findings == []
    assert (report.log_start, report.queue_entries) == (16384, 200)
    # a queue may begin in the middle of a file, too
    queue = store.root / "consumequeue/T/0/00000000000000000000"
    patch(queue, 0, CQ_PRE_BLANK * 5)
    assert check(store.root).findings == []
    patch(queue, 0, CQ_ENTRY.pack(16384 + 7, 100, 0))
    assert found(check(store.root)) == [
        (ERROR, "queue.extra", "consumequeue/T/0/00000000000000000000", 0)
    ]


def test_light_queues_are_passed_over(tmp_path: Path) -> None:
    store = own_store(tmp_path)
    store.put("T", 0, b"body")
    store.put("%LMQ%a", 0, b"body")
    store.close()
    patch(store.root / "consumequeue/%LMQ%a/0/00000000000000000000", 0, CQ_ENTRY.pack(5, 5, 5))
    assert check(store.root).findings == []


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (1, "entry 1 has size "),
        (2, "entry 1 has tags code "),
        (3, "entry 1 has store time "),
        (4, "entry 1 has queue offset "),
        (5, "entry 1 has number of messages "),
    ],
)
def test_a_wrong_entry_of_a_batch_queue(basic: Path, field: int, text: str) -> None:
    entry = list(BATCH_CQ_ENTRY.unpack_from((basic / BATCH_QUEUE).read_bytes(), 46))
    entry[field] += 1
    patch(basic / BATCH_QUEUE, 46, BATCH_CQ_ENTRY.pack(*entry))
    report = check(basic)
    assert found(report) == [(ERROR, "queue.wrong", BATCH_QUEUE, 46)]
    assert report.findings[0].text.startswith(text)


def test_missing_and_extra_entries_of_a_batch_queue(basic: Path) -> None:
    content = (basic / BATCH_QUEUE).read_bytes()
    patch(basic / BATCH_QUEUE, 46, bytes(46))
    report = check(basic)
    assert found(report) == [(ERROR, "queue.missing", BATCH_QUEUE, 46)]
    assert report.findings[0].text == "1 record without entry, the first at 14712"
    strange = list(BATCH_CQ_ENTRY.unpack_from(content))
    strange[0] += 1
    patch(basic / BATCH_QUEUE, 46, BATCH_CQ_ENTRY.pack(*strange) + content[46:92])
    report = check(basic)
    assert found(report) == [(ERROR, "queue.extra", BATCH_QUEUE, 46)]
    patch(basic / BATCH_QUEUE, 46, content[46:92] * 2)
    assert found(check(basic)) == [(ERROR, "queue.extra", BATCH_QUEUE, 92)]
    shutil.rmtree(basic / "batchconsumequeue")
    assert found(check(basic)) == [(ERROR, "queue.missing", "batchconsumequeue/GoldenBatchCq/0", 0)]


def test_inner_batches_whose_numbers_do_not_follow(tmp_path: Path) -> None:
    store = own_store(tmp_path)
    parts = [BatchMessage(flag=0, body=b"part", properties=b"")] * 3
    store.put_inner_batch("B", 0, parts)
    store.put_single_in_batch_queue("B", 0, b"has no entry, and takes a number")
    store.put_inner_batch("B", 0, parts)
    store.close()
    report = check(store.root)
    assert kinds(report) == {(ERROR, "queue.order")}
    assert "has the queue offset 4, and 3 comes next" in report.findings[0].text
