"""Rounds: find what waits, have a worker do it, note the result, tell whoever waits for it.

Flush and commit (:mod:`skylark.store.flush`, :mod:`skylark.store.transient_store_pool`) are the
same machine with different work::

        timer or wake()
             |
          _find ----> [item, item, ...] ----> worker: one after the other, up to the first error
             ^                                   |
             |                          post     v
          again, if woken meanwhile <----- _apply(done), _failed(item, error)
                                                 |
                                             _notify()

* At most one round runs. What comes up meanwhile is found by the next one; that is all there is to
  group commit.
* Items are done in order, and a failed one ends the round: what is noted is always a prefix.
* After a failure the next round starts :data:`RETRY_S` later, whoever calls :meth:`Rounds.wake`.
* What is raised makes no difference: an error that nobody foresaw (no memory, no thread, a defect)
  is a failed item as well. A round that ended without a result would be the last one.
* A round that was started before a truncation of the log is forgotten when it comes back.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from skylark.core.clock import TimerHandle
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
    """How far a round came."""

    done: int  # items
    error: Exception | None  # of the item after them


class _Round(NamedTuple, Generic[Item]):
    items: Sequence[Item]
    generation: int
    future: Future[Outcome]


def do_in_order(jobs: Sequence[Callable[[], None]]) -> Outcome:
    """Run the jobs up to the first that fails; in any thread."""
    for index, job in enumerate(jobs):
        try:
            job()
        except Exception as error:  # noqa: BLE001 - the owner notes it, with the item it belongs to
            return Outcome(index, error)
    return Outcome(len(jobs), None)


def _outcome(future: Future[Outcome]) -> Outcome:
    """What the worker has to say; if it was not even allowed to begin, the first item failed."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - as above
        return Outcome(0, error)


def _file_error(error: Exception, item: _OfFile) -> StoreFileError:
    """The error as those that files raise; what nobody foresaw is its cause."""
    if isinstance(error, StoreFileError):
        return error
    logger.debug("a round failed unforeseen", exc_info=error)
    failure = StoreFileError(f"unforeseen: {error!r}", path=item.file.path)
    failure.__cause__ = error
    return failure


class Rounds(ABC, Generic[Item]):
    """Work that is looked for at intervals, or when woken, and done by a worker."""

    def __init__(
        self,
        files: MappedFiles,
        *,
        scheduler: Scheduler,
        executor: Executor,
        post: Post,
        interval_ms: int | None,
        thorough_ms: int,
        least_pages: int,
    ) -> None:
        """Look every ``interval_ms``, or, if that is None, only when woken.

        Less than ``least_pages`` waits for a thorough look, which comes every ``thorough_ms``.
        """
        self._files = files
        self._scheduler = scheduler
        self._executor = executor
        self._post = post
        self._interval_s = None if interval_ms is None else interval_ms / 1000
        self._thorough_s = thorough_ms / 1000
        self._least_pages = least_pages
        self._thorough_at = scheduler.monotonic()  # the first look is thorough
        self._round: _Round[Item] | None = None
        self._woken = False
        self._stopped = False
        self._timer: TimerHandle | None = None
        self._retry: TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        """Whether a worker is busy for this service."""
        return self._round is not None

    def start(self) -> None:
        """Begin to look at intervals."""
        if self._interval_s is not None:
            when = self._scheduler.monotonic() + self._interval_s
            self._timer = self._scheduler.call_at(when, self._tick)

    def wake(self) -> None:
        """Look soon: after this turn of the owner, or after the round that is running."""
        if not self._woken and not self._stopped:
            if self._round is None:
                self._post(self._begin)
            self._woken = True  # only now: nobody posts again while this is set

    def halt(self) -> None:
        """Look no more, and have no timers; in the thread that owns them."""
        self._stopped = True
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry = None

    def stop(self) -> None:
        """Finish everything in this thread; raises StoreFileError if that is not possible.

        After :meth:`halt` that may be any thread, if nobody else uses the log.
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
            error = self._note(items, do_in_order([self._job(item) for item in items]))
        self._notify()
        if error is not None:
            raise error

    # What the work is

    @abstractmethod
    def _find(self, least_pages: int) -> Sequence[Item]:
        """What is to be done, in order; nothing if it is less than ``least_pages``."""

    @abstractmethod
    def _job(self, item: Item) -> Callable[[], None]:
        """What the worker calls; if it raises, the item failed."""

    @abstractmethod
    def _apply(self, item: Item) -> None:
        """Note an item that was done."""

    @abstractmethod
    def _failed(self, item: Item, error: StoreFileError) -> bool:
        """Note an item that failed; whether it still has to be done."""

    @abstractmethod
    def _notify(self) -> None:
        """Tell others how far things are."""

    def _meanwhile(self) -> None:
        """Do what can be done while the worker is busy, if it is."""

    def _submit(self, items: Sequence[Item]) -> Future[Outcome]:
        """Have the worker do it, and :meth:`_finish` run in the owner's thread after that."""
        future = self._executor.submit(do_in_order, [self._job(item) for item in items])
        post_when_done(future, self._post, self._finish)
        return future

    def _await(self, future: Future[Outcome]) -> None:
        """Wait until the worker is done, in this thread."""
        wait([future])

    # When it is done

    def _tick(self) -> None:
        self.start()
        self._look()

    def _begin(self) -> None:
        self._look_if_woken()
        self._meanwhile()

    def _look_if_woken(self) -> None:
        if self._woken and self._round is None:
            self._woken = False
            self._look()

    def _look(self) -> None:
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
            logger.exception("%s: a round could not begin", self._files.directory)
            self._try_later()

    def _finish(self, future: Future[Outcome]) -> None:
        current = self._round
        if current is None or current.future is not future:
            return  # finished by stop() before the worker's message came
        self._round = None
        if current.generation == self._files.generation:
            try:
                error = self._note(current.items, _outcome(future))
            except Exception:
                logger.exception("%s: a round was noted in part", self._files.directory)
                self._try_later()
            else:
                if error is not None:
                    self._try_later()
        self._look_if_woken()  # first of all: the disk should not wait for what follows
        self._notify()
        self._meanwhile()

    def _note(self, items: Sequence[Item], outcome: Outcome) -> StoreFileError | None:
        for item in items[: outcome.done]:
            self._apply(item)
        if outcome.error is None:
            return None
        item = items[outcome.done]
        error = _file_error(outcome.error, item)
        return error if self._failed(item, error) else None

    def _try_later(self) -> None:
        if not self._stopped:
            when = self._scheduler.monotonic() + RETRY_S
            self._retry = self._scheduler.call_at(when, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._thorough_at = self._scheduler.monotonic()
        self._look()
