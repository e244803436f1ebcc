"""What a slave asks its master, compared with the recorded questions and answers of Apache."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from skylark.broker.slave import master_requests
from skylark.broker.slave.slave_changes import Commit
from skylark.core.errors import BrokerError, RemoteProtocolError
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.bodies.slave_sync_body import (
    SubscriptionGroupWrapper,
    TopicConfigAndMappingSerializeWrapper,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from skylark.wire.frame import FrameBuffer

FRAMES = Path(__file__).parents[3] / "golden" / "data" / "frames" / "slave-sync.jsonl"


class Apache:
    """Answers as the recorded master did, if it is asked as the recorded slave asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._requests: dict[int, Command] = {}
        self._answers: dict[int, Command] = {}
        for row in map(json.loads, FRAMES.read_text().splitlines()):
            (command,) = FrameBuffer().feed(base64.b64decode(row["raw"]))
            if row["dir"] == "c2s":
                self._requests.setdefault(row["code"], command)
            else:
                self._answers.setdefault(row["request_code"], command)

    async def ask(self, request: Command) -> Command:
        recorded = self._requests[request.code]
        assert request.ext == recorded.ext
        assert request.body == recorded.body
        self.asked.append(request.code)
        return self._answers[request.code]


async def test_the_tables_of_an_apache_master_are_copied() -> None:
    apache = Apache()
    topics = await master_requests.get_topics(apache.ask)
    assert len(topics.table) == 18
    assert (topics.version.counter, topics.version.timestamp) == (3, 1_794_711_599_476)
    assert topics.table["BenchmarkTest"].read_queue_nums == 1024
    assert (await master_requests.get_offsets(apache.ask)).offset_table == {}
    assert (await master_requests.get_delay_offsets(apache.ask)).offset_table == {1: 1}
    groups = await master_requests.get_groups(apache.ask)
    assert len(groups.table) == 8
    assert "CID_ONSAPI_OWNER" in groups.table
    assert (await master_requests.get_request_modes(apache.ask)).message_request_mode_map == {}
    assert (await master_requests.get_timer_counts(apache.ask)).timing_count["FrameA"].count == 0
    checkpoint = await master_requests.get_timer_checkpoint(apache.ask)
    assert (checkpoint.last_timer_log_flush_pos, checkpoint.master_timer_queue_offset) == (52, 1)
    assert apache.asked == [21, 43, 45, 201, 402, 61, 60]


class Paging:
    """A master with tables of three pages, which change once while they are read."""

    def __init__(self, *, total: bool = True) -> None:
        self.requests: list[dict[str, str]] = []
        self.version = DataVersion(counter=1)
        self._has_total = total

    async def ask(self, request: Command) -> Command:
        ext = request.ext or {}
        self.requests.append(ext)
        if len(self.requests) == 2:
            self.version = DataVersion(counter=2)
        same = ext["dataVersion"] == encode_body(self.version).decode()
        is_topics = request.code == RequestCode.GET_ALL_TOPIC_CONFIG
        first = int(ext["topicSeq" if is_topics else "groupSeq"]) if same else 0
        names = [f"n{number}" for number in range(5)][first : first + 2]
        body: TopicConfigAndMappingSerializeWrapper | SubscriptionGroupWrapper
        if is_topics:
            body = TopicConfigAndMappingSerializeWrapper(
                topic_config_table={name: TopicConfig(topic_name=name) for name in names},
                data_version=self.version,
            )
        else:
            body = SubscriptionGroupWrapper(
                subscription_group_table={
                    name: SubscriptionGroupConfig(group_name=name) for name in names
                },
                forbidden_table={name: {"T": 4} for name in names[:1]},
                data_version=self.version,
            )
        total = {"totalTopicNum" if is_topics else "totalGroupNum": "5"}
        answer = Command(code=0, ext=total if self._has_total else {})
        answer.body = encode_body(body)
        return answer


async def test_tables_come_in_pages_and_from_the_start_if_they_change() -> None:
    master = Paging()
    topics = await master_requests.get_topics(master.ask)
    assert sorted(topics.table) == ["n0", "n1", "n2", "n3", "n4"]
    assert topics.version == DataVersion(counter=2)
    assert [ext["topicSeq"] for ext in master.requests] == ["0", "2", "2", "4"]
    master = Paging()
    groups = await master_requests.get_groups(master.ask)
    assert sorted(groups.table) == ["n0", "n1", "n2", "n3", "n4"]
    assert groups.bans == {"n0": {"T": 4}, "n2": {"T": 4}, "n4": {"T": 4}}


async def test_an_answer_without_total_is_whole() -> None:
    master = Paging(total=False)
    assert sorted((await master_requests.get_topics(master.ask)).table) == ["n0", "n1"]
    assert sorted((await master_requests.get_groups(master.ask)).table) == ["n0", "n1"]


async def test_tables_without_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_requests, "PAGES_MAX", 2)
    for ask in (master_requests.get_topics, master_requests.get_groups):
        with pytest.raises(RemoteProtocolError, match="do not end after 2 pages"):
            await ask(Paging().ask)


async def test_answers_of_a_master_that_lacks_or_refuses_a_request() -> None:
    async def refuse(request: Command) -> Command:
        code = 3 if request.code == RequestCode.GET_BROKER_HA_STATUS else 26
        return Command(code=code, remark="no such group")

    assert await master_requests.get_log_end(refuse) == 0
    with pytest.raises(BrokerError, match="no such group"):
        await master_requests.send_commit(refuse, Commit("T@g", 0, 1))
