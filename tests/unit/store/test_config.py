"""The store's settings: Java's keys and defaults, Java's rules, and what is refused by name."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from skylark.core.config import InvalidConfigError, load, parse_properties, settings, to_mapping
from skylark.store.config import REFUSED, BrokerRole, FlushDiskType, StoreConfig
from skylark.wire.frame import decode_frame

ROOT = Path("/store")
RECORDED = Path(__file__).parents[2] / "golden" / "data" / "frames" / "admin-getBrokerConfig.jsonl"

# What the recorded broker was told; everything else in its answer is a default of 5.5.0.
TOLD = {
    "storePathRootDir",
    "storePathCommitLog",
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
    "diskMaxUsedSpaceRatio",
    "fileReservedTime",
}
OURS = {
    "diskUsedBytesMax",
    "commitLogAllocateAhead",
    "commitLogOpenFilesMax",
    "consumeQueueOpenFilesMax",
    "consumeQueueTailSizeMax",
    "consumeQueueRecentSize",
    "indexOpenFilesMax",
}
# A path that is not set is not in Java's answer either.
UNSET = {"readOnlyCommitLogStorePaths"}


def recorded_settings() -> dict[str, str]:
    for line in RECORDED.read_text().splitlines():
        record = json.loads(line)
        if record["response"] and record.get("request_code") == 26:
            body = decode_frame(base64.b64decode(record["raw"])).body
            assert body is not None
            return parse_properties(body)
    raise AssertionError("the recording has no answer to request 26")


def config(**values: Any) -> StoreConfig:
    return StoreConfig(store_path_root_dir=ROOT, **values)


def test_keys_and_defaults_are_those_of_the_recorded_broker() -> None:
    recorded = recorded_settings()
    keys = {info.java for info in settings(StoreConfig)}
    assert keys - set(recorded) == OURS | UNSET
    ours = to_mapping(config())
    for key in keys - OURS - UNSET - TOLD:
        assert (key, ours[key]) == (key, recorded[key])


def test_defaults_that_the_recording_does_not_show() -> None:
    default = config()
    assert default.mapped_file_size_commit_log == 1073741824
    assert default.consume_queue_file_size == 6000000
    assert default.mapper_file_size_batch_consume_queue == 13800000
    assert default.index_file_size == 420000040
    assert (default.file_reserved_time, default.disk_max_used_space_ratio) == (72, 75)
    assert default.commit_log_path == ROOT / "commitlog"


def test_the_settings_of_a_java_broker_load() -> None:
    loaded = load(
        StoreConfig,
        "storePathRootDir=${user.home}/data\nflushDiskType=SYNC_FLUSH\nbrokerRole=SLAVE\n"
        "checkCRCOnRecover=false\nenabledAppendPropCRC=true\nmappedFileSizeConsumeQueue=6001\n",
        variables={"user.home": "/mq"},
    )
    assert loaded.store_path_root_dir == Path("/mq/data")
    assert loaded.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert loaded.broker_role is BrokerRole.SLAVE
    assert not loaded.check_crc_on_recover
    assert loaded.enabled_append_prop_crc
    assert loaded.mapped_file_size_consume_queue == 6001
    assert loaded.consume_queue_file_size == 6020
    assert load(StoreConfig, variables={"user.home": "/mq"}).commit_log_path == Path(
        "/mq/store/commitlog"
    )


def test_rules_that_java_applies_when_reading() -> None:
    assert config(store_path_commit_log=Path("/fast/log")).commit_log_path == Path("/fast/log")
    low = config(
        disk_max_used_space_ratio=1,
        disk_space_clean_forcibly_ratio=1,
        disk_space_warning_level_ratio=1,
    )
    assert (low.disk_expire_ratio, low.disk_clean_ratio, low.disk_full_ratio) == (0.1, 0.3, 0.35)
    high = config(
        disk_max_used_space_ratio=99,
        disk_space_clean_forcibly_ratio=99,
        disk_space_warning_level_ratio=99,
    )
    assert (high.disk_expire_ratio, high.disk_clean_ratio, high.disk_full_ratio) == (
        0.95,
        0.85,
        0.9,
    )
    assert config(delete_when="04;16; 23").delete_hours == {4, 16, 23}
    assert config().delay_levels_ms[:5] == (1000, 5000, 10000, 30000, 60000)
    assert config().delay_levels_ms[17] == 7200000
    assert config(message_delay_level="1d 2h").delay_levels_ms == (86400000, 7200000)
    pooled = {"transient_store_pool_enable": True}
    assert config(**pooled).transient_pool_in_use
    assert not config(**pooled, broker_role=BrokerRole.SLAVE).transient_pool_in_use
    assert not config().transient_pool_in_use


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("storeType=defaultRocksDB", "RocksDB"),
        ("rocksdbCQDoubleWriteEnable=true", "RocksDB"),
        ("indexRocksDBEnable=true", "RocksDB"),
        ("enableConsumeQueueExt=true", "tags code"),
        ("enableLmq=true", "LMQ"),
        ("enableMultiDispatch=true", "LMQ"),
        ("enableDLegerCommitLog=true", "DLedger"),
        ("duplicationEnable=true", "master with slaves"),
        ("enableControllerMode=true", "controller"),
        ("readOnlyCommitLogStorePaths=/old", "several paths"),
        ("storePathCommitLog=/a/log,/b/log", "several paths"),
        ("storePathCommitLog=/a/log;/b/log", "several paths"),
    ],
)
def test_what_is_not_supported_is_refused_by_name_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load(StoreConfig, f"storePathRootDir=/store\n{text}\n")
    (problem,) = caught.value.problems
    assert problem.startswith(f"{text}: ")
    assert reason in problem


def test_an_empty_value_asks_for_nothing() -> None:
    loaded = load(StoreConfig, "storePathRootDir=/store\nreadOnlyCommitLogStorePaths=\n")
    assert not loaded.read_only_commit_log_store_paths


def test_every_refusal_concerns_a_setting() -> None:
    assert REFUSED.keys() <= {info.name for info in settings(StoreConfig)}


def test_everything_that_is_wrong_is_reported_together() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        config(
            enable_lmq=True,
            delete_when="4;24",
            message_delay_level="1s 5x",
            max_hash_slot_num=500_000_000,
        )
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "enableLmq=true",
        "maxHashSlotNum=500000000, maxIndexNum=20000000",
        "deleteWhen",
        "messageDelayLevel",
    ]
    assert "'24' is not an hour" in caught.value.problems[2]
    assert "'5x' is not a number with s, m, h or d" in caught.value.problems[3]


@pytest.mark.parametrize(
    "values",
    [
        {"mapped_file_size_commit_log": 255},
        {"mapped_file_size_commit_log": 1 << 31},
        {"mapped_file_size_consume_queue": 0},
        {"sync_flush_timeout": 0},
        {"flush_interval_commit_log": 0},
        {"transient_store_pool_size": 0},
        {"commit_log_allocate_ahead": 4095},
        {"max_index_num": 1},
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError, match=r"is (above|below)"):
        config(**values)


def test_every_setting_has_a_description() -> None:
    for info in settings(StoreConfig):
        assert len(info.declared.doc) > 10, info.java
        assert info.declared.doc.endswith("."), info.java
