"""The pop loops of a push consumer, and how the control loop starts and stops them.

:meth:`PopLoops.assign` is called on the control loop, for each topic and round of rebalancing,
with the assignments to pop; it hands over to the application's loop. Composed here are the parts
that belong to popping: receipts, renewal, runner and loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from skylark.client.consumer.pop.pop_options import init_mode
from skylark.client.consumer.pop.pop_queue import PopLoop, PopQueue, PopTerms
from skylark.client.consumer.pop.pop_receipts import PopReceipts
from skylark.client.consumer.pop.pop_runner import PopRunner
from skylark.client.consumer.pop.pop_source import PopContext
from skylark.client.consumer.pop.pop_stop import end_waiting_pops
from skylark.client.consumer.push.consume_runner import ConsumerServices, Runner
from skylark.client.core.client_options import seconds
from skylark.client.core.control_loop import Handover
from skylark.client.core.hooks import hook_methods
from skylark.client.metrics import QueueLevel
from skylark.wire.bodies.admin_body import PopProcessQueueInfo
from skylark.wire.bodies.common_body import MessageQueue


class PopLoops:
    """Runs on the loop that consumes; see the module docstring."""

    def __init__(
        self,
        services: ConsumerServices,
        runner: Runner,
        group: str,
        is_paused: Callable[[], bool],
    ) -> None:
        """``group`` as brokers know it; ``runner`` has the pools of handlers."""
        setup, instance = services.setup, services.instance
        settings = setup.settings
        self._services = services
        self._group = group
        self._handover = Handover(asyncio.get_running_loop())
        self._wanted: dict[str, frozenset[MessageQueue]] = {}  # by topic; on the control loop
        self._loops: dict[MessageQueue, tuple[PopQueue, PopLoop]] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}  # of all loops, with their broker
        self._expires = False  # the check for handlers that hang has been started
        context = PopContext(
            link=services.link,
            namespace=instance.namespace,
            group=group,
            client_id=instance.client_id,
            receipts=PopReceipts(services.link, group, services.tasks),
            sends_back=services.sends_back,
            tasks=services.tasks,
            invisible_ms=settings.pop_invisible_time_ms,
            init_mode=init_mode(settings.consume_from_where),
            reconsume_times_max=settings.reconsume_times_max(is_orderly=False),
            filters=hook_methods(setup.hooks, "filter_messages"),
        )
        limit_ms = settings.renew_limit_ms if settings.renew else 0
        self.runner = PopRunner(runner, context, limit_ms)
        self._terms = PopTerms(
            context=context,
            batch=settings.pop_batch_nums,
            threshold=settings.pop_threshold_for_queue,
            error_delay_s=seconds(instance.options.pull_error_delay),
            is_running=setup.is_running,
            is_paused=is_paused,
            subscription=lambda topic: setup.subscriptions().get(topic),
            submit=self.runner.submit,
            room=self.runner.room,
        )

    # ---- from the control loop -------------------------------------------------------------------

    def assign(self, topic: str, queues: Collection[MessageQueue]) -> bool:
        """Pop exactly these assignments of a topic; returns whether that is a change."""
        wanted = frozenset(queues)
        if self._wanted.get(topic, frozenset()) == wanted:
            return False
        if wanted:
            self._wanted[topic] = wanted
        else:
            self._wanted.pop(topic, None)
        self._handover.post(self._apply, topic, wanted)
        return True

    def retain_topics(self, topics: Collection[str]) -> None:
        """Pop no other topics, which are no longer subscribed."""
        for topic in [each for each in self._wanted if each not in topics]:
            self.assign(topic, ())

    @property
    def assigned(self) -> frozenset[MessageQueue]:
        """All assignments; from any thread."""
        return frozenset(queue for queues in tuple(self._wanted.values()) for queue in queues)

    def infos(self) -> Mapping[MessageQueue, PopProcessQueueInfo]:
        """The state of each assignment for tools; from any thread."""
        return {queue: each.info() for queue, (each, _) in tuple(self._loops.items())}

    # ---- on the loop that consumes ---------------------------------------------------------------

    def _apply(self, topic: str, wanted: frozenset[MessageQueue]) -> None:
        ours = [queue for queue in self._loops if queue.topic == topic]
        for queue in ours:
            if queue not in wanted:
                self._loops.pop(queue)[0].dropped = True
        services = self._services
        for queue in sorted(wanted):
            if queue in self._loops or services.tasks.closed:
                continue
            pop_queue = PopQueue(
                queue,
                services.setup.stats.of(topic),
                services.instance.consume_meter(self._group, topic),
                services.clock.steady_ms(),
            )
            if not self._expires:
                self._expires = True
                services.tasks.spawn(self.runner.expire_forever(), name="expire pops")
            loop = PopLoop(self._terms, pop_queue)
            self._loops[queue] = (pop_queue, loop)
            # Not owned by services.tasks: end_waiting_pops may let it outlive the consumer.
            task = services.link.loop.create_task(loop.run(), name=f"pop {queue}")
            self._tasks[task] = queue.broker_name
            task.add_done_callback(self._tasks.pop)

    @property
    def in_flight(self) -> int:
        """Messages that were popped and not settled."""
        return sum(each.wait_ack for each, _ in self._loops.values())

    @property
    def lag(self) -> int:
        """Messages that are not settled, here and at the brokers as of the last pops."""
        return self.in_flight + sum(loop.behind for _, loop in self._loops.values())

    def levels(self) -> Iterable[QueueLevel]:
        """The level of each assignment; for any thread."""
        shown = self._services.instance.namespace.unwrap
        return [
            QueueLevel(
                shown(queue.topic),
                queue.broker_name,
                queue.queue_id,
                count=pop_queue.wait_ack,
                size=0,
                behind=loop.behind,
            )
            for queue, (pop_queue, loop) in tuple(self._loops.items())
        ]

    async def end_pops(self) -> None:
        """End the loops, once the consumer does not run; before messages are given back.

        Messages that a loop receives from here on are given back by it.
        """
        for pop_queue, _ in self._loops.values():
            pop_queue.dropped = True  # also if the consumer starts again, after a failed start
        await end_waiting_pops(self._terms.context, self._tasks)

    async def close(self) -> None:
        """After the handlers have ended: finish acks, and give back what no handler got."""
        await self.runner.close()
