"""A lost ``topics.json``: when a start is refused, and what the queue folders give back."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from skylark.broker.topics.config_rebuild import (
    LostTopicsError,
    RebuildPlan,
    plan_rebuild,
    write_rebuild,
)
from skylark.store.config_files import SUBSCRIPTION_GROUPS, TOPICS, BrokenConfigError, ConfigFiles
from skylark.store.errors import StoreLockedError
from skylark.store.files import OsFileSystem
from skylark.store.inspection.store_directory import FileSizes, survey
from skylark.wire.bodies.config import TopicConfig
from tests.unit.broker.stored import bodies_of, stored

GOLDEN = Path(__file__).parents[3] / "golden" / "data" / "store-basic"
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}


def remove_file(store: Path) -> None:
    (store / "config/topics.json").unlink()
    (store / "config/topics.json.bak").unlink()


def empty_file(store: Path) -> None:
    remove_file(store)
    (store / "config/topics.json").write_bytes(b"")


def empty_table(store: Path) -> None:
    remove_file(store)
    (store / "config/topics.json").write_bytes(b'{"topicConfigTable":{}}')


def remove_config(store: Path) -> None:
    shutil.rmtree(store / "config")


async def fill(root: Path) -> Path:
    """A store with messages of the topic T, and of its second and fourth queue."""
    async with stored(root) as world:
        for number in range(10):
            assert (await world.send("T", b"%d" % number, queue_id=1 + number % 2 * 2)).code == 0
        assert (await world.send("BenchmarkTest")).code == 0
    return root / "store"


def contents(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def plan(store: Path) -> RebuildPlan:
    files = OsFileSystem()
    return plan_rebuild(files, survey(files, store, FileSizes()))


def queue_counts(topics: list[TopicConfig]) -> dict[str, int]:
    return {topic.topic_name: topic.read_queue_nums for topic in topics}


# --- the check at start ---


@pytest.mark.parametrize("lose", [remove_file, empty_file, empty_table, remove_config])
async def test_a_master_that_lost_its_topics_stops_with_the_choices(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    store = await fill(tmp_path)
    lose(store)
    before = contents(store)
    for _ in range(2):  # a refused start does not make the next one succeed
        with pytest.raises(LostTopicsError) as caught:
            async with stored(tmp_path):
                pass
        assert "topics.json is missing or empty" in caught.value.message
        assert "messages of 1 topics: T" in caught.value.message
        hint = caught.value.hint or ""
        assert "restore the folder config" in hint
        assert f"skylark store rebuild-config {store}" in hint
        assert "another storePathRootDir" in hint
        assert contents(store) == before, "a refused start changes nothing"


async def test_after_the_rebuild_the_messages_are_served_again(tmp_path: Path) -> None:
    store = await fill(tmp_path)
    remove_config(store)
    write_rebuild(OsFileSystem(), store, plan(store), 1_000)
    async with stored(tmp_path) as world:
        assert bodies_of(await world.pull(queueId=1)) == [b"0", b"2", b"4", b"6", b"8"]
        assert bodies_of(await world.pull(queueId=3)) == [b"1", b"3", b"5", b"7", b"9"]
        assert (await world.send("T", queue_id=3)).code == 0
        found = world.features.topics.table.get("T")
        assert found is not None
        assert (found.read_queue_nums, found.write_queue_nums, found.perm) == (4, 4, 6)


async def test_a_backup_is_as_good_as_the_file(tmp_path: Path) -> None:
    store = await fill(tmp_path)
    (store / "config/topics.json").rename(store / "config/topics.json.bak")
    async with stored(tmp_path) as world:
        assert bodies_of(await world.pull(queueId=1)) == [b"0", b"2", b"4", b"6", b"8"]


async def test_a_slave_that_lost_its_topics_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await fill(tmp_path)
    remove_config(store)
    with caplog.at_level(logging.WARNING, "skylark.broker.topics.config_rebuild"):
        async with stored(tmp_path, **SLAVE) as world:
            assert "T" not in world.features.topics.table
    assert "The slave copies the topics of its master" in caplog.text
    assert not (store / "config/topics.json").exists(), "a table without T would hide the loss"
    with pytest.raises(LostTopicsError):
        async with stored(tmp_path):
            pass


async def test_queues_that_are_made_again_from_the_log_count_as_well(tmp_path: Path) -> None:
    store = await fill(tmp_path)
    remove_config(store)
    shutil.rmtree(store / "consumequeue")
    with pytest.raises(LostTopicsError, match="messages of 1 topics: T"):
        async with stored(tmp_path):
            pass
    assert queue_counts(plan(store).topics) == {"T": 4}


async def test_a_new_store_has_its_table_before_the_first_message(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        table = TOPICS.decode((tmp_path / "store/config/topics.json").read_bytes())
        assert table.topic_config_table.keys() == {
            topic.topic_name for topic in world.features.topics.table
        }


async def test_messages_of_system_topics_alone_need_no_table(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert (await world.send("BenchmarkTest")).code == 0
    remove_config(tmp_path / "store")
    async with stored(tmp_path) as world:
        assert bodies_of(await world.pull(topic="BenchmarkTest")) == [b"hello"]


async def test_deleted_topics_are_not_lost(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert (await world.send("T")).code == 0
        assert (await world.call(215, {"topic": "T"})).code == 0
    remove_config(tmp_path / "store")
    async with stored(tmp_path) as world:
        assert "T" not in world.features.topics.table


# --- the rebuild ---


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "store"))


def test_the_folders_of_an_apache_store_give_its_topics_back(golden: Path) -> None:
    theirs = TOPICS.decode((golden / "config/topics.json").read_bytes()).topic_config_table
    remove_config(golden)
    found = plan(golden)
    assert queue_counts(found.topics) == {
        "%DLQ%golden_retry_cg": 1,
        "%RETRY%golden_retry_cg": 1,
        "GoldenA": 4,
        "GoldenB": 1,
        "GoldenBatchCq": 1,
        "GoldenDelay": 1,
        "GoldenOrder": 2,
        "GoldenRetry": 1,
        "GoldenTx": 1,
    }
    assert {topic.topic_name for topic in found.topics} <= theirs.keys()
    batch = {topic.topic_name for topic in found.topics if topic.attributes}
    assert batch == {"GoldenBatchCq"}
    assert theirs["GoldenBatchCq"].attributes["queue.type"] == "BatchCQ"
    assert [group.group_name for group in found.groups] == ["golden_retry_cg"]
    assert not (golden / "config").exists(), "a plan changes nothing"


def test_tables_keep_what_they_have(golden: Path) -> None:
    table = TOPICS.decode((golden / "config/topics.json").read_bytes())
    assert plan(golden).topics == [], "nothing is missing"
    del table.topic_config_table["GoldenA"]
    config = ConfigFiles(OsFileSystem(), golden / "config")
    config.save(TOPICS, table)
    found = plan(golden)
    assert queue_counts(found.topics) == {"GoldenA": 4}
    write_rebuild(OsFileSystem(), golden, found, 5_000)
    written = config.load(TOPICS)
    assert written.topic_config_table.keys() == {*table.topic_config_table, "GoldenA"}
    assert written.topic_config_table["GoldenB"] == table.topic_config_table["GoldenB"]
    assert written.data_version.counter == table.data_version.counter + 1
    assert plan(golden).topics == []


def test_groups_come_from_retry_and_dead_letter_topics(tmp_path: Path) -> None:
    for name in ("T", "%RETRY%a", "%DLQ%b", "%RETRY%c_T", "%RETRY%d+T", "%LMQ%x", "%RETRY%"):
        (tmp_path / "consumequeue" / name / "0").mkdir(parents=True)
    (tmp_path / "consumequeue/T/seven").mkdir()
    (tmp_path / "consumequeue/emptied").mkdir()
    found = plan(tmp_path)
    assert [group.group_name for group in found.groups] == ["a", "b"]
    assert set(queue_counts(found.topics)) == {
        "T", "%RETRY%a", "%DLQ%b", "%RETRY%c_T", "%RETRY%d+T", "%RETRY%",
    }  # fmt: skip
    write_rebuild(OsFileSystem(), tmp_path, found, 5_000)
    groups = ConfigFiles(OsFileSystem(), tmp_path / "config").load(SUBSCRIPTION_GROUPS)
    assert list(groups.subscription_group_table) == ["a", "b"]


def test_a_broken_table_is_not_overwritten(golden: Path) -> None:
    for path in (golden / "config").glob("topics.json*"):
        path.unlink()
    (golden / "config/topics.json").write_bytes(b'{"topicConfigTable":{"GoldenA":')
    with pytest.raises(BrokenConfigError):
        plan(golden)
    assert (golden / "config/topics.json").read_bytes() == b'{"topicConfigTable":{"GoldenA":'


async def test_a_store_in_use_is_not_written(tmp_path: Path) -> None:
    class Locked(OsFileSystem):
        def lock(self, path: Path):  # type: ignore[no-untyped-def]
            raise StoreLockedError("in use", path=path)

    store = await fill(tmp_path)
    remove_config(store)
    found = plan(store)
    with pytest.raises(StoreLockedError):
        write_rebuild(Locked(), store, found, 0)
    assert not (store / "config").exists()
