"""Store cleaning on demand: queues without messages, queues without a topic, expired log files.

==================================  ==============================================================
CLEAN_EXPIRED_CONSUMEQUEUE (306)    queues whose messages are all gone from the log
CLEAN_UNUSED_TOPIC (316)            queues of topics that have no configuration any more
DELETE_EXPIRED_COMMITLOG (329)      log files that have expired, at any hour of the day; the answer
                                    comes before the store has deleted them
==================================  ==============================================================

System topics are not deleted. The event loop can do other work between queues. ``MessageStore`` and
``Retention`` say what a crash leaves.
"""

from __future__ import annotations

import logging
from typing import Final

from skylark.broker.admin.handler_base import AdminHandlers, handles
from skylark.core.errors import BrokerError, StoreError
from skylark.core.names import LMQ_PREFIX
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command

logger = logging.getLogger(__name__)

#: Queues per turn of the event loop.
QUEUES_PER_TURN: Final = 256


class CleaningHandlers(AdminHandlers):
    """The requests that free space."""

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    async def clean_expired_queues(self, connection: Connection, request: Command) -> Command:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306)."""
        deleted = 0
        for number, queue in enumerate(tuple(self._broker.store.queues), 1):
            try:
                is_deleted = self._broker.store.retention.clean_expired_queue(
                    queue, self._broker.topics.system_names
                )
            except StoreError as error:
                raise BrokerError(str(error)) from error
            deleted += is_deleted
            if is_deleted or number % QUEUES_PER_TURN == 0:
                await self._broker.clock.sleep(0)
        logger.info("%r deleted %d queues without messages", connection, deleted)
        return success(request)

    @handles(RequestCode.CLEAN_UNUSED_TOPIC)
    async def clean_unused_topics(self, connection: Connection, request: Command) -> Command:
        """CLEAN_UNUSED_TOPIC (316)."""
        for topic in self._broker.store.queues.topics():
            if topic in self._broker.topics or self._broker.topics.is_system(topic):
                continue
            if topic.startswith(LMQ_PREFIX):  # light queues have no topic configuration
                continue
            logger.info("%r deletes the queues of %s, which is not a topic", connection, topic)
            try:
                self._broker.store.delete_topic(topic)
            except StoreError as error:
                raise BrokerError(str(error)) from error
            await self._broker.clock.sleep(0)
        return success(request)

    @handles(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired_files(self, connection: Connection, request: Command) -> Command:
        """DELETE_EXPIRED_COMMITLOG (329)."""
        logger.info("%r requests the deletion of expired files", connection)
        self._broker.store.retention.request_deletion()
        return success(request)
