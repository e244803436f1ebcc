"""The admin client: manages a running cluster, on asyncio.

::

    async with Admin(ClientOptions(namesrv="127.0.0.1:9876")) as admin:
        await admin.topics.create("orders", queue_count=4)
        for queue in (await admin.groups.progress("billing")).queues:
            print(queue.queue, queue.lag)
        plan = await admin.offsets.plan_reset("billing", "orders", to="earliest")
        await admin.offsets.apply(plan)
        report = await admin.dlq.redrive("billing", dry_run=True)

Name servers, credentials, namespace and timeouts come from
:class:`~skylark.client.core.client_options.ClientOptions`. An :class:`Admin` joins no group. It
belongs to the event loop on which it was started; its functions may run there concurrently.
Results are immutable structs, times are milliseconds since 1970.

========================  ==================================================================
``admin.topics``          :mod:`skylark.admin.topic_operations`
``admin.groups``          :mod:`skylark.admin.group_operations`
``admin.offsets``         :mod:`skylark.admin.offset_operations`
``admin.stats``           :mod:`skylark.admin.cluster_stats`
``admin.messages``        :mod:`skylark.admin.message_operations`
``admin.dlq``             :mod:`skylark.admin.dlq`
``admin.settings``        :mod:`skylark.admin.server_settings`
========================  ==================================================================

Counterpart of Java's ``DefaultMQAdminExt``.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from skylark.admin.admin_session import TIMEOUT_S, Session
from skylark.admin.cluster_stats import Stats
from skylark.admin.dlq import DeadLetterQueues
from skylark.admin.group_operations import Groups
from skylark.admin.message_operations import Messages
from skylark.admin.offset_operations import Offsets
from skylark.admin.server_settings import Settings
from skylark.admin.topic_operations import Topics
from skylark.client.core.client_options import ClientOptions, Duration, given_options, seconds
from skylark.client.core.client_runtime import ClientRuntime
from skylark.client.core.instance_registry import open_instance
from skylark.client.core.service_state import ServiceState, Startable, require_new, require_running
from skylark.core.errors import ConfigError


class Admin(Startable):
    """The admin client; see the module docstring."""

    def __init__(
        self,
        options: ClientOptions | None = None,
        *,
        timeout: Duration = TIMEOUT_S,
        runtime: ClientRuntime | None = None,
    ) -> None:
        """``timeout``: seconds that each request to a server may take."""
        self.options = given_options(options)
        self.state = ServiceState.CREATE_JUST
        self._timeout_s = seconds(timeout, "timeout")
        if not self._timeout_s > 0:
            raise ConfigError(f"timeout must be positive, not {timeout!r}")
        self._runtime = runtime
        self._opened = AsyncExitStack()
        self._session: Session | None = None

    def __repr__(self) -> str:
        return f"<Admin {self.options!r} {self.state.value}>"

    # ---- start and stop --------------------------------------------------------------------------

    async def start(self) -> None:
        """Start; sends no request yet. Raises ConfigError for invalid addresses."""
        require_new(self.state, "the admin client")
        self.state = ServiceState.START_FAILED
        instance, link = await self._opened.enter_async_context(
            open_instance(self.options, self._runtime)
        )
        self._session = Session(
            link,
            [str(address) for address in instance.endpoint.namesrv],
            instance.namespace,
            timeout_s=self._timeout_s,
        )
        self.state = ServiceState.RUNNING

    async def stop(self) -> None:
        """Close the connections; does nothing if the client does not run."""
        self.state = ServiceState.SHUTDOWN_ALREADY
        self._session = None
        await self._opened.aclose()

    @property
    def session(self) -> Session:
        """Connections and names for the functions; raises ClientStateError if it does not run."""
        if self._session is None:
            require_running(self.state, "the admin client")
            raise AssertionError("a running admin client has its session")
        return self._session

    # ---- functions -------------------------------------------------------------------------------

    @property
    def topics(self) -> Topics:
        """Create, list, describe, change and delete topics."""
        return Topics(self.session)

    @property
    def groups(self) -> Groups:
        """Consumer groups: settings, members, progress; producers."""
        return Groups(self.session)

    @property
    def offsets(self) -> Offsets:
        """First and next offsets of queues, committed offsets of groups, resets."""
        return Offsets(self.session)

    @property
    def stats(self) -> Stats:
        """Clusters, brokers, rates, replication."""
        return Stats(self.session)

    @property
    def messages(self) -> Messages:
        """Find messages by id, key, offset and time; their traces."""
        return Messages(self.session)

    @property
    def dlq(self) -> DeadLetterQueues:
        """List, read and redrive dead letters."""
        return DeadLetterQueues(self.session)

    @property
    def settings(self) -> Settings:
        """Settings of brokers and name servers."""
        return Settings(self.session)
