"""The byte layouts of records, queues, index and replication; no other module has offsets.

Every integer on disk and on the HA wire is big-endian and signed. A record of the commit log is a
fixed head, whose size depends on the two host addresses, and three counted fields::

    head      88 bytes; 12 more for each host with an IPv6 address
    body      the length is the last field of the head
    topic     length 1 byte (V1) or 2 bytes (V2), then the name
    property  length 2 bytes, then ``name 0x01 value 0x02 ...``

The same layouts exist twice: as :class:`struct.Struct` for single items and as numpy dtypes for
columns. The dtypes are functions, so that importing this module does not load numpy.

Counterpart of Java's ``MessageDecoder``, ``CommitLog``, ``ConsumeQueue``, ``BatchConsumeQueue``,
``IndexHeader``, ``IndexFile``, ``StoreCheckpoint`` and ``DefaultHAConnection``.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

# ---- magic codes -------------------------------------------------------------------------------

MAGIC_V1: Final = -626843481  # DAA320A7: topic length in one byte
MAGIC_V2: Final = -626843477  # DAA320AB: topic length in two bytes
MAGIC_BLANK: Final = -875286124  # CBD43194: nothing more in this file

# ---- bits of SYSFLAG -----------------------------------------------------------------------------
# Plain integers: these are tested for every message, and an enum member costs ten times as much.

FLAG_COMPRESSED: Final = 0x1
FLAG_MULTI_TAGS: Final = 0x2
FLAG_TRANSACTION_MASK: Final = 0xC
FLAG_TRANSACTION_NONE: Final = 0x0
FLAG_TRANSACTION_PREPARED: Final = 0x4
FLAG_TRANSACTION_COMMIT: Final = 0x8
FLAG_TRANSACTION_ROLLBACK: Final = 0xC
FLAG_BORN_HOST_V6: Final = 0x10
FLAG_STORE_HOST_V6: Final = 0x20
FLAG_HOSTS_V6_MASK: Final = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6
FLAG_NEED_UNWRAP: Final = 0x40
FLAG_INNER_BATCH: Final = 0x80
FLAG_COMPRESSION_MASK: Final = 0x700
FLAG_COMPRESSION_SHIFT: Final = 8

# ---- hosts ---------------------------------------------------------------------------------------

HOST_V4_SIZE: Final = 8  # address 4, port 4
HOST_V6_SIZE: Final = 20  # address 16, port 4
HOST_V6_EXTRA: Final = HOST_V6_SIZE - HOST_V4_SIZE

# ---- commit log record ---------------------------------------------------------------------------


def _record_head(born_host_size: int, store_host_size: int) -> struct.Struct:
    return struct.Struct(
        ">i"  # 0  TOTALSIZE: the whole record, this field included
        "i"  # 4  MAGICCODE
        "i"  # 8  BODYCRC: of the stored body, without the top bit
        "i"  # 12 QUEUEID
        "i"  # 16 FLAG: the application's own
        "q"  # 20 QUEUEOFFSET: index in the consume queue; 0 for prepared and rollback types
        "q"  # 28 PHYSICALOFFSET: where the record starts in the log
        "i"  # 36 SYSFLAG
        "q"  # 40 BORNTIMESTAMP
        f"{born_host_size}s"  # 48 BORNHOST; the next fields are 12 later with an IPv6 address
        "q"  # 56 STORETIMESTAMP
        f"{store_host_size}s"  # 64 STOREHOST
        "i"  # 72 RECONSUMETIMES
        "q"  # 76 PREPAREDTRANSACTIONOFFSET
        "i"  # 84 BODYLEN
    )


#: Record heads, by ``(sys_flag & FLAG_HOSTS_V6_MASK) >> 4``.
RECORD_HEADS: Final = (
    _record_head(HOST_V4_SIZE, HOST_V4_SIZE),
    _record_head(HOST_V6_SIZE, HOST_V4_SIZE),
    _record_head(HOST_V4_SIZE, HOST_V6_SIZE),
    _record_head(HOST_V6_SIZE, HOST_V6_SIZE),
)
assert [head.size for head in RECORD_HEADS] == [88, 100, 100, 112]

TOTAL_SIZE = struct.Struct(">i")  # the first field alone, for walking from record to record
RECORD_HEAD_SIZE: Final = 88  # of the smallest head, both addresses IPv4
RECORD_SIZE_MIN: Final = 91  # that head, a topic length of 1 byte, a property length of 2
RECORD_TAIL_SIZE: Final = 16  # of the part of a head after STOREHOST
SYS_FLAG_POSITION: Final = 36  # this and the next are the same in every head
BORN_HOST_POSITION: Final = 48
PREPARED_OFFSET_SIZE: Final = 8  # the last two fields of a head
BODY_LENGTH_SIZE: Final = 4

TOPIC_SIZE_V1_MAX: Final = 127
TOPIC_SIZE_V2_MAX: Final = 32767
PROPERTIES_SIZE_MAX: Final = 32767

TOPIC_LENGTH_V1 = struct.Struct(">b")
TOPIC_LENGTH_V2 = struct.Struct(">h")
PROPERTIES_LENGTH = struct.Struct(">h")
assert TOPIC_LENGTH_V1.size == 1
assert TOPIC_LENGTH_V2.size == PROPERTIES_LENGTH.size == 2

# The property that may close a record: __CRC32# 0x01, ten digits, 0x02.
PROPERTY_CRC_SIZE: Final = 20

BLANK_RECORD = struct.Struct(
    ">i"  # 0 TOTALSIZE: all bytes up to the end of the file
    "i"  # 4 MAGICCODE of a blank; what follows is undefined
)
BLANK_SIZE_MIN: Final = 8
assert BLANK_RECORD.size == BLANK_SIZE_MIN

# ---- consume queues ------------------------------------------------------------------------------

CQ_ENTRY = struct.Struct(
    ">q"  # 0  log offset
    "i"  # 8  record size
    "q"  # 12 tags code: hash of TAGS, or the due time of a delayed message
)
CQ_ENTRY_SIZE: Final = 20
assert CQ_ENTRY.size == CQ_ENTRY_SIZE
#: Fills a queue file before its first entry: log offset 0, the largest size, no tag.
CQ_PRE_BLANK: Final = CQ_ENTRY.pack(0, 0x7FFF_FFFF, 0)

BATCH_CQ_ENTRY = struct.Struct(
    ">q"  # 0  log offset
    "i"  # 8  record size
    "q"  # 12 tags code
    "q"  # 20 store timestamp
    "q"  # 28 queue offset of the first message
    "h"  # 36 number of messages
    "i"  # 38 compacted offset, -1
    "i"  # 42 reserved, 0
)
BATCH_CQ_ENTRY_SIZE: Final = 46
assert BATCH_CQ_ENTRY.size == BATCH_CQ_ENTRY_SIZE

# ---- index file ----------------------------------------------------------------------------------

INDEX_HEADER = struct.Struct(
    ">q"  # 0  store timestamp of the first message
    "q"  # 8  store timestamp of the last message
    "q"  # 16 log offset of the first message
    "q"  # 24 log offset of the last message
    "i"  # 32 slots in use
    "i"  # 36 number of the next entry; starts at 1, entry 0 is never used
)
INDEX_HEADER_SIZE: Final = 40
assert INDEX_HEADER.size == INDEX_HEADER_SIZE

INDEX_SLOT = struct.Struct(">i")  # number of the newest entry of the chain, 0 = empty
INDEX_SLOT_SIZE: Final = 4
assert INDEX_SLOT.size == INDEX_SLOT_SIZE

INDEX_ENTRY = struct.Struct(
    ">i"  # 0  hash of "topic#key", made positive
    "q"  # 4  log offset
    "i"  # 12 seconds since the first message of the file
    "i"  # 16 number of the previous entry of the chain, 0 = none
)
INDEX_ENTRY_SIZE: Final = 20
assert INDEX_ENTRY.size == INDEX_ENTRY_SIZE

# ---- checkpoint ----------------------------------------------------------------------------------

CHECKPOINT = struct.Struct(
    ">q"  # 0  store timestamp of the last message on disk
    "q"  # 8  store timestamp of the last dispatched message
    "q"  # 16 store timestamp of the last message in a full index file
    "q"  # 24 flushed offset of the master
    "q"  # 32 confirm offset
    "q"  # 40 log offset of the last dispatched message
)
CHECKPOINT_FILE_SIZE: Final = 4096
assert CHECKPOINT.size == 48

# ---- message in a batch body ---------------------------------------------------------------------

BATCH_HEAD = struct.Struct(
    ">i"  # 0  TOTALSIZE: of this message, this field included
    "i"  # 4  MAGICCODE: 0, ignored
    "i"  # 8  BODYCRC: 0, ignored
    "i"  # 12 FLAG
    "i"  # 16 BODYLEN; then the body, PROPLEN (2) and the properties
)
BATCH_HEAD_SIZE: Final = 20
BATCH_MESSAGE_SIZE_MIN: Final = 22
assert BATCH_HEAD.size == BATCH_HEAD_SIZE == BATCH_MESSAGE_SIZE_MIN - PROPERTIES_LENGTH.size

# ---- replication ---------------------------------------------------------------------------------

HA_REPORT = struct.Struct(">q")  # slave to master: the end of its log
HA_REPORT_SIZE: Final = 8
assert HA_REPORT.size == HA_REPORT_SIZE

HA_FRAME_HEAD = struct.Struct(
    ">q"  # 0 log offset of the first byte
    "i"  # 8 size of the body that follows; 0 = heartbeat
)
HA_FRAME_HEAD_SIZE: Final = 12
assert HA_FRAME_HEAD.size == HA_FRAME_HEAD_SIZE

# ---- the same for numpy --------------------------------------------------------------------------


def _dtype(size: int, *fields: tuple[str, str]) -> np.dtype[Any]:
    import numpy as np

    dtype = np.dtype(list(fields))
    assert dtype.itemsize == size
    return dtype


@cache
def record_head_dtype() -> np.dtype[Any]:
    """The head of a record whose hosts are IPv4: ``RECORD_HEADS[0]`` as a column type.

    With IPv6 hosts, the fields after BORNHOST have other offsets: see :func:`record_tail_dtype`.
    """
    return _dtype(
        RECORD_HEAD_SIZE,
        ("total_size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("log_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", f"V{HOST_V4_SIZE}"),
        ("store_timestamp", ">i8"),
        ("store_host", f"V{HOST_V4_SIZE}"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_size", ">i4"),
    )


@cache
def record_tail_dtype() -> np.dtype[Any]:
    """What every head has after STOREHOST."""
    return _dtype(
        RECORD_TAIL_SIZE,
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_size", ">i4"),
    )


@cache
def cq_dtype() -> np.dtype[Any]:
    """:data:`CQ_ENTRY` as a column type."""
    return _dtype(CQ_ENTRY_SIZE, ("log_offset", ">i8"), ("total_size", ">i4"), ("tags_code", ">i8"))


@cache
def batch_cq_dtype() -> np.dtype[Any]:
    """:data:`BATCH_CQ_ENTRY` as a column type."""
    return _dtype(
        BATCH_CQ_ENTRY_SIZE,
        ("log_offset", ">i8"),
        ("total_size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("queue_offset", ">i8"),
        ("count", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    )


@cache
def index_slot_dtype() -> np.dtype[Any]:
    """:data:`INDEX_SLOT` as a column type."""
    import numpy as np

    return np.dtype(">i4")


@cache
def index_entry_dtype() -> np.dtype[Any]:
    """:data:`INDEX_ENTRY` as a column type."""
    return _dtype(
        INDEX_ENTRY_SIZE,
        ("key_hash", ">i4"),
        ("log_offset", ">i8"),
        ("seconds", ">i4"),
        ("previous", ">i4"),
    )
