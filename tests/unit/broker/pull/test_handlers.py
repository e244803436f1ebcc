"""Pulls as consumers see them: checks, offsets, filters, waiting, commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylark.broker.topics.registration import MasterAddress
from skylark.core.hashing import java_hash
from skylark.store.running_flags import StoreFlag
from skylark.wire.bodies.config import SubscriptionGroupConfig
from skylark.wire.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.headers.pull import PullMessageResponseHeader
from tests.unit.broker.stored import COMMIT, OWN, SUSPEND, Stored, bodies_of, stored

KEYS = {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}


def position(answer: Command) -> tuple[int, str | None, int]:
    """Code, remark and where to go on."""
    assert answer.ext is not None
    assert answer.ext.keys() == KEYS | {"topicSysFlag", "groupSysFlag"}
    header = decode_ext(PullMessageResponseHeader, answer.ext)
    assert list(answer.ext.items()) == list(encode_ext(header).items())
    return answer.code, answer.remark, int(answer.ext["nextBeginOffset"])


def subscription(topic: str = "T", text: str = "*", version: int = 1, **fields: Any) -> Any:
    tags = [tag.strip() for tag in text.split("||")] if text != "*" else []
    return SubscriptionData(
        topic=topic,
        sub_string=text,
        tags_set=tags,
        code_set=[java_hash(tag) for tag in tags],
        sub_version=version,
        **fields,
    )


async def fill(world: Stored, count: int, **options: Any) -> None:
    for number in range(count):
        assert (await world.send(body=b"m%d" % number, **options)).code == 0


# --- what a read finds ---


async def test_found(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await fill(world, 3)
        answer = await world.pull(1)
        assert position(answer) == (0, "FOUND", 3)
        assert answer.ext is not None
        assert [answer.ext[key] for key in ("minOffset", "maxOffset")] == ["0", "3"]
        assert answer.ext["suggestWhichBrokerId"] == "0"
        assert bodies_of(answer) == [b"m1", b"m2"]
        assert world.features.stats.broker_stats.group_gets["T", "g"].count == 2
        assert world.features.groups.offsets.get_pulled("g", "T", 0) == 3
        assert sum(file.leases for file in world.features.store.log.files.files) == 0


@pytest.mark.spec("broker.13.10")
@pytest.mark.spec("remoting.10.20")
async def test_outside_of_a_queue(tmp_path: Path) -> None:
    async with stored(tmp_path, mappedFileSizeConsumeQueue="100") as world:
        world.add_topic("Empty", 1)
        await fill(world, 10)
        assert position(await world.pull(100)) == (21, "OFFSET_OVERFLOW_BADLY", 10)
        assert position(await world.pull(10)) == (19, "OFFSET_OVERFLOW_ONE", 10)
        empty = await world.pull(0, topic="Empty")
        assert position(empty) == (19, "NO_MESSAGE_IN_QUEUE", 0)
        assert position(await world.pull(7, topic="Empty"))[::2] == (21, 0)
        queue = world.features.store.queues.get("T", 0)
        entry = None if queue is None else queue.read_entry(8)
        assert queue is not None
        assert entry is not None
        queue.correct_min(entry.log_offset)
        assert queue.min_offset == 8
        assert position(await world.pull(5)) == (21, "OFFSET_TOO_SMALL", 8)


@pytest.mark.spec("broker.13.12")
async def test_limits(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await fill(world, 100)
        assert position(await world.pull(0, maxMsgNums=64)) == (0, "FOUND", 32)
        assert position(await world.pull(0, maxMsgNums=5)) == (0, "FOUND", 5)
        assert position(await world.pull(0, maxMsgNums=0)) == (0, "FOUND", 1)
        large = bytes(300 << 10)
        await world.send("Large", large)
        assert bodies_of(await world.pull(0, topic="Large")) == [large]


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_bulk_pulls_are_limited_by_pull_max_bytes(tmp_path: Path, code: RequestCode) -> None:
    async with stored(tmp_path, pullMaxBytes="20000") as world:
        await fill(world, 200)
        some = await world.pull(0, maxMsgNums=64, bulk="true", code=code)
        assert position(some) == (0, "FOUND", 64)
        answer = await world.pull(0, maxMsgNums=1000, bulk="true", code=code)
        assert 64 < position(answer)[2] < 200
        assert len(answer.body or b"") <= 20_000
        fewer = await world.pull(0, maxMsgNums=1000, maxMsgBytes=2_000, bulk="true", code=code)
        assert 0 < len(fewer.body or b"") <= 2_000
        world.features.store.reader._memory_size = 10  # nor does it matter what is on disk only
        assert position(await world.pull(0, maxMsgNums=64, bulk="true", code=code))[2] == 64
        assert position(await world.pull(0, maxMsgNums=64, bulk="false", code=code))[2] == 8
        await world.send("Large", bytes(300 << 10))
        large = await world.pull(0, topic="Large", bulk="true", code=code)
        assert len(bodies_of(large)[0]) == 300 << 10, "the first message comes, however large"


async def test_a_store_that_cannot_be_read(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await fill(world, 1)
        world.features.store.flags.set(StoreFlag.NOT_READABLE)
        answer = await world.pull()
        assert (answer.code, answer.ext) == (1, {})
        assert (answer.remark or "").startswith("store getMessage return null")


# --- checks ---


async def test_checks_in_order(tmp_path: Path) -> None:
    async with stored(tmp_path, autoCreateSubscriptionGroup="false") as world:
        world.add_topic("T", 2)
        world.add_topic("WriteOnly", 1, perm=2)
        for config in (
            SubscriptionGroupConfig(group_name="g"),
            SubscriptionGroupConfig(group_name="off", consume_enable=False),
        ):
            world.features.groups.table.update(config)
        for changes, code, ext, remark in [
            ({"consumerGroup": "x"}, 26, {}, "subscription group [x] does not exist, "),
            (
                {"consumerGroup": "off"},
                16,
                {"forbiddenType": "2"},
                "subscription group no permission, off",
            ),
            ({"topic": "No"}, 17, {}, "topic[No] not exist, apply first please! \nSee https://"),
            (
                {"topic": "WriteOnly"},
                16,
                {"forbiddenType": "3"},
                "the topic[WriteOnly] pulling message is forbidden",
            ),
            (
                {"queueId": 2},
                29,
                {},
                "queueId[2] is illegal, topic:[T] topicConfig.readQueueNums:[2] consumer:[/127.",
            ),
            ({"queueId": -1}, 29, {}, "queueId[-1] is illegal, "),
            ({"subscription": "||"}, 23, {}, "parse the consumer's subscription failed"),
            (
                {"subscription": "a > 1", "expressionType": "SQL92"},
                1,
                {},
                "The broker does not support consumer to filter message by SQL92",
            ),
        ]:
            answer = await world.pull(**changes)  # type: ignore[arg-type]
            assert (answer.code, answer.ext) == (code, ext)
            assert (answer.remark or "").startswith(remark)
        assert (await world.call(RequestCode.PULL_MESSAGE, {})).ext is None


async def test_pulls_that_the_broker_forbids(tmp_path: Path) -> None:
    async with stored(tmp_path, brokerPermission="2") as world:
        answer = await world.pull()
        assert (answer.code, answer.ext) == (16, {"forbiddenType": "1"})
        assert answer.remark == "the broker[127.0.0.2] pulling message is forbidden"
    async with stored(tmp_path / "lite", litePullMessageEnable="false") as world:
        await fill(world, 1)
        answer = await world.pull(code=RequestCode.LITE_PULL_MESSAGE)
        assert (answer.code, answer.ext) == (16, {"forbiddenType": "1"})
        assert (await world.pull()).code == 0


@pytest.mark.spec("broker.13.11")
@pytest.mark.spec("remoting.10.20")
async def test_subscriptions(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        for tag in "ABC":
            await world.send(body=tag.encode(), properties=f"TAGS\x01Tag{tag}\x02")
        unknown = await world.pull(sysFlag=0)
        assert (unknown.code, unknown.ext) == (24, {})
        assert (unknown.remark or "").startswith("the consumer's group info not exist\nSee ")
        await world.heartbeat(subscription("Other"))
        missing = await world.pull(sysFlag=0)
        assert missing.code == 24
        assert (missing.remark or "").startswith("the consumer's subscription not exist\nSee ")
        await world.heartbeat(subscription(text="TagB", version=5))
        newer = await world.pull(sysFlag=0, subVersion=6)
        assert (newer.code, newer.remark) == (25, "the consumer's subscription not latest")
        assert bodies_of(await world.pull(sysFlag=0, subVersion=5)) == [b"B"]
        alone = await world.pull(consumerGroup="alone", subscription="TagA || TagB")
        assert bodies_of(alone) == [b"A", b"B"]
        nothing = await world.pull(subscription="TagX")
        assert position(nothing) == (20, "NO_MATCHED_MESSAGE", 3)
        assert world.features.groups.consumers.subscription("alone", "T") is not None


async def test_forbidden_to_a_group(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await fill(world, 1)
        await world.heartbeat(subscription())
        world.features.groups.table.set_may_read("g", "T", False)
        answer = await world.pull(sysFlag=0)
        assert (answer.code, answer.ext) == (16, {"forbiddenType": "5"})
        assert answer.remark == "the consumer group[g] is forbidden for topic[T]"


@pytest.mark.spec("broker.13.13")
@pytest.mark.serves(RequestCode.CHECK_CLIENT_CONFIG)
async def test_sql_filters(tmp_path: Path) -> None:
    async with stored(tmp_path, enablePropertyFilter="true") as world:
        for value in ("3", "7", "abc"):
            await world.send(body=value.encode(), properties=f"a\x01{value}\x02")
        sql: dict[str, Any] = {"expressionType": "SQL92"}
        assert bodies_of(await world.pull(subscription="a > 5", **sql)) == [b"7"]
        assert bodies_of(await world.pull(subscription="a LIKE 'b'", **sql)) == []
        # Java lets everything pass here; whoever filters would get what it did not want.
        for changes in ({"subscription": "a >"}, {"subscription": ""}, {"expressionType": "XPATH"}):
            refused = await world.pull(**{"subscription": "a > 5", **sql, **changes})
            assert (refused.code, refused.ext) == (23, {})
            assert (refused.remark or "").startswith("parse the consumer's subscription failed: ")
        await world.heartbeat(subscription(text="a > 5", version=2, expression_type="SQL92"))
        assert bodies_of(await world.pull(sysFlag=0, subVersion=2)) == [b"7"]
        world.features.groups.filters.register("g", [], world.clock.now_ms())
        for text in ("a BETWEEN 5 AND 1", "a = NULL", "a > 0.0"):
            data = subscription(text=text, expression_type="SQL92")
            body = encode_body(CheckClientRequestBody(subscription_data=data, group="g"))
            assert (await world.call(RequestCode.CHECK_CLIENT_CONFIG, {}, body)).code == 23


async def test_sql_filters_that_are_missing_or_old(tmp_path: Path) -> None:
    async with stored(tmp_path, enablePropertyFilter="true") as world:
        await fill(world, 1)
        await world.heartbeat(subscription(text="a >", version=2, expression_type="SQL92"))
        missing = await world.pull(sysFlag=0, subVersion=2)
        assert (missing.code, missing.ext) == (27, {})
        await world.heartbeat(subscription(text="a > 1", version=3, expression_type="SQL92"))
        found = world.features.groups.filters.get("T", "g")
        assert found is not None
        found.client_version = 1
        assert (await world.pull(sysFlag=0, subVersion=3)).code == 28


async def test_a_retry_topic_is_filtered_with_filter_support_retry(tmp_path: Path) -> None:
    async with stored(tmp_path, enablePropertyFilter="true", filterSupportRetry="true") as world:
        await world.heartbeat(
            subscription(text="a > 5", expression_type="SQL92"), subscription("%RETRY%g")
        )
        for value in ("3", "7"):
            properties = f"a\x01{value}\x02RETRY_TOPIC\x01T\x02"
            await world.send("%RETRY%g", value.encode(), properties=properties)
        await world.send("%RETRY%g", b"other", properties="a\x010\x02RETRY_TOPIC\x01U\x02")
        answer = await world.pull(topic="%RETRY%g", sysFlag=0)
        assert bodies_of(answer) == [b"7", b"other"]


# --- waiting ---


@pytest.mark.spec("broker.13.9")
async def test_a_held_pull_wakes_for_matching_messages(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        held = await world.begin_pull(subscription="A")
        assert len(world.features.pull.service.held) == 1
        await world.send(body=b"other", properties="TAGS\x01B\x02")
        await world.clock.drain()
        assert not held.done()
        await world.clock.advance(4.9)
        assert not held.done()
        await world.clock.advance(0.2)
        assert position(await held) == (20, "NO_MATCHED_MESSAGE", 1)

        held = await world.begin_pull(1, subscription="A")
        await world.send(body=b"mine", properties="TAGS\x01A\x02")
        assert bodies_of(await held) == [b"mine"]

        held = await world.begin_pull(2)
        await world.clock.advance(14.9)
        assert not held.done()
        await world.clock.advance(0.2)
        assert position(await held) == (19, "OFFSET_OVERFLOW_ONE", 2)
        assert len(world.features.pull.service.held) == 0


@pytest.mark.spec("remoting.10.3")
@pytest.mark.serves(RequestCode.GET_MAX_OFFSET)
async def test_a_held_pull_delays_nothing_on_its_connection(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        held = await world.begin_pull()
        for _ in range(3):
            assert (
                await world.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
            ).code == 0
        assert len(world.features.endpoint.server.connections) == 1
        assert not held.done()
        await world.send()
        assert bodies_of(await held) == [b"hello"]


async def test_without_long_polling_the_wait_is_short(tmp_path: Path) -> None:
    async with stored(tmp_path, longPollingEnable="false") as world:
        world.add_topic("T", 1)
        held = await world.begin_pull()
        await world.clock.advance(1.1)
        assert (await held).code == 19


async def test_a_pull_beyond_the_limit_of_held_pulls(tmp_path: Path) -> None:
    async with stored(tmp_path, heldPullCountMax="1") as world:
        world.add_topic("T", 1)
        held = await world.begin_pull()
        refused = await world.pull(sysFlag=OWN | SUSPEND)
        assert (refused.code, refused.ext) == (2, {})
        await world.send()
        assert (await held).code == 0


async def test_the_pulls_of_a_closed_connection_are_forgotten(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        held = await world.begin_pull()
        world.network.cut_all()
        await world.clock.drain()
        assert len(world.features.pull.service.held) == 0
        with pytest.raises(Exception, match="closed"):
            await held


async def test_a_broker_that_stops_answers_what_it_holds(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        held = await world.begin_pull()
        world.features.pull.service.waiting.stop()
        assert position(await held) == (19, "NO_MESSAGE_IN_QUEUE", 0)
        assert (await world.pull(sysFlag=OWN | SUSPEND)).code == 19


# --- commits and resets ---


async def test_a_commit_counts_when_the_pull_comes(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await fill(world, 3)
        held = await world.begin_pull(3, sysFlag=OWN | SUSPEND | COMMIT, commitOffset=2)
        offsets = world.features.groups.offsets
        assert offsets.get("g", "T", 0) == 2
        offsets.commit("g", "T", 0, 1)
        await world.send()
        await held
        assert offsets.get("g", "T", 0) == 1
        await world.pull(commitOffset=3)
        assert offsets.get("g", "T", 0) == 1


async def test_a_reset_is_reported_once_and_not_undone_by_the_commit(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await fill(world, 5)
        world.features.groups.offsets.reset("g", "T", {0: 1})
        moved = await world.pull(5, sysFlag=OWN | SUSPEND | COMMIT, commitOffset=5)
        assert position(moved) == (21, "OFFSET_RESET", 1)
        assert world.features.groups.offsets.get("g", "T", 0) == 1
        assert position(await world.pull(1)) == (0, "FOUND", 5)


# --- what is counted ---


async def test_counters_of_a_read(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await fill(world, 3, properties="TAGS\x01A\x02")
        stats, log = world.features.stats.broker_stats, world.features.store.log
        first_end = world.records("T")[1].log_offset
        await world.pull(0, maxMsgNums=1)
        meter = stats.queue_gets[0, "T", "g"]
        assert (meter.times, meter.behind_size) == (1, log.max_offset)
        await world.pull(1)
        assert (meter.times, meter.behind_size) == (2, log.max_offset - first_end * 2)
        assert stats.user_get_count == 3
        # A group that reads everything and wants none of it is behind as well.
        await world.pull(0, consumerGroup="other", subscription="B", maxMsgNums=1)
        other = stats.queue_gets[0, "T", "other"]
        assert (other.times, other.behind_size) == (0, log.max_offset - first_end * 2)
        await world.clock.advance(seconds=60)
        for name, key in [
            ("GROUP_GET_NUMS", "T@g"),
            ("GROUP_GET_LATENCY", "0@T@g"),
            ("BROKER_GET_NUMS", "DefaultCluster"),
        ]:
            ext = {"statsName": name, "statsKey": key}
            assert (await world.call(RequestCode.VIEW_BROKER_STATS_DATA, ext)).code == 0


async def test_groups_that_read_too_far_behind_are_stopped(tmp_path: Path) -> None:
    async with stored(
        tmp_path, disableConsumeIfConsumerReadSlowly="true", consumerFallbehindThreshold="1000"
    ) as world:
        await fill(world, 50)
        await world.pull(0, maxMsgNums=1)
        await world.pull(49, consumerGroup="near")
        assert (await world.pull(1, maxMsgNums=1)).code == 0
        await world.clock.advance(seconds=181)
        stopped = await world.pull(2)
        assert (stopped.code, stopped.ext) == (16, {"forbiddenType": "2"})
        assert (await world.pull(49, consumerGroup="near")).code == 0


# --- slaves ---


def slave(root: Path, **given: str) -> Any:
    settings = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true", **given}
    return stored(root, **settings)


async def test_a_slave_sends_clients_back_to_its_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stored(tmp_path) as master:
        await fill(master, 5)
    async with slave(tmp_path) as world:
        answer = await world.pull(0)
        assert position(answer) == (0, "FOUND", 5)
        assert (answer.ext or {})["suggestWhichBrokerId"] == "0"
        assert (await world.send()).code == 2
        # Without a master it does what a master does, and corrects no offset.
        held = await world.begin_pull(5)
        assert len(world.features.pull.service.held) == 1
        assert position(await world.pull(100)) == (20, "OFFSET_OVERFLOW_BADLY", 100)
        assert world.features.slave.sync is not None
        for part in (world.features.slave.sync, world.features.replication.service):
            monkeypatch.setattr(part, "set_master", lambda *_: None)  # nobody is there
        registration = world.features.registration
        registration.master = MasterAddress("127.0.0.1:1", "127.0.0.1:2")
        registration.master_changes.publish(registration.master)
        assert position(await held) == (20, "OFFSET_OVERFLOW_ONE", 5)
        redirected = await world.pull(5, sysFlag=OWN | SUSPEND)
        assert position(redirected) == (20, "OFFSET_OVERFLOW_ONE", 5)
        assert (redirected.ext or {})["suggestWhichBrokerId"] == "0"
        assert position(await world.pull(0)) == (0, "FOUND", 5)


async def test_a_slave_that_corrects_offsets(tmp_path: Path) -> None:
    async with stored(tmp_path) as master:
        await fill(master, 5)
    async with slave(tmp_path, offsetCheckInSlave="true") as world:
        assert position(await world.pull(100)) == (21, "OFFSET_OVERFLOW_BADLY", 5)


async def test_a_slave_that_serves_no_pulls(tmp_path: Path) -> None:
    async with slave(tmp_path, slaveReadEnable="false") as world:
        world.add_topic("T", 1)
        refused = await world.pull()
        assert refused.code == 2
        assert (refused.remark or "").startswith("[REJECTREQUEST]system busy, ")


@pytest.mark.parametrize(("slave_read", "suggested"), [("true", "7"), ("false", "0")])
async def test_a_reader_far_behind_is_sent_to_a_slave(
    tmp_path: Path, slave_read: str, suggested: str
) -> None:
    async with stored(tmp_path, slaveReadEnable=slave_read) as world:
        world.features.groups.table.update(
            SubscriptionGroupConfig(group_name="g", which_broker_when_consume_slowly=7)
        )
        await fill(world, 5)
        world.features.store.reader._memory_size = 10
        behind = await world.pull(0, maxMsgNums=1)
        assert (behind.ext or {})["suggestWhichBrokerId"] == suggested


# --- who may pull ---


@pytest.mark.parametrize(
    ("group", "as_push", "code"),
    [
        ("g", False, 24),
        ("g", True, 0),
        ("TOOLS_CONSUMER", False, 0),
        ("DEFAULT_CONSUMER", False, 0),
    ],
)
async def test_pull_consumers_can_be_refused(
    tmp_path: Path, group: str, as_push: bool, code: int
) -> None:
    async with stored(tmp_path, rejectPullConsumerEnable="true") as world:
        await fill(world, 1)
        if as_push:
            await world.heartbeat(subscription())
        answer = await world.pull(consumerGroup=group)
        assert answer.code == code
        if code:
            remark = "the consumer's group info not exist, or the pull consumer is rejected by ser"
            assert (answer.remark or "").startswith(remark)
