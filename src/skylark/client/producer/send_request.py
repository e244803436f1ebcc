"""SEND requests of messages and batches, unique ids, and the decoding of responses.

A send is a SEND_MESSAGE_V2 (310), a batch a SEND_BATCH_MESSAGE (320), a reply to a request a
SEND_REPLY_MESSAGE_V2 (325). All three have the same header of one-letter fields
(:mod:`skylark.wire.headers.send`). Most fields are the same for all messages of a producer and
topic. :class:`SendTemplate` holds them as a dict, and each request gets a copy with its own values:
this takes a fifth of the time of the typed header, and hooks and signatures can change the command.

The property text of a message is built once, for any number of attempts; for messages without
properties of the application it is formatted directly.

Counterpart of Java's ``sendKernelImpl`` of ``DefaultMQProducerImpl``, ``processSendResponse`` of
``MQClientAPIImpl`` and ``MessageBatch``.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from skylark.client.core.client_message import (
    KEY_SEPARATOR,
    Message,
    SendResult,
    SendStatus,
    checked_tag,
    joined_keys,
)
from skylark.client.core.client_options import ClientOptions, local_address
from skylark.core.clock import TimeSource
from skylark.core.errors import InvalidMessageError, RemoteProtocolError, broker_error
from skylark.core.hashing import UniqueIdGenerator
from skylark.wire import properties as names
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.compress import (
    COMPRESSION_LEVEL,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    compress_body,
    compression_flags,
)
from skylark.wire.headers.send import EXT_MSG_REGION, EXT_TRACE_ON
from skylark.wire.layout import (
    BATCH_HEAD,
    BATCH_MESSAGE_SIZE_MIN,
    PROPERTIES_LENGTH,
    PROPERTIES_SIZE_MAX,
)

COMPRESS_OVER: Final = 4096  # compressMsgBodyOverHowmuch
COMPRESSION_KINDS: Final[Mapping[str, int]] = {
    "ZLIB": COMPRESSION_ZLIB,
    "LZ4": COMPRESSION_LZ4,
    "ZSTD": COMPRESSION_ZSTD,
}

#: Response codes that mean "stored".
STATUS_OF_CODE: Final[Mapping[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
DEFAULT_REGION: Final = "DefaultRegion"

_INT32_MAX = 0x7FFF_FFFF
_QUEUE_IDS: Final = tuple(map(str, range(256)))
_TIMER_LIMIT: Final = re.compile(r"timer message illegal.* max delay (\d{1,18})ms")
_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
_NO_EXTRA: Final[Mapping[str, str]] = {}


# ---- properties ----------------------------------------------------------------------------------


def property_text(message: Message, unique_id: str, extra: Mapping[str, str] | None = None) -> str:
    """All properties of a message; ``extra`` are those that the client adds.

    Raises InvalidMessageError for separators in tag or keys, and for more than a record can hold.
    """
    if message.properties or extra:
        properties = message.encoded_properties()
        properties[names.PROPERTY_UNIQ_KEY] = unique_id
        if extra:
            properties.update(extra)
        text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
        count = len(properties)
    else:
        wait = "true" if message.wait_store_ok else "false"
        text = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{wait}\x02"
        if message.tag is None and not message.keys:
            return text
        count = 2
        if message.tag is not None:
            text += f"TAGS\x01{checked_tag(message.tag)}\x02"
            count += 1
        if message.keys:
            text += f"KEYS\x01{joined_keys(message.keys)}\x02"
            count += 1
    if text.count("\x02") != count:
        raise InvalidMessageError("a tag, key or property contains a separator (0x02)")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"a tag, key or property is no text: {error}") from error
    if size > PROPERTIES_SIZE_MAX:
        raise InvalidMessageError(
            f"the properties take {size} bytes, at most {PROPERTIES_SIZE_MAX} fit",
            hint="put large values into the body",
        )
    return text


def batch_wait_text(messages: Sequence[Message]) -> str:
    """The properties of a batch as a whole that every broker accepts."""
    return f"WAIT\x01{'true' if messages[0].wait_store_ok else 'false'}\x02"


def batch_property_text(messages: Sequence[Message], unique_id: str) -> str:
    """The properties of a batch as a whole: its own id, all keys, and the tag if there is one.

    For brokers of 5.x, which may store the batch as one record. Brokers of 4.x would add them to
    each message and overwrite its properties.
    """
    first = messages[0]
    text = f"UNIQ_KEY\x01{unique_id}\x02{batch_wait_text(messages)}"
    if first.tag is not None and all(message.tag == first.tag for message in messages):
        text += f"TAGS\x01{first.tag}\x02"
    keys = KEY_SEPARATOR.join([joined_keys(message.keys) for message in messages if message.keys])
    if (
        keys and len(text) + len(keys) < PROPERTIES_SIZE_MAX // 4
    ):  # otherwise only the messages have them
        text += f"KEYS\x01{keys}\x02"
    return text


# ---- bodies --------------------------------------------------------------------------------------


def batch_part(message: Message, properties: str) -> bytes:
    """One message, encoded for the body of a batch."""
    raw = properties.encode()
    body = message.body
    size, raw_size = len(body), len(raw)
    flag = checked_flag(message) if message.flag else 0
    head = BATCH_HEAD.pack(BATCH_MESSAGE_SIZE_MIN + size + raw_size, 0, 0, flag, size)
    return b"".join((head, body, PROPERTIES_LENGTH.pack(raw_size), raw))


def checked_flag(message: Message) -> int:
    """The flag of a message; raises InvalidMessageError unless it is a 32-bit integer."""
    flag = message.flag
    if not isinstance(flag, int) or not -_INT32_MAX - 1 <= flag <= _INT32_MAX:
        raise InvalidMessageError(f"the flag {flag} does not fit into 32 bits")
    return flag


def compress(body: bytes, kind: int, level: int = COMPRESSION_LEVEL) -> tuple[bytes, int]:
    """The compressed body, even if it is larger, and its system flags."""
    return compress_body(body, kind, level), compression_flags(kind)


# ---- the request ---------------------------------------------------------------------------------


class Parcel(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The content of one SEND request, without queue and time."""

    messages: Sequence[Message]
    properties: str
    body: bytes
    properties_v5: str | None = None  #: of a batch: for brokers of 5.x
    sys_flag: int = 0
    flag: int = 0
    code: int = RequestCode.SEND_MESSAGE_V2
    msg_id: str = ""  #: the unique id, also of a batch
    part_ids: Sequence[str] = ()  #: of a batch: the ids of its messages
    #: Further header fields (``j``, ``l``) of messages to a retry topic.
    fields: Mapping[str, str] = _NO_EXTRA
    message_type: str = "Normal"  #: as traces call it


class SendTemplate:
    """The header fields that all messages of one producer and topic share."""

    __slots__ = ("_fields",)

    def __init__(
        self, group: str, topic: str, *, model: str, queue_count: int, unit_mode: bool
    ) -> None:
        """``model``: the topic after which a new one is created, with ``queue_count`` queues."""
        self._fields = {
            "a": group,
            "b": topic,
            "c": model,
            "d": str(queue_count),
            "e": "0",
            "f": "0",
            "g": "0",
            "h": "0",
            "i": "",
            "j": "0",
            "k": "true" if unit_mode else "false",
            "m": "false",
            "n": "",
        }

    def request(self, parcel: Parcel, queue: MessageQueue, now_ms: int) -> Command:
        """The request that sends the parcel to ``queue``."""
        ext = self._fields.copy()
        queue_id = queue.queue_id
        ext["e"] = _QUEUE_IDS[queue_id] if 0 <= queue_id < 256 else str(queue_id)
        if parcel.sys_flag:
            ext["f"] = str(parcel.sys_flag)
        ext["g"] = str(now_ms)
        if parcel.flag:
            ext["h"] = str(parcel.flag)
        ext["i"] = parcel.properties
        if parcel.code == RequestCode.SEND_BATCH_MESSAGE:
            ext["m"] = "true"
        ext["n"] = queue.broker_name
        if parcel.fields:
            ext.update(parcel.fields)
        return Command(code=parcel.code, ext=ext, body=parcel.body)


# ---- the result ----------------------------------------------------------------------------------


def read_result(answer: Command, address: str, parcel: Parcel, queue: MessageQueue) -> SendResult:
    """The result of a send from the response.

    Raises BrokerError, or RemoteProtocolError if the response has no queue offset.
    """
    status = STATUS_OF_CODE.get(answer.code)
    if status is None:
        remark = answer.remark or f"answered with code {answer.code}"
        hint = _timer_hint(remark) if answer.code == ResponseCode.MESSAGE_ILLEGAL else None
        raise broker_error(answer.code, remark, hint=hint, broker_address=address)
    ext = answer.ext or {}
    try:
        queue_id = int(ext["queueId"])
        queue_offset = int(ext["queueOffset"])
    except (KeyError, ValueError) as error:
        if parcel.code != RequestCode.SEND_REPLY_MESSAGE_V2:
            raise RemoteProtocolError(
                f"the response of {address} has no queue offset: {ext}"
            ) from error
        queue_id, queue_offset = queue.queue_id, 0  # delivered, and not stored
    if queue_id != queue.queue_id:
        queue = msgspec.structs.replace(queue, queue_id=queue_id)
    return SendResult(
        status=status,
        msg_id=parcel.msg_id,
        offset_msg_id=ext.get("msgId"),
        queue=queue,
        queue_offset=queue_offset,
        transaction_id=ext.get("transactionId"),
        recall_handle=ext.get("recallHandle"),
        region_id=ext.get(EXT_MSG_REGION) or DEFAULT_REGION,
        trace_on=ext.get(EXT_TRACE_ON) != "false",
    )


def _timer_hint(remark: str) -> str | None:
    """The hint for a timed message that the broker refused: its limit, in words."""
    found = _TIMER_LIMIT.match(remark)
    if found is None:
        return None
    limit_s = int(found[1]) // 1000
    unit, unit_s = next((each for each in _UNITS if limit_s % each[1] == 0), _UNITS[-1])
    count = limit_s // unit_s
    return (
        f"this broker keeps messages for at most {count} {unit}{'' if count == 1 else 's'}, by its"
        " own clock; its setting timerMaxDelaySec is the limit"
    )


def split_result(result: SendResult, unique_ids: Sequence[str]) -> Iterator[SendResult]:
    """The results of the messages of a batch.

    The response has their ids, joined by commas; their offsets are consecutive. A topic that stores
    batches as one record returns one id: then all messages have the offset of the batch.
    """
    ids = (result.offset_msg_id or "").split(",")
    status, queue, offset = result.status, result.queue, result.queue_offset
    region_id, trace_on = result.region_id, result.trace_on
    split = len(ids) == len(unique_ids)
    for index, unique_id in enumerate(unique_ids):
        yield SendResult(
            status=status,
            msg_id=unique_id,
            offset_msg_id=ids[index] if split else result.offset_msg_id,
            queue=queue,
            queue_offset=offset + index if split else offset,
            region_id=region_id,
            trace_on=trace_on,
        )


# ---- unique ids ----------------------------------------------------------------------------------


def unique_id_generator(options: ClientOptions, clock: TimeSource) -> UniqueIdGenerator:
    """A generator for one client that sends; counterpart of Java's ``MessageClientIDSetter``.

    Its random salt keeps two clients of a process, or of a process and its forked child, from
    drawing the same id. :mod:`skylark.core.hashing` describes the form.
    """
    return UniqueIdGenerator(
        ip=_packed(options.client_ip or local_address(), clock),
        pid=os.getpid(),
        salt=int.from_bytes(os.urandom(4)),
        now_ms=clock.now_ms,
    )


def _packed(address: str, clock: TimeSource) -> bytes:
    try:
        return ipaddress.ip_address(address.strip("[]")).packed
    except ValueError:  # a client_ip that is a name: the time stands in, as in Java
        return (clock.now_ms() & 0xFFFF_FFFF).to_bytes(4)
