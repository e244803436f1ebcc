"""A topic deleted from a broker with a real store and from its name server, and made again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.unit.broker.stored import Stored, bodies_of, stored

NAME_SERVER = "127.0.0.1:9876"


async def ask_name_server(world: Stored, code: int, **ext: str) -> Command:
    return await world.client.call(NAME_SERVER, Command(code=code, ext=ext))


@pytest.mark.spec("broker.13.23")
@pytest.mark.serves(
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
)
async def test_nothing_of_a_deleted_topic_is_left(tmp_path: Path) -> None:
    async with stored(tmp_path, namesrvAddr=NAME_SERVER) as world:
        name_server = NameServer(
            NamesrvConfig(listen_port=9_876), network=world.network, clock=world.clock
        )
        await name_server.start()
        for topic in ("T", "%RETRY%g_T"):
            world.add_topic(topic, 1)
        for body in (b"1", b"2", b"3"):
            assert (await world.send("T", body)).code == 0
        world.features.groups.offsets.commit("g", "T", 0, 2)
        await world.clock.advance(60)
        route = RequestCode.GET_ROUTEINFO_BY_TOPIC
        assert (await ask_name_server(world, route, topic="T")).code == 0

        answer = await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert (answer.code, answer.remark) == (0, None)
        assert "T" not in world.features.topics.table
        assert "%RETRY%g_T" not in world.features.topics.table
        assert world.features.groups.offsets.get("g", "T", 0) == -1
        assert world.features.store.queues.topic_queues("T") == []
        answer = await ask_name_server(world, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
        assert answer.code == 0
        assert (await ask_name_server(world, route, topic="T")).code == 17

        ext = {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        assert (await world.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
        assert (await ask_name_server(world, route, topic="T")).code == 0
        answer = await world.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
        assert answer.ext == {"offset": "0"}
        assert (await world.send("T", b"new")).code == 0
        assert bodies_of(await world.pull(0)) == [b"new"]
        await name_server.stop()


@pytest.mark.parametrize("topics", [("T", "U"), ("U", "T")], ids="".join)
async def test_a_deleted_topic_stays_deleted_after_a_restart(
    tmp_path: Path, topics: tuple[str, str]
) -> None:
    async with stored(tmp_path) as world:
        for topic in topics:
            world.add_topic(topic, 1)
            for _ in range(3):
                assert (await world.send(topic)).code == 0
        assert (await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    async with stored(tmp_path) as world:
        assert "T" not in world.features.topics.table
        assert world.features.store.queues.topic_queues("T") == []
        world.add_topic("T", 1)
        assert (await world.send("T", b"new")).code == 0
        assert bodies_of(await world.pull(0)) == [b"new"]


async def test_a_topic_is_deleted_while_a_message_waits_for_the_disk(tmp_path: Path) -> None:
    """The old queue must not write into the files of the new one: no message would be taken."""
    async with stored(tmp_path, flushDiskType="SYNC_FLUSH") as world:
        world.add_topic("T", 1)
        assert (await world.send("T", b"1")).code == 0
        sent = asyncio.create_task(world.send("T", b"2"))
        deleted = asyncio.create_task(
            world.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        )
        assert ((await sent).code, (await deleted).code) == (0, 0)
        assert world.features.store.queues.topic_queues("T") == []
        world.add_topic("T", 1)
        assert (await world.send("T", b"new")).code == 0
        await world.clock.advance(60)  # the queues are written to their files
        assert (await world.send("T", b"newer")).code == 0
        assert bodies_of(await world.pull(0)) == [b"new", b"newer"]
    async with stored(tmp_path, flushDiskType="SYNC_FLUSH") as world:
        assert bodies_of(await world.pull(0)) == [b"new", b"newer"]
