"""Queue locks by request: granted, refused, renewed, given back."""

from __future__ import annotations

from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body
from tests.unit.broker.world import Peer, World

Q0, Q1 = (MessageQueue(topic="T", broker_name="b", queue_id=number) for number in (0, 1))


async def lock(peer: Peer, client_id: str, *queues: MessageQueue) -> list[MessageQueue]:
    body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=list(queues))
    answer = await peer.call(RequestCode.LOCK_BATCH_MQ, {}, body)
    assert (answer.code, answer.remark, answer.ext) == (0, None, None)
    return decode_body(LockBatchResponseBody, answer.body or b"").lock_ok_mq_set


def unlock_body(client_id: str, *queues: MessageQueue) -> UnlockBatchRequestBody:
    return UnlockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=list(queues))


async def test_a_queue_belongs_to_one_client(world: World, peer: Peer) -> None:
    assert await lock(peer, "A", Q0) == [Q0]
    assert await lock(peer, "B", Q0, Q1) == [Q1]
    answer = await peer.call(RequestCode.UNLOCK_BATCH_MQ, {}, unlock_body("B", Q0, Q1))
    assert (answer.code, answer.remark, answer.ext, answer.body) == (0, None, None, None)
    assert await lock(peer, "B", Q0) == [], "B cannot release what A holds"
    await peer.oneway(RequestCode.UNLOCK_BATCH_MQ, unlock_body("A", Q0))
    assert await lock(peer, "B", Q0) == [Q0]


async def test_the_answer_without_locks_is_an_empty_set(peer: Peer) -> None:
    await lock(peer, "A", Q0)
    body = LockBatchRequestBody(consumer_group="g", client_id="B", mq_set=[Q0])
    answer = await peer.call(RequestCode.LOCK_BATCH_MQ, {}, body)
    assert answer.body == b'{"lockOKMQSet":[]}'


async def test_a_lock_that_is_not_renewed_lapses(world: World, peer: Peer) -> None:
    await lock(peer, "A", Q0, Q1)
    await world.clock.advance(40, clients_alive=False)
    await lock(peer, "A", Q1)
    await world.clock.advance(20, clients_alive=False)
    assert await lock(peer, "B", Q0, Q1) == []
    await world.clock.advance(ms=1, clients_alive=False)
    assert await lock(peer, "B", Q0, Q1) == [Q0]
