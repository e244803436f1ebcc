"""Who answers what: every handler of a broker but the pulls', made of the parts of the broker.

Both ports of a broker have all of these; pulls are answered on the ordinary port only. The list is
part of the wiring of :mod:`skylark.broker.composition`: nothing else happens here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from skylark.broker.admin.client_relay import RelayHandlers
from skylark.broker.admin.group_handlers import GroupHandlers
from skylark.broker.admin.message_query import QueryHandlers
from skylark.broker.admin.offset_reset import ResetHandlers
from skylark.broker.admin.refused_requests import Refusals
from skylark.broker.admin.runtime_info import RuntimeHandlers, ServiceFacts
from skylark.broker.admin.settings_handlers import SettingsHandlers
from skylark.broker.admin.stats_handlers import StatsHandlers
from skylark.broker.admin.store_cleaning import CleaningHandlers
from skylark.broker.admin.table_export import SyncHandlers
from skylark.broker.admin.topic_handlers import TopicHandlers
from skylark.broker.delay.timer_service import TimerFacts
from skylark.broker.groups.handlers import (
    AssignmentHandlers,
    ClientHandlers,
    LockHandlers,
    OffsetHandlers,
)
from skylark.broker.groups.queue_assignment import AssignmentService
from skylark.broker.send.recall import RecallHandlers
from skylark.broker.send.reply_handlers import ReplyHandlers
from skylark.broker.send.send_back import SendBackHandlers
from skylark.broker.table_saver import SettingsFile
from skylark.broker.topics.topic_routes import TopicRoutes
from skylark.broker.transaction.handlers import EndHalvesHandlers, ResumeHandlers
from skylark.net.dispatch import Dispatcher
from skylark.store.file_system import FileSystem

if TYPE_CHECKING:
    from skylark.broker.composition import BrokerGraph


class Handlers(Protocol):
    """Some requests that belong together."""

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""


def handlers_of(
    graph: BrokerGraph, files: FileSystem, settings_file: SettingsFile
) -> list[Handlers]:
    """What both ports have; the parts are made already."""
    return [
        graph.put_handlers,
        EndHalvesHandlers(graph.services.puts, graph.transactions),
        ResumeHandlers(graph.transactions),
        ReplyHandlers(graph.send_checks, graph.services.puts, graph.store.log.store_host),
        RecallHandlers(graph.live, graph.services.puts),
        SendBackHandlers(graph.services.puts),
        OffsetHandlers(graph.services.offsets),
        QueryHandlers(graph.store, graph.consumers, graph.filters),
        *_about_clients(graph),
        *_about_settings(graph, settings_file),
        *_reports(graph, files),
    ]


def _about_clients(graph: BrokerGraph) -> list[Handlers]:
    """Who is connected, and what belongs to whom."""
    return [
        ClientHandlers(graph.services.clients),
        LockHandlers(graph.services.locks),
        AssignmentHandlers(
            AssignmentService(
                graph.live,
                graph.topics,
                graph.groups,
                graph.consumers,
                graph.request_modes,
                TopicRoutes(graph.live, graph.topics, graph.client, graph.clock),
                modes_saved=graph.modes_saved,
            )
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
            graph.clock,
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
