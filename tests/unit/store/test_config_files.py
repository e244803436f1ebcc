"""Loading with backup, saving without a moment of loss, and nothing deleted."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.core.errors import LocalProtocolError
from skylark.store.config_files import (
    BROKEN_FILES_MAX,
    CONSUMER_OFFSETS,
    SUBSCRIPTION_GROUPS,
    TIMER_METRICS,
    TOPICS,
    BrokenConfigError,
    ConfigFiles,
    pretty,
)
from skylark.store.config_tables import ConsumerOffsetTable, TimerMetricsTable, TopicTable
from skylark.store.errors import StoreFileError
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.bodies.common_body import Body, DataVersion
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.slave_sync_body import TimerMetric
from skylark.wire.fastjson_reader import parse

NAME = CONSUMER_OFFSETS.name


def offsets(queue_offset: int) -> ConsumerOffsetTable:
    return ConsumerOffsetTable(
        data_version=DataVersion(counter=queue_offset),
        offset_table={"T@g": {0: queue_offset, 1: 251}},
        group_topic_map={"g": ["T"]},
    )


ONE, TWO = (CONSUMER_OFFSETS.encode(offsets(number)) for number in (1, 2))


@pytest.fixture(params=["os", "faulty"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    return OsFileSystem() if request.param == "os" else FaultyFileSystem()


@pytest.fixture
def directory(files: FileSystem, tmp_path: Path) -> Path:
    files.make_directories(tmp_path / "config")
    return tmp_path / "config"


def names(files: FileSystem, directory: Path) -> list[str]:
    return [entry.name for entry in files.list_directory(directory)]


# ---- saving ------------------------------------------------------------------------------------


def test_a_saved_table_loads(files: FileSystem, directory: Path) -> None:
    config = ConfigFiles(files, directory)
    config.save(CONSUMER_OFFSETS, offsets(1))
    assert config.load(CONSUMER_OFFSETS) == offsets(1)
    assert names(files, directory) == [NAME]
    config.save(CONSUMER_OFFSETS, offsets(2))
    assert config.load(CONSUMER_OFFSETS) == offsets(2)
    assert names(files, directory) == [NAME, f"{NAME}.bak"]
    assert files.read_file(directory / f"{NAME}.bak") == ONE


@pytest.mark.spec("store.12.35")
def test_the_text_has_bare_integer_keys_and_tabs(files: FileSystem, directory: Path) -> None:
    ConfigFiles(files, directory).save(CONSUMER_OFFSETS, offsets(250))
    assert files.read_file(directory / NAME).decode() == (
        '{\n\t"dataVersion":{\n\t\t"counter":250,\n\t\t"stateVersion":0,\n\t\t"timestamp":0\n\t},\n'
        '\t"groupTopicMap":{\n\t\t"g":[\n\t\t\t"T"\n\t\t]\n\t},\n'
        '\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:250,\n\t\t\t1:251\n\t\t}\n\t},\n'
        '\t"pullOffsetTable":{}\n}'
    )


def test_metrics_are_compact(files: FileSystem, directory: Path) -> None:
    table = TimerMetricsTable(timing_count={"\u4e2d": TimerMetric(count=2, time_stamp=3)})
    ConfigFiles(files, directory).save(TIMER_METRICS, table)
    assert files.read_file(directory / "timermetrics").decode() == (
        '{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},'
        '"timingCount":{"\u4e2d":{"count":2,"timeStamp":3}}}'
    )


def test_derived_members_are_renewed(files: FileSystem, directory: Path) -> None:
    config = ConfigFiles(files, directory)
    table = offsets(1)
    table.offset_table["T2@g"] = {0: 5}
    config.save(CONSUMER_OFFSETS, table)
    assert config.load(CONSUMER_OFFSETS).group_topic_map == {"g": ["T", "T2"]}


def test_the_directory_is_made_when_needed(files: FileSystem, directory: Path) -> None:
    config = ConfigFiles(files, directory / "a" / "b")
    assert config.load(TOPICS) == TopicTable()
    config.save(TOPICS, TopicTable())
    assert names(files, directory / "a" / "b") == ["topics.json"]


def test_a_failed_save_leaves_the_file(directory: Path) -> None:
    disk = FaultyFileSystem()
    disk.make_directories(directory)
    config = ConfigFiles(disk, directory)
    config.save(CONSUMER_OFFSETS, offsets(1))
    disk.capacity = 0
    with pytest.raises(StoreFileError):
        config.save(CONSUMER_OFFSETS, offsets(2))
    assert config.load(CONSUMER_OFFSETS) == offsets(1)
    disk.capacity = 1 << 20
    config.save(CONSUMER_OFFSETS, offsets(3))
    assert config.load(CONSUMER_OFFSETS) == offsets(3)


# ---- loading -----------------------------------------------------------------------------------


@pytest.mark.spec("store.12.35")
def test_integer_keys_on_one_line_load(files: FileSystem, directory: Path) -> None:
    text = '{\n\t"offsetTable":{\n\t\t"T@g":{0:250,1:250\n\t\t}\n\t}\n}'
    files.write_file(directory / NAME, text.encode())
    loaded = ConfigFiles(files, directory).load(CONSUMER_OFFSETS)
    assert loaded == ConsumerOffsetTable(offset_table={"T@g": {0: 250, 1: 250}})


def test_quoted_keys_and_unknown_members_load(files: FileSystem, directory: Path) -> None:
    text = '{"offsetTable":{"T@g":{"0":250}},"new":{"a":[1,{}]}}'
    files.write_file(directory / NAME, text.encode())
    loaded = ConfigFiles(files, directory).load(CONSUMER_OFFSETS)
    assert loaded.offset_table == {"T@g": {0: 250}}


def test_a_large_table_loads(files: FileSystem, directory: Path) -> None:
    topics = {f"topic-{i}": TopicConfig(topic_name=f"topic-{i}") for i in range(8000)}
    config = ConfigFiles(files, directory)
    config.save(TOPICS, TopicTable(topic_config_table=topics))
    assert len(files.read_file(directory / "topics.json")) > 1 << 20
    assert len(config.load(TOPICS).topic_config_table) == 8000


def test_without_files_the_table_is_empty(files: FileSystem, directory: Path) -> None:
    config = ConfigFiles(files, directory)
    assert config.load(CONSUMER_OFFSETS) == ConsumerOffsetTable()
    files.write_file(directory / NAME, b"")
    assert config.load(CONSUMER_OFFSETS) == ConsumerOffsetTable()
    files.write_file(directory / f"{NAME}.bak", b"")
    assert config.load(CONSUMER_OFFSETS) == ConsumerOffsetTable()
    assert names(files, directory) == [NAME, f"{NAME}.bak"]


@pytest.mark.parametrize("content", [None, b""], ids=["missing", "empty"])
def test_nothing_falls_back_to_the_backup(
    files: FileSystem, directory: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if content is not None:
        files.write_file(directory / NAME, content)
    files.write_file(directory / f"{NAME}.bak", ONE)
    config = ConfigFiles(files, directory)
    with caplog.at_level(logging.WARNING):
        assert config.load(CONSUMER_OFFSETS) == offsets(1)
    assert "loading its backup" in caplog.text
    config.save(CONSUMER_OFFSETS, offsets(2))
    assert files.read_file(directory / NAME) == TWO
    assert files.read_file(directory / f"{NAME}.bak") == ONE  # still the last good version


@pytest.mark.spec("store.12.35")
@pytest.mark.parametrize(
    "content",
    [
        TWO[:-1],
        TWO[:40],
        TWO[: len(TWO) // 2],
        bytes(len(TWO)),
        b"\xff",
        b"[]",
        b"null",
        TWO + b"}",
    ],
)
def test_a_broken_file_is_kept_and_the_backup_loaded(
    files: FileSystem, directory: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    files.write_file(directory / NAME, content)
    files.write_file(directory / f"{NAME}.bak", ONE)
    with caplog.at_level(logging.WARNING):
        assert ConfigFiles(files, directory).load(CONSUMER_OFFSETS) == offsets(1)
    assert "to consumerOffset.json.broken-1" in caplog.text
    assert names(files, directory) == [f"{NAME}.bak", f"{NAME}.broken-1"]
    assert files.read_file(directory / f"{NAME}.broken-1") == content
    assert ConfigFiles(files, directory).load(CONSUMER_OFFSETS) == offsets(1)


def test_broken_files_are_numbered(files: FileSystem, directory: Path) -> None:
    config = ConfigFiles(files, directory)
    files.write_file(directory / f"{NAME}.bak", ONE)
    for number in range(1, BROKEN_FILES_MAX + 1):
        files.write_file(directory / NAME, b"broken %d" % number)
        assert config.load(CONSUMER_OFFSETS) == offsets(1)
    assert files.read_file(directory / f"{NAME}.broken-2") == b"broken 2"
    files.write_file(directory / NAME, b"one too many")
    with pytest.raises(BrokenConfigError, match="100 broken versions"):
        config.load(CONSUMER_OFFSETS)
    assert files.read_file(directory / NAME) == b"one too many"


@pytest.mark.parametrize("backup", [None, b""], ids=["missing", "empty"])
def test_a_broken_file_without_backup_stops_the_start(
    files: FileSystem, directory: Path, backup: bytes | None
) -> None:
    files.write_file(directory / NAME, TWO[:-5])
    if backup is not None:
        files.write_file(directory / f"{NAME}.bak", backup)
    before = names(files, directory)
    with pytest.raises(
        BrokenConfigError, match=r"there is no backup: restore it .*move it away"
    ) as (caught):
        ConfigFiles(files, directory).load(CONSUMER_OFFSETS)
    assert caught.value.path == directory / NAME
    assert names(files, directory) == before


@pytest.mark.parametrize("content", [None, b"", b"{"], ids=["missing", "empty", "broken"])
def test_a_broken_backup_stops_the_start(
    files: FileSystem, directory: Path, content: bytes | None
) -> None:
    if content is not None:
        files.write_file(directory / NAME, content)
    files.write_file(directory / f"{NAME}.bak", ONE[:-1])
    before = names(files, directory)
    with pytest.raises(
        BrokenConfigError, match=r"consumerOffset.json is .*move both away"
    ) as caught:
        ConfigFiles(files, directory).load(CONSUMER_OFFSETS)
    assert caught.value.path == directory / f"{NAME}.bak"
    assert names(files, directory) == before


def test_a_good_file_needs_no_backup(files: FileSystem, directory: Path) -> None:
    files.write_file(directory / NAME, TWO)
    files.write_file(directory / f"{NAME}.bak", b"broken")
    assert ConfigFiles(files, directory).load(CONSUMER_OFFSETS) == offsets(2)


def test_a_file_that_cannot_be_read_is_not_a_missing_one(tmp_path: Path) -> None:
    disk = FaultyFileSystem(FaultPlan(1).at("files.read", error=5))
    disk.make_directories(tmp_path)
    with pytest.raises(StoreFileError, match="cannot read"):
        ConfigFiles(disk, tmp_path).load(SUBSCRIPTION_GROUPS)


# ---- crashes -----------------------------------------------------------------------------------


def crash_while_saving(disk: FaultyFileSystem, directory: Path, line: int) -> bool:
    """Save a third version and stop at the given operation; whether it was reached."""
    disk.plan.at("files.*", nth=line, action=FaultAction.CUT)
    try:
        ConfigFiles(disk, directory).save(CONSUMER_OFFSETS, offsets(3))
    except StoreFileError:
        return True
    return False


@pytest.mark.spec("store.12.35")
@pytest.mark.parametrize("versions", [0, 1, 2])
def test_a_crash_at_any_line_leaves_the_old_or_the_new_version(versions: int) -> None:
    directory = Path("/config")
    outcomes = set()
    reached = 0
    for line in range(1, 12):
        for seed in range(40):
            disk = FaultyFileSystem(FaultPlan(seed))
            for number in range(1, versions + 1):
                ConfigFiles(disk, directory).save(CONSUMER_OFFSETS, offsets(number))
            crashed = crash_while_saving(disk, directory, line)
            disk.plan.clear()
            if not crashed:
                assert ConfigFiles(disk.power_loss(), directory).load(CONSUMER_OFFSETS) == offsets(
                    3
                )
                continue
            reached = max(reached, line)
            disk = disk.kill() if seed % 4 == 0 else disk.power_loss()
            config = ConfigFiles(disk, directory)
            loaded = config.load(CONSUMER_OFFSETS)
            expected = offsets(versions) if versions else ConsumerOffsetTable()
            assert loaded in (expected, offsets(3)), disk.plan
            outcomes.add(loaded == offsets(3))
            config.save(CONSUMER_OFFSETS, offsets(4))  # and the broker goes on
            assert ConfigFiles(disk.power_loss(), directory).load(CONSUMER_OFFSETS) == offsets(4)
    assert outcomes == {True, False}
    assert 4 <= reached < 11  # every line of the save was a place to stop at


def test_a_crash_while_a_broken_file_is_set_aside() -> None:
    directory = Path("/store/config")
    for line in range(1, 6):
        for seed in range(20):
            disk = FaultyFileSystem(FaultPlan(seed))
            disk.install(directory / NAME, TWO[:-1])
            disk.install(directory / f"{NAME}.bak", ONE)
            disk.plan.at("files.*", nth=line, action=FaultAction.CUT)
            try:
                ConfigFiles(disk, directory).load(CONSUMER_OFFSETS)
            except StoreFileError:
                assert not disk.alive
            disk.plan.clear()
            disk = disk.power_loss()
            assert ConfigFiles(disk, directory).load(CONSUMER_OFFSETS) == offsets(1)
            assert TWO[:-1] in [
                disk.read_file(directory / entry.name) for entry in disk.list_directory(directory)
            ]


# ---- pretty form; whole files of Java's are in tests/golden --------------------------------------


class Part(Body, kw_only=True):
    zone: str | None = None
    any_flag: bool = True
    items: list[Any] = msgspec.field(default_factory=list)
    by_queue: dict[int, int] = msgspec.field(default_factory=dict)


def test_members_are_sorted_and_nulls_left_out() -> None:
    text = '{\n\t"anyFlag":true,\n\t"byQueue":{},\n\t"items":[]\n}'
    assert pretty(Part()) == text
    assert pretty(Part(zone="z")) == text.replace("[]", '[],\n\t"zone":"z"')


def test_integer_keys_are_bare_and_on_lines_of_their_own() -> None:
    assert pretty({"t": {10: 1, -1: 2}}) == '{\n\t"t":{\n\t\t10:1,\n\t\t-1:2\n\t}\n}'


def test_dictionaries_keep_their_order() -> None:
    assert list(parse(pretty({"b": 1, "a": 2, "": None}))) == ["b", "a"]


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], "[]"),
        ([1, -2], "[1,-2]"),
        (["a", "b"], '[\n\t"a",\n\t"b"\n]'),
        ([[1], []], "[\n\t[1],\n\t[]\n]"),
        ([{}, {"a": 1}], '[\n\t{},\n\t{\n\t\t"a":1\n\t}\n]'),
    ],
)
def test_lists(items: list[Any], text: str) -> None:
    assert pretty(items) == text


def test_scalars() -> None:
    assert pretty({"a": True, "b": 1.0, "c": "\t\u4e2d\x7f", "d": False}) == (
        '{\n\t"a":true,\n\t"b":1.0,\n\t"c":"\\t\u4e2d\x7f",\n\t"d":false\n}'
    )


def test_what_has_no_form_is_our_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="bytes has no JSON form"):
        pretty({"a": b"x"})


@pytest.mark.parametrize("exists", [False, True])
def test_what_is_saved_first_survives_with_its_directory(exists: bool) -> None:
    """The name of ``config`` is synced, also if a process that was killed has made it."""
    directory = Path("/store/config")
    for seed in range(20):
        disk = FaultyFileSystem(FaultPlan(seed), write_back_probability=0.0)
        disk.make_directories(directory.parent, durable=True)
        if exists:
            disk.create_directory(directory)
            disk = disk.kill()
        ConfigFiles(disk, directory).save(CONSUMER_OFFSETS, offsets(1))
        assert ConfigFiles(disk.power_loss(), directory).load(CONSUMER_OFFSETS) == offsets(1)
