"""The values of a body, as far as two runs of a broker have them in common.

Everything counts, except for values that each run draws or measures anew: those of the keys in
``OF_THE_RUN`` are replaced by their type. Lists of JSON are sets in Java, in the order of its hash
tables, so they are compared sorted.

Bodies are JSON as fastjson writes it, records of the log, settings one per line, or the checkpoint
of the timer. Of a record the place in the log, the time of storing and the port of the producer are
those of the run; the order of its properties is that of a hash table in Java.
"""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import Any, Final

from skylark.wire.codes import RequestCode
from skylark.wire.fastjson_reader import ObjectKey, parse
from skylark.wire.layout import HOST_V4_SIZE, MAGIC_V1, MAGIC_V2
from skylark.wire.message import MessageRecord, iter_records
from skylark.wire.properties import (
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_TIMER_DEQUEUE_MS,
)

_MAGICS = {magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2)}
#: Keys of bodies whose values are of the run, by request code: times and addresses of clients, and
#: of the runtime table (28) also the machine, what it measured, and sums over all messages, of
#: which Java stores more (POP, and half messages that are checked).
OF_THE_RUN: Final[dict[int, frozenset[str]]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: frozenset({"timestamp"}),
    RequestCode.GET_ALL_CONSUMER_OFFSET: frozenset({"timestamp"}),
    RequestCode.GET_ALL_DELAY_OFFSET: frozenset({"timestamp"}),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: frozenset({"timestamp"}),
    RequestCode.GET_TIMER_METRICS: frozenset({"timestamp", "timeStamp"}),
    RequestCode.GET_TOPIC_STATS_INFO: frozenset({"lastUpdateTimestamp"}),
    RequestCode.GET_CONSUME_STATS: frozenset({"lastTimestamp"}),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: frozenset({"clientAddr"}),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: frozenset({"clientAddr"}),
    RequestCode.GET_BROKER_RUNTIME_INFO: frozenset(
        {
            "bootTimestamp", "commitLogDirCapacity", "commitLogDiskRatio",
            "commitLogDiskRatio_store/commitlog", "commitLogMaxOffset", "consumeQueueDiskRatio",
            "earliestMessageTimeStamp", "getFoundTps", "getMessageEntireTimeMax", "getMissTps",
            "getTotalTps", "getTransferredTps", "msgGetTotalTodayNow", "msgPutTotalTodayNow",
            "putLatency99", "putLatency999", "putMessageAverageSize", "putMessageDistributeTime",
            "putMessageEntireTimeMax", "putMessageSizeTotal", "putMessageTimesTotal", "putTps",
            "runtime",
        }
    ),
}  # fmt: skip
#: Settings without a counterpart in Java: limits that it does not have or does not let one set,
#: files kept open, and two that Java reads from elsewhere.
OUR_SETTINGS: Final = {
    "authenticationEnabled", "authorizationEnabled", "busyPollMicros", "commitLogAllocateAhead",
    "commitLogOpenFilesMax", "connectionCountMax", "consumeQueueOpenFilesMax",
    "consumeQueueRecentSize", "consumeQueueTailSizeMax", "diskUsedBytesMax", "groupCountMax",
    "haCompatible4x", "haSlaveFallbehindMax", "haSyncFromStart", "haTruncateAhead",
    "heldPullCountMax", "heldSizeMax", "indexOpenFilesMax", "migrateAuthFromV1Enabled",
    "pullMaxBytes", "requestCountMax", "rocketmq.serialize.type", "slaveSyncInterval",
    "topicCountMax", "transactionEndIdempotent", "writeBufferSizeMax",
}  # fmt: skip
#: Read time, flush position, queue offset, that of the master; state, time, count of the version.
TIMER_CHECKPOINT: Final = struct.Struct(">7q")
_TIMER_OF_THE_RUN: Final = (0, 5, 6)


def body_values(request_code: int, body: bytes | None) -> Any:
    if not body:
        return None
    if is_records(body):
        values = [record_values(record) for record in iter_records(body)]
        if request_code == RequestCode.POP_MESSAGE:  # begins at a random queue
            values.sort(key=itemgetter("queue"))
        return values
    if body[:1] in (b"{", b"["):
        return json_values(parse(body), OF_THE_RUN.get(request_code, frozenset()))
    if request_code == RequestCode.GET_BROKER_CONFIG:
        pairs = (line.partition("=") for line in body.decode().splitlines())
        hidden = OUR_SETTINGS | {"rocketmqHome"}  # a folder of the machine
        return {key: "" if key in hidden else value for key, _, value in pairs}
    if request_code == RequestCode.GET_TIMER_CHECK_POINT:
        fields = TIMER_CHECKPOINT.unpack(body)
        return [n for index, n in enumerate(fields) if index not in _TIMER_OF_THE_RUN]
    return body


def is_records(body: bytes | None) -> bool:
    return body is not None and body[4:8] in _MAGICS


def record_values(record: MessageRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "queue": (record.queue_id, record.queue_offset),
        "flags": (record.flag, record.sys_flag),
        "body": (record.body, record.body_crc),
        "size": record.total_size,
        "born": (record.born_timestamp, record.born_host[: HOST_V4_SIZE - 4].hex()),
        "stored at": record.store_host.hex(),
        "reconsume times": record.reconsume_times,
        "prepared": record.prepared_transaction_offset,
        "properties": property_values(record.properties),
    }


def property_values(properties: dict[str, str]) -> dict[str, str]:
    """Without the time of the timer and the place in the log that the run gave."""
    found = dict(properties)
    if PROPERTY_TIMER_DEQUEUE_MS in found:
        found[PROPERTY_TIMER_DEQUEUE_MS] = ""
    if PROPERTY_ORIGIN_MESSAGE_ID in found:
        found[PROPERTY_ORIGIN_MESSAGE_ID] = found[PROPERTY_ORIGIN_MESSAGE_ID][:-16]
    return found


def json_values(value: Any, of_the_run: frozenset[str]) -> Any:
    if isinstance(value, dict):
        members = {_key(key): member for key, member in value.items()}
        return {
            key: type(member).__name__ if key in of_the_run else json_values(member, of_the_run)
            for key, member in sorted(members.items())
        }
    if isinstance(value, list):
        return sorted((json_values(element, of_the_run) for element in value), key=repr)
    return value


def _key(key: Any) -> str:
    return repr(dict(key)) if isinstance(key, ObjectKey) else str(key)
