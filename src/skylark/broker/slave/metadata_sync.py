"""A slave copies the tables of its master: topics, groups, offsets, delay levels, timer.

::

    master known, or back again --> a whole copy at once
    every slaveSyncInterval     --> a whole copy
    every 3 s                   --> the state of the timer only, which ages fast
    master does not answer      --> tried again every 3 s, and said once

Messages come another way (:mod:`skylark.replication`). The tables are those of the slave itself
from then on, saved and registered with the name servers as its own: who loses the master finds
everything here. Whatever fails is tried again in the next round; the rest of a round does not
depend on it.

Before groups and offsets are copied, the master is told which groups were born here while it was
away (:mod:`skylark.broker.slave.slave_groups`), and what was committed
(:mod:`skylark.broker.slave.slave_commits`); in this order, for it takes no offsets of groups that
it does not know. Progress of deliveries is used only when the log has what was delivered
(:mod:`skylark.broker.slave.slave_deliveries`).

Java copies first after a minute and then every minute, and 4.x every 10 s, as here. Answers to
``SlaveSynchronize``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from skylark.broker.groups.request_modes import RequestModes
from skylark.broker.live_settings import LiveSettings
from skylark.broker.slave import master_requests as questions
from skylark.broker.slave.slave_commits import Commit, SlaveCommits
from skylark.broker.slave.slave_deliveries import DeliveryCopies, HeldCopy
from skylark.broker.slave.slave_groups import NewGroups
from skylark.broker.table_saver import InThread
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import BrokerError, GoAwayError, SkylarkError, TransportError
from skylark.core.lifecycle import Tasks
from skylark.store.config_tables import DelayOffsetTable
from skylark.wire.bodies.slave_sync_body import TimerCheckpoint
from skylark.wire.command import Command

log = logging.getLogger(__name__)

TICK_S: Final = 3.0
#: A table may be long: what Java allows for 21.
TABLE_TIMEOUT_S: Final = 30.0

#: Sends a request to an address, with a limit in seconds; the answer may have any code.
CallAddress = Callable[[str, Command, float], Awaitable[Command]]
_Step = Callable[[questions.Ask], Awaitable[None]]


class SlaveSync:
    """Copies for one slave, from ``start`` to ``stop``."""

    def __init__(
        self,
        live: LiveSettings,
        topics: TopicTable,
        groups: NewGroups,
        request_modes: RequestModes,
        commits: SlaveCommits,
        copies: DeliveryCopies,
        clock: Clock,
        *,
        call: CallAddress,
        flushed_where: Callable[[], int],
        delete_queues: Callable[[tuple[str, ...]], None],
        modes_saved: Callable[[], None],
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        """``flushed_where``: up to where the own log is on disk; ``delete_queues`` of topics that
        the master has deleted; ``modes_saved``: the request modes have changed."""
        self._live = live
        self._topics = topics
        self._groups = groups
        self._request_modes = request_modes
        self._commits = commits
        self._copies = copies
        self._clock = clock
        self._call = call
        self._delete_queues = delete_queues
        self._modes_saved = modes_saved
        self._in_thread = in_thread
        self._held_delays = HeldCopy[DelayOffsetTable](flushed_where)
        self._held_checkpoint = HeldCopy[TimerCheckpoint](flushed_where)
        self._master: str | None = None
        self._tasks = Tasks("slave sync", limit=8)
        self._timer: TimerHandle | None = None
        self._is_running = False
        self._is_at_work = False
        self._whole_due = 0.0  # monotonic
        self._problems: dict[str, str] = {}  # what was said, by step
        #: Whole copies, without any failure.
        self.copy_count = 0

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Copy from now on, as soon as the master is known."""
        self._is_running = True
        self._arm(0.0)

    async def stop(self) -> None:
        """Copy no more."""
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.cancel_and_wait()

    def set_master(self, address: str) -> None:
        """Where the master answers ordinary requests."""
        if address != self._master:
            self._master = address
            self._whole_due = 0.0
            self._arm(0.0)

    @property
    def is_reached(self) -> bool:
        """Whether the master has answered in the last round, if there was one."""
        return "master" not in self._problems

    def _arm(self, delay_s: float) -> None:
        """Have the next round begin then, unless one is under way, which will see to it."""
        if not self._is_running or self._master is None or self._is_at_work:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_later(delay_s, self._begin_round)

    def _begin_round(self) -> None:
        self._timer = None
        self._is_at_work = True
        self._tasks.spawn(self._round(), name="round")

    # --- rounds -----------------------------------------------------------------------------------

    async def _round(self) -> None:
        master = self._master
        assert master is not None, "a round is begun when it is known"
        is_whole = self._clock.monotonic() >= self._whole_due
        try:
            succeeded = await self._copy_all(master, self._steps(is_whole))
        finally:
            self._is_at_work = False
        if is_whole and succeeded:
            self.copy_count += 1
            interval_s = self._live.current.slave_sync_interval / 1000
            self._whole_due = self._clock.monotonic() + interval_s
        elif not succeeded:
            self._whole_due = 0.0
        self._arm(0.0 if master != self._master else self._pause_s())

    def _pause_s(self) -> float:
        if not self._whole_due:
            return TICK_S
        return max(0.0, min(TICK_S, self._whole_due - self._clock.monotonic()))

    def _steps(self, is_whole: bool) -> dict[str, _Step]:
        steps: dict[str, _Step] = {}
        if is_whole:
            steps = {
                "topics": self._copy_topics,
                "groups": self._copy_groups,
                "offsets": self._copy_offsets,
                "delay offsets": self._copy_delays,
                "request modes": self._copy_request_modes,
            }
        if self._live.current.timer_wheel_enable:
            if is_whole:
                steps["timer counts"] = self._copy_timer_counts
            steps["timer state"] = self._copy_timer_checkpoint
        return steps

    async def _copy_all(self, master: str, steps: dict[str, _Step]) -> bool:
        """Take the steps; False if the master does not answer."""

        async def ask(request: Command) -> Command:
            return await self._call(master, request, TABLE_TIMEOUT_S)

        for name, step in steps.items():
            try:
                await step(ask)
            except (TransportError, GoAwayError) as error:
                self._failed("master", f"master {master} cannot be asked for its tables: {error}")
                return False
            except SkylarkError as error:
                self._failed(name, f"the {name} of master {master} are not copied: {error}")
            else:
                self._problems.pop(name, None)
        if self._problems.pop("master", None) is not None:
            log.info("master %s answers again", master)
        return True

    def _failed(self, step: str, problem: str) -> None:
        """Say it, unless it was what this step ended in the last time."""
        if self._problems.get(step) != problem:
            self._problems[step] = problem
            log.warning("%s", problem)

    # --- steps ------------------------------------------------------------------------------------

    async def _copy_topics(self, ask: questions.Ask) -> None:
        topics = await questions.topics(ask)
        if topics.version != self._topics.version:
            change = self._topics.copy_from(topics.table, topics.version)
            if change.deleted:
                self._delete_queues(change.deleted)

    async def _copy_groups(self, ask: questions.Ask) -> None:
        groups = await questions.groups(ask)
        new = self._groups.missing_at(groups.table)
        for group in new:
            with _unwanted(group.group_name):
                await questions.tell_group(ask, group)
        if new:
            log.info("the master was told %d groups that were born here", len(new))
            groups = await questions.groups(ask)
        self._groups.take(
            groups.table, groups.bans, groups.version, told={group.group_name for group in new}
        )

    async def _copy_offsets(self, ask: questions.Ask) -> None:
        table = await questions.offsets(ask)
        told: list[Commit] = []
        unknown = set(self._groups.names())  # which the master takes no offsets of, yet
        for commit in self._commits.missing_at(table):
            if commit.group not in unknown:
                with _unwanted(commit):  # no such group or topic any more: nobody will miss it
                    await questions.tell_commit(ask, commit)
                told.append(commit)
        if told:
            log.info("the master was told %d offsets that were committed here", len(told))
        self._commits.take(table, told)

    async def _copy_delays(self, ask: questions.Ask) -> None:
        self._use_delays()
        table = await questions.delays(ask)
        end = await questions.log_end(ask)
        self._held_delays.put(end, table)
        self._use_delays()

    def _use_delays(self) -> None:
        table = self._held_delays.take()
        if table is not None:
            self._copies.take_delays(table)

    async def _copy_request_modes(self, ask: questions.Ask) -> None:
        table = await questions.request_modes(ask)
        if table != self._request_modes.snapshot():
            self._request_modes.load(table)
            self._modes_saved()

    async def _copy_timer_counts(self, ask: questions.Ask) -> None:
        table = await questions.timer_counts(ask)
        await self._in_thread(self._copies.take_counts, table)

    async def _copy_timer_checkpoint(self, ask: questions.Ask) -> None:
        await self._use_checkpoint()
        checkpoint = await questions.timer_checkpoint(ask)
        self._held_checkpoint.put(await questions.log_end(ask), checkpoint)
        await self._use_checkpoint()

    async def _use_checkpoint(self) -> None:
        checkpoint = self._held_checkpoint.take()
        if checkpoint is not None:
            await self._in_thread(self._copies.take_checkpoint, checkpoint)


@contextmanager
def _unwanted(told: object) -> Iterator[None]:
    """Go on if the master refuses what it is told; raises if it may take it later."""
    try:
        yield
    except BrokerError as error:
        if error.retriable:
            raise
        log.warning("the master does not want %s: %s", told, error)
