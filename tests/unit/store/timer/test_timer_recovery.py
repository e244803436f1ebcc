"""The timer after crashes: at any operation, with any part of what was written."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.errors import StoreError
from skylark.store.timer.timer_store import TimerStore
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from tests.unit.store.timer.topics import DISK, Topic, deliver, new_timer, place, save

NOW = 1_000_000_000


class Run:
    """Random work on a timer; what was delivered is durable at once, as with a synchronous log."""

    def __init__(self, seed: int, files: FaultyFileSystem) -> None:
        self.draw = random.Random(seed)
        self.topic = Topic()
        self.delivered: list[int] = []
        self.now_ms = NOW
        self.files = files

    def work(self, timer: TimerStore, steps: int) -> None:
        for _ in range(steps):
            kind = self.draw.random()
            if kind < 0.5:
                self.topic.times_ms += [
                    self.now_ms // 1_000 * 1_000 + 1_000 * self.draw.randrange(90)
                    for _ in range(self.draw.randrange(1, 9))
                ]
                self.delivered += place(timer, self.topic, self.now_ms)
            elif kind < 0.8:
                self.now_ms += self.draw.randrange(20_000)
                self.delivered += deliver(timer, self.now_ms)
            else:
                save(timer, self.now_ms)

    def check(self) -> None:
        """Start again, and let everything become due: each message is there at least once."""
        timer = new_timer(self.files, self.topic)
        late = place(timer, self.topic, self.now_ms)
        rest = deliver(timer, self.now_ms + 200_000)
        arrived = {*self.delivered, *late, *rest}
        assert arrived == set(range(len(self.topic.times_ms)))
        assert len(rest) == len(set(rest))  # no message stands in the wheel twice
        assert timer.waiting_count == 0
        assert not set(late) & set(rest)


@pytest.mark.parametrize("seed", range(40))
def test_power_loss(seed: int) -> None:
    files = FaultyFileSystem(FaultPlan(seed))
    run = Run(seed, files)
    for _ in range(3):
        run.work(new_timer(run.files, run.topic), 12)
        run.files = run.files.power_loss()
    run.check()


@pytest.mark.parametrize("seed", range(10))
def test_kill(seed: int) -> None:
    run = Run(seed, FaultyFileSystem(FaultPlan(seed)))
    for _ in range(3):
        run.work(new_timer(run.files, run.topic), 12)
        run.files = run.files.kill()
    run.check()


@pytest.mark.parametrize("nth", range(1, 120, 3))
def test_the_machine_stops_at_any_operation(nth: int) -> None:
    plan = FaultPlan(nth)
    files = FaultyFileSystem(plan)
    plan.at("files.*", nth=nth, action=FaultAction.CUT)
    run = Run(nth % 5, files)
    try:
        for _ in range(3):
            timer = new_timer(files, run.topic)
            run.work(timer, 15)
            save(timer, run.now_ms)
            timer.close()
    except StoreError:
        assert not files.alive
    survivor = FaultyFileSystem(FaultPlan(nth))
    survivor._root = files.power_loss()._root
    run.files = survivor
    run.check()


def test_an_orderly_stop_repeats_nothing() -> None:
    files = FaultyFileSystem()
    run = Run(1, files)
    for _ in range(5):
        timer = new_timer(files, run.topic)
        run.work(timer, 20)
        save(timer, run.now_ms)
        timer.close()
    timer = new_timer(files, run.topic)
    run.delivered += place(timer, run.topic, run.now_ms)
    run.delivered += deliver(timer, run.now_ms + 200_000)
    assert sorted(run.delivered) == list(range(len(run.topic.times_ms)))


def lose(files: FaultyFileSystem, name: str) -> None:
    path = DISK / name
    if name == "timerlog":
        for entry in files.list_directory(path):
            files.remove(path / entry.name)
    else:
        files.remove(path)


@pytest.mark.parametrize("name", ["timerwheel", "timerlog"])
def test_lost_files(name: str) -> None:
    files = FaultyFileSystem()
    topic = Topic()
    timer = new_timer(files, topic)
    topic.times_ms = [NOW + 1_000 * n for n in range(20)]
    place(timer, topic, NOW)
    assert deliver(timer, NOW + 5_000) == [0, 1, 2, 3, 4]
    save(timer, NOW + 5_000)
    timer.close()
    lose(files, name)
    timer = new_timer(files, topic)
    if name == "timerwheel":
        assert timer.waiting_count == 15
    else:
        assert (timer.queue_offset, timer.placed_until, timer.is_rebuilding) == (0, 20, True)
        assert place(timer, topic, NOW + 5_000) == [0, 1, 2, 3, 4]  # the owner knows these are old
        assert not timer.is_rebuilding
    assert deliver(timer, NOW + 60_000) == list(range(5, 20))


def save_three(files: FaultyFileSystem, topic: Topic) -> None:
    """A timer that was closed in order, with three messages."""
    timer = new_timer(files, topic)
    topic.times_ms = [NOW + 9_000] * 3
    place(timer, topic, NOW)
    save(timer, NOW)
    timer.close()


def test_a_timer_log_that_is_being_made_again_is_not_taken_for_whole() -> None:
    files = FaultyFileSystem()
    topic = Topic()
    save_three(files, topic)
    lose(files, "timerlog")
    timer = new_timer(files, topic)
    timer.advance(NOW)
    timer.place(topic.times_ms[0], 1_000, 1, 0, is_delete=False)
    timer.placed(1)
    files = files.kill()  # with a file that is longer than the log was
    timer = new_timer(files, topic)
    assert (timer.queue_offset, timer.placed_until) == (0, 3)
    place(timer, topic, NOW)
    save(timer, NOW)
    timer = new_timer(files.kill(), topic)
    assert (timer.queue_offset, timer.waiting_count, timer.is_rebuilding) == (3, 3, False)
    assert sorted(deliver(timer, NOW + 60_000)) == [0, 1, 2]


def test_new_messages_of_a_second_whose_old_ones_have_expired() -> None:
    files = FaultyFileSystem()
    topic = Topic()
    timer = new_timer(files, topic)
    topic.times_ms = [NOW + 50_000] * 5 + [NOW + 60_000] * 3  # five units fill a file
    place(timer, topic, NOW)
    assert timer.log.delete_before(1_005, 0.0) == 1
    save(timer, NOW)
    timer.close()
    timer = new_timer(files, topic)
    topic.times_ms.append(NOW + 50_000)
    place(timer, topic, NOW)
    assert deliver(timer, NOW + 55_000) == [8]


def test_slots_newer_than_the_checkpoint() -> None:
    """A slot with units on both sides of the checkpoint, and one with units behind it only."""
    files = FaultyFileSystem()
    topic = Topic()
    timer = new_timer(files, topic)
    topic.times_ms = [NOW + 9_000] * 8
    place(timer, topic, NOW)
    save(timer, NOW)
    topic.times_ms += [NOW + 9_000, NOW + 8_000] * 4
    place(timer, topic, NOW)
    assert timer.slot_count_at(NOW + 9_000) == 12
    timer = new_timer(files.kill(), topic)
    assert (timer.slot_count_at(NOW + 9_000), timer.slot_count_at(NOW + 8_000)) == (8, 0)
    slot = timer.wheel.slot(NOW + 9_000)
    assert slot is not None
    assert (slot.first_position, slot.last_position) == (0, 404)
    assert (timer.waiting_count, timer.queue_offset, timer.log.end) == (8, 8, 456)
    place(timer, topic, NOW)
    assert sorted(deliver(timer, NOW + 60_000)) == list(range(16))


def test_a_queue_that_was_cut() -> None:
    files = FaultyFileSystem()
    topic = Topic()
    save_three(files, topic)
    topic.times_ms = []  # the log was deleted
    assert new_timer(files, topic).queue_offset == 0


@settings(max_examples=60, deadline=None)
@given(
    garbage=st.binary(min_size=1, max_size=2_000),
    position=st.integers(0, 38_000),
    name=st.sampled_from(["timerwheel", "timerlog", "config/timercheck"]),
)
def test_garbage_never_hurts(garbage: bytes, position: int, name: str) -> None:
    """Whatever the files hold, recovery ends, and what follows is placed and delivered."""
    files = FaultyFileSystem()
    topic = Topic()
    timer = new_timer(files, topic)
    topic.times_ms = [NOW + 1_000 * (n % 7) for n in range(30)]
    place(timer, topic, NOW)
    save(timer, NOW)
    timer.close()
    path = DISK / name
    if name == "timerlog":
        path /= files.list_directory(path)[position % 6].name
    handle = files.open_file(path)
    position %= handle.size
    handle.allocate(0, handle.size)
    handle.write(position, garbage[: handle.size - position])
    handle.close()
    timer = new_timer(files, topic)
    first = len(topic.times_ms)
    topic.times_ms.append(NOW + 100_000)
    timer.queue_offset = first
    if timer.advance(NOW) <= NOW + 100_000:
        place(timer, topic, NOW)
        assert first in deliver(timer, NOW + 101_000)
