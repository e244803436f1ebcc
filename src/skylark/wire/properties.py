"""Property strings: ``name 0x01 value 0x02`` repeated, and the names that RocketMQ uses.

Properties travel as one string: in the header of a send, in a batch body and at the end of every
record. Readers are lenient, as Java's are: the last 0x02 may be missing; an item without 0x01,
with an empty name or an empty value does not exist; of equal names the last one counts; bytes that
are not UTF-8 read as U+FFFD. So a string cannot be rebuilt from the parsed properties: code that
forwards properties keeps the raw form, and looks up single names with :func:`find_property`.

Counterpart of Java's ``MessageDecoder.messageProperties2String``/``string2messageProperties`` and
``MessageConst``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skylark.core.errors import LocalProtocolError

NAME_END: Final = "\x01"
ITEM_END: Final = "\x02"

# ---- names ---------------------------------------------------------------------------------------

PROPERTY_KEYS: Final = "KEYS"  # index keys, separated by one blank
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"  # the client's unique id; indexed
PROPERTY_WAIT: Final = "WAIT"  # "false": do not wait for flush and replicas
PROPERTY_DELAY: Final = "DELAY"  # delay level from 1

PROPERTY_TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
PROPERTY_TIMER_OUT_MS: Final = "TIMER_OUT_MS"
PROPERTY_TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
PROPERTY_TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
PROPERTY_TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"

PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"  # destination of a delayed or half message
PROPERTY_REAL_QID: Final = "REAL_QID"

PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_ORIGIN_GROUP: Final = "ORIGIN_GROUP"  # on retries of pop consumers
PROPERTY_RECONSUME_TIME: Final = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIME: Final = "CONSUME_START_TIME"
PROPERTY_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

PROPERTY_TRAN_MSG: Final = "TRAN_MSG"
PROPERTY_PGROUP: Final = "PGROUP"
PROPERTY_TRANSACTION_ID: Final = "__transactionId__"
PROPERTY_TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"

PROPERTY_MIN_OFFSET: Final = "MIN_OFFSET"  # these two are added by the consumer, never stored
PROPERTY_MAX_OFFSET: Final = "MAX_OFFSET"

PROPERTY_MSG_REGION: Final = "MSG_REGION"
PROPERTY_TRACE_ON: Final = "TRACE_ON"
PROPERTY_TRACE_CONTEXT: Final = "TRACE_CONTEXT"
PROPERTY_INSTANCE_ID: Final = "INSTANCE_ID"
PROPERTY_CLUSTER: Final = "CLUSTER"  # added by the broker

PROPERTY_CORRELATION_ID: Final = "CORRELATION_ID"
PROPERTY_REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PROPERTY_TTL: Final = "TTL"
PROPERTY_ARRIVE_TIME: Final = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
PROPERTY_MSG_TYPE: Final = "MSG_TYPE"

PROPERTY_POP_CK: Final = "POP_CK"
PROPERTY_POP_CK_OFFSET: Final = "POP_CK_OFFSET"
PROPERTY_FIRST_POP_TIME: Final = "1ST_POP_TIME"

PROPERTY_SHARDING_KEY: Final = "__SHARDINGKEY"
PROPERTY_PRIORITY: Final = "_SYS_MSG_PRIORITY_"  # the queue, up to the last one
PROPERTY_INNER_NUM: Final = "INNER_NUM"
PROPERTY_INNER_BASE: Final = "INNER_BASE"
PROPERTY_INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"

PROPERTY_BORN_HOST: Final = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
PROPERTY_CRC32: Final = "__CRC32#"
PROPERTY_TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."  # local to a client, never stored

PROPERTY_DUP_INFO: Final = "DUP_INFO"  # these are legacy or special, and kept verbatim
PROPERTY_BUYER_ID: Final = "BUYER_ID"
PROPERTY_TRANSFER_FLAG: Final = "TRANSFER_FLAG"
PROPERTY_CORRECTION_FLAG: Final = "CORRECTION_FLAG"
PROPERTY_MQ2_FLAG: Final = "MQ2_FLAG"
PROPERTY_EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
PROPERTY_REDIRECT: Final = "REDIRECT"
PROPERTY_FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"

#: Names that RocketMQ uses and that an application may set.
SETTABLE_NAMES: Final = frozenset(
    {
        PROPERTY_TRANSACTION_ID,
        PROPERTY_TRANSACTION_CHECK_TIMES,
        PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
        PROPERTY_INNER_NUM,
        PROPERTY_INNER_BASE,
        PROPERTY_INNER_MULTI_DISPATCH,
        PROPERTY_SHARDING_KEY,
        PROPERTY_PRIORITY,
        PROPERTY_TRACE_CONTEXT,
        PROPERTY_REDIRECT,
        PROPERTY_FORWARD_QUEUE_ID,
        PROPERTY_ORIGIN_GROUP,
    }
)

#: Names that a client refuses as user properties; see also :func:`is_reserved`.
RESERVED_NAMES: Final = frozenset(
    {
        value
        for constant, value in tuple(globals().items())
        if constant.startswith("PROPERTY_") and value != PROPERTY_TRANSIENT_PREFIX
    }
    - SETTABLE_NAMES
)


def is_reserved(name: str) -> bool:
    """Whether a client refuses ``name`` as the name of a user property."""
    return name in RESERVED_NAMES or name.startswith(PROPERTY_TRANSIENT_PREFIX)


# ---- the string ----------------------------------------------------------------------------------


def encode_properties(properties: Mapping[str, str]) -> str:
    """The property string of ``properties``, in their order, ending with 0x02.

    A name or value that would read back as something else is our own mistake and raises
    :class:`LocalProtocolError`. An empty value is written as Java writes it; readers drop it.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    count = len(properties)
    if text.count(ITEM_END) != count or text.count(NAME_END) != count:
        for name, value in properties.items():
            if NAME_END in name or ITEM_END in name or ITEM_END in value:
                raise LocalProtocolError(f"property {name!r} contains a separator (0x01 or 0x02)")
    return text


def parse_properties(raw: str | bytes) -> dict[str, str]:
    """All properties of a property string, as text or as stored in a record."""
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    properties = {}
    for item in text.split("\x02"):
        name, _, value = item.partition("\x01")
        if value and name:
            properties[name] = value
    return properties


def find_property(text: str, name: str) -> str | None:
    """The value that :func:`parse_properties` gives ``name``, without parsing the rest.

    ``name`` is not empty and holds no separator.
    """
    needle = f"\x02{name}\x01"
    end = len(text)
    while (found := text.rfind(needle, 0, end)) >= 0:
        start = found + len(needle)
        stop = text.find("\x02", start)
        if value := text[start:] if stop < 0 else text[start:stop]:
            return value
        end = found  # an empty value does not count, so an earlier one may
    if not text.startswith(needle[1:]):  # the first item follows no separator
        return None
    start = len(needle) - 1
    stop = text.find("\x02", start)
    return (text[start:] if stop < 0 else text[start:stop]) or None


def needle_of(name: bytes) -> bytes:
    """The search bytes for :func:`find_by_needle`, for callers that look up a name often."""
    return b"\x02%b\x01" % name


def find_raw_property(raw: bytes, name: bytes) -> bytes | None:
    """:func:`find_property` on the bytes of a record."""
    return find_by_needle(raw, needle_of(name))


def find_by_needle(raw: bytes, needle: bytes) -> bytes | None:
    """:func:`find_raw_property` with the name as a needle."""
    end = len(raw)
    while (found := raw.rfind(needle, 0, end)) >= 0:
        start = found + len(needle)
        stop = raw.find(b"\x02", start)
        if value := raw[start:] if stop < 0 else raw[start:stop]:
            return value
        end = found
    if not raw.startswith(needle[1:]):
        return None
    start = len(needle) - 1
    stop = raw.find(b"\x02", start)
    return (raw[start:] if stop < 0 else raw[start:stop]) or None


def without_property(raw: bytes, name: bytes) -> bytes:
    """``raw`` without every item called ``name``; all other bytes stay as they are."""
    if name not in raw:
        return raw
    prefix = name + b"\x01"
    return b"\x02".join([item for item in raw.split(b"\x02") if not item.startswith(prefix)])
