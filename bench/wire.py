"""The wire codecs against their floors: frames of SEND_V2, send replies, records of 100 B and 1 KB.

Run it with ``make bench PART=wire``. Each floor is the least that Python can do for the same
input; its code is here, beside the case that it is the floor of. The rows with a release replay the
JSON header that the Java client of that release sent, with another queue, key and unique key in
each frame; for the binary rows our encoder writes the same fields. The plain codec is their floor.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bench.harness import Case, main
from skylark.wire.command import SERIALIZE_BINARY, SERIALIZE_JSON, Command, response_to
from skylark.wire.command_codec import (
    DECIMAL,
    TEXT,
    ResponseShape,
    ShapedResponse,
    Slot,
    hex_slot,
    write,
)
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.frame import FrameBuffer, encode_frame
from skylark.wire.header_binary import decode_binary_header
from skylark.wire.header_json import decode_json_header
from skylark.wire.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from skylark.wire.layout import PROPERTIES_LENGTH, RECORD_HEADS
from skylark.wire.message import iter_records, pack_host, pack_record_into
from skylark.wire.property_scan import scan_properties
from skylark.wire.record_scan import scan_records

FRAMES = 64  # as many as one read of a busy socket brings
RECORDS = 32_768  # a step of recovery or of a file-mode read: 9 MB of 100 B messages

TOPIC = b"BenchmarkTest"
PROPERTIES = (
    b"KEYS\x01order-20261115-000017\x02UNIQ_KEY\x017F0000010A2B18B4AAC2000000000011\x02"
    b"CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TAGS\x01TagA\x02"
)
# Real records are not all of one size, and a scan could profit if they were.
KEYS = tuple(b"order-%d" % (number * 7919**2) for number in range(97))
HOST = pack_host("127.0.0.1", 10911)
NOW_MS = 1_700_000_000_123


class BareHeader(msgspec.Struct):
    """What the floor decodes a JSON header to: the same members, nothing done with them."""

    code: int
    opaque: int
    flag: int = 0
    version: int = 0
    language: str = "JAVA"
    remark: str | None = None
    extFields: dict[str, str] | None = None


def send_request(serialize_type: int) -> Command:
    header = SendMessageRequestHeaderV2(
        producer_group="benchmark_producer",
        topic=TOPIC.decode(),
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=1,
        sys_flag=0,
        born_timestamp=NOW_MS,
        flag=0,
        properties=PROPERTIES.decode(),
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name="broker-a",
    )
    return Command(
        code=310,
        ext=encode_ext(header),
        opaque=17,
        version=513,
        body=bytes(100),
        serialize_type=serialize_type,
    )


def bare_decode() -> Callable[[], object]:
    frame = encode_frame(send_request(SERIALIZE_JSON))
    header_size = int.from_bytes(frame[5:8], "big")
    header = frame[8 : 8 + header_size]
    decode = msgspec.json.Decoder(BareHeader).decode

    def run() -> None:
        for _ in range(FRAMES):
            decode(header)

    return run


def frames_to_headers(serialize_type: int) -> Callable[[], object]:
    chunk = encode_frame(send_request(serialize_type)) * FRAMES
    buffer = FrameBuffer()

    def run() -> None:
        for command in buffer.feed(chunk):
            decode_ext(SendMessageRequestHeaderV2, command.ext)

    return run


#: Headers of SEND_MESSAGE_V2 as the Java client of each release wrote them. Releases before 5.2 end
#: the properties without a separator.
RECORDED_HEADERS = {
    "5.5.0": (
        r'{"code":310,"extFields":{"a":"path_group_producer","b":"path-e426fc947146","c":"TBW102",'
        r'"d":"4","e":"0","f":"0","g":"1794980145212","h":"0","i":"KEYS\u0001order-10000\u0002'
        r"UNIQ_KEY\u00017F000001000000000000000000000000596D4E0E2F2A58BF803B0000\u0002"
        r'WAIT\u0001true\u0002TAGS\u0001TagA\u0002","j":"0","k":"false","m":"false",'
        r'"n":"DEFAULT_BROKER"},"flag":0,"language":"JAVA","opaque":3,'
        r'"serializeTypeCurrentRPC":"JSON","version":513}'
    ),
    "5.1.4": (
        r'{"code":310,"extFields":{"a":"path_group_producer","b":"path-ad71cb0ea1ae","c":"TBW102",'
        r'"d":"4","e":"0","f":"0","g":"1794980143432","h":"0","i":"KEYS\u0001order-10000\u0002'
        r"UNIQ_KEY\u00017F00000100000000000000000000000059034E0E2F2A58BF79470000\u0002"
        r'WAIT\u0001true\u0002TAGS\u0001TagA","j":"0","k":"false","m":"false",'
        r'"n":"DEFAULT_BROKER"},"flag":0,"language":"JAVA","opaque":4,'
        r'"serializeTypeCurrentRPC":"JSON","version":441}'
    ),
}


def recorded_frames(release: str, serialize_type: int) -> list[bytes]:
    frames = []
    for number in range(FRAMES):
        text = RECORDED_HEADERS[release]
        text = text.replace("order-10000", f"order-{number:05d}")
        text = text.replace('"e":"0"', f'"e":"{number % 4}"')
        text = text.replace(r"0000\u0002WAIT", rf"{number:04X}\u0002WAIT")
        command = decode_json_header(text.encode())
        command.opaque = number
        command.body = bytes(100)
        command.serialize_type = serialize_type
        frames.append(encode_frame(command))
    return frames


def read_frames(release: str, serialize_type: int) -> Callable[[], object]:
    chunk = b"".join(recorded_frames(release, serialize_type))
    buffer = FrameBuffer()

    def run() -> None:
        for command in buffer.feed(chunk):
            command.header(SendMessageRequestHeaderV2)

    return run


def read_plainly(release: str, serialize_type: int) -> Callable[[], object]:
    """The plain codec on the same headers, without splitting the stream."""
    decode = decode_binary_header if serialize_type == SERIALIZE_BINARY else decode_json_header
    headers = [
        frame[8 : 8 + int.from_bytes(frame[5:8], "big")]
        for frame in recorded_frames(release, serialize_type)
    ]

    def run() -> None:
        for header in headers:
            decode_ext(SendMessageRequestHeaderV2, decode(header).ext)

    return run


REPLY_FIELDS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
STORE_HOST = "7F00000100002A9F"
UNIQUE_KEY = "7F000001000000000000000000000000596D4E0E2F2A58BF803B0000"


def write_reply() -> Callable[[], object]:
    fields: dict[str, str | Slot] = {
        **REPLY_FIELDS,
        "msgId": hex_slot(STORE_HOST),
        "queueId": DECIMAL,
        "queueOffset": DECIMAL,
        "transactionId": TEXT,
    }
    shape = ResponseShape(0, fields)

    def run() -> None:
        for number in range(FRAMES):
            write(ShapedResponse(shape, (number << 10, 1, number, UNIQUE_KEY.encode(), number)))

    return run


def write_reply_plainly() -> Callable[[], object]:
    request = Command()

    def run() -> None:
        for number in range(FRAMES):
            request.opaque = number
            header = SendMessageResponseHeader(
                msg_id=f"{STORE_HOST}{number << 10:016X}",
                queue_id=1,
                queue_offset=number,
                transaction_id=UNIQUE_KEY,
            )
            encode_frame(response_to(request, 0, ext=REPLY_FIELDS | encode_ext(header)))

    return run


def codec_cases() -> list[Case]:
    cases = []
    for release in RECORDED_HEADERS:
        for serialize_type, label in ((SERIALIZE_JSON, "JSON"), (SERIALIZE_BINARY, "binary")):
            name = f"{release} {label}"
            plain = read_plainly(release, serialize_type)
            cases += [
                Case(f"decode SEND_V2 {name}", plain, FRAMES, "frame"),
                Case(
                    f"read SEND_V2 {name}",
                    read_frames(release, serialize_type),
                    FRAMES,
                    "frame",
                    floor=f"decode SEND_V2 {name}",
                    time_at_most=1.0 if serialize_type == SERIALIZE_BINARY else None,
                ),
            ]
    return [
        *cases,
        Case("encode send reply", write_reply_plainly(), FRAMES, "frame"),
        Case(
            "write send reply",
            write_reply(),
            FRAMES,
            "frame",
            floor="encode send reply",
            speed_at_least=2.5,
        ),
    ]


def bare_pack(body: bytes) -> Callable[[], object]:
    """The fixed head and the slices of one record, values at hand and nothing computed."""
    head = RECORD_HEADS[0]
    tail = bytes([len(TOPIC)]) + TOPIC + PROPERTIES_LENGTH.pack(len(PROPERTIES)) + PROPERTIES
    body_end = head.size + len(body)
    size = body_end + len(tail)
    buffer = memoryview(bytearray(size))
    values = (size, -626843481, 7, 1, 0, 17, 1000, 0, NOW_MS, HOST, NOW_MS, HOST, 0, 0, len(body))

    def run() -> None:
        for _ in range(RECORDS):
            head.pack_into(buffer, 0, *values)
            buffer[head.size : body_end] = body
            buffer[body_end:size] = tail

    return run


def pack(body: bytes) -> Callable[[], object]:
    buffer = memoryview(bytearray(4096))

    def run() -> None:
        for queue_offset in range(RECORDS):
            pack_one(buffer, 0, body, PROPERTIES, queue_offset)

    return run


def pack_one(
    buffer: memoryview, position: int, body: bytes, properties: bytes, queue_offset: int
) -> int:
    return pack_record_into(
        buffer,
        position,
        TOPIC,
        body,
        properties,
        queue_id=1,
        queue_offset=queue_offset,
        log_offset=position,
        born_timestamp=NOW_MS,
        born_host=HOST,
        store_timestamp=NOW_MS,
        store_host=HOST,
    )


def records(body: bytes) -> bytes:
    buffer = memoryview(bytearray(RECORDS * (len(body) + 512)))
    position = 0
    for queue_offset in range(RECORDS):
        key = KEYS[queue_offset % len(KEYS)]
        properties = PROPERTIES.replace(b"order-20261115-000017", key)
        position += pack_one(buffer, position, body, properties, queue_offset)
    return bytes(buffer[:position])


def plain(log: bytes, *, properties: bool) -> Callable[[], object]:
    def run() -> None:
        if properties:
            for record in iter_records(log):
                _ = record.properties
        else:
            for _ in iter_records(log):
                pass

    return run


def scan(log: bytes, *, properties: bool) -> Callable[[], object]:
    def run() -> None:
        columns = scan_records(log)
        assert len(columns) == RECORDS
        if properties:
            scan_properties(columns)

    return run


def record_cases(label: str, body: bytes, properties_goal: float) -> list[Case]:
    log = records(body)
    units, unit = RECORDS, "record"
    return [
        Case(f"{label} bare pack_into", bare_pack(body), units, unit),
        Case(f"{label} encode", pack(body), units, unit, floor=f"{label} bare pack_into"),
        Case(f"{label} decode", plain(log, properties=False), units, unit),
        Case(
            f"{label} scan",
            scan(log, properties=False),
            units,
            unit,
            floor=f"{label} decode",
            speed_at_least=10.0,
        ),
        Case(f"{label} decode with properties", plain(log, properties=True), units, unit),
        Case(
            f"{label} scan with properties",
            scan(log, properties=True),
            units,
            unit,
            floor=f"{label} decode with properties",
            speed_at_least=properties_goal,
        ),
    ]


CASES = [
    Case("bare msgspec decode", bare_decode(), FRAMES, "frame"),
    Case(
        "SEND_V2 JSON",
        frames_to_headers(SERIALIZE_JSON),
        FRAMES,
        "frame",
        floor="bare msgspec decode",
        time_at_most=3.0,
    ),
    Case(
        "SEND_V2 binary",
        frames_to_headers(SERIALIZE_BINARY),
        FRAMES,
        "frame",
        floor="SEND_V2 JSON",
        time_at_most=2.0,
    ),
    *codec_cases(),
    *record_cases("100 B", bytes(range(100)), properties_goal=4.0),
    *record_cases("1 KB", bytes(range(256)) * 4, properties_goal=3.0),
]


def settle_heap() -> None:
    """Have glibc keep the memory of large arrays, as it does in any process that ran for a while.

    Before the first large block is freed, every array of a scan is mapped and unmapped anew, and
    the page faults of that would be measured instead of the scan.
    """
    block = bytearray(31 << 20)
    block[::4096] = bytes(len(block[::4096]))
    del block


if __name__ == "__main__":
    settle_heap()
    main("wire", CASES)
