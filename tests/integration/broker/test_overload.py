"""A whole broker under pressure, on real sockets and both loops: stalls, and clients that are deaf.

The stalls are real: an append that hangs in the file layer, or work that holds the loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.broker.overload.overload_guard import Reason
from skylark.core.clock import LoopClock, TimerHandle
from skylark.store.errors import StoreFileError
from skylark.store.file_system import FileSystem
from skylark.testing.fault_plan import FaultAction, Gate
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.message import iter_records
from tests.support.loops import on_both_loops
from tests.support.raw_client import DEADLINE_S, RawClient, pull_messages, send_message
from tests.unit.broker.stored import texts

WORK = 9998  # stands for any work that holds the loop; an administrator's request to the guard


class ShiftedClock(LoopClock):
    """The machine's clock, which can be put forward as if the loop had waited so long."""

    shift_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.shift_s

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        return super().call_at(when - self.shift_s, callback, *args)


class StallingDisk(FaultyFileSystem):
    """Lets the next append that needs more of the disk wait at a gate; the workers may go on."""

    gate: Gate | None = None

    def visit(
        self, point: str, action: str, path: Path, kind: type[StoreFileError] | None = None
    ) -> FaultAction:
        if (
            self.gate is not None
            and point == "files.allocate"
            and path.parent.name == "commitlog"
            and threading.current_thread() is threading.main_thread()
        ):
            gate, self.gate = self.gate, None
            gate.pass_through()
        return super().visit(point, action, path, kind)


@asynccontextmanager
async def running(
    root: Path, files: FileSystem | None = None, clock: LoopClock | None = None, **given: str
) -> AsyncIterator[Broker]:
    settings = texts(root, brokerIP1="127.0.0.1", listenPort="0", **given)
    broker = Broker(load_broker_config(settings), files=files, clock=clock)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def clients(broker: Broker, count: int) -> AsyncIterator[list[RawClient]]:
    connected = [RawClient(broker.address) for _ in range(count)]
    try:
        for client in connected:
            assert (await client.call(send_message())).code == 0
        yield connected
    finally:
        for client in connected:
            client.close()


def meanwhile(gate: Gate, act: Callable[[], None], seconds: float) -> threading.Thread:
    """When somebody stands at the gate: act, and let it go after some time."""

    def run() -> None:
        gate.wait_reached(DEADLINE_S)
        act()
        threading.Event().wait(seconds)
        gate.open()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@on_both_loops
@pytest.mark.spec("broker.13.22")
async def test_sends_behind_a_stalled_append_are_refused() -> None:
    disk, gate = StallingDisk(), Gate()
    async with (
        running(
            Path("/broker"),
            disk,
            osPageCacheBusyTimeOutMills="300",
            waitTimeMillsInSendQueue="1000",  # on a busy machine the loop itself may wait for less
            commitLogAllocateAhead="4096",
        ) as broker,
        clients(broker, 3) as (busy, other, third),
    ):

        def act() -> None:
            other.send(send_message(), pull_messages())
            third.send(Command(code=RequestCode.HEART_BEAT, body=b'{"clientID":"c"}'))

        thread = meanwhile(gate, act, 1.25)
        begun = LoopClock().monotonic()
        # The message does not fit into what is allocated: its append waits for the disk.
        disk.gate = gate
        busy.send(send_message(bytes(200_000)), send_message())
        stalled, behind, waited = await busy.answer(), await busy.answer(), await other.answer()
        elapsed_ms = (LoopClock().monotonic() - begun) * 1000
        thread.join()
        assert stalled.code == 0, "it is stored, only late"
        for refused in (behind, waited):
            assert refused.code == 2
            remark = refused.remark or ""
            assert remark.startswith(
                "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
            )
            waited_ms = int(remark.partition("queue: ")[2].partition("ms")[0])
            # Less than the stall: a wait for a processor just before it is subtracted, too.
            assert 1_000 <= waited_ms <= elapsed_ms
        assert (await other.answer()).code == 0, "a pull may wait for longer"
        assert (await third.answer()).code == 0, "and a heartbeat"
        assert broker.features.overload.guard.refused_counts[Reason.PAGE_CACHE_BUSY] == 2
        for client in (busy, other, third):
            assert (await client.call(send_message())).code == 0


@on_both_loops
@pytest.mark.spec("broker.13.22")
async def test_sends_that_waited_for_other_reasons_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, clients(broker, 2) as (busy, other):

        def work(_connection: object, request: Command) -> Command:
            other.send(send_message(), pull_messages())
            threading.Event().wait(0.25)
            return response_to(request, 0)

        broker.features.endpoint.server.dispatcher.add_hot(WORK, work)
        assert (await busy.call(Command(code=WORK))).code == 0
        refused = await other.answer()
        assert refused.code == 2
        assert (refused.remark or "").startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow ")
        assert (await other.answer()).code == 0
        counts = broker.features.overload.guard.refused_counts
        assert (counts[Reason.WAITED], counts[Reason.PAGE_CACHE_BUSY]) == (1, 0)
        assert (await other.call(send_message())).code == 0


@on_both_loops
@pytest.mark.spec("broker.13.22")
async def test_sends_behind_a_handler_that_computes_are_refused(tmp_path: Path) -> None:
    """It waits for nothing: the delay is processor time, however long the machine takes for it."""
    async with running(tmp_path) as broker, clients(broker, 2) as (busy, other):

        def compute(_connection: object, request: Command) -> Command:
            other.send(send_message(), pull_messages())
            until_s = time.thread_time() + 0.3
            while time.thread_time() < until_s:
                pass
            return response_to(request, 0)

        broker.features.endpoint.server.dispatcher.add_hot(WORK, compute)
        assert (await busy.call(Command(code=WORK))).code == 0
        refused = await other.answer()
        assert refused.code == 2
        remark = refused.remark or ""
        assert remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow ")
        assert int(remark.partition("queue: ")[2].partition("ms")[0]) >= 200
        assert (await other.answer()).code == 0, "a pull may wait for longer"
        counts = broker.features.overload.guard.refused_counts
        assert (counts[Reason.WAITED], counts[Reason.PAGE_CACHE_BUSY]) == (1, 0)
        assert (await other.call(send_message())).code == 0


async def sleep_and(broker: Broker, work: Callable[[], None]) -> None:
    await broker.context.clock.sleep(0.01)
    work()


#: How turns of the loop come about that read no bytes: services live on these.
WAYS: dict[str, Callable[[Broker, Callable[[], None]], object]] = {
    "timer": lambda broker, work: broker.context.clock.call_later(0.01, work),
    "task that slept": lambda broker, work: asyncio.ensure_future(sleep_and(broker, work)),
    "timer that wakes a task": lambda broker, work: broker.context.clock.call_later(
        0.01, lambda: asyncio.get_running_loop().call_soon(work)
    ),
    "thread of the store": lambda broker, work: broker.features.store._post(work),
}


@on_both_loops
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.spec("broker.13.22")
async def test_sends_that_waited_for_a_service_are_refused(tmp_path: Path, way: str) -> None:
    async with running(tmp_path) as broker, clients(broker, 1) as (client,):
        begun = WAYS[way](broker, lambda: stall(client))
        refused = await client.answer()
        assert refused.code == 2
        assert (refused.remark or "").startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow ")
        assert (await client.call(send_message())).code == 0
        del begun


def stall(client: RawClient) -> None:
    """Hold the loop, and have a message come meanwhile."""
    client.send(send_message())
    threading.Event().wait(0.25)


@on_both_loops
@pytest.mark.spec("broker.13.22")
async def test_sends_that_waited_for_a_saved_table_are_refused(tmp_path: Path) -> None:
    """What goes on after a thread: nothing else happens on the loop."""
    async with running(tmp_path) as broker, clients(broker, 1) as (client,):

        async def save() -> None:
            await broker.features.saver._in_thread(lambda: None)
            stall(client)

        saving = asyncio.create_task(save())
        assert (await client.answer()).code == 2
        await saving


@on_both_loops
@pytest.mark.spec("broker.13.22")
async def test_the_first_send_after_60_idle_seconds_is_accepted(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with running(tmp_path, clock=clock) as broker, clients(broker, 1) as (client,):
        for _ in range(3):
            await until(lambda: not broker.context.loop_watch.in_turn)  # it idles
            clock.shift_s += 60
            assert (await client.call(send_message())).code == 0
        assert broker.features.overload.guard.refused_counts[Reason.WAITED] == 0


@on_both_loops
async def test_with_fast_failure_off_nobody_is_refused(tmp_path: Path) -> None:
    async with (
        running(tmp_path, brokerFastFailureEnable="false") as broker,
        clients(broker, 1) as (client,),
    ):

        def work(_connection: object, request: Command) -> Command:
            threading.Event().wait(0.25)
            return response_to(request, 0)

        broker.features.endpoint.server.dispatcher.add_hot(WORK, work)
        client.send(Command(code=WORK), send_message())
        assert [(await client.answer()).code for _ in range(2)] == [0, 0]


async def until(condition: Callable[[], bool]) -> None:
    clock = LoopClock()
    async with clock.timeout(10):
        while not condition():
            await clock.sleep(0.001)


@on_both_loops
async def test_a_client_that_never_reads_pins_one_file_and_harms_nobody(tmp_path: Path) -> None:
    body = bytes(3_000_000)
    async with running(tmp_path) as broker, clients(broker, 1) as (client,):
        for _ in range(4):  # the log goes on in a second file
            assert (await client.call(send_message(body))).code == 0
        files = broker.features.store.log.files
        assert len(files.files) == 2
        first = files.files[0]
        deaf = RawClient(broker.address, receive_size=4096)
        deaf.send(*[pull_messages(offset) for offset in (1, 2, 1, 2, 1, 2)])
        await until(lambda: any(c.write_paused for c in broker.features.endpoint.connections))
        assert first.leases == 1
        assert 0 < broker.features.endpoint.held_size() < 4_000_000, (
            "one answer of six is on its way"
        )
        # Others are served, and the file is deleted as soon as nobody reads it any more.
        for _ in range(20):
            assert (await client.call(send_message())).code == 0
        answer = await client.call(pull_messages(1))
        assert [record.body for record in iter_records(answer.body or b"")] == [body]
        assert files.retire_oldest(LoopClock().monotonic()) is first
        assert files.retired_count == 1
        deaf.close()
        await until(lambda: first.leases == 0)
        await until(lambda: broker.features.endpoint.held_size() == 0)
        answer = await client.call(pull_messages(1))
        assert next(iter_records(answer.body or b"")).queue_offset > 1, "the file is gone"


@on_both_loops
async def test_a_broker_stops_although_a_client_does_not_read(tmp_path: Path) -> None:
    body = bytes(3_000_000)
    async with running(tmp_path) as broker, clients(broker, 1) as (client,):
        await client.call(send_message(body))
        deaf = RawClient(broker.address, receive_size=4096)
        deaf.send(*[pull_messages(1)] * 4)
        await until(lambda: any(c.write_paused for c in broker.features.endpoint.connections))
        (file,) = broker.features.store.log.files.files
        assert file.leases == 1
        for connection in broker.features.endpoint.connections:
            connection.abort()  # as the grace time would, later
        await broker.stop()
        assert file.leases == 0
        deaf.close()
    async with running(tmp_path) as again, clients(again, 1) as (client,):
        answer = await client.call(pull_messages(1))
        assert next(iter_records(answer.body or b"")).body == body


@on_both_loops
async def test_a_consumer_that_reads_slowly_gets_everything_in_order(tmp_path: Path) -> None:
    bodies = [bytes([number]) * 100_000 for number in range(60)]
    async with running(tmp_path) as broker, clients(broker, 1) as (client,):
        client.send(*[send_message(body) for body in bodies[:10]])
        assert [(await client.answer()).code for _ in range(10)] == [0] * 10
        for body in bodies[10:]:
            assert (await client.call(send_message(body))).code == 0
        slow = RawClient(broker.address, receive_size=4096)
        slow.send(*[pull_messages(offset) for offset in range(1, 61)])
        firsts = []
        for _ in range(60):
            answer = await slow.answer()
            firsts.append(next(iter_records(answer.body or b"")).body)
        assert firsts == bodies
        slow.close()
        await until(lambda: sum(f.leases for f in broker.features.store.log.files.files) == 0)
