"""Taking up queues again after they were given up."""

from __future__ import annotations

from pathlib import Path

from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import GetConsumerListByGroupResponseBody
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.unit.client.consumer.pushes import Seen, scripted


async def test_a_queue_that_comes_back_starts_without_its_old_offset(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        script.set_offset(None)  # the broker knows none: an old one in memory would count
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        assert script.pulls.offsets == [0]
        ours = GetConsumerListByGroupResponseBody(consumer_id_list=[consumer.client_id])
        # One queue, and of two members the one with the smaller id gets it.
        others = GetConsumerListByGroupResponseBody(consumer_id_list=["!", consumer.client_id])
        script.server.answer_ok(code, body=others)
        await script.clock.advance(seconds=21)
        assert not [each for each in consumer.assignment if each.topic == "T"]
        # The result of a handler in another thread, a moment after the queue was given up.
        assert consumer._parts is not None
        lost = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        consumer._parts.offsets.table.update(lost, 7)
        saved = len(script.committed)
        script.server.answer_ok(code, body=ours)
        notify = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED  # before a save of offsets tidies up
        script.control.oneway(Command(code=notify, ext={"consumerGroup": "g"}))
        await script.clock.advance(seconds=40)
        assert script.pulls.offsets[-1] == 0
        assert {pull["commitOffset"] for pull in script.pulls.requests} == {"0"}
        assert script.committed[saved:] == []
