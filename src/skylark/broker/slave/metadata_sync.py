"""Metadata sync: a slave copies the tables of its master (topics, groups, offsets, delays, timer).

::

    master known, or back again --> copies all tables at once
    every slaveSyncInterval     --> copies all tables
    every 3 s                   --> copies the state of the timer only, which changes fast
    master does not answer      --> tries again every 3 s; logs it once

Messages come another way (:mod:`skylark.replication`). The slave saves the tables and registers
them with the name servers as its own, so that consumers find everything here when the master is
gone. A table that cannot be copied is tried again in the next round; the others do not depend on
it.

Before the slave copies groups and offsets, it sends the master what changed here while the master
was away (:mod:`skylark.broker.slave.slave_changes`). It uses the progress of deliveries only when
its log has what was delivered (:mod:`skylark.broker.slave.slave_deliveries`).

Java copies first after a minute and then every minute; 4.x every 10 s, as here. Counterpart of
Java's ``SlaveSynchronize``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.request_modes import RequestModes
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.slave import master_requests
from skylark.broker.slave.master_requests import Ask
from skylark.broker.slave.slave_changes import (
    SLAVE_OFFSETS,
    Commit,
    NewGroups,
    SlaveCommits,
    SlaveOffsetTable,
)
from skylark.broker.slave.slave_deliveries import DeliveryCopies
from skylark.broker.table_saver import InThread, TableSaver
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import BrokerError, GoAwayError, SkylarkError, TransportError
from skylark.core.lifecycle import Tasks
from skylark.store.config_files import DELAY_OFFSETS, ConfigFiles
from skylark.store.config_tables import DelayOffsetTable
from skylark.wire.command import Command

logger = logging.getLogger(__name__)

TICK_S: Final = 3.0
#: A table may be long: what Java allows for 21.
TABLE_TIMEOUT_S: Final = 30.0

#: Sends a request to an address, with a limit in seconds; the answer may have any code.
CallAddress = Callable[[str, Command, float], Awaitable[Command]]
_Step = Callable[[Ask], Awaitable[None]]


class SlaveTables(NamedTuple):
    """The tables of the broker that are copied."""

    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    request_modes: RequestModes


class SlaveSync:
    """Copies for one slave, from ``start`` to ``stop``; ``load`` comes before."""

    def __init__(
        self,
        live: LiveSettings,
        tables: SlaveTables,
        copies: DeliveryCopies,
        clock: Clock,
        *,
        call: CallAddress,
        delete_queues: Callable[[tuple[str, ...]], None],
        modes_saved: Callable[[], None],
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        """``delete_queues`` of topics that the master has deleted; ``modes_saved``: the request
        modes have changed."""
        self._live = live
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._request_modes = tables.request_modes
        self._new_groups = NewGroups(tables.groups)
        self._commits = SlaveCommits(tables.offsets)
        self._copies = copies
        self._clock = clock
        self._call = call
        self._delete_queues = delete_queues
        self._modes_saved = modes_saved
        self._in_thread = in_thread
        self._master: str | None = None
        self._tasks = Tasks("slave sync", limit=8)
        self._timer: TimerHandle | None = None
        self._is_running = False
        self._is_copying = False
        self._whole_due = 0.0  # monotonic
        self._problems: dict[str, str] = {}  # the last logged problem of each step
        #: Whole copies, without any failure.
        self.copy_count = 0

    # --- start and stop ---------------------------------------------------------------------------

    def load(self, files: ConfigFiles, saver: TableSaver) -> None:
        """Restore what the last run has saved, and have it saved from now on; raises StoreError.

        Comes after the tables of the broker were loaded.
        """
        own = files.load(SLAVE_OFFSETS)
        self._commits.load(own.offset_table)
        self._new_groups.load(own.new_groups)
        self._copies.load(files.load(DELAY_OFFSETS))
        saver.every(
            SLAVE_OFFSETS,
            self._changes_here,
            interval_ms=lambda: self._live.current.flush_consumer_offset_interval,
            changes=lambda: self._offsets.change_count,
        )
        saver.every(
            DELAY_OFFSETS,
            self.delays,
            interval_ms=lambda: self._live.current.flush_delay_offset_interval,
        )

    def _changes_here(self) -> SlaveOffsetTable:
        """The content of ``slaveOffset.json``."""
        return SlaveOffsetTable(
            offset_table=self._commits.snapshot(), new_groups=self._new_groups.names()
        )

    def delays(self) -> DelayOffsetTable:
        """The content of ``delayOffset.json``."""
        return self._copies.delays

    def start(self) -> None:
        """Copy from now on, as soon as the master is known."""
        self._is_running = True
        self._arm(0.0)

    async def stop(self) -> None:
        """Stop copying; comes before the tables are saved for the last time."""
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
        """Set the timer of the next round; a round under way sets it at its end."""
        if not self._is_running or self._master is None or self._is_copying:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_later(delay_s, self._begin_round)

    def _begin_round(self) -> None:
        self._timer = None
        self._is_copying = True
        self._tasks.spawn(self._round(), name="round")

    # --- rounds -----------------------------------------------------------------------------------

    async def _round(self) -> None:
        master = self._master
        assert master is not None, "_arm begins a round only when the master is known"
        is_whole = self._clock.monotonic() >= self._whole_due
        try:
            succeeded = await self._copy_all(master, self._steps(is_whole))
        finally:
            self._is_copying = False
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
                self._log_once(
                    "master", f"the slave cannot copy the tables of master {master}: {error}"
                )
                return False
            except SkylarkError as error:
                self._log_once(
                    name, f"the slave cannot copy the {name} of master {master}: {error}"
                )
            else:
                self._problems.pop(name, None)
        if self._problems.pop("master", None) is not None:
            logger.info("master %s answers again", master)
        return True

    def _log_once(self, step: str, problem: str) -> None:
        """Log a problem, unless the step had the same one the last time."""
        if self._problems.get(step) != problem:
            self._problems[step] = problem
            logger.warning("%s", problem)

    # --- steps ------------------------------------------------------------------------------------

    async def _copy_topics(self, ask: Ask) -> None:
        topics = await master_requests.get_topics(ask)
        if topics.version != self._topics.version:
            change = self._topics.copy_from(topics.table, topics.version)
            if change.deleted:
                self._delete_queues(change.deleted)

    async def _copy_groups(self, ask: Ask) -> None:
        groups = await master_requests.get_groups(ask)
        new = self._new_groups.missing_at(groups.table)
        for group in new:
            with _refusal_logged(group.group_name):
                await master_requests.send_group(ask, group)
        if new:
            logger.info("the slave sent %d groups that were created here to the master", len(new))
            groups = await master_requests.get_groups(ask)
        self._new_groups.take(
            groups.table, groups.bans, groups.version, sent={group.group_name for group in new}
        )

    async def _copy_offsets(self, ask: Ask) -> None:
        table = await master_requests.get_offsets(ask)
        sent: list[Commit] = []
        unknown = set(self._new_groups.names())  # the master refuses their offsets for now
        for commit in self._commits.missing_at(table):
            if commit.group not in unknown:
                with _refusal_logged(commit):  # its group or topic was deleted at the master
                    await master_requests.send_commit(ask, commit)
                sent.append(commit)
        if sent:
            logger.info(
                "the slave sent %d offsets that were committed here to the master", len(sent)
            )
        self._commits.take(table, sent)

    async def _copy_delays(self, ask: Ask) -> None:
        self._copies.use_held_delays()
        table = await master_requests.get_delay_offsets(ask)
        self._copies.held_delays.put(await master_requests.get_log_end(ask), table)
        self._copies.use_held_delays()

    async def _copy_request_modes(self, ask: Ask) -> None:
        table = await master_requests.get_request_modes(ask)
        if table != self._request_modes.snapshot():
            self._request_modes.load(table)
            self._modes_saved()

    async def _copy_timer_counts(self, ask: Ask) -> None:
        table = await master_requests.get_timer_counts(ask)
        await self._in_thread(self._copies.take_counts, table)

    async def _copy_timer_checkpoint(self, ask: Ask) -> None:
        await self._use_checkpoint()
        checkpoint = await master_requests.get_timer_checkpoint(ask)
        self._copies.held_checkpoint.put(await master_requests.get_log_end(ask), checkpoint)
        await self._use_checkpoint()

    async def _use_checkpoint(self) -> None:
        checkpoint = self._copies.held_checkpoint.take()
        if checkpoint is not None:
            await self._in_thread(self._copies.take_checkpoint, checkpoint)


@contextmanager
def _refusal_logged(sent: object) -> Iterator[None]:
    """Log it and go on if the master refuses for good; raises if it may accept later."""
    try:
        yield
    except BrokerError as error:
        if error.retriable:
            raise
        logger.warning("the master refuses %s: %s", sent, error)
