"""Request 28, against the answer of a real broker."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from skylark.broker.admin.runtime_info import RuntimeFacts, byte_count, runtime_info
from skylark.broker.delay.timer_service import TimerFacts
from skylark.broker.stats.store_stats import DayTotals, StoreStats
from skylark.wire.bodies.common_body import KVTable
from skylark.wire.fastjson import decode_body
from skylark.wire.frame import decode_frame

FRAMES = Path(__file__).parents[3] / "golden" / "data" / "frames"
BOOT_MS = 1_794_710_569_179


def recorded_table() -> dict[str, str]:
    lines = (FRAMES / "admin-brokerStatus.jsonl").read_text().splitlines()
    answer = decode_frame(base64.b64decode(json.loads(lines[1])["raw"]))
    return decode_body(KVTable, answer.body or b"").table


def facts_of_the_recording() -> RuntimeFacts:
    return RuntimeFacts(
        is_active=True,
        log_min_offset=0,
        log_max_offset=31_549,
        commit_log_disk_ratios={"store/commitlog": 0.18},
        consume_queue_disk_ratio=0.18,
        disk_size=252 << 30,
        disk_free_size=round(236.2 * 2**30),
        earliest_message_ms=1_794_710_607_538,
        schedule_offsets={1: (3, 3)},
    )


def test_the_table_is_that_of_a_real_broker() -> None:
    stats = StoreStats(BOOT_MS)
    for second in range(62):
        stats.sample(second * 1000)
    stats.put_count, stats.put_size, stats.put_failed_count = 87, 31_549, 1
    stats.put_ms_max, stats.get_ms_max = 99, 31
    table = runtime_info(
        facts_of_the_recording(), stats.rows(BOOT_MS + 413_000), DayTotals().rows(47, 128)
    )
    theirs = recorded_table()
    assert table.keys() == theirs.keys()
    # Rates and put times of that minute cannot be had again.
    varying = {
        "getFoundTps",
        "getMissTps",
        "getTotalTps",
        "getTransferredTps",
        "putMessageDistributeTime",
        "putLatency99",
        "putLatency999",
    }
    for key, value in theirs.items():
        if key not in varying:
            assert table[key] == value, key
    assert all(isinstance(value, str) for value in table.values())
    assert len(table["getTotalTps"].split(" ")) == len(theirs["getTotalTps"].split(" ")) == 3


def test_what_the_recording_does_not_show() -> None:
    facts = RuntimeFacts(
        is_active=False,
        log_min_offset=1024,
        log_max_offset=4096,
        commit_log_disk_ratios={"/a": 0.5, "/b": 0.25},
        consume_queue_disk_ratio=0.3,
        disk_size=500,
        disk_free_size=100,
        earliest_message_ms=-1,
        dispatch_behind_bytes=17,
        append_ms=1_234,
        unflushed_size=2_048,
        uncommitted_size=1_536,
        free_buffer_count=3,
        start_accept_send_ms=42,
        timer=TimerFacts(
            read_behind=1, offset_behind=2, congest_count=3, enqueue_tps=4.5, dequeue_tps=1e10
        ),
        schedule_offsets={2: (0, 5), 18: (1, 1)},
        waiting_counts={"send": 9, "endTransaction": 4},
        loop_wait_ms=70,
    )
    table = runtime_info(facts, {}, {})
    assert {
        "brokerActive": "false",
        "commitLogMinOffset": "1024",
        "commitLogMaxOffset": "4096",
        "commitLogDiskRatio": "0.25",
        "commitLogDiskRatio_/a": "0.5",
        "commitLogDiskRatio_/b": "0.25",
        "commitLogDirCapacity": "Total : 500 B, Free : 100 B.",
        "dispatchBehindBytes": "17",
        "pageCacheLockTimeMills": "1234",
        "remainHowManyDataToFlush": "2.0 KiB",
        "remainHowManyDataToCommit": "1.5 KiB",
        "remainTransientStoreBufferNumbs": "3",
        "startAcceptSendRequestTimeStamp": "42",
        "timerReadBehind": "1",
        "timerOffsetBehind": "2",
        "timerCongestNum": "3",
        "timerEnqueueTps": "4.5",
        "timerDequeueTps": "1.0E10",
        "scheduleMessageOffset_2": "0,5",
        "scheduleMessageOffset_18": "1,1",
        "sendThreadPoolQueueSize": "9",
        "pullThreadPoolQueueSize": "0",
        "sendThreadPoolQueueHeadWaitTimeMills": "70",
        "EndTransactionQueueSize": "4",
    }.items() <= table.items()


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        ((1 << 20) - 1, "1024.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (252 << 30, "252.0 GiB"),
        (1 << 60, "1.0 EiB"),
        ((1 << 63) - 1, "8.0 EiB"),
    ],
)
def test_bytes_for_people(size: int, text: str) -> None:
    assert byte_count(size) == text
