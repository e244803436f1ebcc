"""How long the event loop could not go on because a thread waited for a processor, in all.

A broker that shares its machine with busy processes, or that has used up the share of its
container, is slow although it has little to do. To refuse requests for that would not make the
machine less busy, so the overload guard subtracts this time
(:class:`~skylark.broker.overload.overload_guard.LoopWatch`).

Linux counts for each thread how long it has run and how long it was ready to run and waited, in
nanoseconds (``/proc/self/task/ID/schedstat``). Waiting for a disk, a lock or a timer is neither.
The loop is held up when its own thread waits, and also when another thread of the process does
while it has the interpreter's lock: then the thread of the loop is blocked. It can be told from a
stall of the disk, because a thread that wants this lock wakes every 5 ms to ask for it
(``sys.setswitchinterval``). So of the time for which the loop was blocked, as much is added as
another thread has waited, but no more than such an interval for each time that the loop ran.

Other systems do not count. There everything is taken for such a wait that is neither processor time
nor a blocking call that was measured.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from skylark.core.clock import SystemClock

TASKS: Final = Path("/proc/self/task")
_SIZE_MAX: Final = 80  # three numbers of at most 20 digits

#: A thread wakes a little later than it wants to.
_LATE_S: Final = 0.001


class Times(NamedTuple):
    """What the kernel counts of a thread."""

    ran_s: float
    waited_s: float
    slices: int  #: how often it ran


_NO_TIMES: Final = Times(0.0, 0.0, 0)


class ProcessorWait(Protocol):
    """The time of the calling thread, which is always the same one."""

    def read(self, now: float) -> float:
        """Seconds since any beginning; never less than the last time. ``now`` is monotonic."""

    def blocked(self, seconds: float) -> None:
        """Record that a call of the thread took so long, and not for want of a processor."""

    def close(self) -> None:
        """Release the files; there are no further readings."""


class SchedstatWait:
    """Reads what the kernel counts."""

    def __init__(self, tasks: Path = TASKS) -> None:
        """Raises OSError or ValueError if the kernel does not count."""
        self._tasks = tasks
        self._files: dict[int, int] = {}  # id of a thread -> descriptor
        self._finalizer = weakref.finalize(self, _close_all, self._files)
        self._read_at: float | None = None
        self._times: dict[int, Times] = {}
        self._total_s = 0.0
        self._read_thread(threading.get_native_id())

    def read(self, now: float) -> float:
        own_id, last = threading.get_native_id(), self._times
        threads = {thread.native_id or own_id for thread in threading.enumerate()} | {own_id}
        self._times = {}
        for thread in threads:
            try:
                self._times[thread] = self._read_thread(thread)
            except OSError:  # it has just ended
                continue
        for thread in self._files.keys() - self._times.keys():
            os.close(self._files.pop(thread))
        own = self._since(last, own_id)
        if self._read_at is not None:
            others_s = [self._since(last, thread).waited_s for thread in threads - {own_id}]
            blocked_s = min(
                now - self._read_at - own.ran_s - own.waited_s,
                own.slices * (sys.getswitchinterval() + _LATE_S),
                max(others_s, default=0.0),
            )
            self._total_s += own.waited_s + max(0.0, blocked_s)
        self._read_at = now
        return self._total_s

    def _since(self, last: dict[int, Times], thread: int) -> Times:
        now, before = self._times.get(thread, _NO_TIMES), last.get(thread, _NO_TIMES)
        return Times(
            now.ran_s - before.ran_s, now.waited_s - before.waited_s, now.slices - before.slices
        )

    def _read_thread(self, thread: int) -> Times:
        descriptor = self._files.get(thread)
        if descriptor is None:
            descriptor = os.open(self._tasks / str(thread) / "schedstat", os.O_RDONLY)
            self._files[thread] = descriptor
        ran_ns, waited_ns, slices = os.pread(descriptor, _SIZE_MAX, 0).split()
        return Times(int(ran_ns) / 1e9, int(waited_ns) / 1e9, int(slices))

    def blocked(self, seconds: float) -> None:
        """Does nothing: the kernel tells the two apart."""

    def close(self) -> None:
        self._finalizer()


def _close_all(files: dict[int, int]) -> None:
    while files:
        os.close(files.popitem()[1])


class CpuTimeWait:
    """Works it out of processor time and measured blocking calls."""

    def __init__(self, clock: SystemClock) -> None:
        self._thread_time = clock.thread_time
        self._blocked_s = 0.0
        self._total_s = 0.0

    def read(self, now: float) -> float:
        own_s = self._thread_time() + self._blocked_s
        self._total_s = max(self._total_s, now - own_s)
        return self._total_s

    def blocked(self, seconds: float) -> None:
        self._blocked_s += seconds

    def close(self) -> None:
        """Does nothing: there are no files."""


def processor_wait(clock: object, tasks: Path = TASKS) -> ProcessorWait | None:
    """What this machine offers; None on virtual time, which does not pass while a thread waits."""
    if not isinstance(clock, SystemClock):
        return None
    try:
        return SchedstatWait(tasks)
    except (OSError, ValueError):
        return CpuTimeWait(clock)
