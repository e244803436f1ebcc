"""Thread pool for plain handler functions, which adapts the number of working threads.

Only one thread of a process runs Python code at a time. Handlers that wait (for a database, a disk,
a lock) gain from many threads; handlers that only compute lose with each thread that competes with
the event loop. A pool cannot know which kind it has, so it measures. Its threads have roles::

    worker    runs jobs until none is left
    standby   one thread that checks, about every millisecond, whether jobs wait and how many were
              started: if too few, it becomes a worker, and another thread becomes the standby; if
              very many, one worker is surplus and goes idle
    idle      sleeps until it is woken

So a pool of functions that return at once has one worker; a pool of functions that take 50 us or
more has all ``count`` of them within a few milliseconds, whether they wait or compute. While jobs
wait and not all threads work, one thread stands by, so a function that blocks does not delay the
jobs behind it.

Jobs and counters are shared without a lock (operations on a ``deque`` are atomic, and a counter may
miss an update); roles change under ``_lock``. A thread that finds no job checks again under the
lock before it sleeps, and a thread that adds jobs then checks for workers under the lock: no job is
forgotten. Results return to the event loop, many at a time.

The standby measures real time, even if the client has a virtual clock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from contextvars import copy_context
from typing import Any, Final

from skylark.client.consumer.push.message_handlers import Job, check_result
from skylark.client.core.control_loop import Handover
from skylark.core.clock import Clock, SystemClock
from skylark.core.lifecycle import Tasks

logger = logging.getLogger(__name__)

#: How often the standby checks; a new one checks sooner, so that many handlers that block get
#: their threads quickly.
CHECK_S: Final = 0.001
FIRST_CHECK_S: Final = 0.0001
#: Checks without waiting jobs before the standby goes idle too.
QUIET_CHECKS_MAX: Final = 50
#: When not even one thread could be started, the next attempt follows after this.
NO_THREADS_PAUSE_S: Final = 1.0
#: Fewer jobs begun per second than this while others wait, and a worker is added ...
FEW_PER_S: Final = 20_000
#: ... and with more than this, one is taken away.
MANY_PER_S: Final = 40_000


class Worker:
    """A thread of the pool, and the lock that wakes it."""

    __slots__ = ("_signal", "stands_by", "thread")

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.stands_by = False
        self._signal = threading.Lock()  # free: woken, and not running yet
        self._signal.acquire()

    def wake(self) -> None:
        """Wake the thread; under the lock of the pool."""
        if self._signal.locked():
            self._signal.release()

    def wait(self, timeout_s: float = -1) -> None:
        """Sleep until woken, or until the time is over."""
        self._signal.acquire(timeout=timeout_s)


class ThreadWorkers:
    """Runs jobs of plain functions in threads."""

    def __init__(self, name: str, count: int, clock: Clock, tasks: Tasks) -> None:
        """``tasks`` own the follow-up work of calls that failed."""
        self._name = name
        self._count = count
        self._clock = clock
        self._follow_ups = tasks
        self._handover = Handover(asyncio.get_running_loop())
        self._ready: deque[Job] = deque()
        self._lock = threading.Lock()  # over the roles of the threads:
        self._all: list[Worker] = []
        self._idle: list[Worker] = []
        self._standby: Worker | None = None
        self._surplus = False  # one of them should sleep
        self._begun = 0  # jobs taken so far
        self._tries_again = False  # to start the first thread
        self._closed = False
        self._drained: asyncio.Future[None] | None = None
        self.working = 0  #: threads with a job, or about to take one
        self.running = 0  #: jobs that have been submitted and have not ended

    def submit(self, jobs: list[Job]) -> None:
        """Run these jobs after those that wait."""
        if self._closed:
            for job in jobs:
                job.discard()
            return
        self.running += len(jobs)
        self._ready.extend(jobs)
        with self._lock:
            if not self.working and self._rouse(stands_by=False):
                self.working += 1
            if self.running > 1:
                self._appoint_standby()
            has_threads = bool(self._all)
        if not has_threads and not self._tries_again:
            self._tries_again = True
            self._clock.call_later(NO_THREADS_PAUSE_S, self._try_again)

    def _try_again(self) -> None:
        self._tries_again = False
        self.submit([])

    # --- the roles of threads, under the lock ---------------------------------------------------

    def _rouse(self, *, stands_by: bool) -> Worker | None:
        """Wake or start a thread for a role; None if all are in use, or none can be started."""
        if not self._idle:
            if len(self._all) >= self._count:
                return None
            worker = Worker()
            worker.thread = threading.Thread(
                target=self._serve,
                args=(worker,),
                name=f"{self._name}-handler-{len(self._all) + 1}",
                daemon=True,
            )
            try:
                worker.thread.start()
            except RuntimeError as error:  # the system limit of threads is reached
                logger.warning(
                    "%s: %s; handlers run in %d threads", self._name, error, len(self._all)
                )
                return None
            self._all.append(worker)
        else:
            worker = self._idle.pop()
        worker.stands_by = stands_by
        worker.wake()
        return worker

    def _appoint_standby(self) -> None:
        if self._standby is None:
            self._standby = self._rouse(stands_by=True)

    # --- in the threads -------------------------------------------------------------------------

    def _serve(self, worker: Worker) -> None:
        while True:
            worker.wait()
            if self._closed:
                return
            if worker.stands_by and not self._stand_by(worker):
                continue
            while self._work():
                with self._lock:
                    surplus, self._surplus = self._surplus and self.working > 1, False
                    if surplus or not self._ready:  # a job may have come since the last check
                        self._rest(worker)
                        break
            else:
                return

    def _rest(self, worker: Worker) -> None:
        """A worker goes to sleep; under the lock."""
        self.working -= 1
        self._idle.append(worker)
        if self._ready and not self._closed:
            self._appoint_standby()  # there may have been no thread for it before

    def _stand_by(self, worker: Worker) -> bool:
        """Watch the waiting jobs; returns whether to become a worker."""
        monotonic = SystemClock().monotonic
        check_s = FIRST_CHECK_S
        quiet_checks = 0
        while quiet_checks < QUIET_CHECKS_MAX and not self._closed:
            waiting, begun, since = len(self._ready), self._begun, monotonic()
            worker.wait(check_s)
            check_s = CHECK_S
            begun = self._begun - begun
            passed_s = monotonic() - since
            quiet_checks = 0 if self._ready else quiet_checks + 1
            if begun < waiting and begun <= passed_s * FEW_PER_S:
                with self._lock:
                    self.working += 1
                    self._standby = None
                    self._surplus = False  # was about other workers
                    if len(self._ready) > 1:
                        self._appoint_standby()
                return True
            if begun > passed_s * MANY_PER_S and self.working > 1:
                self._surplus = True
        with self._lock:
            self._standby = None
            self._idle.append(worker)
            if self._closed:
                worker.wake()  # close() woke it during a check
            elif self._ready:
                self._appoint_standby()  # jobs came in the meantime
        return False

    def _work(self) -> bool:
        """Run jobs until none is left, or this worker is surplus; False if the loop is closed."""
        ready = self._ready
        while ready and not self._surplus:
            try:
                job = ready.popleft()
            except IndexError:
                break  # another thread was faster
            self._begun += 1
            result: Any = None
            error: BaseException | None = None
            called = False
            try:
                if not self._closed and job.begin():
                    called = True
                    result = copy_context().run(job.call)
                    if result is not None:
                        check_result(result)
            except BaseException as raised:  # noqa: BLE001 - not even SystemExit ends a thread of the pool
                error = raised
            if not self._handover.post(self._ended, job, called, result, error):
                return False
        return True

    # --- on the loop ----------------------------------------------------------------------------

    def _ended(self, job: Job, called: bool, result: Any, error: BaseException | None) -> None:
        if not called:
            job.discard()
        elif not self._follow_ups.closed:
            work = job.finish(result, error)
            if work is not None:
                task = self._follow_ups.spawn(work, name="finish")
                task.add_done_callback(self._count_down)
                return
        self._count_down()

    def _count_down(self, _: object = None) -> None:
        self.running -= 1
        if self._drained is not None and not self.running and not self._drained.done():
            self._drained.set_result(None)

    @property
    def is_current(self) -> bool:
        """Whether the calling thread belongs to this pool."""
        current = threading.current_thread()
        return any(worker.thread is current for worker in self._all)

    async def close(self, wait_s: float) -> bool:
        """Start no more jobs, and wait for running ones; whether all ended in time."""
        self._closed = True
        while self._ready:
            try:
                job = self._ready.popleft()
            except IndexError:
                break
            job.discard()
            self.running -= 1
        with self._lock:
            for worker in self._all:
                worker.wake()
        if not self.running:
            return True
        self._drained = asyncio.get_running_loop().create_future()
        try:
            await self._clock.wait_for(self._drained, wait_s)
        except TimeoutError:
            return False
        return True
