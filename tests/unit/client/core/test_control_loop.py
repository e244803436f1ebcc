"""The two planes: a thread that nothing blocks, and what a forked child gets."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import cast

import pytest

from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import default_runtime
from skylark.client.core.control_loop import (
    THREAD_NAME,
    Control,
    Handover,
    InlineControl,
    shared_control,
)
from skylark.client.core.instance_registry import InstanceTable
from skylark.core.clock import LoopClock
from skylark.core.errors import ClientStateError
from skylark.net.transport import TcpNetwork
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import FakeConsumer


async def name_of_thread() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise ZeroDivisionError("there")


@pytest.fixture(params=["thread", "inline"])
async def control(request: pytest.FixtureRequest) -> Control:
    return shared_control() if request.param == "thread" else InlineControl()


async def test_work_runs_there_and_is_awaited_here(control: Control) -> None:
    here = threading.current_thread().name
    expected = here if isinstance(control, InlineControl) else THREAD_NAME
    assert await control.run(name_of_thread()) == expected
    with pytest.raises(ZeroDivisionError, match="there"):
        await control.run(fail())

    async def nested() -> str:
        return await control.run(name_of_thread())

    assert await control.run(nested()) == expected


async def test_work_that_is_cancelled_before_it_begins_leaves_no_warning() -> None:
    task = InlineControl().run(name_of_thread())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()


async def test_cancelling_the_wait_cancels_the_work(control: Control) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()  # for ever
        finally:
            ended.set()

    waiting = control.run(work())
    while not begun.is_set():
        await LoopClock().sleep(0.001)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    while not ended.is_set():
        await LoopClock().sleep(0.001)


async def test_callbacks_are_posted_in_order(control: Control) -> None:
    seen: list[int] = []
    for number in range(3):
        control.post(seen.append, number)
    await control.run(name_of_thread())
    assert seen == [0, 1, 2]


def test_there_is_one_thread_and_it_is_a_daemon() -> None:
    assert shared_control() is shared_control()
    (thread,) = [each for each in threading.enumerate() if each.name == THREAD_NAME]
    assert thread.daemon


async def test_a_callback_that_wants_to_exit_does_not_end_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def leave() -> None:
        raise SystemExit(3)

    control = shared_control()
    control.post(leave)
    assert await LoopClock().wait_for(control.run(name_of_thread()), 10.0) == THREAD_NAME
    assert "interrupted the loop of a client" in caplog.text


async def test_calls_are_handed_over_in_order_and_survive_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[int] = []
    handover = Handover(asyncio.get_running_loop())

    def post_all() -> None:
        for number in range(1_000):
            handover.post(seen.append, number)
            if number == 500:
                handover.post(divmod, 1, 0)

    await asyncio.to_thread(post_all)
    while len(seen) < 1_000:
        await LoopClock().sleep(0.001)
    assert seen == list(range(1_000))
    assert "a call from another thread failed" in caplog.text


def test_a_closed_loop_takes_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    handover = Handover(loop)
    assert not handover.post(print)
    assert not handover.post(print)  # and says so again


class InterruptedLoop:
    """A loop that Ctrl-C hits when it is woken for the first time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._interrupts = True

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        if self._interrupts:
            self._interrupts = False
            raise KeyboardInterrupt
        self._loop.call_soon_threadsafe(callback)


async def test_an_interrupt_while_a_loop_is_woken_loses_no_call() -> None:
    seen: list[int] = []
    loop = InterruptedLoop(asyncio.get_running_loop())
    handover = Handover(cast(asyncio.AbstractEventLoop, loop))
    with pytest.raises(KeyboardInterrupt):
        handover.post(seen.append, 1)
    assert handover.post(seen.append, 2)
    while len(seen) < 2:
        await LoopClock().sleep(0.001)
    assert seen == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_a_clear_error_and_can_start_anew() -> None:
    """In a process of its own: forking the test runner with its threads is asking for trouble."""
    text = textwrap.dedent(
        """
        import asyncio, os, warnings
        warnings.simplefilter("ignore")
        from skylark.client.core.control_loop import shared_control
        from skylark.client.core.instance_registry import acquire_instance, instance_count
        from skylark.client.core.client_options import ClientOptions
        from skylark.core.errors import ClientStateError

        async def one():
            return 1

        async def ask(control):
            return await control.run(one())

        parent = shared_control()
        assert asyncio.run(ask(parent)) == 1
        options = ClientOptions(namesrv="127.0.0.1:1")
        instance = acquire_instance(options, "id")
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(instance.start())
            except ClientStateError as error:
                assert "forked" in str(error), error
            else:
                os._exit(3)
            try:
                parent.post(print)
            except ClientStateError:
                pass
            else:
                os._exit(4)
            assert instance_count() == 0
            assert shared_control() is not parent
            assert asyncio.run(ask(shared_control())) == 1
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert asyncio.run(ask(parent)) == 1
        print("well")
        """
    )
    # No stop: the daemon thread must not keep the program from ending, nor disturb its end.
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")


async def test_heartbeats_go_on_while_the_application_blocks_its_loop() -> None:
    """The server runs on the control loop, so that it can answer meanwhile."""
    control = shared_control()
    beats = threading.Semaphore(0)

    def beat(request: Command) -> Command:
        beats.release()
        return response_to(request, 0)

    async def serve() -> ScriptedServer:
        server = ScriptedServer(TcpNetwork(), LoopClock())
        await server.start()
        server.serve_route("T", a=server.address)
        server.answer(RequestCode.HEART_BEAT, beat)
        return server

    server = await control.run(serve())
    table = InstanceTable()
    options = ClientOptions(namesrv=server.address, heartbeat_interval=0.01)
    instance = table.acquire(options, "id", default_runtime())
    await instance.start()
    await instance.register_consumer(FakeConsumer("g", "T"))
    assert await instance.refresh_route("T") is not None
    assert await instance.heartbeat_all()
    for _ in range(5):
        assert beats.acquire(timeout=30)  # blocks this loop
    link = instance.open_link()
    assert link.loop is asyncio.get_running_loop()
    assert (await link.call(server.address, Command(code=34))).code == 0
    await link.release()
    await instance.release()
    await control.run(server.stop())
    assert len(table) == 0

    async def left() -> list[str]:
        names = [
            task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()
        ]
        return [name for name in names if "id" in name]

    assert await control.run(left()) == []


async def test_a_control_of_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    control = InlineControl()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ClientStateError, match="was forked"):
        control.run(name_of_thread())
