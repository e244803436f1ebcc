"""Where the messages of a batch stand, given where the batch stands."""

from __future__ import annotations

from skylark.core.hashing import join_offset_ids
from skylark.store.batch_encoder import places_of
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutResult
from skylark.wire.batch import Batch
from skylark.wire.message import reserve_property_crc


def batch_ids(store: MessageStore, result: PutResult, batch: Batch) -> str:
    """The offset id of each message, by comma: their records have all the same size but for body
    and properties.
    """
    if store.config.enabled_append_prop_crc:
        batch = batch.with_properties([reserve_property_crc(each) for each in batch.properties])
    overhead = (result.size - sum(batch.sizes)) // len(batch)
    log_offsets, _ = places_of(batch, overhead, result.log_offset)
    return join_offset_ids(store.log.store_host, log_offsets)
