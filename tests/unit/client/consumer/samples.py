"""Messages and queues for tests of consumers, and where data printed by Java's client is."""

from __future__ import annotations

from pathlib import Path

from skylark.client.core.client_message import MessageExt
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.message import decode_record, encode_record, pack_host
from skylark.wire.properties import encode_properties

#: Printed by the programs beside it, with the classes of RocketMQ 5.5.0 unless named otherwise.
GOLDEN = Path(__file__).parents[3] / "golden" / "data" / "client"


def queue(queue_id: int = 0, *, broker: str = "broker-a", topic: str = "T") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


def message(
    offset: int,
    body: bytes = b"x",
    *,
    topic: str = "T",
    reconsume_times: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    **properties: str,
) -> MessageExt:
    """A message as it was pulled from queue 0 of broker-a."""
    data = encode_record(
        topic=topic,
        body=body,
        properties=encode_properties(properties).encode(),
        queue_id=0,
        queue_offset=offset,
        log_offset=1_000 * offset,
        sys_flag=sys_flag,
        born_timestamp=1_000,
        born_host=pack_host("10.0.0.1", 5),
        store_timestamp=2_500,
        store_host=pack_host("10.0.0.2", 10911),
        reconsume_times=reconsume_times,
        flag=flag,
    )
    return MessageExt(decode_record(data), "broker-a")


def messages(*offsets: int) -> list[MessageExt]:
    return [message(offset) for offset in offsets]


def offsets_of(found: list[MessageExt]) -> list[int]:
    return [each.queue_offset for each in found]
