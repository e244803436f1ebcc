"""Request 28 and request 907 on a broker that runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.broker.admin.runtime_info import byte_count, used_ratio
from skylark.broker.api import PullResult
from skylark.store.file_system import DiskUsage
from skylark.wire.bodies.common_body import KVTable
from skylark.wire.bodies.ha_body import HARuntimeInfo
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body
from tests.unit.broker.fake_endpoint import FakeEndpoint
from tests.unit.broker.recorded import exchanges
from tests.unit.broker.stored import Stored, stored, texts

#: Rows with the same value at every broker that has just started.
ALIKE = (
    "brokerVersionDesc",
    "commitLogMinOffset",
    "dispatchBehindBytes",
    "pageCacheLockTimeMills",
    "remainTransientStoreBufferNumbs",
    "startAcceptSendRequestTimeStamp",
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path) as running:
        yield running


async def table(world: Stored) -> dict[str, str]:
    answer = await world.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert (answer.code, answer.remark, answer.ext) == (0, None, None)
    return decode_body(KVTable, answer.body or b"").table


async def test_all_rows_of_a_real_broker_are_there(world: Stored, tmp_path: Path) -> None:
    world.add_topic("T", 1)
    await world.send("T", properties="DELAY\x011\x02")
    await world.clock.advance(62)
    ((_, recorded),) = exchanges("admin-brokerStatus", RequestCode.GET_BROKER_RUNTIME_INFO)
    theirs = decode_body(KVTable, recorded.body or b"").table
    path = Path(texts(tmp_path)["storePathRootDir"]) / "commitlog"
    expected = {key.replace("store/commitlog", str(path)) for key in theirs}
    ours = await table(world)
    assert ours.keys() == expected
    assert ours["scheduleMessageOffset_1"] == "1,1"
    assert ours["brokerActive"] == "true"
    assert ours["putTps"].count(" ") == theirs["putTps"].count(" ") == 2
    for key in theirs:
        if key.startswith("timer") or key.endswith(("QueueSize", "QueueCapacity")) or key in ALIKE:
            assert ours[key] == theirs[key], key


async def test_what_was_put_and_got(world: Stored) -> None:
    world.add_topic("T", 1)
    first_ms = world.clock.now_ms()
    for _ in range(3):
        await world.send("T")
    assert (await world.pull(0)).code == 0
    rows = await table(world)
    assert (rows["msgPutTotalTodayNow"], rows["msgGetTotalTodayNow"]) == ("3", "3")
    assert rows["putMessageTimesTotal"] == "3"
    log = world.features.store.log
    assert rows["commitLogMaxOffset"] == rows["putMessageSizeTotal"] == str(log.max_offset)
    assert rows["earliestMessageTimeStamp"] == str(first_ms)
    assert rows["remainTransientStoreBufferNumbs"] == str(2**31 - 1)
    assert "remainHowManyDataToCommit" not in rows
    assert rows["dispatchBehindBytes"] == "0"


@pytest.mark.parametrize("offset", [0, 1], ids=["found", "not found"])
async def test_the_longest_read_is_shown(
    world: Stored, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    world.add_topic("T", 1)
    await world.send("T")
    assert (await world.pull(offset)).code in (0, 19)
    assert (await table(world))["getMessageEntireTimeMax"] == "0"
    times = iter((5.0, 5.031))
    monkeypatch.setattr(world.context.clock, "monotonic", lambda: next(times))
    found = FakeEndpoint(world.broker.services).pull(offset)
    monkeypatch.undo()
    assert isinstance(found, PullResult)
    if found.messages is not None:
        found.messages.release()
    assert (await table(world))["getMessageEntireTimeMax"] == "31"


async def test_a_store_without_messages(world: Stored) -> None:
    rows = await table(world)
    assert (rows["earliestMessageTimeStamp"], rows["commitLogMaxOffset"]) == ("-1", "0")
    assert 0 < float(rows["commitLogDiskRatio"]) <= 1


async def test_a_pool_of_buffers_is_shown(tmp_path: Path) -> None:
    settings = {"transientStorePoolEnable": "true", "transientStorePoolSize": "3"}
    async with stored(tmp_path, **settings) as world:
        world.add_topic("T", 1)
        await world.send("T")
        rows = await table(world)
        assert rows["remainTransientStoreBufferNumbs"] == "2"
        assert rows["remainHowManyDataToCommit"].endswith(" B")


async def test_a_master_without_slaves(world: Stored) -> None:
    await world.send("T")
    answer = await world.call(RequestCode.GET_BROKER_HA_STATUS)
    info = decode_body(HARuntimeInfo, answer.body or b"")
    assert (info.master, info.in_sync_slave_nums, info.ha_connection_info) == (True, 0, [])
    assert info.master_commit_log_max_offset == world.features.store.log.max_offset > 0


async def test_a_slave_is_shown_as_one(tmp_path: Path) -> None:
    async with stored(tmp_path, brokerRole="SLAVE", brokerId="1") as world:
        answer = await world.call(RequestCode.GET_BROKER_HA_STATUS)
        assert not decode_body(HARuntimeInfo, answer.body or b"").master
        assert (await table(world))["brokerActive"] == "false"


@pytest.mark.parametrize(
    ("disk", "ratio"),
    [
        (DiskUsage(total=1000, free=825, available=820), 0.18),
        (DiskUsage(total=100, free=50, available=50), 0.5),
        (DiskUsage(total=0, free=0, available=0), -1.0),
        (None, -1.0),
    ],
)
def test_shares_are_rounded_up_as_in_java(disk: DiskUsage | None, ratio: float) -> None:
    assert used_ratio(disk) == ratio


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
