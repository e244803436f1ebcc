"""Who answers what: every handler of a broker but the pulls', made of the parts of the broker.

Both ports of a broker have all of these; pulls are answered on the ordinary port only. The list is
part of the wiring of :mod:`skylark.broker.graph`: nothing else happens here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from skylark.broker.handlers.admin.broker import SettingsHandlers
from skylark.broker.handlers.admin.cleaning import CleaningHandlers
from skylark.broker.handlers.admin.group import GroupHandlers
from skylark.broker.handlers.admin.queue import QueueHandlers
from skylark.broker.handlers.admin.refused import Refusals
from skylark.broker.handlers.admin.relay import RelayHandlers
from skylark.broker.handlers.admin.reset import ResetHandlers
from skylark.broker.handlers.admin.runtime import RuntimeHandlers, ServiceFacts
from skylark.broker.handlers.admin.stats import StatsHandlers
from skylark.broker.handlers.admin.sync import SyncHandlers
from skylark.broker.handlers.admin.topic import TopicHandlers
from skylark.broker.handlers.assignment import AssignmentHandlers
from skylark.broker.handlers.client import ClientHandlers
from skylark.broker.handlers.halves import HalfHandlers
from skylark.broker.handlers.lock import LockHandlers
from skylark.broker.handlers.offset import OffsetHandlers
from skylark.broker.handlers.query import QueryHandlers
from skylark.broker.handlers.recall import RecallHandlers
from skylark.broker.handlers.send_back import SendBackHandlers
from skylark.broker.handlers.transaction import TransactionHandlers
from skylark.broker.persist import SettingsFile
from skylark.broker.runtime_info import TimerFacts
from skylark.broker.topic_routes import TopicRoutes
from skylark.net.dispatch import Dispatcher
from skylark.store.file_system import FileSystem

if TYPE_CHECKING:
    from skylark.broker.graph import BrokerGraph


class Handlers(Protocol):
    """Some requests that belong together."""

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""


def handlers_of(
    graph: BrokerGraph, files: FileSystem, settings_file: SettingsFile
) -> list[Handlers]:
    """What both ports have; the parts are made already."""
    return [
        graph.sends,
        TransactionHandlers(
            graph.live, graph.transactions, graph.put_answers, graph.sends.put_runs
        ),
        HalfHandlers(
            graph.send_checks,
            graph.put_answers,
            graph.writer,
            graph.stats,
            graph.transactions,
            graph.clock,
        ),
        graph.replies,
        RecallHandlers(graph.live, graph.writer, graph.topics, graph.stats, graph.clock),
        SendBackHandlers(
            graph.live,
            graph.writer,
            graph.topics,
            graph.groups,
            graph.stats,
            graph.put_answers,
            on_dead_letter=graph.exporter.dead_letter,
        ),
        OffsetHandlers(graph.store, graph.topics, graph.groups, graph.offsets),
        QueryHandlers(graph.store),
        *_about_clients(graph),
        *_about_settings(graph, settings_file),
        *_reports(graph, files),
    ]


def _about_clients(graph: BrokerGraph) -> list[Handlers]:
    """Who is connected, and what belongs to whom."""
    return [
        ClientHandlers(
            graph.live,
            graph.topics,
            graph.groups,
            graph.consumers,
            graph.producers,
            graph.filters,
            graph.liveness,
            graph.clock,
        ),
        LockHandlers(graph.locks, graph.liveness.now_ms),
        AssignmentHandlers(
            graph.live,
            graph.topics,
            graph.groups,
            graph.consumers,
            graph.request_modes,
            TopicRoutes(graph.live, graph.topics, graph.client, graph.clock),
            modes_saved=graph.modes_saved,
        ),
    ]


def _about_settings(graph: BrokerGraph, settings_file: SettingsFile) -> list[Handlers]:
    """What administrators change."""
    return [
        TopicHandlers(
            graph.live,
            graph.topics,
            graph.offsets,
            graph.consumers,
            graph.saved,
            delete_queues=graph.delete_queues,
            announced=graph.registration.announced,
        ),
        GroupHandlers(
            graph.groups,
            graph.consumers,
            graph.producers,
            graph.offsets,
            graph.locks,
            graph.saved,
            graph.liveness.now_ms,
            group_deleted=graph.stats.group_deleted,
        ),
        SettingsHandlers(
            graph.live,
            graph.topics,
            settings_file,
            graph.clock,
            register_all=graph.registration.register_all,
        ),
    ]


def _reports(graph: BrokerGraph, files: FileSystem) -> list[Handlers]:
    """What administrators, tools and slaves ask."""
    reader = graph.store.reader
    return [
        StatsHandlers(
            graph.live,
            graph.topics,
            graph.groups,
            graph.offsets,
            graph.consumers,
            reader,
            graph.stats,
            graph.clock,
        ),
        ResetHandlers(
            graph.live,
            graph.topics,
            graph.groups,
            graph.offsets,
            graph.consumers,
            reader,
            graph.saved,
        ),
        RelayHandlers(graph.live, graph.topics, graph.groups, graph.consumers, reader),
        CleaningHandlers(graph.topics, graph.store, graph.clock),
        QueueHandlers(graph.store.queues, graph.consumers, graph.filters),
        SyncHandlers(
            graph.offsets,
            graph.request_modes,
            graph.clock,
            delay_offsets=graph.slave.delays if graph.slave else graph.schedule.snapshot,
            timer=graph.timer,
        ),
        RuntimeHandlers(
            graph.live,
            graph.store,
            files,
            graph.sampler,
            graph.loop_watch,
            graph.clock,
            graph.replication,
            ServiceFacts(
                schedule_offsets=graph.schedule.progress,
                timer=TimerFacts if graph.timer is None else graph.timer.facts,
            ),
        ),
        Refusals(),
    ]
