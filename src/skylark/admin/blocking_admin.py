"""The blocking admin client, for threads.

::

    with Admin(ClientOptions(namesrv="127.0.0.1:9876")) as admin:
        admin.topics.create("orders", queue_count=4)
        for message in admin.messages.between("orders", limit=10):
            print(message.body)

Every function runs the one of :mod:`skylark.admin.admin_client` on the event loop thread of the
process (:mod:`skylark.client.blocking.event_loop_thread`): same names, arguments and results.
Async iterators become ordinary iterators. ``redrive`` calls its ``where`` and ``on_progress`` on
that loop, so they must not block.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from skylark.admin import admin_client as asynchronous
from skylark.admin import cluster_stats as stats
from skylark.admin import dlq
from skylark.admin import group_operations as groups
from skylark.admin import message_operations as messages
from skylark.admin import offset_operations as offsets
from skylark.admin import server_settings as settings
from skylark.admin import topic_operations as topics
from skylark.admin.admin_session import TIMEOUT_S
from skylark.client.blocking.blocking_client import Blocking
from skylark.client.blocking.event_loop_thread import Portal
from skylark.client.core.client_options import ClientOptions, Duration
from skylark.client.core.client_runtime import ClientRuntime

P = ParamSpec("P")
T = TypeVar("T")
FamilyT = TypeVar("FamilyT")


class Family(Generic[FamilyT]):
    """One family of admin functions, run on the event loop thread."""

    def __init__(self, twin: FamilyT, portal: Portal) -> None:
        self._twin = twin
        self._portal = portal


def _blocking(
    function: Callable[Concatenate[FamilyT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Family[FamilyT], P], T]:
    """A function that runs the coroutine function and waits for its result."""

    @functools.wraps(function)
    def call(family: Family[FamilyT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return family._portal.call(function(family._twin, *args, **kwargs))

    return call


def _iterating(
    function: Callable[Concatenate[FamilyT, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Family[FamilyT], P], Iterator[T]]:
    """A function that returns an ordinary iterator; closing it closes the async one."""

    @functools.wraps(function)
    def call(family: Family[FamilyT], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return family._portal.iterate(function(family._twin, *args, **kwargs))

    return call


class Topics(Family[topics.Topics]):
    """See :class:`skylark.admin.topic_operations.Topics`."""

    create = _blocking(topics.Topics.create)
    put = _blocking(topics.Topics.put)
    update = _blocking(topics.Topics.update)
    delete = _blocking(topics.Topics.delete)
    set_order_config = _blocking(topics.Topics.set_order_config)
    names = _blocking(topics.Topics.names)
    all = _blocking(topics.Topics.all)
    route = _blocking(topics.Topics.route)
    describe = _blocking(topics.Topics.describe)
    groups = _blocking(topics.Topics.groups)


class Groups(Family[groups.Groups]):
    """See :class:`skylark.admin.group_operations.Groups`."""

    put = _blocking(groups.Groups.put)
    create = _blocking(groups.Groups.create)
    delete = _blocking(groups.Groups.delete)
    all = _blocking(groups.Groups.all)
    describe = _blocking(groups.Groups.describe)
    progress = _blocking(groups.Groups.progress)
    members = _blocking(groups.Groups.members)
    producers = _blocking(groups.Groups.producers)
    running_info = _blocking(groups.Groups.running_info)


class Offsets(Family[offsets.Offsets]):
    """See :class:`skylark.admin.offset_operations.Offsets`."""

    bounds = _blocking(offsets.Offsets.bounds)
    at_time = _blocking(offsets.Offsets.at_time)
    committed = _blocking(offsets.Offsets.committed)
    plan_reset = _blocking(offsets.Offsets.plan_reset)
    apply = _blocking(offsets.Offsets.apply)
    reset = _blocking(offsets.Offsets.reset)
    plan_skip = _blocking(offsets.Offsets.plan_skip)
    skip = _blocking(offsets.Offsets.skip)
    clone = _blocking(offsets.Offsets.clone)
    commit = _blocking(offsets.Offsets.commit)


class Stats(Family[stats.Stats]):
    """See :class:`skylark.admin.cluster_stats.Stats`."""

    clusters = _blocking(stats.Stats.clusters)
    runtime = _blocking(stats.Stats.runtime)
    topic = _blocking(stats.Stats.topic)
    ha = _blocking(stats.Stats.ha)
    groups = _blocking(stats.Stats.groups)
    view = _blocking(stats.Stats.view)
    put_rate = _blocking(stats.Stats.put_rate)
    get_rate = _blocking(stats.Stats.get_rate)


class Messages(Family[messages.Messages]):
    """See :class:`skylark.admin.message_operations.Messages`."""

    get = _blocking(messages.Messages.get)
    at = _blocking(messages.Messages.at)
    by_unique_id = _blocking(messages.Messages.by_unique_id)
    by_key = _blocking(messages.Messages.by_key)
    between = _iterating(messages.Messages.between)
    trace = _blocking(messages.Messages.trace)
    explain = _blocking(messages.Messages.explain)
    explain_group = _blocking(messages.Messages.explain_group)
    consume_directly = _blocking(messages.Messages.consume_directly)


class DeadLetterQueues(Family[dlq.DeadLetterQueues]):
    """See :class:`skylark.admin.dlq.DeadLetterQueues`."""

    all = _blocking(dlq.DeadLetterQueues.all)
    of = _blocking(dlq.DeadLetterQueues.of)
    messages = _iterating(dlq.DeadLetterQueues.messages)
    redrive = _blocking(dlq.DeadLetterQueues.redrive)


class Settings(Family[settings.Settings]):
    """See :class:`skylark.admin.server_settings.Settings`."""

    brokers = _blocking(settings.Settings.brokers)
    set_brokers = _blocking(settings.Settings.set_brokers)
    name_servers = _blocking(settings.Settings.name_servers)
    set_name_servers = _blocking(settings.Settings.set_name_servers)
    kv = _blocking(settings.Settings.kv)
    kv_list = _blocking(settings.Settings.kv_list)
    kv_put = _blocking(settings.Settings.kv_put)
    kv_delete = _blocking(settings.Settings.kv_delete)
    wipe_write_perm = _blocking(settings.Settings.wipe_write_perm)
    add_write_perm = _blocking(settings.Settings.add_write_perm)


class Admin(Blocking[asynchronous.Admin]):
    """The blocking admin client; see :class:`skylark.admin.admin_client.Admin`."""

    def __init__(
        self,
        options: ClientOptions | None = None,
        *,
        timeout: Duration = TIMEOUT_S,
        runtime: ClientRuntime | None = None,
    ) -> None:
        """``timeout``: seconds that each request to a server may take."""
        super().__init__(asynchronous.Admin(options, timeout=timeout, runtime=runtime))

    @property
    def topics(self) -> Topics:
        """Create, list, describe, change and delete topics."""
        return Topics(self._twin.topics, self._door)

    @property
    def groups(self) -> Groups:
        """Consumer groups: settings, members, progress; producers."""
        return Groups(self._twin.groups, self._door)

    @property
    def offsets(self) -> Offsets:
        """First and next offsets of queues, committed offsets of groups, resets."""
        return Offsets(self._twin.offsets, self._door)

    @property
    def stats(self) -> Stats:
        """Clusters, brokers, rates, replication."""
        return Stats(self._twin.stats, self._door)

    @property
    def messages(self) -> Messages:
        """Find messages by id, key, offset and time; their traces."""
        return Messages(self._twin.messages, self._door)

    @property
    def dlq(self) -> DeadLetterQueues:
        """List, read and redrive dead letters."""
        return DeadLetterQueues(self._twin.dlq, self._door)

    @property
    def settings(self) -> Settings:
        """Settings of brokers and name servers."""
        return Settings(self._twin.settings, self._door)
