"""testing/virtual_clock.py: order of timers, draining, hooks, several loops, and the bounds."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from skylark.core.clock import Clock, yield_once
from skylark.testing import virtual_clock as virtual
from skylark.testing.virtual_clock import START_MS, NotDrainedError, VirtualClock
from tests.support.loops import LOOP_FACTORIES, LoopFactory, on_both_loops


async def test_time_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock()
    start = clock.monotonic()
    await clock.drain()
    assert (clock.now_ms(), clock.monotonic()) == (START_MS, start)
    await clock.advance(1.5, minutes=1, hours=2, ms=7)
    assert clock.now_ms() == START_MS + 1_500 + 60_000 + 7_200_000 + 7
    assert clock.monotonic() == pytest.approx(start + 7_261.507, abs=1e-9)
    assert VirtualClock(5).now_ms() == 5


async def test_is_a_clock() -> None:
    clock: Clock = VirtualClock()
    assert clock.monotonic() > 0  # 0 would hide code that takes 0 for "never"


async def test_steps_add_up_without_drift() -> None:
    clock = VirtualClock()
    ran: list[int] = []
    clock.call_later(0.8, ran.append, 1)
    for _ in range(7):
        await clock.advance(0.1)
    assert ran == []
    await clock.advance(0.1)  # as floats, 8 times 0.1 is a little less than 0.8
    assert ran == [1]
    assert clock.now_ms() == START_MS + 800


async def test_timers_run_by_time_and_then_by_registration() -> None:
    clock = VirtualClock()
    base = clock.monotonic()
    ran: list[tuple[str, float]] = []

    def note(name: str) -> None:
        ran.append((name, round(clock.monotonic() - base, 3)))

    clock.call_later(2.0, note, "c")
    clock.call_later(1.0, note, "a")
    clock.call_later(2.0, note, "d")
    clock.call_at(base + 1.0, note, "b")
    clock.call_later(9.0, note, "late")
    clock.call_later(1.5, note, "never").cancel()
    await clock.advance(8.999)
    assert ran == [("a", 1.0), ("b", 1.0), ("c", 2.0), ("d", 2.0)]
    assert clock.timer_count == 1
    await clock.advance(ms=1)
    assert ran[-1] == ("late", 9.0)


async def test_timer_set_by_a_timer_runs_within_the_same_advance_in_order() -> None:
    clock = VirtualClock()
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        clock.call_later(0.0, ran.append, "same time, set later")
        clock.call_later(1.0, ran.append, "one second later")

    clock.call_later(1.0, first)
    clock.call_later(1.0, ran.append, "same time, set before")
    clock.call_later(1.5, ran.append, "between")
    await clock.advance(2.0)
    assert ran == [
        "first",
        "same time, set before",
        "same time, set later",
        "between",
        "one second later",
    ]


async def test_tasks_woken_by_a_timer_run_before_the_next_timer() -> None:
    clock = VirtualClock()
    ran: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        for turn in range(3):
            await clock.sleep(seconds)
            for _ in range(5):
                await yield_once()
            ran.append(f"{name}{turn}@{clock.now_ms() - START_MS}")

    tasks = [asyncio.create_task(sleeper("a", 0.002)), asyncio.create_task(sleeper("b", 0.003))]
    await clock.advance(ms=9)
    await asyncio.gather(*tasks)
    assert ran == ["a0@2", "b0@3", "a1@4", "b1@6", "a2@6", "b2@9"]


async def test_timer_due_at_once_runs_without_advance() -> None:
    clock = VirtualClock()
    ran: list[str] = []
    clock.call_later(0.0, ran.append, "now")
    clock.call_at(clock.monotonic() - 60.0, ran.append, "overdue")
    stopped = clock.call_later(0.0, ran.append, "never")
    stopped.cancel()
    assert ran == []
    await clock.drain()
    assert ran == ["now", "overdue"]
    assert clock.timer_count == 0


async def test_timer_cancelled_by_an_earlier_one_does_not_run() -> None:
    clock = VirtualClock()
    ran: list[str] = []
    second = clock.call_later(1.0, ran.append, "second")
    clock.call_later(1.0, ran.append, "third")
    clock.call_at(clock.monotonic() + 0.5, second.cancel)
    await clock.advance(1.0)
    assert ran == ["third"]
    assert second.cancelled()
    second.cancel()
    assert clock.timer_count == 0


async def test_cancel_after_the_timer_ran_is_harmless() -> None:
    clock = VirtualClock()
    ran: list[str] = []
    timer = clock.call_later(1.0, ran.append, "ran")
    await clock.advance(1.0)
    timer.cancel()
    assert not timer.cancelled()
    assert ran == ["ran"]
    assert clock.timer_count == 0


async def test_cancelled_timers_are_swept() -> None:
    clock = VirtualClock()
    keep = [clock.call_later(60.0 + i, print) for i in range(10)]
    for _ in range(5_000):
        clock.call_later(3.0, print).cancel()
    assert clock.timer_count == len(keep)
    assert len(clock._timers) < 2_000


async def test_callbacks_keep_the_context_of_their_registration() -> None:
    clock = VirtualClock()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[str] = []
    variable.set("at registration")
    clock.call_later(1.0, lambda: seen.append(variable.get()))
    variable.set("at advance")
    await clock.advance(1.0)
    assert seen == ["at registration"]


async def test_hooks_run_after_each_move_and_before_the_timers() -> None:
    clock = VirtualClock()
    events: list[object] = []

    def hook(from_ms: int, to_ms: int, clients_alive: bool) -> None:
        assert clock.now_ms() == to_ms
        events.append((from_ms - START_MS, to_ms - START_MS, clients_alive))

    remove = clock.on_advance(hook)
    clock.call_later(1.0, events.append, "a")
    clock.call_later(1.0, events.append, "b")
    await clock.advance(3.0)
    assert events == [(0, 1_000, True), "a", "b", (1_000, 3_000, True)]
    events.clear()
    await clock.advance(1.0, clients_alive=False)
    assert events == [(3_000, 4_000, False)]
    events.clear()
    remove()
    await clock.advance(1.0)
    assert events == []


class LivenessTable:
    """As a broker would do it: one timer scans; open connections are renewed while time flies."""

    def __init__(self, clock: VirtualClock, expiry_ms: int) -> None:
        self.clock = clock
        self.expiry_ms = expiry_ms
        self.last_seen_ms = {"client": clock.now_ms()}
        self.expired: list[str] = []
        clock.on_advance(self.renew)
        clock.call_later(10.0, self.scan)

    def renew(self, _from_ms: int, to_ms: int, clients_alive: bool) -> None:
        if clients_alive:
            self.last_seen_ms = dict.fromkeys(self.last_seen_ms, to_ms)

    def scan(self) -> None:
        for name, seen_ms in list(self.last_seen_ms.items()):
            if seen_ms + self.expiry_ms < self.clock.now_ms():
                self.expired.append(name)
                del self.last_seen_ms[name]
        self.clock.call_later(10.0, self.scan)


async def test_live_clients_survive_unless_told_otherwise() -> None:
    clock = VirtualClock()
    table = LivenessTable(clock, expiry_ms=120_000)
    await clock.advance(hours=2)
    assert table.expired == []
    await clock.advance(minutes=2, clients_alive=False)
    assert table.expired == []
    await clock.advance(10.0, clients_alive=False)
    assert table.expired == ["client"]


async def test_drains_real_sockets_between_timers() -> None:
    clock = VirtualClock()
    log: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            log.append(f"server {line.decode().strip()} @{clock.now_ms() - START_MS}")
            writer.write(line * 20_000)  # more than a socket buffer holds
        writer.close()
        await writer.wait_closed()

    async def ping(writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        for beat in range(3):
            await clock.sleep(1.0)
            writer.write(b"beat%d\n" % beat)
            answer = await reader.readexactly(6 * 20_000)
            assert answer[:6] == b"beat%d\n" % beat
            log.append(f"client beat{beat} @{clock.now_ms() - START_MS}")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(host, port)
    task = asyncio.create_task(ping(writer, reader))
    await clock.advance(10.0)
    await task
    assert log == [
        f"{side} beat{beat} @{1_000 * (beat + 1)}"
        for beat in range(3)
        for side in ("server", "client")
    ]
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


async def test_runs_what_threads_post() -> None:
    clock = VirtualClock()
    loop = asyncio.get_running_loop()
    ran: list[str] = []
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(ran.append, "posted"))
    thread.start()
    thread.join()
    await clock.drain()
    assert ran == ["posted"]


async def test_time_stands_still_while_held() -> None:
    clock = VirtualClock()
    loop = asyncio.get_running_loop()
    synced: list[int] = []
    pending = threading.Event()
    release = threading.Event()

    def note() -> None:
        synced.append(clock.now_ms())
        pending.clear()

    def sync() -> None:
        release.wait(10.0)
        loop.call_soon_threadsafe(note)

    remove = clock.hold_while(pending.is_set)
    thread = threading.Thread(target=sync)

    def begin() -> None:
        pending.set()
        thread.start()
        loop.call_later(0.01, release.set)  # real time: the disk takes a while

    clock.call_later(1.0, begin)
    await clock.advance(60.0)
    thread.join()
    assert synced == [START_MS + 1_000]
    remove()
    pending.set()
    await clock.advance(1.0)


async def test_hold_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "_WAIT_REAL_SECONDS_MAX", 0.02)
    clock = VirtualClock()
    clock.hold_while(lambda: True)
    with pytest.raises(NotDrainedError, match="hold_while"):
        await clock.advance(1.0)


class LoopThread:
    """A loop on a thread of its own, as the client keeps for its heartbeats."""

    def __init__(self, factory: LoopFactory) -> None:
        self.loop = factory()
        self._thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self) -> asyncio.AbstractEventLoop:
        self._thread.start()
        return self.loop

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.mark.parametrize("factory", LOOP_FACTORIES.values(), ids=list(LOOP_FACTORIES))
async def test_timers_fire_on_the_loop_that_set_them(factory: LoopFactory) -> None:
    clock = VirtualClock()
    here = asyncio.get_running_loop()
    seen: list[tuple[str, int, bool]] = []

    def note(name: str) -> None:
        seen.append((name, clock.now_ms() - START_MS, asyncio.get_running_loop() is here))

    async def heartbeats() -> None:
        for _ in range(2):
            await clock.sleep(30.0)
            note("there")
            here.call_soon_threadsafe(note, "answer")

    with LoopThread(factory) as loop:
        started = asyncio.run_coroutine_threadsafe(heartbeats(), loop)
        ready: asyncio.Future[None] = here.create_future()
        # One hop more than the task's first step needs, so that it has set its timer.
        loop.call_soon_threadsafe(loop.call_soon, here.call_soon_threadsafe, ready.set_result, None)
        await ready
        clock.call_later(45.0, note, "here")
        await clock.advance(60.0)
        assert started.done()
    assert seen == [
        ("there", 30_000, False),
        ("answer", 30_000, True),
        ("here", 45_000, True),
        ("there", 60_000, False),
        ("answer", 60_000, True),
    ]
    await clock.advance(1.0)  # the other loop is closed by now


@on_both_loops
async def test_ticker_on_both_loops() -> None:
    clock = VirtualClock()
    ran: list[int] = []

    async def ticker() -> None:
        for _ in range(3):
            await clock.sleep(1.0)
            ran.append(clock.now_ms() - START_MS)

    task = asyncio.create_task(ticker())
    await clock.advance(3.0)
    await task
    assert ran == [1_000, 2_000, 3_000]


async def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        await VirtualClock().advance(-1.0)


async def test_only_one_advance_at_a_time() -> None:
    clock = VirtualClock()
    errors: list[NotDrainedError] = []

    async def nested() -> None:
        await clock.sleep(1.0)
        try:
            await clock.advance(1.0)
        except NotDrainedError as error:
            errors.append(error)

    task = asyncio.create_task(nested())
    await clock.advance(5.0)
    await task
    assert "already advancing" in str(errors[0])
    await clock.advance(1.0)  # and the clock is still usable
    assert clock.now_ms() == START_MS + 6_000


async def test_busy_task_is_an_error_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "_TURNS_MAX", 500)
    clock = VirtualClock()

    async def spin() -> None:
        while True:
            await yield_once()

    task = asyncio.create_task(spin())
    with pytest.raises(NotDrainedError, match="still busy after 500 turns"):
        await clock.advance(1.0)
    task.cancel()
    await clock.advance(1.0)
    assert task.cancelled()


async def test_days_are_a_unit_too() -> None:
    clock = VirtualClock()
    await clock.advance(days=1.5)
    assert clock.now_ms() == START_MS + 36 * 3_600_000


async def test_finish_gives_work_the_time_it_needs_and_no_more() -> None:
    clock = VirtualClock()
    clock.call_later(7200, lambda: None)

    async def work() -> str:
        await clock.sleep(3.5)
        await clock.sleep(3600)
        return "done"

    assert await clock.finish(work()) == "done"
    assert clock.now_ms() == START_MS + 3_603_500


async def test_finish_raises_what_the_work_raises_and_gives_up_without_timers() -> None:
    clock = VirtualClock()

    async def fail() -> None:
        await clock.sleep(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await clock.finish(fail())
    never = asyncio.get_running_loop().create_future()
    clock.call_later(1, lambda: None).cancel()
    with pytest.raises(NotDrainedError, match="no timer is left"):
        await clock.finish(never)
    assert never.cancelled()


async def test_finish_gives_up_after_a_time_although_timers_go_on() -> None:
    clock = VirtualClock()

    async def tick() -> None:
        while True:
            await clock.sleep(60)

    ticking = asyncio.ensure_future(tick())
    never = asyncio.get_running_loop().create_future()
    with pytest.raises(
        NotDrainedError, match=r"still waits after 262800 s of virtual time: .*within="
    ):
        await clock.finish(never)
    assert never.cancelled()
    assert clock.now_ms() == START_MS + 73 * 3_600_000
    with pytest.raises(NotDrainedError, match="still waits after 90 s of virtual time"):
        await clock.finish(clock.sleep(91), within=90)
    await clock.finish(clock.sleep(90), within=90)  # the limit itself is in time
    await clock.finish(clock.sleep(80 * 3_600), within=90 * 3_600)
    ticking.cancel()


async def test_timer_that_rearms_without_delay_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "_TIMERS_MAX", 100)
    clock = VirtualClock()
    stop: list[bool] = []

    def rearm() -> None:
        if not stop:
            clock.call_later(0.0, rearm)

    clock.call_later(1.0, rearm)
    with pytest.raises(NotDrainedError, match="more than 100 timers"):
        await clock.advance(2.0)
    stop.append(True)
    await clock.drain()
