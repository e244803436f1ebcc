"""Heartbeat decisions: their content and their recipients; nothing is sent here.

A heartbeat (34) lists the producer and consumer groups of a client with their subscriptions. A
client without groups sends none. Producers alone speak to masters only; consumers read from slaves
too, which must know them.

**Version 2** saves the subscriptions where a broker has them already. Per address: if the broker
is known to understand it and has acknowledged the present *fingerprint* of the subscriptions, only
the fingerprint goes (``withoutSub``), otherwise everything. The broker's answer decides about the
next one: with ``IS_SUB_CHANGE`` its picture differs, and the next is whole. So it is after a change
of the assignment, and on a new connection: the broker behind it may have been started anew.

Counterpart of Java's ``MQClientInstance.prepareHeartbeatData`` and ``sendHeartbeatToBrokerV2``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from skylark.client.core.broker_calls import HeartbeatAnswer
from skylark.client.core.route_cache import MASTER_ID
from skylark.wire.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    heartbeat_fingerprint,
)


def heartbeat_targets(
    brokers: Mapping[str, Mapping[int, str]], *, with_consumers: bool
) -> list[str]:
    """The addresses that get a heartbeat, each once."""
    found = (
        address
        for addresses in brokers.values()
        for broker_id, address in addresses.items()
        if with_consumers or broker_id == MASTER_ID
    )
    return list(dict.fromkeys(found))


class HeartbeatPlan:
    """Which heartbeat each broker gets."""

    def __init__(self, client_id: str, *, use_v2: bool = False) -> None:
        self._client_id = client_id
        self._use_v2 = use_v2
        self._supports_v2: set[str] = set()
        self._acknowledged: dict[str, int] = {}  # address -> fingerprint

    def whole(
        self, producer_groups: Iterable[str], consumers: Iterable[ConsumerData]
    ) -> HeartbeatData | None:
        """All that this client is; None if there is nothing to tell."""
        heartbeat = HeartbeatData(
            client_id=self._client_id,
            producer_data_set=[ProducerData(group_name=group) for group in producer_groups],
            consumer_data_set=list(consumers),
        )
        if not heartbeat.producer_data_set and not heartbeat.consumer_data_set:
            return None
        if self._use_v2:
            heartbeat.heartbeat_fingerprint = heartbeat_fingerprint(heartbeat)
        return heartbeat

    def body_for(self, address: str, whole: HeartbeatData) -> HeartbeatData:
        """What this broker gets: everything, or the fingerprint of it."""
        if not self._use_v2 or address not in self._supports_v2:
            return whole
        if self._acknowledged.get(address) != whole.heartbeat_fingerprint:
            return whole
        consumers = [
            msgspec.structs.replace(consumer, subscription_data_set=[])
            for consumer in whole.consumer_data_set
        ]
        return msgspec.structs.replace(whole, consumer_data_set=consumers, without_sub=True)

    def answered(self, address: str, sent: HeartbeatData, answer: HeartbeatAnswer) -> None:
        """The broker has taken ``sent``."""
        if not self._use_v2:
            return
        if answer.supports_v2:
            self._supports_v2.add(address)
        else:
            self._supports_v2.discard(address)
        if answer.sub_change or not answer.supports_v2:
            self._acknowledged.pop(address, None)
        else:
            self._acknowledged[address] = sent.heartbeat_fingerprint

    def forget(self, address: str) -> None:
        """The next heartbeat to this broker is whole."""
        self._acknowledged.pop(address, None)

    def forget_all(self) -> None:
        """The next heartbeats are whole."""
        self._acknowledged.clear()
