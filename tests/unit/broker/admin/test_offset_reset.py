"""Groups sent elsewhere, by the broker itself and by their members; offsets cloned."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.net.client import RemotingClient
from skylark.wire.bodies.admin_body import ResetOffsetBody
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from tests.unit.broker.members import Member, silent
from tests.unit.broker.recorded import exchanges
from tests.unit.broker.stored import Stored, bodies_of, stored, texts

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
BY_MEMBERS = {"useServerSideResetOffset": "false"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path) as running:
        yield running


@pytest.fixture
async def old_world(tmp_path: Path) -> AsyncIterator[Stored]:
    """A broker that leaves resets to the members."""
    async with stored(tmp_path, **BY_MEMBERS) as running:
        yield running


async def fill(world: Stored, topic: str = "T", count: int = 5, queue_count: int = 1) -> int:
    """Messages a second apart in each queue; when the first was stored."""
    world.add_topic(topic, queue_count)
    world.features.groups.table.find("g")
    began_ms = world.clock.now_ms()
    for _ in range(count):
        for queue_id in range(queue_count):
            assert (await world.send(topic, queue_id=queue_id)).code == 0
        await world.clock.advance(1)
    return began_ms


def request(**changes: str) -> dict[str, str]:
    fields = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
    return fields | {"queueId": "-1", "offset": "-1"} | changes


async def reset(world: Stored, **changes: str) -> dict[int, int]:
    answer = await world.call(RESET, request(**changes))
    assert (answer.code, answer.remark, answer.ext) == (0, None, None)
    table = decode_body(ResetOffsetBody, answer.body or b"").offset_table
    return {queue.queue_id: offset for queue, offset in table.items()}


# --- by the broker ---


@pytest.mark.spec("broker.13.21")
@pytest.mark.serves(RequestCode.UPDATE_CONSUMER_OFFSET)
async def test_a_reset_wins_over_late_commits_and_shows_at_the_next_pull(world: Stored) -> None:
    await fill(world)
    commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "5"}
    assert (await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
    assert await reset(world, timestamp="0") == {0: 0}  # nobody is online
    late = await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    assert (late.code, late.remark) == (0, "Offset has been previously reset")
    moved = await world.pull(5)
    assert (moved.code, (moved.ext or {})["nextBeginOffset"]) == (21, "0")
    pulled = await world.pull(0)
    assert (pulled.code, len(bodies_of(pulled))) == (0, 5)
    assert (await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).remark is None
    assert world.features.groups.offsets.get("g", "T", 0) == 5


async def test_by_time_to_the_end_or_to_an_offset(world: Stored) -> None:
    began_ms = await fill(world, queue_count=2)
    assert await reset(world, timestamp=str(began_ms + 2_000)) == {0: 2, 1: 2}
    assert await reset(world, timestamp="-1") == {0: 5, 1: 5}
    assert await reset(world, queueId="1", timestamp=str(began_ms + 500)) == {1: 1}
    assert await reset(world, queueId="1", offset="3") == {1: 3}
    # without a queue an offset means nothing
    assert await reset(world, offset="3") == {0: 5, 1: 5}


async def test_recorded_resets(world: Stored) -> None:
    world.add_topic("FrameA", 2)
    for queue_id, count in ((0, 15), (1, 12)):
        for _ in range(count):
            await world.send("FrameA", queue_id=queue_id)
    for name in ("admin-resetOffsetByTime", "admin-resetOffsetByTime-live"):
        ((asked, recorded),) = exchanges(name, RESET)
        assert asked.ext is not None
        world.features.groups.table.find(asked.ext["group"])
        if asked.ext["timestamp"] != "0":  # that was after the last message
            asked.ext["timestamp"] = str(world.clock.now_ms() + 1_000)
        answer = await world.call(RESET, asked.ext)
        assert (answer.code, answer.remark, answer.ext) == (recorded.code, recorded.remark, None)
        assert answer.body == recorded.body


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "x"}, 17, "Topic x does not exist"),
        ({"group": "x"}, 26, "Group x does not exist"),
        (
            {"queueId": "0", "offset": "7"},
            1,
            "Target offset 7 not in consume queue range [0-5]",
        ),
    ],
)
async def test_what_cannot_be_reset(
    world: Stored, changes: dict[str, str], code: int, remark: str
) -> None:
    await fill(world)
    answer = await world.call(RESET, request(**changes))
    assert (answer.code, answer.remark) == (code, remark)
    assert world.features.groups.offsets.get("g", "T", 0) == -1


async def test_one_behind_the_end_is_still_allowed(world: Stored) -> None:
    await fill(world)
    assert await reset(world, queueId="0", offset="6") == {0: 6}


async def test_a_slave_resets_nothing(tmp_path: Path) -> None:
    async with stored(tmp_path, brokerRole="SLAVE", brokerId="1") as world:
        world.features.groups.table.find("g")
        answer = await world.call(RESET, request())
        assert (answer.code, answer.remark) == (1, "Can not reset offset in slave broker")


async def test_an_answered_reset_survives_a_crash(world: Stored, tmp_path: Path) -> None:
    await fill(world)
    await reset(world, queueId="0", offset="2")
    saved = Path(texts(tmp_path)["storePathRootDir"]) / "config" / "consumerOffset.json"
    assert re.search(r'"T@g":\s*\{\s*0:\s*2\s*\}', saved.read_text())


# --- by the members ---


@pytest.mark.spec("remoting.10.23")
async def test_members_get_the_offsets_in_a_form_that_can_be_split(old_world: Stored) -> None:
    world = old_world
    await fill(world, queue_count=2)
    for queue_id in range(2):
        world.features.groups.offsets.commit("g", "T", queue_id, 4)
    members = [Member(world, name, silent) for name in ("c1", "c2")]
    for member in members:
        await member.join("g", "T")
    answer = await world.call(RESET, request(timestamp="0"))
    await world.clock.drain()
    keys = [f'{{"brokerName":"broker-a","queueId":{n},"topic":"T"}}' for n in range(2)]
    assert answer.code == 0
    assert (answer.body or b"").decode() == f'{{"offsetTable":{{{keys[0]}:0,{keys[1]}:0}}}}'
    for member in members:
        (pushed,) = member.questions
        assert (pushed.code, pushed.is_oneway) == (220, True)
        assert pushed.ext == {
            "topic": "T", "group": "g", "timestamp": "0", "isForce": "false", "queueId": "-1",
        }  # fmt: skip
        assert split_as_go_does((pushed.body or b"").decode()) == dict.fromkeys(keys, 0)
        await member.leave()
    assert world.features.groups.offsets.get("g", "T", 0) == 4  # the members commit


def split_as_go_does(text: str) -> dict[str, int]:
    """How the Go client takes the table of a reset apart."""
    inner = text.removeprefix('{"offsetTable":{').removesuffix("}}")
    entries = inner.split(",{")
    entries = [entry if number == 0 else "{" + entry for number, entry in enumerate(entries)]
    pairs = (entry.split("}:") for entry in entries)
    return {key + "}": int(offset) for key, offset in pairs}


@pytest.mark.spec("remoting.10.23")
async def test_a_request_from_cpp_sends_members_a_list(old_world: Stored) -> None:
    world = old_world
    await fill(world)
    world.features.groups.offsets.commit("g", "T", 0, 4)
    member = Member(world, "c1", silent)
    await member.join("g", "T")
    tool = RemotingClient(world.network, world.clock, language="CPP")
    answer = await tool.call(world.address, Command(code=RESET, ext=request(timestamp="0")))
    await world.clock.drain()
    assert (answer.body or b"").startswith(b'{"offsetTable":{{')
    (pushed,) = member.questions
    assert pushed.body == (
        b'{"offsetTable":[{"brokerName":"broker-a","offset":0,"queueId":0,"topic":"T"}]}'
    )
    await tool.close()
    await member.leave()


async def test_without_force_no_offset_moves_forward(old_world: Stored) -> None:
    world = old_world
    began_ms = await fill(world)
    world.features.groups.offsets.commit("g", "T", 0, 2)
    member = Member(world, "c1", silent)
    await member.join("g", "T")
    assert await reset(world, isForce="false") == {0: 2}
    assert await reset(world, isForce="true") == {0: 5}
    assert await reset(world, isForce="false", timestamp=str(began_ms + 1_000)) == {0: 1}
    await member.leave()


async def test_resets_that_members_cannot_get(old_world: Stored) -> None:
    world = old_world
    answer = await world.call(RESET, request())
    assert (answer.code, answer.remark) == (
        17,
        "[reset-offset] reset offset failed, no topic in this broker. topic=T",
    )
    await fill(world)
    answer = await world.call(RESET, request())
    assert (answer.code, answer.remark) == (1, "THe consumer group <g> not exist")
    world.features.groups.offsets.commit("g", "T", 0, 2)
    answer = await world.call(RESET, request(timestamp="7"))
    assert (answer.code, answer.remark) == (
        206,
        "Consumer not online, so can not reset offset, Group: g Topic: T Timestamp: 7",
    )
    young, old = Member(world, "young", silent), Member(world, "old", silent)
    for member in (young, old):
        await member.join("g", "T")
    old.grow_old("g", 27)
    answer = await world.call(RESET, request())
    assert answer.code == 1
    assert (answer.remark or "").startswith("the client does not support this feature. version=V3")
    await world.clock.drain()
    assert young.questions == []
    for member in (young, old):
        await member.leave()


# --- clone ---


async def test_offsets_of_one_group_for_another(world: Stored) -> None:
    for topic in ("T", "U"):
        world.add_topic(topic, 1)
    offsets = world.features.groups.offsets
    for topic, offset in (("T", 3), ("U", 4), ("gone", 5)):
        offsets.commit("g", topic, 0, offset)
    ext = {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": "true"}
    assert (await world.call(RequestCode.CLONE_GROUP_OFFSET, ext)).code == 0
    assert [offsets.get("h", topic, 0) for topic in ("T", "U")] == [3, -1]
    ext["topic"] = " "
    assert (await world.call(RequestCode.CLONE_GROUP_OFFSET, ext)).code == 0
    assert [offsets.get("h", topic, 0) for topic in ("T", "U", "gone")] == [3, 4, -1]


async def test_an_online_group_gives_what_it_subscribes_to(world: Stored) -> None:
    for topic in ("T", "U"):
        world.add_topic(topic, 1)
        world.features.groups.offsets.commit("g", topic, 0, 3)
    member = Member(world, "c1", silent)
    await member.join("g", "T")
    ext = {"srcGroup": "g", "destGroup": "h", "offline": "false"}
    assert (await world.call(RequestCode.CLONE_GROUP_OFFSET, ext)).code == 0
    assert [world.features.groups.offsets.get("h", topic, 0) for topic in ("T", "U")] == [3, -1]
    await member.leave()


async def test_offsets_go_to_no_group_that_may_not_exist(tmp_path: Path) -> None:
    async with stored(tmp_path, autoCreateSubscriptionGroup="false") as world:
        ext = {"srcGroup": "g", "destGroup": "h", "offline": "true"}
        answer = await world.call(RequestCode.CLONE_GROUP_OFFSET, ext)
        assert (answer.code, answer.remark) == (26, "Group h does not exist")
