"""The tables on disk: when they are written, what a crash leaves, and what happens on failure."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.config import load_broker_config
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.table_saver import (
    SLOW_INTERVAL_MS,
    SettingsFile,
    TableSaver,
    until_saved,
)
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import LoopClock
from skylark.core.errors import BrokerError, ConfigError, StoreError
from skylark.store.config_files import (
    CONSUMER_FILTERS,
    CONSUMER_OFFSETS,
    SUBSCRIPTION_GROUPS,
    TOPICS,
    BrokenConfigError,
    ConfigFiles,
)
from skylark.store.config_tables import TopicFilterTable
from skylark.store.config_tables import TopicTable as TopicConfigs
from skylark.store.files import OsFileSystem
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.config import TopicConfig
from tests.unit.broker.tables import GOLDEN, NOW_MS, add_tables, live_settings, load_tables
from tests.unit.broker.world import World

CONFIG = Path("/store/config")
WRITES = "files.write"


class Broker:
    """The three tables, their files and their saver."""

    def __init__(
        self,
        disk: FaultyFileSystem,
        clock: VirtualClock | None = None,
        *,
        held: asyncio.Event | None = None,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.live = live_settings()
        self.topics = TopicTable(self.live, self.clock)
        self.groups = GroupTable(self.live, self.clock)
        self.offsets = OffsetTable(self.live, self.clock)
        self.files = ConfigFiles(disk, CONFIG)
        self.writes: list[str] = []
        self._held = held
        load_tables(self.files, self.topics, self.groups, self.offsets)
        self.saver = TableSaver(self.files, self.clock, in_thread=self._in_place)
        self.saved = add_tables(self.saver, self.live, self.topics, self.groups, self.offsets)

    async def _in_place(self, function: Callable[..., None], /, *args: Any) -> None:
        if self._held is not None:
            await self._held.wait()
        self.writes.append(args[0].name)
        function(*args)

    def create(self, *names: str) -> None:
        for name in names:
            self.topics.create_on_send(name, default_topic="TBW102", queue_count=1)


@pytest.fixture
def plan() -> FaultPlan:
    return FaultPlan(1)


@pytest.fixture
def disk(plan: FaultPlan) -> FaultyFileSystem:
    return FaultyFileSystem(plan)


# --- on change ---


async def test_a_new_topic_is_on_disk_when_that_is_said(disk: FaultyFileSystem) -> None:
    broker = Broker(disk)
    await broker.saver.start()
    broker.create("T")
    dirty = [broker.saved.topics.is_dirty]
    await broker.saved.topics.written()
    assert [*dirty, broker.saved.topics.is_dirty] == [True, False]
    after = Broker(disk.power_loss())
    assert after.topics.get("T") == broker.topics.get("T")
    assert after.topics.version == broker.topics.version
    await broker.saved.topics.written()  # nothing to wait for
    assert broker.writes == ["topics.json"]


async def test_groups_are_written_when_they_change(disk: FaultyFileSystem) -> None:
    broker = Broker(disk)
    await broker.saver.start()
    broker.groups.find("G")
    broker.groups.set_may_read("G", "T", False)
    await broker.saved.groups.written()
    after = Broker(disk.power_loss())
    assert "G" in after.groups
    assert not after.groups.may_read("G", "T")
    assert after.groups.version.counter == 2


async def test_changes_during_a_write_go_into_one_more(disk: FaultyFileSystem) -> None:
    held = asyncio.Event()
    broker = Broker(disk, held=held)
    await broker.saver.start()
    broker.create("first")
    await broker.clock.drain()
    broker.create(*(f"T{number}" for number in range(100)))
    early = asyncio.create_task(broker.saved.topics.written())
    await broker.clock.drain()
    assert not early.done()
    held.set()
    await early
    assert broker.writes == ["topics.json"] * 2
    assert "T99" in Broker(disk.power_loss()).topics


async def test_what_changed_before_the_start_is_written_at_start(disk: FaultyFileSystem) -> None:
    broker = Broker(disk)
    broker.create("T")
    with pytest.raises(StoreError, match="not running"):
        await broker.saved.topics.written()
    assert broker.writes == []
    await broker.saver.start()
    await broker.saved.topics.written()
    assert broker.writes == ["topics.json"]


async def test_a_waiter_that_gives_up_disturbs_nobody(disk: FaultyFileSystem) -> None:
    held = asyncio.Event()
    broker = Broker(disk, held=held)
    await broker.saver.start()
    broker.create("T")
    impatient = asyncio.create_task(broker.saved.topics.written())
    patient = asyncio.create_task(broker.saved.topics.written())
    await broker.clock.drain()
    impatient.cancel()
    held.set()
    await patient
    assert impatient.cancelled()


# --- by the clock ---


async def test_offsets_are_written_every_five_seconds(disk: FaultyFileSystem) -> None:
    broker = Broker(disk)
    await broker.saver.start()
    broker.offsets.commit("G", "T", 0, 1)
    await broker.clock.advance(9.9)
    assert broker.writes == []
    await broker.clock.advance(0.2)
    assert broker.writes == ["consumerOffset.json"]
    broker.offsets.commit("G", "T", 0, 2)
    await broker.clock.advance(4.8)
    assert len(broker.writes) == 1
    await broker.clock.advance(0.2)
    assert len(broker.writes) == 2
    assert Broker(disk.power_loss()).offsets.get("G", "T", 0) == 2


async def test_an_idle_broker_writes_nothing(disk: FaultyFileSystem) -> None:
    broker = Broker(disk)
    await broker.saver.start()
    broker.offsets.commit("G", "T", 0, 1)
    await broker.clock.advance(minutes=1)
    broker.offsets.commit("G", "T", 0, 1)  # clients repeat themselves
    await broker.clock.advance(hours=1)
    assert broker.writes == ["consumerOffset.json"]


async def test_the_interval_can_be_changed_while_running(disk: FaultyFileSystem) -> None:
    broker = Broker(disk)
    await broker.saver.start()
    broker.live.update("flushConsumerOffsetInterval=100\n", NOW_MS)
    await broker.clock.advance(10)
    broker.offsets.commit("G", "T", 0, 1)
    await broker.clock.advance(ms=100)
    assert broker.writes == ["consumerOffset.json"]


async def test_tables_that_do_not_count_their_changes_are_compared(disk: FaultyFileSystem) -> None:
    broker = Broker(disk)
    filters = CONSUMER_FILTERS.table_type()
    broker.saver.every(
        CONSUMER_FILTERS,
        lambda: CONSUMER_FILTERS.table_type(
            filter_data_by_topic=dict(filters.filter_data_by_topic)
        ),
        interval_ms=lambda: SLOW_INTERVAL_MS,
    )
    await broker.saver.start()
    await broker.clock.advance(minutes=1)
    assert broker.writes == []
    filters.filter_data_by_topic["T"] = TopicFilterTable(topic="T")
    await broker.clock.advance(10)
    assert broker.writes == ["consumerFilter.json"]
    await broker.clock.advance(minutes=1)
    assert broker.writes == ["consumerFilter.json"]
    assert "T" in ConfigFiles(disk.power_loss(), CONFIG).load(CONSUMER_FILTERS).filter_data_by_topic


async def test_tables_can_be_added_to_a_running_saver(disk: FaultyFileSystem) -> None:
    broker = Broker(disk)
    await broker.saver.start()
    late = broker.saver.on_change(CONSUMER_FILTERS, CONSUMER_FILTERS.table_type)
    late.mark()
    await late.written()
    assert broker.writes == ["consumerFilter.json"]


# --- failures ---


async def test_a_failure_is_told_logged_once_and_tried_again(
    disk: FaultyFileSystem, plan: FaultPlan, caplog: pytest.LogCaptureFixture
) -> None:
    plan.at(WRITES, nth=[1, 2, 3], error=errno.ENOSPC)
    broker = Broker(disk)
    await broker.saver.start()
    broker.create("T")
    with caplog.at_level(logging.INFO), pytest.raises(StoreError, match="No space left"):
        await broker.saved.topics.written()
    broker.create("U")  # waits for the next attempt like everything else
    await broker.clock.advance(ms=900)
    assert len(broker.writes) == 1
    with caplog.at_level(logging.INFO):
        await broker.clock.advance(seconds=2.2)
    assert len(broker.writes) == 4
    told = [
        record.getMessage() for record in caplog.records if "topics.json" in record.getMessage()
    ]
    assert [text.split(":")[0] for text in told] == [
        "topics.json cannot be saved, changes hold until restart",
        "topics.json is saved again",
    ]
    assert not broker.saved.topics.is_dirty
    assert "U" in Broker(disk.power_loss()).topics
    await broker.clock.advance(minutes=1)
    assert len(broker.writes) == 4


async def test_a_waiter_between_attempts_hears_of_the_next_one(
    disk: FaultyFileSystem, plan: FaultPlan
) -> None:
    plan.at(WRITES, nth=1, error=errno.EIO)
    broker = Broker(disk)
    await broker.saver.start()
    broker.create("T")
    await broker.clock.drain()
    waiter = asyncio.create_task(broker.saved.topics.written())
    await broker.clock.drain()
    assert not waiter.done()
    await broker.clock.advance(1)
    await waiter


async def test_nothing_is_on_its_way_between_a_failure_and_a_success(
    disk: FaultyFileSystem, plan: FaultPlan
) -> None:
    plan.at(WRITES, nth=1, error=errno.EIO)
    broker = Broker(disk)
    saved = broker.saved.topics
    await broker.saver.start()
    seen = [(saved.is_dirty, saved.is_on_its_way)]
    broker.create("T")
    seen.append((saved.is_dirty, saved.is_on_its_way))
    await broker.clock.drain()
    broker.create("U")
    seen.append((saved.is_dirty, saved.is_on_its_way))
    await broker.clock.advance(1)
    seen.append((saved.is_dirty, saved.is_on_its_way))
    broker.create("V")
    seen.append((saved.is_dirty, saved.is_on_its_way))
    assert seen == [(False, False), (True, True), (True, False), (False, False), (True, True)]
    await saved.written()


async def test_offsets_are_tried_again_at_the_next_interval(
    disk: FaultyFileSystem, plan: FaultPlan
) -> None:
    plan.at(WRITES, nth=1, error=errno.EIO)
    broker = Broker(disk)
    await broker.saver.start()
    broker.offsets.commit("G", "T", 0, 1)
    await broker.clock.advance(10)
    failed = [broker.saved.offsets.failed]
    await broker.clock.advance(5)
    assert [*failed, broker.saved.offsets.failed] == [True, False]
    assert broker.writes == ["consumerOffset.json"] * 2
    assert Broker(disk.power_loss()).offsets.get("G", "T", 0) == 1


async def test_even_a_defect_is_told_to_who_waits(
    disk: FaultyFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(disk)
    await broker.saver.start()
    broken = broker.saver.on_change(TOPICS, object)  # type: ignore[arg-type]
    broken.mark()
    with caplog.at_level(logging.ERROR), pytest.raises(AttributeError):
        await broken.written()
    assert "topics.json cannot be saved" in caplog.text


async def test_a_table_that_cannot_be_read_is_told_to_who_waits_and_tried_again(
    disk: FaultyFileSystem,
) -> None:
    broker = Broker(disk)
    await broker.saver.start()
    defects = [ZeroDivisionError("no snapshot") for _ in range(2)]

    def snapshot() -> TopicConfigs:
        if defects:
            raise defects.pop()
        return broker.topics.snapshot()

    table = broker.saver.on_change(TOPICS, snapshot)
    table.mark()
    waiting = asyncio.create_task(table.written())
    await broker.clock.advance(1)  # it hears of the second attempt
    assert waiting.done()
    with pytest.raises(ZeroDivisionError):
        await waiting
    await broker.clock.advance(1)
    assert not table.is_dirty


# --- the end ---


async def test_the_last_save_has_everything(disk: FaultyFileSystem) -> None:
    broker = Broker(disk)
    await broker.saver.start()
    broker.create("T")
    broker.groups.find("G")
    broker.offsets.commit("G", "T", 0, 7)
    await broker.saver.stop()
    assert sorted(broker.writes) == ["consumerOffset.json", "subscriptionGroup.json", "topics.json"]
    after = Broker(disk.power_loss())
    assert ("T" in after.topics, "G" in after.groups) == (True, True)
    assert after.offsets.get("G", "T", 0) == 7
    assert broker.clock.timer_count == 0


async def test_a_write_under_way_is_finished_before_the_end(disk: FaultyFileSystem) -> None:
    held = asyncio.Event()
    broker = Broker(disk, held=held)
    await broker.saver.start()
    broker.create("T")
    await broker.clock.drain()
    stopping = asyncio.create_task(broker.saver.stop())
    await broker.clock.drain()
    broker.create("U")
    held.set()
    await stopping
    after = Broker(disk.power_loss())
    assert ("T" in after.topics, "U" in after.topics) == (True, True)
    broker.create("V")
    with pytest.raises(StoreError, match="not running"):
        await broker.saved.topics.written()


async def test_one_failure_at_the_end_does_not_keep_the_others(
    disk: FaultyFileSystem, plan: FaultPlan
) -> None:
    broker = Broker(disk)
    broker.create("T")
    broker.groups.find("G")
    plan.at(WRITES, nth=1, error=errno.EIO)
    with pytest.raises(ExceptionGroup, match="tables could not be saved") as caught:
        await broker.saver.stop()
    (error,) = caught.value.exceptions
    assert isinstance(error, StoreError)
    after = Broker(disk.power_loss())
    assert ("T" in after.topics, "G" in after.groups) == (False, True)


# --- crashes and files of others ---


async def test_a_crash_at_any_operation_leaves_old_or_new() -> None:
    """The machine stops at each operation on the disk in turn; what was promised is there."""
    outcomes = set()
    for nth in itertools.count(1):
        plan = FaultPlan(nth)
        disk = FaultyFileSystem(plan)
        first = Broker(disk)
        first.create("old")
        await first.saver.start()
        await first.saved.topics.written()
        plan.at("files.*", nth=nth, action=FaultAction.CUT)
        first.create("new")
        promised = True
        try:
            await first.saved.topics.written()
        except StoreError:
            promised = False
        plan.clear()
        after = Broker(disk.power_loss())
        assert "old" in after.topics, plan
        assert "new" in after.topics or not promised, plan
        outcomes.add((promised, "new" in after.topics))
        if promised:
            break
    assert {(False, False), (True, True)} <= outcomes
    assert nth > 3


def test_tables_of_a_real_broker(disk: FaultyFileSystem) -> None:
    disk.make_directories(CONFIG)
    for file in (TOPICS, SUBSCRIPTION_GROUPS, CONSUMER_OFFSETS):
        disk.install(CONFIG / file.name, (GOLDEN / "store-basic/config" / file.name).read_bytes())
    broker = Broker(disk)
    created = broker.topics.get("GoldenBatchCq")
    assert created == TopicConfig(
        topic_name="GoldenBatchCq",
        read_queue_nums=1,
        write_queue_nums=1,
        attributes={"queue.type": "BatchCQ"},
    )
    assert "golden_sql_cg" in broker.groups
    assert broker.offsets.committed("golden_tag_cg", "GoldenA") == {0: 0, 1: 4, 2: 0, 3: 11}
    assert broker.topics.version.counter == 12


def test_nothing_there_is_a_first_start(disk: FaultyFileSystem) -> None:
    broker = Broker(disk)
    assert (len(broker.topics), len(broker.groups)) == (15, 8)
    assert broker.topics.version.counter == 0


def test_a_broken_file_gives_way_to_its_backup_or_stops_the_start(disk: FaultyFileSystem) -> None:
    disk.make_directories(CONFIG)
    disk.install(CONFIG / "topics.json", b'{"topicConfigTable":{"T":')
    with pytest.raises(BrokenConfigError):
        Broker(disk)
    disk.install(CONFIG / "topics.json.bak", b'{"topicConfigTable":{"T":{"topicName":"T"}}}')
    assert "T" in Broker(disk).topics


async def test_threads_and_a_real_disk(tmp_path: Path) -> None:
    live, clock = live_settings(), LoopClock()
    topics, groups, offsets = (
        TopicTable(live, clock),
        GroupTable(live, clock),
        OffsetTable(live, clock),
    )
    files = ConfigFiles(OsFileSystem(), tmp_path / "store" / "config")
    saver = TableSaver(files, clock)
    saved = add_tables(saver, live, topics, groups, offsets)
    await saver.start()
    topics.create_on_send("T", default_topic="TBW102", queue_count=2)
    await saved.topics.written()
    topics.create_on_send("U", default_topic="TBW102", queue_count=2)
    offsets.commit("G", "T", 0, 5)
    await saver.stop()
    again = TopicTable(live, clock)
    progress = OffsetTable(live, clock)
    load_tables(files, again, groups, progress)
    assert again.snapshot() == topics.snapshot()
    assert progress.get("G", "T", 0) == 5
    folder = tmp_path / "store" / "config"
    assert sorted(path.name for path in folder.iterdir()) == [
        "consumerOffset.json",
        "topics.json",
        "topics.json.bak",
    ]


# --- the settings file ---


def settings_of(path: str) -> LiveSettings:
    given = {"storePathRootDir": "store", "brokerName": "b"}
    if path:
        given["brokerConfigPath"] = path
    return LiveSettings(load_broker_config(given), now_ms=NOW_MS, given=given)


async def test_changed_settings_are_there_after_a_restart(disk: FaultyFileSystem) -> None:
    live = settings_of("/broker.conf")
    before = b"# ours\nstorePathRootDir=store\nbrokerName=b\n"
    disk.install(Path("/broker.conf"), before)
    file = SettingsFile(disk, live)
    live.update("regionId=r2\n", NOW_MS)
    await file.save()
    disk = disk.power_loss()
    assert disk.read_file(Path("/broker.conf")) == before + b"regionId=r2\n"
    assert disk.read_file(Path("/broker.conf.bak")) == before


async def test_settings_are_edited_as_the_file_is_now(disk: FaultyFileSystem) -> None:
    """An operator may have changed it, or removed it, since the broker started."""
    live = settings_of("/broker.conf")
    file = SettingsFile(disk, live)
    live.update("regionId=r2\n", NOW_MS)
    await file.save()
    assert load_broker_config(disk.read_file(Path("/broker.conf"))).region_id == "r2"
    assert b"storePathRootDir=store" in disk.read_file(Path("/broker.conf"))
    disk.install(Path("/broker.conf"), b"maxMessageSize=9\n")
    await file.save()
    assert disk.read_file(Path("/broker.conf")) == b"maxMessageSize=9\nregionId=r2\n"
    disk.install(Path("/broker.conf"), b"a=\\uZZZZ\n")
    with pytest.raises(ConfigError):
        await file.save()
    assert disk.read_file(Path("/broker.conf")) == b"a=\\uZZZZ\n"


async def test_without_a_file_settings_are_in_memory(disk: FaultyFileSystem) -> None:
    await SettingsFile(disk, settings_of("")).save()
    assert disk.list_directory(Path("/")) == []


async def test_settings_that_cannot_be_saved(disk: FaultyFileSystem, plan: FaultPlan) -> None:
    plan.at(WRITES, nth=1, error=errno.EROFS)
    file = SettingsFile(disk, settings_of("/broker.conf"))
    with pytest.raises(StoreError, match="mount the file system writable"):
        await file.save()


# --- replies that wait for the disk ---


async def test_a_reply_waits_for_all_its_tables(world: World) -> None:
    world.groups.find("g")
    world.offsets.commit("g", "T", 0, 5)
    world.saved.offsets.mark()
    await until_saved(world.saved.groups, world.saved.offsets)
    _, groups, offsets = world.after_power_loss()
    assert "g" in groups
    assert offsets.get("g", "T", 0) == 5


async def test_a_reply_reports_a_table_that_cannot_be_saved(world: World) -> None:
    world.plan.at("files.write", nth=1, error=errno.ENOSPC)
    world.groups.find("g")
    with pytest.raises(BrokerError) as caught:
        await until_saved(world.saved.groups)
    assert caught.value.code == 1
    assert caught.value.remark.startswith("the change holds until restart, it could not be saved: ")
    assert "No space left" in caught.value.remark
