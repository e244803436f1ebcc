"""Threads of ours are daemons, and hand results and errors back."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import subprocess
import sys
import textwrap
import threading

import pytest

from skylark.client.core.threads import (
    DaemonExecutor,
    LoopThread,
    SerialThread,
    call_in_thread,
)
from skylark.core.errors import ClientStateError

WAIT_S = 10


async def test_a_function_runs_in_a_daemon_thread_with_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("seen")

    def work(number: int) -> tuple[int, str, bool]:
        return number, variable.get(), threading.current_thread().daemon

    assert await call_in_thread(work, 7) == (7, "seen", True)


async def test_whatever_it_raises_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        await call_in_thread(divmod, 1, 0)


@pytest.mark.parametrize("error", [StopIteration(), SystemExit(3), KeyboardInterrupt()])
async def test_what_would_end_a_loop_becomes_an_ordinary_error(error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(RuntimeError, match=f"work raised {type(error).__name__}"):
        await call_in_thread(work)


async def test_a_cancelled_wait_leaves_the_function_alone() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert go_on.wait(WAIT_S)
        ended.set()

    task = asyncio.create_task(call_in_thread(work))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    assert ended.wait(WAIT_S)


def test_an_executor_of_daemons() -> None:
    executor = DaemonExecutor(2)
    both_run = threading.Barrier(2)
    futures = [executor.submit(both_run.wait, WAIT_S) for _ in range(2)]
    assert sorted(future.result(WAIT_S) for future in futures) == [0, 1]
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result(WAIT_S)
    threads = {executor.submit(threading.current_thread).result(WAIT_S) for _ in range(20)}
    assert len(threads) <= 2
    assert all(thread.daemon for thread in threads)


def test_a_cancelled_future_is_not_worked_on() -> None:
    executor, go_on = DaemonExecutor(1), threading.Event()
    first = executor.submit(go_on.wait, WAIT_S)
    second = executor.submit(pytest.fail, "it was cancelled")
    assert second.cancel()
    go_on.set()
    assert first.result(WAIT_S)
    assert executor.submit(int, "3").result(WAIT_S) == 3


def test_calls_in_order_whatever_they_raise(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    ended = threading.Event()
    thread = SerialThread("listeners")

    def fail() -> None:
        raise LookupError

    with caplog.at_level(logging.ERROR):
        thread.post(seen.append, 1)
        thread.post(fail)
        thread.post(seen.append, 2)
        thread.post(ended.set)
        assert ended.wait(WAIT_S)
    assert seen == [1, 2]
    assert "a listener failed" in caplog.text


def test_a_thread_for_calls_ends_after_those_that_wait_when_it_is_closed() -> None:
    seen: list[int] = []
    go_on = threading.Event()
    thread = SerialThread("to-be-closed")
    thread.post(go_on.wait, WAIT_S)
    thread.post(seen.append, 1)
    (running,) = [each for each in threading.enumerate() if each.name == "to-be-closed"]
    thread.close()
    thread.post(seen.append, 2)
    go_on.set()
    running.join(WAIT_S)
    assert not running.is_alive()
    assert seen == [1]
    SerialThread("never begun").close()


def run_program(program: str) -> list[str]:
    """The lines that a program prints, which ends well and logs nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_loop_ends_before_the_interpreter_destroys_it() -> None:
    lines = run_program("""
        import asyncio, atexit, os, threading

        def last():
            print([t.name for t in threading.enumerate() if t.name.startswith("skylark")])
            try:
                shared_loop_thread().call_plain(int)
            except ClientStateError as error:
                print(str(error).split(":")[0])
            try:
                asyncio.run(on_control())
            except ClientStateError as error:
                print(str(error).split(":")[0])

        async def on_control():
            return await shared_control().run(asyncio.sleep(0, "done"))

        atexit.register(last)  # before the import: called after the end of the loops

        from skylark.client.blocking.event_loop_thread import shared_loop_thread
        from skylark.client.core.control_loop import shared_control
        from skylark.core.errors import ClientStateError

        shared_control()
        shared_loop_thread().call_plain(int)
        if os.fork() == 0:
            raise SystemExit(0)  # a child leaves the loops of its parent alone
        os.wait()
        print(shared_loop_thread().call_plain(int), asyncio.run(on_control()))
    """)
    assert lines[-4:] == ["0 done", "[]", "the interpreter is ending", "the interpreter is ending"]


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("can't create new thread at interpreter shutdown", ClientStateError, "is ending"),
        ("can't start new thread", RuntimeError, "can't start new thread"),
    ],
)
def test_a_loop_whose_thread_cannot_start_is_closed(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: type[Exception], sentence: str
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(threading.Thread, "start", fail)
    loop = asyncio.new_event_loop()
    with pytest.raises(kind, match=sentence):
        LoopThread(loop, "never-begun")
    assert loop.is_closed()


def test_a_client_may_be_stopped_at_exit() -> None:
    lines = run_program("""
        import asyncio, atexit

        from skylark.client.blocking.event_loop_thread import shared_loop_thread
        from skylark.client.core.control_loop import shared_control

        async def on_control():
            return await shared_control().run(asyncio.sleep(0, "stopped"))

        # Registered before the first loop starts.
        atexit.register(lambda: print(asyncio.run(on_control())))
        atexit.register(lambda: print(shared_loop_thread().call_plain(int)))
        shared_loop_thread().call_plain(int)
        asyncio.run(on_control())
        print("ends")
    """)
    assert lines == ["ends", "0", "stopped"]
