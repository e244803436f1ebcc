"""When a slave copies, and what it does with that: on virtual time, with a master made up."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.broker.app import BrokerFeatures
from skylark.broker.slave.metadata_sync import TICK_S
from skylark.core.errors import ConnectError
from skylark.store.config_tables import DelayOffsetTable, MessageRequestModeTable
from skylark.wire.bodies.common_body import Body, DataVersion
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.bodies.ha_body import HARuntimeInfo
from skylark.wire.bodies.pop_body import SetMessageRequestModeRequestBody
from skylark.wire.bodies.slave_sync_body import (
    ConsumerOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TimerCheckpoint,
    TimerMetrics,
    TopicConfigAndMappingSerializeWrapper,
)
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body, encode_body
from tests.unit.broker.stored import Stored, stored

WHOLE = [21, 201, 43, 45, 907, 402, 61, 60, 907]


class Master:
    """Answers out of its tables, and notes what it is asked."""

    def __init__(self) -> None:
        self.is_there = True
        self.asked: list[int] = []
        self.told: list[dict[str, str]] = []
        self.refused: dict[int, int] = {}  # request code -> the code of its answer
        self.checkpoint = TimerCheckpoint(last_read_time_ms=1_000, master_timer_queue_offset=4)
        self.log_end = 0
        version = DataVersion(counter=9)
        self.bodies: dict[int, Body] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigAndMappingSerializeWrapper(
                topic_config_table={"T": TopicConfig(topic_name="T", order=True)},
                data_version=version,
            ),
            RequestCode.GET_ALL_CONSUMER_OFFSET: ConsumerOffsetSerializeWrapper(
                offset_table={"T@g": {0: 5}}
            ),
            RequestCode.GET_ALL_DELAY_OFFSET: DelayOffsetTable(offset_table={3: 12}),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupWrapper(
                subscription_group_table={"g": SubscriptionGroupConfig(group_name="g")},
                forbidden_table={"g": {"T": 4}},
                data_version=version,
            ),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: MessageRequestModeTable(
                message_request_mode_map={
                    "T": {"g": SetMessageRequestModeRequestBody(topic="T", consumer_group="g")}
                }
            ),
            RequestCode.GET_TIMER_METRICS: TimerMetrics(data_version=version),
        }

    async def call(self, address: str, request: Command, _timeout_s: float) -> Command:
        if not self.is_there:
            raise ConnectError(f"nobody listens on {address}")
        self.asked.append(int(request.code))
        if request.code in self.refused:
            return Command(code=self.refused[request.code], remark="not today")
        answer = Command(code=0, ext={})
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            if (request.ext or {})["consumerGroup"] not in self.groups.subscription_group_table:
                return Command(code=26, remark="no such group")
            self.told.append(request.ext or {})
        elif request.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
            group = decode_body(SubscriptionGroupConfig, request.body or b"")
            self.groups.subscription_group_table[group.group_name] = group
            self.groups.data_version = self.groups.data_version.next(1)
        elif request.code == RequestCode.GET_BROKER_HA_STATUS:
            status = HARuntimeInfo(master=True, master_commit_log_max_offset=self.log_end)
            answer.body = encode_body(status)
        elif request.code == RequestCode.GET_TIMER_CHECK_POINT:
            answer.body = self.checkpoint.encode()
        else:
            answer.body = encode_body(self.bodies[request.code])
        return answer

    @property
    def groups(self) -> SubscriptionGroupWrapper:
        groups = self.bodies[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG]
        assert isinstance(groups, SubscriptionGroupWrapper)
        return groups

    def took(self) -> list[int]:
        asked, self.asked = self.asked, []
        return asked


@asynccontextmanager
async def slave(root: Path, master: Master, **given: str) -> AsyncIterator[Stored]:
    settings = {"brokerRole": "SLAVE", "brokerId": "1", **given}
    async with stored(root, **settings) as world:
        assert world.features.slave.sync is not None
        sync = world.features.slave.sync
        sync._call = master.call
        sync.set_master("10.0.0.1:10911")
        await world.clock.drain()
        yield world


def copies(features: BrokerFeatures) -> DelayOffsetTable:
    assert features.slave.sync is not None
    return features.slave.sync.delays()


async def test_a_slave_copies_everything_at_once_and_again(tmp_path: Path) -> None:
    master = Master()
    async with slave(tmp_path, master) as world:
        features = world.features
        assert master.took() == WHOLE
        assert features.topics.table.is_order("T")
        assert features.topics.table.version == DataVersion(counter=9)
        assert features.groups.offsets.get("g", "T", 0) == 5
        assert not features.groups.table.may_read("g", "T")
        assert "CID_ONSAPI_OWNER" in features.groups.table, "built-in groups stay"
        assert list(features.groups.request_modes.dump().message_request_mode_map) == ["T"]
        assert copies(features).offset_table == {3: 12}
        answer = await world.call(RequestCode.GET_ALL_DELAY_OFFSET)
        assert b"{3:12}" in (answer.body or b"")
        await world.clock.advance(seconds=TICK_S)
        assert master.took() == [60, 907], "the timer only"
        await world.clock.advance(seconds=7)
        assert master.took() == [60, 907, 60, 907, *WHOLE]
    async with slave(tmp_path, Master()) as world:
        assert world.features.groups.offsets.get("g", "T", 0) == 5


async def test_what_the_master_has_deleted_goes(tmp_path: Path) -> None:
    master = Master()
    async with slave(tmp_path, master) as world:
        master.bodies[RequestCode.GET_ALL_TOPIC_CONFIG] = TopicConfigAndMappingSerializeWrapper(
            topic_config_table={"U": TopicConfig(topic_name="U")},
            data_version=DataVersion(counter=10),
        )
        await world.clock.advance(seconds=10)
        assert "T" not in world.features.topics.table
        assert "U" in world.features.topics.table
        assert "SCHEDULE_TOPIC_XXXX" in world.features.topics.table, "own system topics stay"


async def test_progress_is_used_when_the_log_has_what_was_delivered(tmp_path: Path) -> None:
    master = Master()
    master.log_end = 1_000
    async with slave(tmp_path, master) as world:
        assert copies(world.features).offset_table == {}
        root = world.context.live.current.store.store_path_root_dir
        checkpoint = root / "config" / "timercheck"
        assert not checkpoint.exists()
        master.log_end = 0  # what is held still waits for 1000
        await world.clock.advance(seconds=20)
        assert copies(world.features).offset_table == {}
        world.features.store.log.files.flushed_where = 1_000
        await world.clock.advance(seconds=10)
        assert copies(world.features).offset_table == {3: 12}
        assert TimerCheckpoint.decode(checkpoint.read_bytes()) == master.checkpoint


async def test_changes_are_sent_to_a_returned_master_before_its_tables_are_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = Master()
    async with slave(tmp_path, master) as world:
        assert world.features.slave.sync is not None
        sync = world.features.slave.sync
        master.is_there = False
        with caplog.at_level(logging.INFO, "skylark.broker.slave.metadata_sync"):
            await world.clock.advance(seconds=30)
            cut_off = not sync.is_reached
            world.features.groups.offsets.commit("g", "T", 0, 8)
            master.is_there = True
            master.took()
            await world.clock.advance(seconds=TICK_S)
        assert (cut_off, sync.is_reached) == (True, True)
        assert master.took()[:5] == [21, 201, 43, 15, 45]
        assert master.told == [
            {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "8"}
        ]
        said = [
            r.getMessage() for r in caplog.records if r.name == "skylark.broker.slave.metadata_sync"
        ]
        assert said == [
            "the slave cannot copy the tables of master 10.0.0.1:10911: nobody listens on"
            " 10.0.0.1:10911",
            "the slave sent 1 offsets that were committed here to the master",
            "master 10.0.0.1:10911 answers again",
        ]
        await world.clock.advance(seconds=10)
        assert len(master.told) == 1


async def test_a_table_that_fails_does_not_hold_up_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = Master()
    master.refused = {43: 1, 60: 1}
    with caplog.at_level(logging.WARNING, "skylark.broker.slave.metadata_sync"):
        async with slave(tmp_path, master) as world:
            assert "T" in world.features.topics.table
            assert "g" in world.features.groups.table
            await world.clock.advance(seconds=20)
            problems = [text for text in caplog.messages if "not today" in text]
            assert len(problems) == 2, "each is said once"
            master.refused = {}
            await world.clock.advance(seconds=10)
            assert world.features.groups.offsets.get("g", "T", 0) == 5


async def test_commits_that_the_master_refuses_are_not_sent_again(tmp_path: Path) -> None:
    master = Master()
    async with slave(tmp_path, master) as world:
        world.features.groups.offsets.commit("gone", "T", 0, 8)
        await world.clock.advance(seconds=10)
        assert master.took().count(15) == 1
        await world.clock.advance(seconds=20)
        assert 15 not in master.took()


async def test_commits_that_the_master_may_accept_later_are_sent_again(tmp_path: Path) -> None:
    master = Master()
    async with slave(tmp_path, master) as world:
        world.features.groups.offsets.commit("g", "T", 0, 8)
        master.refused = {15: ResponseCode.SYSTEM_BUSY}
        await world.clock.advance(seconds=10)
        assert master.told == []
        master.refused = {}
        await world.clock.advance(seconds=10)
        assert [ext["commitOffset"] for ext in master.told] == ["8"]


async def test_a_group_that_was_born_at_the_slave_lives_on_with_its_offsets(
    tmp_path: Path,
) -> None:
    """Its consumers met the slave only, while the master was away."""
    master = Master()
    async with slave(tmp_path, master) as world:
        features = world.features
        master.is_there = False
        await world.clock.advance(seconds=30)
        assert features.groups.table.find("new") is not None, "as a heartbeat or a pull does"
        features.groups.offsets.commit("new", "T", 0, 8)
        master.is_there = True
        master.took()
        await world.clock.advance(seconds=TICK_S)
        assert master.took()[:7] == [21, 201, 200, 201, 43, 15, 45]
        assert "new" in master.groups.subscription_group_table
        assert [(ext["consumerGroup"], ext["commitOffset"]) for ext in master.told] == [
            ("new", "8")
        ]
        assert "new" in features.groups.table
        assert features.groups.table.version == master.groups.data_version
        del master.groups.subscription_group_table["new"]
        master.groups.data_version = DataVersion(counter=99)
        await world.clock.advance(seconds=10)
        assert "new" not in features.groups.table, "deleted there is deleted here"
        assert 200 not in master.took()


async def test_offsets_wait_until_the_master_has_their_group(tmp_path: Path) -> None:
    master = Master()
    async with slave(tmp_path, master) as world:
        features = world.features
        features.groups.table.find("new")
        features.groups.offsets.commit("new", "T", 0, 8)
        master.refused = {200: ResponseCode.SYSTEM_BUSY}
        await world.clock.advance(seconds=10)
        assert 15 not in master.took()
        assert "new" in features.groups.table
    async with slave(tmp_path, master) as world:
        master.refused = {}
        await world.clock.advance(seconds=10)
        assert [ext["commitOffset"] for ext in master.told] == ["8"], "after a restart, too"
        assert "new" in world.features.groups.table


async def test_a_group_that_the_master_does_not_want_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = Master()
    async with slave(tmp_path, master) as world:
        world.features.groups.table.find("new")
        master.refused = {200: 1}
        with caplog.at_level(logging.WARNING, "skylark.broker.slave.metadata_sync"):
            await world.clock.advance(seconds=20)
        assert master.took().count(200) == 1
        assert "new" not in world.features.groups.table
        assert "the master refuses new: not today" in caplog.messages


async def test_without_a_timer_its_state_is_not_requested(tmp_path: Path) -> None:
    master = Master()
    async with slave(tmp_path, master, timerWheelEnable="false") as world:
        assert master.took() == [21, 201, 43, 45, 907, 402]
        await world.clock.advance(seconds=TICK_S)
        assert master.took() == []


async def test_another_master_is_asked_at_once(tmp_path: Path) -> None:
    master = Master()
    async with slave(tmp_path, master) as world:
        master.took()
        assert world.features.slave.sync is not None
        world.features.slave.sync.set_master("10.0.0.2:10911")
        await world.clock.drain()
        assert master.took() == WHOLE
