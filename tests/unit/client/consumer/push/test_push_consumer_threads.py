"""Both planes for real: a control thread, TCP, and user code that blocks its loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from skylark.client.consumer.process_queue import PULL_EXPIRED_MS
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core import member_table as rebalancing
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.instance_registry import instance_count
from skylark.core.clock import LoopClock
from skylark.core.errors import ClientStateError, NoNameServerError
from skylark.net.transport import TcpNetwork
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    GetConsumerListByGroupResponseBody,
    LockBatchResponseBody,
)
from skylark.wire.bodies.route_body import BrokerData, QueueData, TopicRouteData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from tests.support.loops import eventually, is_collected
from tests.unit.client.consumer.pushes import BROKER, ScriptedPulls, push_world, records
from tests.unit.client.scripted import ScriptedServer

T = TypeVar("T")
QUEUE = MessageQueue(topic="T", broker_name=BROKER, queue_id=0)


class ServerThread:
    """A scripted broker and name server on a loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server: ScriptedServer = self.run(self._start)
        self.pulls = ScriptedPulls(self.server)

    async def _start(self) -> ScriptedServer:
        server = ScriptedServer(TcpNetwork(), LoopClock())
        address = await server.start()
        route = TopicRouteData(
            queue_datas=[
                QueueData(broker_name=BROKER, read_queue_nums=1, write_queue_nums=1, perm=6)
            ],
            broker_datas=[BrokerData(cluster="c", broker_name=BROKER, broker_addrs={0: address})],
        )

        def route_of(request: Command) -> Command:
            if (request.ext or {})["topic"] != "T":
                return response_to(request, 17, "none")
            return response_to(request, 0, body=encode_body(route))

        server.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, route_of)
        server.answer_ok(RequestCode.QUERY_CONSUMER_OFFSET, {"offset": "0"})
        server.answer(RequestCode.UPDATE_CONSUMER_OFFSET, 0)
        server.answer(RequestCode.UNLOCK_BATCH_MQ, 0)
        body = LockBatchResponseBody(lock_ok_mq_set=[QUEUE])
        server.answer_ok(RequestCode.LOCK_BATCH_MQ, body=body)
        return server

    def run(self, function: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result(10)

    def members(self, *client_ids: str) -> None:
        body = GetConsumerListByGroupResponseBody(consumer_id_list=list(client_ids))
        self.server.answer_ok(RequestCode.GET_CONSUMER_LIST_BY_GROUP, body=body)

    def notify(self) -> None:
        async def tell() -> None:
            for connection in self.server.connections:
                code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                connection.oneway(Command(code=code, ext={"consumerGroup": "g"}))

        self.run(tell)

    def begin_round(self) -> None:
        """Let the consumer rebalance; blocks until it asks for the members of its group."""
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        count = self.count(code)
        self.notify()
        self.wait_for(lambda: self.count(code) > count)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Blocks the calling thread, as bad user code does."""
        never = threading.Event()
        for _ in range(1000):
            if condition():
                return
            never.wait(0.01)
        raise AssertionError("nothing came")

    def count(self, code: int) -> int:
        return len(self.server.of(code))

    def close(self) -> None:
        self.run(self.server.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def broker() -> Iterator[ServerThread]:
    made = ServerThread()
    yield made
    made.close()


def consumer_of(broker: ServerThread, **given: Any) -> PushConsumer:
    options = ClientOptions(
        namesrv=broker.server.address, client_ip="127.0.0.1", heartbeat_interval=0.05
    )
    consumer = PushConsumer(
        "g", options, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, **given
    )
    broker.members(consumer.client_id)
    return consumer


async def test_a_blocked_loop_stops_neither_heartbeats_nor_rebalancing(
    broker: ServerThread,
) -> None:
    broker.pulls.found(0, records(0), 1)
    broker.pulls.found(1, records(1), 2)
    consumer = consumer_of(broker)
    done = asyncio.Event()
    saved: list[str] = []

    @consumer.subscribe("T")
    async def block_the_loop(message: MessageExt) -> None:
        if message.queue_offset == 0:
            return
        heartbeats = broker.count(RequestCode.HEART_BEAT)
        broker.wait_for(lambda: broker.count(RequestCode.HEART_BEAT) > heartbeats + 3)
        broker.members("somebody else")
        broker.notify()
        # The queue is given away, and what was consumed before is saved, while we hold the loop.
        # This handler is waited for first, and not without end.
        broker.wait_for(lambda: consumer.assignment == frozenset())
        broker.wait_for(lambda: broker.count(RequestCode.UPDATE_CONSUMER_OFFSET) > 1)
        saved.extend(
            (request.ext or {})["commitOffset"]
            for request in broker.server.of(RequestCode.UPDATE_CONSUMER_OFFSET)
        )
        done.set()

    async with asyncio.timeout(20):
        await consumer.start()
        await done.wait()
        await consumer.stop()
    assert set(saved) == {"1"}
    updates = broker.server.of(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert {(u.ext or {})["commitOffset"] for u in updates} == {"1"}  # not 2: it was given away
    assert broker.count(RequestCode.UNREGISTER_CLIENT) == 1
    assert instance_count() == 0


async def test_a_blocked_loop_keeps_its_locks(broker: ServerThread) -> None:
    broker.pulls.found(0, records(0), 1)
    consumer = consumer_of(broker)
    done = asyncio.Event()

    @consumer.subscribe("T", orderly=True)
    async def block_the_loop(message: MessageExt) -> None:
        locks = broker.count(RequestCode.LOCK_BATCH_MQ)
        broker.wait_for(lambda: broker.count(RequestCode.LOCK_BATCH_MQ) > locks)
        done.set()

    async with asyncio.timeout(20):
        await consumer.start()
        await done.wait()
        await consumer.stop()
    assert broker.count(RequestCode.UNLOCK_BATCH_MQ) == 1
    assert instance_count() == 0


async def test_what_a_handler_accepts_counts_however_long_it_blocked_the_loop(
    broker: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalancing, "INTERVAL_MIN_S", 0.05)
    broker.pulls.found(0, records(0), 1)
    consumer = consumer_of(broker)
    done = asyncio.Event()

    @consumer.subscribe("T")
    async def block_the_loop(message: MessageExt) -> None:
        assert consumer._parts is not None
        process_queue = consumer._parts.rebalancer.rebalance.table[QUEUE]
        process_queue.last_pull_ms -= PULL_EXPIRED_MS + 1  # that is how long it takes
        broker.begin_round()
        broker.begin_round()  # so that the one before has ended
        done.set()

    async with asyncio.timeout(20):
        await consumer.start()
        await done.wait()
        await consumer.stop()
    updates = broker.server.of(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert (updates[-1].ext or {})["commitOffset"] == "1"
    assert instance_count() == 0


async def test_direct_consumption_runs_on_the_loop_of_the_application(
    broker: ServerThread,
) -> None:
    consumer = consumer_of(broker)
    loops: list[asyncio.AbstractEventLoop] = []

    @consumer.subscribe("T")
    async def handle(message: MessageExt) -> None:
        loops.append(asyncio.get_running_loop())

    def ask() -> Any:
        async def call() -> Command:
            control = min(broker.server.connections, key=lambda each: each.remote_address[1])
            code = RequestCode.CONSUME_MESSAGE_DIRECTLY
            ext = {"consumerGroup": "g"}
            return await control.call(Command(code=code, ext=ext, body=records(0)), 10.0)

        return broker.run(call)

    async with asyncio.timeout(20):
        await consumer.start()
        answer = await asyncio.to_thread(ask)
        await consumer.stop()
    assert (answer.code, loops) == (0, [asyncio.get_running_loop()])


async def test_plain_functions_are_handed_messages_in_threads(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(10)
        names: set[str] = set()
        seen: list[bytes] = []
        consumer = w.consumer(concurrency=3)

        @consumer.subscribe("T")
        def handle(message: MessageExt) -> None:
            names.add(threading.current_thread().name)
            seen.append(message.body)
            if message.body == b"4":
                raise ValueError

        await w.start(consumer)
        await w.until(lambda: consumer.stats.sent_back == 1)
        await w.until(lambda: consumer.in_flight == 0)
        await w.finish(consumer.stop())
        assert sorted(seen) == [b"%d" % index for index in range(10)]
        assert all(name.startswith("g-handler-") for name in names)
        assert (w.committed(), consumer.stats.consumed) == (10, 9)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_generator_is_no_success(tmp_path: Path, orderly: bool) -> None:
    async with push_world(tmp_path) as w:
        await w.send(b"0")
        consumer = w.consumer(concurrency=1)

        def steps() -> Iterator[None]:
            yield

        consumer.subscribe("T", lambda message: steps(), orderly=orderly)
        await w.start(consumer)
        await w.until(lambda: consumer.stats.failed >= 1)
        assert consumer.stats.consumed == 0
        if not orderly:  # it goes back to the broker; in order it is tried again here
            await w.until(lambda: consumer.stats.sent_back == 1)
        await w.finish(consumer.stop())
        assert w.committed() == (0 if orderly else 1)


async def test_run_in_another_thread_leaves_signals_alone(broker: ServerThread) -> None:
    broker.pulls.found(0, records(0), 1)
    seen = threading.Event()

    async def main() -> None:
        consumer = consumer_of(broker)

        @consumer.subscribe("T")
        async def handle(message: MessageExt) -> None:
            seen.set()
            tasks.append(asyncio.ensure_future(consumer.stop()))

        tasks: list[asyncio.Future[None]] = []
        await consumer.run()
        await asyncio.gather(*tasks)

    async with asyncio.timeout(20):
        await asyncio.to_thread(asyncio.run, main())
    assert seen.is_set()


@pytest.mark.parametrize("has_queues", [False, True])
async def test_a_consumer_whose_loop_was_closed_leaves_its_group(
    broker: ServerThread, has_queues: bool
) -> None:
    consumers: list[PushConsumer] = []

    async def forget_to_stop() -> None:
        consumer = consumer_of(broker)
        consumers.append(consumer)
        consumer.subscribe("T", print)
        broker.members(consumer.client_id if has_queues else "somebody else")
        await consumer.start()
        if has_queues:
            await asyncio.to_thread(
                broker.wait_for, lambda: broker.count(RequestCode.PULL_MESSAGE) > 0
            )

    await asyncio.to_thread(asyncio.run, forget_to_stop())
    (consumer,) = consumers
    with pytest.raises(ClientStateError, match="runs on another event loop"):
        await consumer.stop()
    broker.members(consumer.client_id)  # a queue for it, which nobody there can consume
    broker.notify()
    await asyncio.to_thread(
        broker.wait_for, lambda: broker.count(RequestCode.UNREGISTER_CLIENT) == 1
    )
    await asyncio.to_thread(broker.wait_for, lambda: instance_count() == 0)
    abandoned = weakref.ref(consumer)
    consumers.clear()
    del consumer
    await eventually(lambda: is_collected(abandoned))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_made_before_a_fork_and_started_after() -> None:
    """Each child is a member of its own; the control thread is not started before."""
    consumer = PushConsumer("g", ClientOptions(namesrv="127.0.0.1:1", client_ip="127.0.0.1"))
    consumer.subscribe("T", print)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with contextlib.suppress(NoNameServerError):
                asyncio.run(consumer.start())
            os.write(write, consumer.client_id.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        of_child = pipe.read()
    os.waitpid(child, 0)
    assert of_child.startswith(f"127.0.0.1@{child}#")
    assert consumer.client_id.startswith(f"127.0.0.1@{os.getpid()}#")


async def test_a_stop_waits_for_functions_that_run(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(3)
        begun, gate = threading.Event(), threading.Event()
        seen: list[bytes] = []
        consumer = w.consumer(concurrency=1)

        @consumer.subscribe("T")
        def wait(message: MessageExt) -> None:
            seen.append(message.body)
            begun.set()
            gate.wait(10)

        await w.start(consumer)
        await w.until(begun.is_set)
        stopping = asyncio.ensure_future(consumer.stop())
        await w.clock.advance(seconds=5)
        assert not stopping.done()
        gate.set()
        await w.until(stopping.done)
        await stopping
        assert (seen, w.committed()) == ([b"0"], 1)


async def test_a_function_that_hangs_does_not_hold_up_the_stop_for_ever(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(1)
        begun, gate = threading.Event(), threading.Event()
        consumer = w.consumer()

        @consumer.subscribe("T")
        def hang(message: MessageExt) -> None:
            begun.set()
            gate.wait(10)

        await w.start(consumer)
        await w.until(begun.is_set)
        await w.finish(consumer.stop())
        assert w.committed() <= 0  # it will be delivered again
        gate.set()
        await w.until(
            lambda: not any(t.name.startswith("g-handler") for t in threading.enumerate())
        )
        assert w.committed() <= 0
        assert consumer.stats.consumed == 0
