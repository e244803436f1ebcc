"""Where the messages of a batch stand, given where the batch stands."""

from __future__ import annotations

from skylark.core.hashing import encode_offset_id
from skylark.store.message_store import MessageStore
from skylark.store.results import PutResult
from skylark.wire.batch import BatchMessage
from skylark.wire.message import reserve_property_crc


def batch_ids(store: MessageStore, result: PutResult, messages: list[BatchMessage]) -> str:
    """The offset id of each message, by comma: their records have all the same size but for body
    and properties.
    """
    with_crc = store.config.enabled_append_prop_crc
    own_sizes = []
    for message in messages:
        properties = message.properties
        if with_crc:
            properties = reserve_property_crc(properties)
        own_sizes.append(len(message.body) + len(properties))
    overhead = (result.size - sum(own_sizes)) // len(messages)
    store_host, log_offset = store.log.store_host, result.log_offset
    ids = []
    for size in own_sizes:
        ids.append(encode_offset_id(store_host, log_offset))
        log_offset += size + overhead
    return ",".join(ids)
