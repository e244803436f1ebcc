"""core/lifecycle.py: order, undo, errors and cancellation of components; ownership of tasks."""

from __future__ import annotations

import asyncio
import logging

import pytest

from skylark.core.clock import yield_once
from skylark.core.lifecycle import (
    TASK_COUNT_MAX,
    Lifecycle,
    LifecycleError,
    State,
    TaskLimitError,
    Tasks,
)
from skylark.testing.virtual_clock import VirtualClock


class Recorder:
    """A component that notes its calls, fails on demand and may wait for a signal."""

    def __init__(
        self,
        name: str,
        calls: list[str],
        *,
        start_error: Exception | None = None,
        stop_error: Exception | None = None,
        gate: asyncio.Event | None = None,
        stop_gate: asyncio.Event | None = None,
    ) -> None:
        self.name = name
        self.calls = calls
        self.start_error = start_error
        self.stop_error = stop_error
        self.gate = gate
        self.stop_gate = stop_gate

    async def start(self) -> None:
        self.calls.append(f"start {self.name}")
        if self.gate is not None:
            await self.gate.wait()
        if self.start_error is not None:
            raise self.start_error

    async def stop(self) -> None:
        self.calls.append(f"stop {self.name}")
        if self.stop_gate is not None:
            await self.stop_gate.wait()
        if self.stop_error is not None:
            raise self.stop_error


async def test_starts_in_order_and_stops_in_reverse() -> None:
    calls: list[str] = []
    app = Lifecycle("app")
    store = app.add(Recorder("store", calls))
    app.add(Recorder("server", calls), "the server")
    assert store.name == "store"
    await app.start()
    assert calls == ["start store", "start server"]
    await app.stop()
    assert calls == ["start store", "start server", "stop server", "stop store"]
    assert app.state is State.STOPPED


async def test_runs_once() -> None:
    app = Lifecycle("app")
    await app.start()
    with pytest.raises(LifecycleError, match="app cannot start: it is running"):
        await app.start()
    with pytest.raises(LifecycleError, match="nothing can be added"):
        app.add(Recorder("late", []))
    await app.stop()
    await app.stop()
    with pytest.raises(LifecycleError, match="it is stopped"):
        await app.start()


async def test_stop_before_start_prevents_it() -> None:
    calls: list[str] = []
    app = Lifecycle("app")
    app.add(Recorder("a", calls))
    await app.stop()
    with pytest.raises(LifecycleError):
        await app.start()
    assert calls == []


async def test_failing_start_stops_what_was_started(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    app = Lifecycle("app")
    app.add(Recorder("a", calls))
    app.add(Recorder("b", calls, stop_error=ValueError("b will not stop")))
    app.add(Recorder("c", calls, start_error=OSError("port in use")))
    app.add(Recorder("d", calls))
    with pytest.raises(OSError, match="port in use"):
        await app.start()
    assert calls == ["start a", "start b", "start c", "stop b", "stop a"]
    assert app.state is State.STOPPED
    assert "undoing a failed start: b will not stop" in caplog.text
    await app.stop()
    assert calls[-1] == "stop a"


async def test_stop_continues_after_errors_and_raises_them_all() -> None:
    calls: list[str] = []
    app = Lifecycle("app")
    app.add(Recorder("a", calls, stop_error=ValueError("a")))
    app.add(Recorder("b", calls))
    app.add(Recorder("c", calls, stop_error=OSError("c")))
    await app.start()
    with pytest.raises(ExceptionGroup, match="app did not stop cleanly") as raised:
        await app.stop()
    assert [str(error) for error in raised.value.exceptions] == ["c", "a"]
    assert raised.value.exceptions[0].__notes__ == ["while app stopped Recorder"]
    assert calls[3:] == ["stop c", "stop b", "stop a"]


async def test_cancelled_start_stops_what_was_started() -> None:
    calls: list[str] = []
    app = Lifecycle("app")
    app.add(Recorder("a", calls))
    app.add(Recorder("b", calls, gate=asyncio.Event()))
    task = asyncio.create_task(app.start())
    await VirtualClock().drain()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls == ["start a", "start b", "stop a"]


async def test_stop_during_start_ends_it_after_the_component_that_is_starting() -> None:
    calls: list[str] = []
    gate = asyncio.Event()
    app = Lifecycle("app")
    app.add(Recorder("a", calls, gate=gate))
    app.add(Recorder("b", calls))
    starting = asyncio.create_task(app.start())
    await VirtualClock().drain()
    stopping = asyncio.create_task(app.stop())
    await VirtualClock().drain()
    assert calls == ["start a"]
    gate.set()
    await stopping
    with pytest.raises(LifecycleError, match="app was stopped while it started"):
        await starting
    assert calls == ["start a", "stop a"]


async def test_concurrent_stops_end_together() -> None:
    calls: list[str] = []
    gate = asyncio.Event()
    app = Lifecycle("app")
    app.add(Recorder("a", calls, stop_gate=gate))
    await app.start()
    first, second = asyncio.create_task(app.stop()), asyncio.create_task(app.stop())
    await VirtualClock().drain()
    assert not second.done()
    gate.set()
    await asyncio.gather(first, second)
    assert calls == ["start a", "stop a"]


async def test_cancelled_stop_still_stops_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    app = Lifecycle("app")
    app.add(Recorder("a", calls, stop_error=ValueError("a broke")))
    app.add(Recorder("b", calls, stop_gate=asyncio.Event()))
    await app.start()
    task = asyncio.create_task(app.stop())
    await VirtualClock().drain()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls[2:] == ["stop b", "stop a"]
    assert "a broke" in caplog.text


async def forever() -> None:
    await asyncio.Event().wait()


async def fail(error: Exception) -> None:
    await yield_once()
    raise error


async def test_tasks_are_named_kept_and_counted() -> None:
    tasks = Tasks("owner")

    async def answer() -> int:
        await yield_once()
        return 42

    task = tasks.spawn(answer(), name="answer")
    assert task.get_name() == "owner:answer"
    assert len(tasks) == 1
    assert await task == 42
    await yield_once()
    assert len(tasks) == 0


async def test_failure_is_logged_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    reported: list[tuple[str, str]] = []
    tasks = Tasks("owner", on_failure=lambda name, error: reported.append((name, str(error))))
    tasks.spawn(fail(ValueError("broken")), name="job")
    await tasks.wait()
    await VirtualClock().drain()
    assert reported == [("owner:job", "broken")]
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in failures] == ["task owner:job failed: broken"]
    await tasks.cancel_and_wait()  # and it is not raised a second time


async def test_cancel_and_wait_ends_all_and_gathers_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = Tasks("owner")

    async def stubborn(text: str) -> None:
        try:
            await forever()
        finally:
            raise ValueError(text)

    plain = tasks.spawn(forever(), name="plain")
    tasks.spawn(stubborn("one"), name="one")
    tasks.spawn(stubborn("two"), name="two")
    await VirtualClock().drain()
    with pytest.raises(ExceptionGroup, match="tasks of owner failed while ending") as raised:
        await tasks.cancel_and_wait()
    assert sorted(str(error) for error in raised.value.exceptions) == ["one", "two"]
    assert plain.cancelled()
    assert len(tasks) == 0
    assert caplog.records == []  # raised, so not logged as well
    await tasks.cancel_and_wait()


async def test_refuses_after_close() -> None:
    tasks = Tasks("owner")
    running = tasks.spawn(forever(), name="running")
    tasks.close()
    assert tasks.closed
    with pytest.raises(LifecycleError, match="owner is closed: late cannot start"):
        tasks.spawn(forever(), name="late")
    await yield_once()
    assert not running.done()
    await tasks.cancel_and_wait()
    assert running.cancelled()


async def test_limit_and_its_answer() -> None:
    tasks = Tasks("owner", limit=2)
    first = tasks.spawn(forever(), name="first")
    tasks.spawn(forever(), name="second")
    with pytest.raises(TaskLimitError, match="already runs 2 tasks") as raised:
        tasks.spawn(forever(), name="third")
    assert raised.value.retriable
    first.cancel()
    await VirtualClock().drain()
    tasks.spawn(forever(), name="third")
    await tasks.cancel_and_wait()


async def test_an_owner_without_a_limit() -> None:
    tasks = Tasks("owner", limit=None)
    for number in range(TASK_COUNT_MAX + 1):
        tasks.spawn(forever(), name=str(number))
    assert len(tasks) == TASK_COUNT_MAX + 1
    await tasks.cancel_and_wait()


async def test_a_task_may_end_its_own_owner() -> None:
    tasks = Tasks("owner")
    other = tasks.spawn(forever(), name="other")
    ender = tasks.spawn(tasks.cancel_and_wait(), name="ender")
    await ender
    assert other.cancelled()
    assert not ender.cancelled()


async def test_wait_lets_tasks_finish() -> None:
    clock = VirtualClock()
    tasks = Tasks("owner")
    tasks.spawn(clock.sleep(3.0), name="slow")
    tasks.close()
    waiting = asyncio.create_task(tasks.wait())
    await clock.advance(2.0)
    assert not waiting.done()
    await clock.advance(1.0)
    assert waiting.done()
    assert len(tasks) == 0
