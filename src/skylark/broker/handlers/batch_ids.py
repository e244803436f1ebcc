"""Where the messages of a batch stand, given where the batch stands."""

from __future__ import annotations

from itertools import accumulate

from skylark.core.hashing import join_offset_ids
from skylark.store.message_store import MessageStore
from skylark.store.results import PutResult
from skylark.wire.batch import BatchMessage
from skylark.wire.message import reserve_property_crc


def batch_ids(store: MessageStore, result: PutResult, messages: list[BatchMessage]) -> str:
    """The offset id of each message, by comma: their records have all the same size but for body
    and properties.
    """
    own_sizes = [len(message.body) + len(message.properties) for message in messages]
    if store.config.enabled_append_prop_crc:
        own_sizes = [
            len(message.body) + len(reserve_property_crc(message.properties))
            for message in messages
        ]
    overhead = (result.size - sum(own_sizes)) // len(messages)
    sizes = [size + overhead for size in own_sizes[:-1]]
    return join_offset_ids(store.log.store_host, accumulate(sizes, initial=result.log_offset))
