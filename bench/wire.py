"""The wire codecs against their floors: frames of SEND_V2, records of 100 B and 1 KB.

Run it with ``make bench PART=wire``. Each floor is the least that Python can do for the same
input, and its code stands here beside what it is the floor of.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bench.harness import Case, main
from skylark.wire.command import SERIALIZE_BINARY, SERIALIZE_JSON, Command
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.frame import FrameBuffer, encode_frame
from skylark.wire.headers.send import SendMessageRequestHeaderV2
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
