"""Base of both pull consumers: start and stop, hooks, and requests about queues.

A consumer that was started has a
:class:`~skylark.client.consumer.pull_consumer_session.PullConsumerSession`; its methods belong to
the loop of the start. Consume hooks count messages as consumed when they are handed out: what
becomes of them afterwards is not known here.

Counterpart of what Java's ``DefaultMQPullConsumer`` and ``DefaultLitePullConsumer`` have in common.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from skylark.client.consumer.pull_consumer_session import PullConsumerSession
from skylark.client.core.argument_checks import checks_arguments, refused
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions, given_options
from skylark.client.core.client_runtime import ClientRuntime, runtime_of
from skylark.client.core.hooks import ConsumeContext, ConsumeHooks
from skylark.client.core.service_state import ServiceState, Startable, require_running
from skylark.client.core.validation import check_group, check_hooks, check_topic
from skylark.core.lifecycle import join
from skylark.wire.bodies.common_body import MessageQueue


@checks_arguments
class PullClient(Startable):
    """See the module. ``_session`` is set by ``start``."""

    _session: PullConsumerSession

    def __init__(
        self,
        group: str,
        options: ClientOptions | None,
        hooks: Sequence[object],
        runtime: ClientRuntime | None,
    ) -> None:
        check_group(group)
        self.group = group
        self.options = given_options(options)
        self.state = ServiceState.CREATE_JUST
        self._hooks = check_hooks(hooks)
        self._consume_hooks = ConsumeHooks(self._hooks)
        self._runtime = runtime_of(self.options, runtime)
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group} {self.state.value}>"

    async def stop(self) -> None:
        """Save the offsets that were committed and leave the group.

        A second call waits too. A cancellation ends the wait, not the stop.
        """
        if self._stopping is None:
            was_running = self.state is ServiceState.RUNNING
            if was_running:
                self._session.check_loop()
            self.state = ServiceState.SHUTDOWN_ALREADY
            if not was_running:
                return
            self._stopping = asyncio.get_running_loop().create_task(self._session.leave())
        await join(self._stopping)

    def _require_running(self) -> PullConsumerSession:
        require_running(self.state, f"consumer {self.group}")
        self._session.check_loop()
        return self._session

    def _call_consume_hooks(self, messages: list[MessageExt]) -> None:
        """Messages of one queue are handed out."""
        if messages and self._consume_hooks.any:
            group = self._session
            context = ConsumeContext(
                group=self.group,
                messages=messages,
                queue=group.namespace.unwrap_queue(messages[0].queue),
                client_id=group.instance.client_id,
                namespace=group.namespace.name,
            )
            self._consume_hooks.before(context)
            context.success, context.status = True, "CONSUME_SUCCESS"
            context.return_type = "SUCCESS"
            self._consume_hooks.after(context)

    # ---- queues ----------------------------------------------------------------------------------

    async def fetch_queues(self, topic: str) -> frozenset[MessageQueue]:
        """All queues of a topic that can be read, as of now; raises NoRouteError."""
        check_topic(topic)
        return await self._require_running().fetch_queues(topic)

    async def min_offset(self, queue: MessageQueue) -> int:
        """That of the oldest message still held."""
        group = self._require_running()
        return await group.access.min_offset(group.namespace.wrap_queue(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """That of the next message to come."""
        group = self._require_running()
        return await group.access.max_offset(group.namespace.wrap_queue(queue))

    async def offset_for_time(self, queue: MessageQueue, time: datetime | int) -> int:
        """The offset of the first message stored at or after a time (or milliseconds)."""
        group = self._require_running()
        time_ms = time if isinstance(time, int) else round(time.timestamp() * 1000)
        if time_ms < 0:
            raise refused("time", time, "in 1970 or later")
        return await group.access.search_offset(group.namespace.wrap_queue(queue), time_ms)
