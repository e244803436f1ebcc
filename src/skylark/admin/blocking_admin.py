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

from skylark.admin import admin_client as asynchronous
from skylark.admin import cluster_stats as stats
from skylark.admin import dlq
from skylark.admin import group_operations as groups
from skylark.admin import message_operations as messages
from skylark.admin import offset_operations as offsets
from skylark.admin import server_settings as settings
from skylark.admin import topic_operations as topics
from skylark.admin.admin_session import TIMEOUT_S
from skylark.client.blocking.blocking_client import Blocking, LoopFacade, iterating, waiting
from skylark.client.core.client_options import ClientOptions, Duration
from skylark.client.core.client_runtime import ClientRuntime


class Topics(LoopFacade[topics.Topics]):
    """See :class:`skylark.admin.topic_operations.Topics`."""

    create = waiting(topics.Topics.create)
    put = waiting(topics.Topics.put)
    update = waiting(topics.Topics.update)
    delete = waiting(topics.Topics.delete)
    set_order_config = waiting(topics.Topics.set_order_config)
    names = waiting(topics.Topics.names)
    all = waiting(topics.Topics.all)
    route = waiting(topics.Topics.route)
    describe = waiting(topics.Topics.describe)
    groups = waiting(topics.Topics.groups)


class Groups(LoopFacade[groups.Groups]):
    """See :class:`skylark.admin.group_operations.Groups`."""

    put = waiting(groups.Groups.put)
    create = waiting(groups.Groups.create)
    delete = waiting(groups.Groups.delete)
    set_mode = waiting(groups.Groups.set_mode)
    modes = waiting(groups.Groups.modes)
    all = waiting(groups.Groups.all)
    describe = waiting(groups.Groups.describe)
    progress = waiting(groups.Groups.progress)
    members = waiting(groups.Groups.members)
    producers = waiting(groups.Groups.producers)
    running_info = waiting(groups.Groups.running_info)


class Offsets(LoopFacade[offsets.Offsets]):
    """See :class:`skylark.admin.offset_operations.Offsets`."""

    bounds = waiting(offsets.Offsets.bounds)
    at_time = waiting(offsets.Offsets.at_time)
    committed = waiting(offsets.Offsets.committed)
    plan_reset = waiting(offsets.Offsets.plan_reset)
    apply = waiting(offsets.Offsets.apply)
    reset = waiting(offsets.Offsets.reset)
    plan_skip = waiting(offsets.Offsets.plan_skip)
    skip = waiting(offsets.Offsets.skip)
    clone = waiting(offsets.Offsets.clone)
    commit = waiting(offsets.Offsets.commit)


class Stats(LoopFacade[stats.Stats]):
    """See :class:`skylark.admin.cluster_stats.Stats`."""

    clusters = waiting(stats.Stats.clusters)
    runtime = waiting(stats.Stats.runtime)
    topic = waiting(stats.Stats.topic)
    ha = waiting(stats.Stats.ha)
    groups = waiting(stats.Stats.groups)
    view = waiting(stats.Stats.view)
    put_rate = waiting(stats.Stats.put_rate)
    get_rate = waiting(stats.Stats.get_rate)


class Messages(LoopFacade[messages.Messages]):
    """See :class:`skylark.admin.message_operations.Messages`."""

    get = waiting(messages.Messages.get)
    at = waiting(messages.Messages.at)
    by_unique_id = waiting(messages.Messages.by_unique_id)
    by_key = waiting(messages.Messages.by_key)
    between = iterating(messages.Messages.between)
    trace = waiting(messages.Messages.trace)
    explain = waiting(messages.Messages.explain)
    explain_group = waiting(messages.Messages.explain_group)
    consume_directly = waiting(messages.Messages.consume_directly)


class DeadLetterQueues(LoopFacade[dlq.DeadLetterQueues]):
    """See :class:`skylark.admin.dlq.DeadLetterQueues`."""

    all = waiting(dlq.DeadLetterQueues.all)
    of = waiting(dlq.DeadLetterQueues.of)
    messages = iterating(dlq.DeadLetterQueues.messages)
    redrive = waiting(dlq.DeadLetterQueues.redrive)


class Settings(LoopFacade[settings.Settings]):
    """See :class:`skylark.admin.server_settings.Settings`."""

    brokers = waiting(settings.Settings.brokers)
    set_brokers = waiting(settings.Settings.set_brokers)
    name_servers = waiting(settings.Settings.name_servers)
    set_name_servers = waiting(settings.Settings.set_name_servers)
    kv = waiting(settings.Settings.kv)
    kv_list = waiting(settings.Settings.kv_list)
    kv_put = waiting(settings.Settings.kv_put)
    kv_delete = waiting(settings.Settings.kv_delete)
    wipe_write_perm = waiting(settings.Settings.wipe_write_perm)
    add_write_perm = waiting(settings.Settings.add_write_perm)


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
        """Make, list, describe, change and delete topics."""
        return Topics(self._client.topics, self._loop_thread)

    @property
    def groups(self) -> Groups:
        """Consumer groups: settings, members, progress; producers."""
        return Groups(self._client.groups, self._loop_thread)

    @property
    def offsets(self) -> Offsets:
        """Where queues begin and end, and where groups stand in them; reset."""
        return Offsets(self._client.offsets, self._loop_thread)

    @property
    def stats(self) -> Stats:
        """Clusters, brokers, rates, replication."""
        return Stats(self._client.stats, self._loop_thread)

    @property
    def messages(self) -> Messages:
        """Find messages by id, key, place and time; their traces."""
        return Messages(self._client.messages, self._loop_thread)

    @property
    def dlq(self) -> DeadLetterQueues:
        """Dead letters: list, show, send again."""
        return DeadLetterQueues(self._client.dlq, self._loop_thread)

    @property
    def settings(self) -> Settings:
        """Settings of brokers and name servers."""
        return Settings(self._client.settings, self._loop_thread)
