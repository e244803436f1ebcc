"""Group commit: one disk operation of a worker serves all requests that came before it.

Base class of the flush (:mod:`skylark.store.flush`, which has the waiting puts of SYNC_FLUSH) and
of the commit of pooled bytes (:mod:`skylark.store.transient_store_pool`)::

        timer or wake()
             |
          _find ----> [item, item, ...] ----> worker: one after the other, up to the first error
             ^                                   |
             |                          post     v
          again, if woken meanwhile <----- _apply(done), _failed(item, error)
                                                 |
                                             _notify()

* At most one round runs. The next round finds what came meanwhile.
* Items are processed in order, and a failed one ends the round: the completed items are always a
  prefix.
* After a failure the next round starts :data:`RETRY_S` later; :meth:`GroupCommit.wake` cannot start
  it earlier.
* Any exception, also an unexpected one (no memory, no thread, a bug), counts as a failed item. A
  round that ended without a result would be the last one.
* A round that started before a truncation of the log is ignored when it ends.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from skylark.core.clock import TimerHandle
from skylark.store.config import StoreConfig
from skylark.store.errors import StoreFileError
from skylark.store.owner_thread import Post, Scheduler, post_when_done

if TYPE_CHECKING:
    from skylark.store.file_sequence import MappedFiles
    from skylark.store.mapped_file import MappedFile

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.1
STOP_ATTEMPTS: Final = 10


class _OfFile(Protocol):
    @property
    def file(self) -> MappedFile: ...


Item = TypeVar("Item", bound=_OfFile)


class Outcome(NamedTuple):
    """How many items of a round were completed."""

    done: int  # items
    error: Exception | None  # of the item after them


class _Round(NamedTuple, Generic[Item]):
    items: Sequence[Item]
    generation: int
    future: Future[Outcome]


def run_in_order(jobs: Sequence[Callable[[], None]]) -> Outcome:
    """Run the jobs up to the first that fails; in any thread."""
    for index, job in enumerate(jobs):
        try:
            job()
        except Exception as error:  # noqa: BLE001 - the owner records it with its item
            return Outcome(index, error)
    return Outcome(len(jobs), None)


def _outcome(future: Future[Outcome]) -> Outcome:
    """The result of the worker; if it could not start, the first item failed."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - as above
        return Outcome(0, error)


def _file_error(error: Exception, item: _OfFile) -> StoreFileError:
    """Convert an unexpected exception to a StoreFileError with the exception as its cause."""
    if isinstance(error, StoreFileError):
        return error
    logger.debug("a round failed with an unexpected error", exc_info=error)
    failure = StoreFileError(f"unexpected error: {error!r}", path=item.file.path)
    failure.__cause__ = error
    return failure


class GroupCommit(ABC, Generic[Item]):
    """Work that a worker does in rounds, at intervals or when woken."""

    def __init__(
        self,
        files: MappedFiles,
        config: StoreConfig,
        *,
        scheduler: Scheduler,
        executor: Executor,
        post: Post,
    ) -> None:
        self._files = files
        self._scheduler = scheduler
        self._executor = executor
        self._post = post
        self._interval_s: float | None = None  # None: works only when woken
        self._thorough_s = 0.0  # time between two rounds that process less than the minimum
        self._least_pages = 0  # the minimum of all other rounds
        self.apply_settings(config)
        self._thorough_at = scheduler.monotonic()  # the first round is thorough
        self._round: _Round[Item] | None = None
        self._woken = False
        self._stopped = False
        self._timer: TimerHandle | None = None
        self._retry: TimerHandle | None = None

    def start(self) -> None:
        """Start the interval timer."""
        if self._interval_s is not None:
            when = self._scheduler.monotonic() + self._interval_s
            self._timer = self._scheduler.call_at(when, self._tick)

    def wake(self) -> None:
        """Start a round after this turn of the owner, or after the round that is running."""
        if not self._woken and not self._stopped:
            if self._round is None:
                self._post(self._begin)
            self._woken = True  # last: while this is set, no second callback is posted

    def halt(self) -> None:
        """Start no more rounds and cancel the timers; in the owner's thread."""
        self._stopped = True
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry = None

    def stop(self) -> None:
        """Finish everything in this thread; raises StoreFileError if that is not possible.

        After :meth:`halt` any thread may call this, if no other uses the log.
        """
        self.halt()
        if self._round is not None:
            future = self._round.future
            self._await(future)
            self._finish(future)
        error: StoreFileError | None = None
        for _ in range(STOP_ATTEMPTS):
            items = self._find(0)
            if not items:
                error = None
                break
            error = self._record_outcome(items, run_in_order([self._job(item) for item in items]))
        self._notify()
        if error is not None:
            raise error

    @abstractmethod
    def apply_settings(self, config: StoreConfig) -> None:
        """Use these settings from the next round on; a running timer is not set again."""

    # What subclasses define

    @abstractmethod
    def _find(self, least_pages: int) -> Sequence[Item]:
        """The items to process, in order; none if there is less than ``least_pages``."""

    @abstractmethod
    def _job(self, item: Item) -> Callable[[], None]:
        """The function that the worker calls; if it raises, the item failed."""

    @abstractmethod
    def _apply(self, item: Item) -> None:
        """Record a completed item."""

    @abstractmethod
    def _failed(self, item: Item, error: StoreFileError) -> bool:
        """Record a failed item; return whether it still has to be done."""

    @abstractmethod
    def _notify(self) -> None:
        """Report the progress to waiters and listeners."""

    def _run_meanwhile(self) -> None:
        """Do other work while the worker is busy, if it is."""

    def _submit(self, items: Sequence[Item]) -> Future[Outcome]:
        """Submit the items to the worker; :meth:`_finish` runs in the owner's thread afterwards."""
        future = self._executor.submit(run_in_order, [self._job(item) for item in items])
        post_when_done(future, self._post, self._finish)
        return future

    def _await(self, future: Future[Outcome]) -> None:
        """Block this thread until the worker has finished."""
        wait([future])

    # Rounds

    def _tick(self) -> None:
        self.start()
        self._start_round()

    def _begin(self) -> None:
        self._start_if_woken()
        self._run_meanwhile()

    def _start_if_woken(self) -> None:
        if self._woken and self._round is None:
            self._woken = False
            self._start_round()

    def _start_round(self) -> None:
        if self._round is not None or self._retry is not None or self._stopped:
            return
        now = self._scheduler.monotonic()
        thorough = now >= self._thorough_at
        if thorough:
            self._thorough_at = now + self._thorough_s
        try:
            items = self._find(0 if thorough else self._least_pages)
            if items:
                self._round = _Round(items, self._files.generation, self._submit(items))
        except Exception:
            logger.exception("%s: a round could not start", self._files.directory)
            self._retry_later()

    def _finish(self, future: Future[Outcome]) -> None:
        current = self._round
        if current is None or current.future is not future:
            return  # stop() has finished it before this callback came
        self._round = None
        if current.generation == self._files.generation:
            try:
                error = self._record_outcome(current.items, _outcome(future))
            except Exception:
                logger.exception(
                    "%s: a round could not be recorded completely", self._files.directory
                )
                self._retry_later()
            else:
                if error is not None:
                    self._retry_later()
        self._start_if_woken()  # first, so that the disk is busy during what follows
        self._notify()
        self._run_meanwhile()

    def _record_outcome(self, items: Sequence[Item], outcome: Outcome) -> StoreFileError | None:
        for item in items[: outcome.done]:
            self._apply(item)
        if outcome.error is None:
            return None
        item = items[outcome.done]
        error = _file_error(outcome.error, item)
        return error if self._failed(item, error) else None

    def _retry_later(self) -> None:
        if not self._stopped:
            when = self._scheduler.monotonic() + RETRY_S
            self._retry = self._scheduler.call_at(when, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._thorough_at = self._scheduler.monotonic()
        self._start_round()
