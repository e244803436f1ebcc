"""Overload: how long requests waited, on plain numbers; who else is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from skylark.broker.config import load_broker_config
from skylark.broker.live_settings import LiveSettings
from skylark.broker.overload.overload_guard import (
    FAMILIES,
    Family,
    LoopWatch,
    OverloadGuard,
    Reason,
    SlowGroup,
    groups_too_far_behind,
)
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.core.errors import SystemBusyError
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.unit.broker.connections import FakeConnection

SEND = RequestCode.SEND_MESSAGE_V2
STALL = RequestCode.QUERY_MESSAGE  # stands for any work that takes long
TIMEOUT = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
PCBUSY = "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "


class FakeTime:
    """Time that moves when told to, even while a handler runs."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return round(self.now * 1000)


def live_settings(**changes: str) -> LiveSettings:
    texts = {"storePathRootDir": "unused", "brokerName": "b", **changes}
    return LiveSettings(load_broker_config(texts), now_ms=0)


class Arrived(FakeConnection):
    """A connection whose bytes arrived at a time."""

    def __init__(self, arrived_at: float) -> None:
        super().__init__()
        self._arrived_at = arrived_at

    @property
    def arrived_at(self) -> float:
        return self._arrived_at


class FakeWait:
    """The time for which the thread waited for a processor, as the test wants it."""

    def __init__(self) -> None:
        self.total_s = 7.0
        self.blocked_s = 0.0
        self.read_count = 0

    def read(self, now: float) -> float:
        del now
        self.read_count += 1
        return self.total_s

    def blocked(self, seconds: float) -> None:
        self.blocked_s += seconds

    def close(self) -> None:
        pass


class Bench:
    """A guard without a loop: turns end when told to."""

    def __init__(self, *, wait: FakeWait | None = None, **changes: str) -> None:
        self.time = FakeTime()
        self.ends: list[Callable[[], None]] = []  # what runs in the next turn
        self.turns_ms: list[float] = []
        self.watch = LoopWatch(
            self.time,
            processor_wait=wait,
            call_soon=self.ends.append,
            on_turn=self.turns_ms.append,
        )
        self.live = live_settings(**changes)
        self.held_size = 0
        self.pool_is_empty = False
        self.guard = OverloadGuard(
            self.live,
            self.watch,
            self.time,
            held_size=lambda: self.held_size,
            pool_is_empty=lambda: self.pool_is_empty,
        )

    def arrive(self) -> float:
        """How long bytes that are read now have waited."""
        arrived_at = self.watch.arrived_at(self.time.now)
        return self.time.now - self.watch.excused_s - arrived_at

    def work(self, seconds: float) -> None:
        """One turn that works for so long."""
        self.arrive()
        self.time.now += seconds
        self.end_turn()

    def serve(self, seconds: float, *, goes_on: bool = False) -> float:
        """A connection reads, and works for so long; how long its bytes have waited before."""
        began_at = self.time.now
        arrived_at = self.watch.read(began_at)
        self.time.now += seconds
        self.watch.served(goes_on=goes_on)
        return began_at - self.watch.excused_s - arrived_at

    def end_turn(self) -> None:
        """The poll after the turn; what it has found is read next."""
        callbacks, self.ends[:] = list(self.ends), []
        for callback in callbacks:
            callback()

    def rest(self) -> None:
        """Turn until nothing is watched any more."""
        while self.ends:
            self.end_turn()

    def refusal(self, code: int) -> str | None:
        try:
            arrived_at = self.watch.arrived_at(self.time.now)
            self.guard.before(Arrived(arrived_at), Command(code=code))
        except SystemBusyError as error:
            return f"{error}"
        return None


# --- how long bytes have waited ---


def test_bytes_found_right_after_a_long_turn_count_from_its_beginning() -> None:
    bench = Bench()
    bench.work(0.25)
    bench.time.now += 0.05  # other callbacks came first
    assert bench.arrive() == pytest.approx(0.3)


def test_all_others_count_as_arrived_now() -> None:
    bench = Bench()
    assert bench.arrive() == 0.0  # nothing was before it
    bench.end_turn()
    bench.work(0.25)
    bench.end_turn()  # nothing was found
    assert bench.arrive() == 0.0
    bench.end_turn()
    bench.work(0.009)  # nobody waited for long
    assert bench.arrive() == 0.0


def test_all_bytes_of_one_turn_were_found_by_one_poll() -> None:
    bench = Bench()
    bench.work(0.1)
    assert bench.arrive() == pytest.approx(0.1)
    bench.time.now += 0.3  # another connection had its turn first
    assert bench.arrive() == pytest.approx(0.4)
    assert len(bench.ends) == 2, "one end per turn, and one of its poll"


def test_only_the_last_turn_counts() -> None:
    bench = Bench()
    bench.work(0.15)
    bench.work(0.1)
    assert bench.arrive() == pytest.approx(0.1)


def test_the_length_of_each_turn_is_reported() -> None:
    bench = Bench()
    bench.work(0.25)
    bench.work(0.0)
    assert bench.turns_ms == [pytest.approx(250.0), 0.0]


def test_what_a_turn_has_set_off_counts_as_well() -> None:
    """A task that a timer has woken, for example: it notes nothing, and runs a turn later."""
    bench = Bench()
    bench.work(0.0)
    bench.time.now += 0.3  # the task
    bench.end_turn()
    assert bench.arrive() == pytest.approx(0.3)
    bench.rest()
    assert bench.turns_ms == [0.0, pytest.approx(300.0), 0.0]
    bench.time.now += 60
    assert bench.arrive() == 0.0


def test_a_quiet_loop_is_not_watched() -> None:
    bench = Bench()
    bench.work(0.0)
    assert len(bench.ends) == 1, "the turn after"
    bench.end_turn()
    assert bench.ends == []
    assert not bench.watch.in_turn
    assert bench.turns_ms == [0.0], "the turn after did nothing"


# --- work that reports its end: connections, held pulls ---


def test_short_work_of_connections_is_not_watched() -> None:
    bench = Bench()
    for _ in range(1_000):
        assert bench.serve(0.000_2) == 0.0
        bench.time.now += 0.001
    assert bench.ends == []
    assert bench.turns_ms == pytest.approx([0.2] * 1_000)


def test_long_work_of_a_connection_counts_from_its_beginning() -> None:
    bench = Bench()
    bench.serve(0.25)
    bench.end_turn()
    assert bench.serve(0.0) == pytest.approx(0.25)
    bench.rest()
    bench.time.now += 60
    assert bench.serve(0.0) == 0.0


def test_work_of_many_connections_in_one_turn_adds_up() -> None:
    bench = Bench()
    waited = [bench.serve(0.000_5) for _ in range(40)]
    assert waited[:2] == [0.0, 0.0], "not known yet to be one turn"
    assert waited[3:] == pytest.approx([0.000_5 * n for n in range(3, 40)])
    assert len(bench.ends) == 1
    bench.end_turn()
    assert bench.serve(0.0) == pytest.approx(0.02)


def test_work_that_goes_on_in_a_task_is_watched() -> None:
    bench = Bench()
    bench.serve(0.0, goes_on=True)
    bench.end_turn()
    bench.time.now += 0.3  # the task
    bench.end_turn()
    assert bench.serve(0.0) == pytest.approx(0.3)


def test_connections_do_not_keep_the_watch_going() -> None:
    bench = Bench()
    bench.work(0.0)  # a timer: this turn and the next are watched
    bench.serve(0.000_1)
    bench.end_turn()
    assert bench.ends == []


def test_time_without_a_processor_at_the_beginning_of_work_is_excused() -> None:
    wait = FakeWait()
    bench = Bench(wait=wait)
    bench.watch.read(bench.time.now)
    bench.time.now += 0.3
    wait.total_s += 0.29
    bench.watch.served(goes_on=False)
    bench.end_turn()
    assert bench.serve(0.0) == pytest.approx(0.01)


def test_how_long_requests_wait_now() -> None:
    bench = Bench()
    assert bench.watch.waited_ms() == 0
    bench.time.now += 0.07
    assert bench.watch.waited_ms() == 70


# --- who is refused ---


def test_every_family_has_its_limit() -> None:
    limits_ms = {
        Family.SEND: 200,
        Family.PULL: 5_000,
        Family.LITE_PULL: 5_000,
        Family.HEARTBEAT: 31_000,
        Family.TRANSACTION: 3_000,
        Family.ACK: 3_000,
        Family.ADMIN: 5_000,
    }
    codes = {family: code for code, family in FAMILIES.items() if family is not None}
    codes[Family.ADMIN] = RequestCode.GET_BROKER_RUNTIME_INFO
    assert codes.keys() == limits_ms.keys()
    for family, limit_ms in limits_ms.items():
        bench = Bench()
        bench.time.now = 0.0  # so that sums are exact
        bench.arrive()
        bench.time.now = (limit_ms - 1) / 1000
        assert bench.refusal(codes[family]) is None, family
        bench.time.now = limit_ms / 1000
        remark = bench.refusal(codes[family])
        assert remark is not None, family
        assert remark.startswith(f"{TIMEOUT}{limit_ms}ms, size of queue: 0: ")
        assert bench.guard.refused_counts[Reason.WAITED] == 1


@pytest.mark.parametrize(
    ("code", "family"),
    [
        (10, Family.SEND),
        (310, Family.SEND),
        (320, Family.SEND),
        (36, Family.SEND),
        (11, Family.PULL),
        (361, Family.LITE_PULL),
        (34, Family.HEARTBEAT),
        (37, Family.TRANSACTION),
        (325, None),
        (14, None),
        (15, None),
        (38, None),
    ],
)
def test_who_belongs_where(code: int, family: Family | None) -> None:
    assert FAMILIES[code] is family


def test_some_requests_may_wait_for_ever() -> None:
    bench = Bench()
    bench.arrive()
    bench.time.now += 3_600
    assert bench.refusal(RequestCode.UPDATE_CONSUMER_OFFSET) is None
    assert bench.refusal(SEND) is not None


def test_fast_failure_can_be_switched_off_and_limits_changed_at_run_time() -> None:
    bench = Bench()
    bench.arrive()
    bench.time.now += 0.5
    assert bench.refusal(SEND) is not None
    bench.live.update("waitTimeMillsInSendQueue=501", 0)
    assert bench.refusal(SEND) is None
    bench.live.update("waitTimeMillsInSendQueue=500", 0)
    assert bench.refusal(SEND) is not None
    bench.live.update("brokerFastFailureEnable=false", 0)
    assert bench.refusal(SEND) is None


def test_refusals_of_sends_behind_a_long_append_name_the_disk() -> None:
    bench = Bench()
    bench.arrive()
    began_at = bench.time.now
    bench.time.now += 1.2
    bench.guard.appended(began_at, bench.time.now)
    remark = bench.refusal(SEND)
    assert remark is not None
    assert remark.startswith(f"{PCBUSY}1200ms, size of queue: 0: ")
    assert bench.refusal(RequestCode.PULL_MESSAGE) is None
    bench.end_turn()
    assert (bench.refusal(SEND) or "").startswith(PCBUSY)  # it came meanwhile
    bench.end_turn()
    assert bench.refusal(SEND) is None
    bench.time.now += 0.3  # later, and the disk has nothing to do with it
    assert (bench.refusal(SEND) or "").startswith(TIMEOUT)
    assert bench.guard.refused_counts == {
        Reason.REJECTED: 0,
        Reason.OUTSTANDING_BYTES: 0,
        Reason.PAGE_CACHE_BUSY: 2,
        Reason.WAITED: 1,
    }


def test_an_append_within_the_limit_is_not_to_blame() -> None:
    bench = Bench()
    bench.arrive()
    began_at = bench.time.now
    bench.time.now += 1.0
    bench.guard.appended(began_at, began_at + 1.0)
    assert (bench.refusal(SEND) or "").startswith(TIMEOUT)


# --- a busy machine is not a busy broker ---


def descheduled(bench: Bench, wait: FakeWait, seconds: float, own_s: float) -> None:
    """One turn that works for ``own_s`` and waits for a processor for ``seconds``."""
    bench.arrive()
    bench.time.now += seconds + own_s
    wait.total_s += seconds
    bench.end_turn()


def test_bytes_that_came_while_the_thread_waited_for_a_processor_have_not_waited() -> None:
    wait = FakeWait()
    bench = Bench(wait=wait)
    descheduled(bench, wait, 5.0, own_s=0.03)
    assert bench.arrive() == pytest.approx(0.03)
    assert bench.refusal(SEND) is None
    assert bench.turns_ms == [pytest.approx(5_030)], "the lag of the loop is what clients see"


def test_what_the_broker_itself_took_counts_beside_that() -> None:
    wait = FakeWait()
    bench = Bench(wait=wait)
    descheduled(bench, wait, 5.0, own_s=0.25)
    remark = bench.refusal(SEND)
    assert (remark or "").startswith(f"{TIMEOUT}250ms")


def test_a_turn_that_waits_for_a_processor_before_it_handles_a_request_refuses_nothing() -> None:
    wait = FakeWait()
    bench = Bench(wait=wait)
    bench.arrive()
    bench.time.now += 0.3
    wait.total_s += 0.29
    assert bench.refusal(SEND) is None
    bench.time.now += 0.2
    assert (bench.refusal(SEND) or "").startswith(f"{TIMEOUT}210ms")


def test_waits_of_earlier_turns_do_not_excuse_a_stall() -> None:
    wait = FakeWait()
    bench = Bench(wait=wait)
    for _ in range(100):  # each too short to be looked at
        descheduled(bench, wait, 0.04, own_s=0.005)
    bench.rest()
    bench.time.now += 1
    bench.work(0.25)
    assert (bench.refusal(SEND) or "").startswith(TIMEOUT)


def test_the_kernel_is_asked_only_now_and_then() -> None:
    wait = FakeWait()
    bench = Bench(wait=wait)
    for _ in range(1_000):
        bench.work(0.000_1)
    assert wait.read_count <= 6  # in 100 ms
    bench.rest()
    wait.read_count = 0
    bench.work(0.25)
    refusals = [bench.refusal(SEND) for _ in range(100)]
    assert None not in refusals
    assert wait.read_count <= 3, "refusing many does not cost many readings"


def test_an_append_that_waits_for_a_processor_is_no_stall_of_the_disk() -> None:
    wait = FakeWait()
    bench = Bench(wait=wait)
    bench.arrive()
    began_at = bench.time.now
    bench.time.now += 1.5
    wait.total_s += 1.2
    bench.guard.appended(began_at, bench.time.now)
    assert (bench.refusal(SEND) or "").startswith(f"{TIMEOUT}300ms")
    assert wait.blocked_s == 1.5
    began_at = bench.time.now
    bench.time.now += 1.1
    bench.guard.appended(began_at, bench.time.now)
    assert (bench.refusal(SEND) or "").startswith(f"{PCBUSY}1400ms")


@pytest.mark.parametrize("slave_read", ["true", "false"])
def test_a_slave_takes_no_sends_and_serves_pulls_only_if_set_so(slave_read: str) -> None:
    bench = Bench(brokerRole="SLAVE", brokerId="1", slaveReadEnable=slave_read)
    for code in (10, 310, 320):
        assert (bench.refusal(code) or "").startswith(
            "[REJECTREQUEST]system busy, start flow control for a while: "
        )
    for code in (11, 361):
        assert (bench.refusal(code) is None) is (slave_read == "true")
    assert bench.refusal(RequestCode.HEART_BEAT) is None
    assert bench.refusal(RequestCode.CONSUMER_SEND_MSG_BACK) is None  # its handler says no


def test_without_a_free_buffer_sends_are_rejected() -> None:
    bench = Bench()
    bench.pool_is_empty = True
    assert (bench.refusal(SEND) or "").startswith("[REJECTREQUEST]system busy")
    assert bench.refusal(RequestCode.PULL_MESSAGE) is None
    bench.pool_is_empty = False
    assert bench.refusal(SEND) is None


def test_beyond_the_bytes_that_may_be_under_way_messages_wait_elsewhere() -> None:
    bench = Bench(heldSizeMax="100")
    bench.held_size = 100

    def refusal(code: int) -> str | None:
        try:
            return bench.refusal(code)
        finally:
            bench.rest()

    assert refusal(SEND) is None
    bench.held_size = 101
    bench.time.now += 0.05
    assert refusal(SEND) is None, "adding up is not done for every request"
    bench.time.now += 0.06
    for code in (SEND, RequestCode.PULL_MESSAGE):
        assert (refusal(code) or "").startswith(
            "[OVERLOAD]system busy, start flow control for a while: "
        )
    assert refusal(RequestCode.HEART_BEAT) is None
    bench.live.update("heldSizeMax=101", 0)
    bench.time.now += 0.2
    assert refusal(SEND) is None
    assert bench.guard.refused_counts[Reason.OUTSTANDING_BYTES] == 2


# --- consumers too far behind ---


def test_groups_too_far_behind_are_found_once_each_at_their_worst() -> None:
    stats = BrokerStats("c")
    limit = 16 << 30
    sizes: dict[tuple[int, str, str], int] = {
        (0, "T", "slow"): limit + 1,
        (1, "T", "slow"): limit + 500,
        (0, "U", "slow"): limit + 7,
        (0, "T", "fast"): limit,
        (3, "U", "other"): limit * 2,
    }
    for key, size in sizes.items():
        stats.queue_gets[key].behind_size = size
    found: list[Any] = groups_too_far_behind(stats.queue_gets, limit)
    assert found == [SlowGroup("slow", "T", 1, limit + 500), SlowGroup("other", "U", 3, limit * 2)]
    assert groups_too_far_behind({}, limit) == []
