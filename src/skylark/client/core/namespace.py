"""Namespaces: converts topic and group names between application and wire.

An application in namespace ``ns`` uses ``T`` and ``G``; brokers see ``ns%T``, ``ns%G`` and
``%RETRY%ns%G``. The client wraps every name that it sends and unwraps every name that it receives;
without a namespace names stay as they are. This is namespace v1. Version 2 does not change names,
but adds two fields to every request (:mod:`skylark.client.core.request_signing`). Counterpart of
Java's ``NamespaceUtil`` and of ``ClientConfig.withNamespace``/``withoutNamespace``.
"""

from __future__ import annotations

import msgspec

from skylark.core.names import unwrap_namespace, wrap_namespace
from skylark.wire.bodies.common_body import MessageQueue


class Namespace(msgspec.Struct, frozen=True):
    """One namespace, or none: then every name stays as it is."""

    name: str | None = None

    def wrap(self, name: str) -> str:
        """The name of a topic or group as brokers know it; harmless if it is so already."""
        return wrap_namespace(self.name, name) if self.name else name

    def unwrap(self, name: str) -> str:
        """The name of a topic or group as the application knows it."""
        return unwrap_namespace(self.name, name) if self.name else name

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """The queue with its topic in the namespace (``ns%topic``), as brokers know it."""
        if not self.name:
            return queue
        return msgspec.structs.replace(queue, topic=self.wrap(queue.topic))

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """The queue with the topic that the application knows."""
        if not self.name:
            return queue
        return msgspec.structs.replace(queue, topic=self.unwrap(queue.topic))
