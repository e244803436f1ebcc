"""Configuration files of real brokers load, and are written back byte by byte.

``data/store-*/config`` and ``data/timer`` come from RocketMQ 5.5.0 brokers. The files under
``data/config`` were printed by the programs beside them: by the classes of 5.5.0 with everything
set that those brokers had no use for, and by 4.9.8, which wrote less and in another form.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylark.store import config_files
from skylark.store.config_files import (
    CONSUMER_FILTERS,
    CONSUMER_OFFSETS,
    CONSUMER_ORDER_INFOS,
    DELAY_OFFSETS,
    MESSAGE_REQUEST_MODES,
    SUBSCRIPTION_GROUPS,
    TIMER_METRICS,
    TOPIC_QUEUE_MAPPINGS,
    TOPICS,
    TRANSACTION_METRICS,
    ConfigFile,
    ConfigFiles,
)
from skylark.store.config_tables import BloomFilterData, OrderInfo
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import GroupRetryPolicyType, TopicFilterType

DATA = Path(__file__).parent / "data"
STORES = ("store-basic", "store-crashed", "store-torn")
FILES: dict[str, ConfigFile[Any]] = {
    file.name: file for file in vars(config_files).values() if isinstance(file, ConfigFile)
} | {"lmqConsumerOffset.json": CONSUMER_OFFSETS}  # the same shape, in a file of its own


def samples() -> list[str]:
    paths = [path for store in STORES for path in (DATA / store / "config").iterdir()]
    paths += [*(DATA / "timer").iterdir(), *(DATA / "config" / "java-5.5.0").iterdir()]
    found = [path for path in paths if path.name.removesuffix(".bak") in FILES]
    return sorted(path.relative_to(DATA).as_posix() for path in found)


def read(file: ConfigFile[Any], folder: str) -> Any:
    return file.decode((DATA / folder / file.name).read_bytes())


def test_no_sample_is_left_out() -> None:
    assert len(samples()) == 14 + 12 + 12 + 3 + 9
    assert {Path(name).name.removesuffix(".bak") for name in samples()} == FILES.keys()


@pytest.mark.spec("store.12.35")
@pytest.mark.parametrize("sample", samples())
def test_files_are_written_as_java_wrote_them(sample: str) -> None:
    path = DATA / sample
    file = FILES[path.name.removesuffix(".bak")]
    assert file.encode(file.decode(path.read_bytes())) == path.read_bytes()


@pytest.mark.parametrize("store", STORES)
def test_a_store_directory_loads_and_saves_unchanged(store: str) -> None:
    disk = FaultyFileSystem()
    directory = Path("/store/config")
    disk.copy_in(DATA / store / "config", directory)
    names = [entry.name for entry in disk.list_directory(directory)]
    before = {name: disk.read_file(directory / name) for name in names}
    config = ConfigFiles(disk, directory)
    for name in names:
        if not name.endswith(".bak"):
            config.save(FILES[name], config.load(FILES[name]))
    for name in names:  # the backups are now what the files were
        assert disk.read_file(directory / name) == before[name.removesuffix(".bak")]


# ---- what the samples say ----------------------------------------------------------------------


def test_tables_of_a_golden_store() -> None:
    topics = read(TOPICS, "store-basic/config")
    assert topics.data_version == DataVersion(counter=12, timestamp=1794710113280)
    assert topics.topic_config_table["GoldenBatchCq"].attributes == {"queue.type": "BatchCQ"}
    groups = read(SUBSCRIPTION_GROUPS, "store-basic/config")
    assert groups.subscription_group_table["golden_retry_cg"].retry_max_times == 16
    offsets = read(CONSUMER_OFFSETS, "store-basic/config")
    assert offsets.offset_table["GoldenA@golden_tag_cg"] == {0: 0, 1: 4, 2: 0, 3: 11}
    assert offsets.pull_offset_table["GoldenRetry@golden_pull_cg"] == {0: 1}
    assert read(DELAY_OFFSETS, "store-basic/config").offset_table == {1: 3, 2: 1, 17: 0, 18: 0}
    filters = read(CONSUMER_FILTERS, "store-basic/config").filter_data_by_topic
    data = filters["GoldenA"].group_filter_data["golden_sql_cg"]
    assert data.expression == "a between 3 and 9 and seq is not null"
    assert data.bloom_filter_data == BloomFilterData(bit_num=112, bit_pos=[63, 89, 3])
    transactions = read(TRANSACTION_METRICS, "store-basic/config")
    assert transactions.transaction_count["GoldenTx"].count == 1


def test_tables_with_everything_set() -> None:
    odd = 'odd "\\\t\x01\x7f\u00e9\u4e2d\u2028\U0001f600/<>'
    folder = "config/java-5.5.0"
    assert odd in read(TOPICS, folder).topic_config_table
    assert read(TOPICS, folder).topic_config_table["T"].topic_filter_type is (
        TopicFilterType.MULTI_TAG
    )
    assert read(TIMER_METRICS, folder).timing_count[odd].count == -2
    groups = read(SUBSCRIPTION_GROUPS, folder)
    assert groups.forbidden_table == {"exponential": {"T": 3}}
    policy = groups.subscription_group_table["exponential"].group_retry_policy
    assert policy.type is GroupRetryPolicyType.EXPONENTIAL
    assert policy.exponential_retry_policy.multiplier == 3
    full, bare = read(CONSUMER_ORDER_INFOS, folder).table["T@G"].values()
    assert full == OrderInfo(
        pop_time=1700000000000,
        invisible_time=60000,
        offset_list=[5, 1, 3],
        offset_next_visible_time={5: 1700000060000},
        offset_consumed_count={5: 2, 6: 1},
        last_consume_timestamp=1700000000001,
        commit_offset_bit=2,
        attempt_id="attempt",
    )
    assert bare.attempt_id is None
    mapping = read(TOPIC_QUEUE_MAPPINGS, folder).topic_queue_mapping_info_map["S"]
    assert [item.bname for item in mapping.hosted_queues[0]] == ["broker-b", "broker-a"]
    modes = read(MESSAGE_REQUEST_MODES, folder).message_request_mode_map
    assert modes["T"]["G"].pop_share_queue_num == 3


# ---- files of 4.x ------------------------------------------------------------------------------


@pytest.mark.spec("store.12.36")
def test_files_of_4x_load_with_defaults() -> None:
    folder = "config/java-4.9.8"
    topics = read(TOPICS, folder)
    assert topics.data_version == DataVersion(state_version=0, counter=5, timestamp=1600000000000)
    assert topics.topic_config_table["T"].attributes == {}
    assert topics.topic_config_table["T"].read_queue_nums == 4
    groups = read(SUBSCRIPTION_GROUPS, folder)
    group = groups.subscription_group_table["G"]
    assert (group.retry_max_times, group.consume_timeout_minute, group.group_sys_flag) == (3, 15, 0)
    assert group.group_retry_policy.type is GroupRetryPolicyType.CUSTOMIZED
    assert groups.forbidden_table == {}
    offsets = read(CONSUMER_OFFSETS, folder)
    assert offsets.offset_table == {
        "%RETRY%G@G": {0: 0},
        "empty@G": {},
        "T@G": {0: 250, 1: 251},
    }
    assert (offsets.data_version, offsets.pull_offset_table) == (DataVersion(), {})
    delays = read(DELAY_OFFSETS, folder)
    assert (delays.offset_table, delays.data_version) == ({1: 10, 3: 7}, DataVersion())


@pytest.mark.spec("store.12.36")
@pytest.mark.parametrize(
    "file",
    [TOPICS, SUBSCRIPTION_GROUPS, CONSUMER_OFFSETS, DELAY_OFFSETS],
    ids=lambda file: file.name,
)
def test_files_of_4x_without_a_version(file: ConfigFile[Any]) -> None:
    content = (DATA / "config" / "java-4.9.8" / file.name).read_bytes()
    bare = content.replace(b'"dataVersion"', b'"somethingElse"')
    table = file.decode(bare)
    assert table.data_version == DataVersion()
    again = file.decode(file.encode(table))
    assert again == table
    assert b"somethingElse" not in file.encode(table)  # Java drops what it does not know, too
