"""Settings of the store: Java's keys and defaults, and the few that only Skylark has.

Attributes are the snake_case of the Java keys: ``flushIntervalCommitLog`` in a broker's properties
file is ``config.flush_interval_commit_log`` here. Where Java reads a setting through a rule
(rounding, clamping, a default made from another setting) the rule is a property of
:class:`StoreConfig`, and the field keeps the written value, as Java's response to request 26 does.

Some values select formats or modes that Skylark does not have. A store that ignored them would
write files that a Java broker with the same settings misreads, or would lose what the operator
configured. So they are refused by name at start, with the reason (:data:`REFUSED`).

Counterpart of Java's ``MessageStoreConfig``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final

from skylark.core.config import Config, Setting, format_value, own_settings
from skylark.wire.layout import (
    BATCH_CQ_ENTRY_SIZE,
    CQ_ENTRY_SIZE,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
)

RECORD_OVERHEAD_MAX: Final = 64 << 10  # Java: a record may be this much longer than a body
_INT_MAX: Final = (1 << 31) - 1
_DELAY_LEVEL: Final = re.compile(r"([0-9]{1,9})([smhd])")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(doc: str, *, minimum: int = 1) -> Setting:
    return Setting(doc, unit="ms", minimum=minimum)


def byte_count(doc: str, *, minimum: int = 0, maximum: int | None = None) -> Setting:
    return Setting(doc, unit="bytes", minimum=minimum, maximum=maximum)


def file_count(doc: str) -> Setting:
    return Setting(doc, unit="files", minimum=1)


def page_count(doc: str, *, minimum: int = 0) -> Setting:
    return Setting(doc, unit="4 KiB pages", minimum=minimum)


class FlushDiskType(enum.Enum):
    """Whether a put waits for the disk."""

    ASYNC_FLUSH = 0
    SYNC_FLUSH = 1


class BrokerRole(enum.Enum):
    """The role of this store in replication."""

    ASYNC_MASTER = 0
    SYNC_MASTER = 1
    SLAVE = 2


#: Attribute -> why no value but its default is accepted.
REFUSED: Final[dict[str, str]] = {
    "store_type": "consume queues in RocksDB are not supported, and their files are not those of "
    "the default queues; use storeType=default",
    "rocksdb_cq_double_write_enable": "consume queues in RocksDB are not supported; the queue "
    "files are complete without them",
    "index_rocksdb_enable": "an index in RocksDB is not supported; the index files answer the same "
    "queries",
    "enable_consume_queue_ext": "extended consume queues change the meaning of the tags code in "
    "every entry; SQL92 filters work without them, on the properties of the message",
    "enable_lmq": "light message queues (LMQ) are not supported",
    "enable_multi_dispatch": "dispatch of one message to several light message queues (LMQ) is not "
    "supported",
    "enable_dleger_commit_log": "a DLedger commit log has another file format; use a plain master "
    "with slaves",
    "duplication_enable": "an external replicator would decide what is visible; use a plain master "
    "with slaves",
    "enable_controller_mode": "the store does not use a controller to confirm the log",
    "read_only_commit_log_store_paths": "a log spread over several paths is not supported",
}


class StoreConfig(Config, frozen=True, kw_only=True):
    """Settings of one message store."""

    # --- where ---

    store_path_root_dir: Annotated[
        Path,
        Setting("Directory of everything the store keeps.", template="${user.home}/store"),
    ]
    store_path_commit_log: Annotated[
        Path | None,
        Setting("Directory of the commit log; without it, commitlog under the root."),
    ] = None
    read_only_commit_log_store_paths: Annotated[
        str | None, Setting("Further directories of the log: not supported.")
    ] = None

    # --- file sizes: fixed when the store is made ---

    mapped_file_size_commit_log: Annotated[
        int, byte_count("Length of a commit log file.", minimum=256, maximum=_INT_MAX)
    ] = 1 << 30
    mapped_file_size_consume_queue: Annotated[
        int,
        byte_count(
            "Length of a consume queue file, rounded up to whole entries of 20 bytes.",
            minimum=1,
            maximum=_INT_MAX - CQ_ENTRY_SIZE,
        ),
    ] = 300_000 * CQ_ENTRY_SIZE
    mapper_file_size_batch_consume_queue: Annotated[
        int,
        byte_count(
            "Length of a queue file of a BatchCQ topic, in entries of 46 bytes.",
            minimum=46,
            maximum=_INT_MAX,
        ),
    ] = 300_000 * 46
    max_hash_slot_num: Annotated[int, Setting("Hash slots of an index file.", minimum=1)] = (
        5_000_000
    )
    max_index_num: Annotated[
        int,
        Setting("Entries of an index file; the first is never used.", minimum=2),
    ] = 20_000_000

    # --- log flush ---

    flush_disk_type: Annotated[
        FlushDiskType, Setting("SYNC_FLUSH: the broker acknowledges a message when it is on disk.")
    ] = FlushDiskType.ASYNC_FLUSH
    sync_flush_timeout: Annotated[
        int,
        milliseconds("How long a put waits for the disk before the broker responds with code 10."),
    ] = 5_000
    flush_interval_commit_log: Annotated[
        int, milliseconds("ASYNC_FLUSH: interval of the check for unflushed bytes.")
    ] = 500
    flush_commit_log_least_pages: Annotated[
        int, page_count("ASYNC_FLUSH: fewest dirty pages that are flushed.")
    ] = 4
    flush_commit_log_thorough_interval: Annotated[
        int, milliseconds("ASYNC_FLUSH: time after which any dirty byte is flushed.", minimum=0)
    ] = 10_000
    flush_commit_log_timed: Annotated[
        bool, Setting("ASYNC_FLUSH: flush by time only; false: also when woken by a put or commit.")
    ] = True
    wake_flush_when_put_message: Annotated[
        bool, Setting("ASYNC_FLUSH without flushCommitLogTimed: every put wakes the flush.")
    ] = False
    read_un_committed: Annotated[
        bool, Setting("SYNC_FLUSH: let consumers see messages that are not on disk yet.")
    ] = False

    # --- transient pool ---

    transient_store_pool_enable: Annotated[
        bool,
        Setting("Append to pooled memory and write to the file later: a crash loses what waits."),
    ] = False
    transient_store_pool_size: Annotated[
        int, Setting("Buffers in the pool, each of one commit log file.", minimum=1, maximum=1_000)
    ] = 5
    fast_fail_if_no_buffer_in_store_pool: Annotated[
        bool, Setting("With an empty pool: fail the put instead of writing to the file directly.")
    ] = False
    commit_interval_commit_log: Annotated[
        int, milliseconds("Interval of the check for uncommitted bytes.")
    ] = 200
    commit_commit_log_least_pages: Annotated[
        int, page_count("Fewest pages that are committed.")
    ] = 4
    commit_commit_log_thorough_interval: Annotated[
        int, milliseconds("Time after which any byte is committed.", minimum=0)
    ] = 200
    wake_commit_when_put_message: Annotated[bool, Setting("Every put wakes the commit.")] = True

    # --- queue flush ---

    flush_interval_consume_queue: Annotated[
        int, milliseconds("Time between two writes of new queue entries.")
    ] = 1_000
    flush_consume_queue_thorough_interval: Annotated[
        int, milliseconds("Time after which all queues are synced; 5 s at most.", minimum=0)
    ] = 60_000

    # --- allocation ---

    warm_maped_file_enable: Annotated[
        bool, Setting("Fill every page of a new log file before it is used.")
    ] = False
    flush_least_pages_when_warm_maped_file: Annotated[
        int, page_count("SYNC_FLUSH: pages between two syncs of a warm-up.", minimum=1)
    ] = 4_096
    data_read_ahead_enable: Annotated[
        bool, Setting("Let the system read ahead in log files; false: advise random reads.")
    ] = True

    # --- put ---

    broker_role: Annotated[BrokerRole, Setting("Role in replication.")] = BrokerRole.ASYNC_MASTER
    max_message_size: Annotated[
        int, byte_count("Longest message body.", minimum=1, maximum=_INT_MAX - (1 << 17))
    ] = 4 << 20
    enabled_append_prop_crc: Annotated[
        bool,
        Setting("End each record with a checksum of all its bytes.", java="enabledAppendPropCRC"),
    ] = False
    os_page_cache_busy_time_out_mills: Annotated[
        int, milliseconds("An append that takes longer counts as overload.")
    ] = 1_000
    message_delay_level: Annotated[
        str, Setting("Delays of the levels 1, 2, ...: numbers with s, m, h or d.")
    ] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    # --- index ---

    message_index_enable: Annotated[bool, Setting("Index messages by key, unique id and tag.")] = (
        True
    )
    message_index_safe: Annotated[
        bool, Setting("Recovery also scans the log from where the index was complete.")
    ] = False
    max_msgs_num_batch: Annotated[
        int, Setting("Most messages returned by a query by key.", minimum=1)
    ] = 64
    default_query_max_num: Annotated[
        int, Setting("Most messages returned by a query by unique id.", minimum=1)
    ] = 32

    # --- recovery ---

    check_crc_on_recover: Annotated[
        bool, Setting("Recovery checks the checksum of bodies.", java="checkCRCOnRecover")
    ] = True
    force_verify_prop_crc: Annotated[
        bool, Setting("Recovery checks the checksum of records instead.", java="forceVerifyPropCRC")
    ] = False
    commit_log_recover_max_num: Annotated[
        int, file_count("Recovery logs a warning if it reads more log files than this.")
    ] = 10

    # --- read ---

    max_transfer_bytes_on_message_in_memory: Annotated[
        int, byte_count("Most bytes of one read in memory.")
    ] = 256 << 10
    max_transfer_count_on_message_in_memory: Annotated[
        int, Setting("Most messages of one read in memory.", minimum=0)
    ] = 32
    max_transfer_bytes_on_message_in_disk: Annotated[
        int, byte_count("Most bytes of one read from disk.")
    ] = 64 << 10
    max_transfer_count_on_message_in_disk: Annotated[
        int, Setting("Most messages of one read from disk.", minimum=0)
    ] = 8
    access_message_in_memory_hot_ratio: Annotated[
        int,
        Setting(
            "Messages are old when this share of the memory was written since.",
            unit="%",
            minimum=0,
            maximum=100,
        ),
    ] = 26
    cold_data_flow_control_enable: Annotated[
        bool, Setting("Limit groups that read old messages from the disk.")
    ] = False
    cg_cold_read_threshold: Annotated[
        int, Setting("What a group may read of them in 5 s.", unit="bytes", minimum=0)
    ] = 3 << 20
    global_cold_read_threshold: Annotated[
        int, Setting("What all groups may read of them in 5 s.", unit="bytes", minimum=0)
    ] = 100 << 20
    access_message_in_memory_max_ratio: Annotated[
        int,
        Setting(
            "The newest bytes, as a share of RAM, that count as in memory.", unit="%", minimum=0
        ),
    ] = 40
    max_filter_message_size: Annotated[
        int, byte_count("Bytes of queue entries that one read checks.", minimum=20)
    ] = 16_000
    travel_cq_file_num_when_get_message: Annotated[
        int, file_count("Queue files that one read checks.")
    ] = 1
    offset_check_in_slave: Annotated[
        bool, Setting("A slave corrects offsets outside of its queues, as a master does.")
    ] = False

    # --- retention ---

    file_reserved_time: Annotated[
        int, Setting("Age at which a log file may be deleted.", unit="hours", minimum=0)
    ] = 72
    delete_when: Annotated[
        str, Setting("Hours of local time at which old files are deleted, separated by ;.")
    ] = "04"
    clean_resource_interval: Annotated[
        int, milliseconds("Interval of the check for files to delete.")
    ] = 10_000
    delete_file_batch_max: Annotated[int, file_count("Most log files deleted in one pass.")] = 10
    delete_commit_log_files_interval: Annotated[
        int, milliseconds("Pause between two deleted log files.", minimum=0)
    ] = 100
    delete_consume_queue_files_interval: Annotated[
        int, milliseconds("Pause between two deleted queue files.", minimum=0)
    ] = 100
    destroy_maped_file_interval_forcibly: Annotated[
        int, milliseconds("A file that is still being read is deleted after this time.", minimum=0)
    ] = 120_000
    redelete_hanged_file_interval: Annotated[
        int, milliseconds("Interval of retries for a file that could not be deleted.")
    ] = 120_000
    disk_max_used_space_ratio: Annotated[
        int,
        Setting(
            "Over this disk usage, expired files are deleted at any hour (10 to 95).", unit="%"
        ),
    ] = 75
    disk_space_clean_forcibly_ratio: Annotated[
        int,
        Setting(
            "Over this disk usage, the oldest files are deleted, expired or not (30 to 85).",
            unit="%",
        ),
    ] = 85
    disk_space_warning_level_ratio: Annotated[
        int, Setting("Over this disk usage, the broker also refuses messages (35 to 90).", unit="%")
    ] = 90
    clean_file_forcibly_enable: Annotated[
        bool, Setting("Delete files that have not expired when the disk is nearly full.")
    ] = True

    # --- of Skylark alone ---

    disk_used_bytes_max: Annotated[
        int, byte_count("Size of the log over which the oldest files are deleted; 0: no limit.")
    ] = 0
    commit_log_allocate_ahead: Annotated[
        int, byte_count("Disk space allocated ahead of the write position.", minimum=4096)
    ] = 64 << 20
    commit_log_open_files_max: Annotated[
        int, file_count("Older log files kept open for readers.")
    ] = 128
    consume_queue_open_files_max: Annotated[int, file_count("Queue files kept open.")] = 256
    consume_queue_tail_size_max: Annotated[
        int, byte_count("New entries of a queue that trigger a write.", minimum=20)
    ] = 64 << 10
    consume_queue_recent_size: Annotated[
        int, byte_count("Entries of a queue kept in memory after the write.")
    ] = 16_000
    index_open_files_max: Annotated[int, file_count("Older index files kept open for queries.")] = 8

    # --- refused ---

    store_type: Annotated[str, Setting("Kind of consume queues; only default is supported.")] = (
        "default"
    )
    rocksdb_cq_double_write_enable: Annotated[
        bool, Setting("Queues in RocksDB: not supported.", java="rocksdbCQDoubleWriteEnable")
    ] = False
    index_rocksdb_enable: Annotated[
        bool, Setting("Index in RocksDB: not supported.", java="indexRocksDBEnable")
    ] = False
    enable_consume_queue_ext: Annotated[bool, Setting("Extended queues: not supported.")] = False
    enable_lmq: Annotated[bool, Setting("Light message queues: not supported.")] = False
    enable_multi_dispatch: Annotated[bool, Setting("Light message queues: not supported.")] = False
    enable_dleger_commit_log: Annotated[
        bool, Setting("DLedger log: not supported.", java="enableDLegerCommitLog")
    ] = False
    duplication_enable: Annotated[bool, Setting("External replication: not supported.")] = False
    enable_controller_mode: Annotated[bool, Setting("Controller mode: not supported.")] = False

    def check(self) -> Iterable[str]:
        yield from self._refusals()
        if self.store_path_commit_log is not None and re.search(
            "[,;]", str(self.store_path_commit_log)
        ):
            yield (
                f"storePathCommitLog={self.store_path_commit_log}: a log spread over several "
                "paths is not supported; name one directory"
            )
        if self.mapper_file_size_batch_consume_queue % BATCH_CQ_ENTRY_SIZE:
            yield (
                f"mapperFileSizeBatchConsumeQueue={self.mapper_file_size_batch_consume_queue}: "
                f"must be a multiple of {BATCH_CQ_ENTRY_SIZE}, the size of an entry"
            )
        if self.index_file_size > _INT_MAX:
            yield (
                f"maxHashSlotNum={self.max_hash_slot_num}, maxIndexNum={self.max_index_num}: an "
                f"index file of {self.index_file_size} bytes exceeds {_INT_MAX}"
            )
        for key, parse in (("deleteWhen", self._hours), ("messageDelayLevel", self._delays_ms)):
            try:
                list(parse())
            except ValueError as error:
                yield f"{key}: {error}"

    def _refusals(self) -> Iterator[str]:
        for info in own_settings(type(self)):
            value = getattr(self, info.name)
            if info.name in REFUSED and value not in (info.default, ""):
                yield f"{info.java}={format_value(value)}: {REFUSED[info.name]}"

    def _hours(self) -> Iterator[int]:
        for text in self.delete_when.split(";"):
            if not text.strip().isdecimal() or int(text) > 23:
                raise ValueError(f"{text!r} is not an hour from 00 to 23")
            yield int(text)

    def _delays_ms(self) -> Iterator[int]:
        for text in self.message_delay_level.split():
            match = _DELAY_LEVEL.fullmatch(text)
            if match is None:
                raise ValueError(f"{text!r} is not a number with s, m, h or d")
            yield int(match[1]) * _UNIT_MS[match[2]]

    # --- settings that Java reads through a rule ---

    @property
    def commit_log_path(self) -> Path:
        """Directory of the commit log."""
        return self.store_path_commit_log or self.store_path_root_dir / "commitlog"

    @property
    def record_size_max(self) -> int:
        """Bytes of a record, or of all records of a batch."""
        return self.max_message_size + RECORD_OVERHEAD_MAX

    @property
    def consume_queue_file_size(self) -> int:
        """Bytes of a consume queue file: whole entries."""
        entries = -(-self.mapped_file_size_consume_queue // CQ_ENTRY_SIZE)
        return entries * CQ_ENTRY_SIZE

    @property
    def index_file_size(self) -> int:
        """Bytes of an index file: header, slots, entries."""
        slots = self.max_hash_slot_num * INDEX_SLOT_SIZE
        return INDEX_HEADER_SIZE + slots + self.max_index_num * INDEX_ENTRY_SIZE

    @property
    def transient_pool_in_use(self) -> bool:
        """Slaves write what they receive straight to the file."""
        return self.transient_store_pool_enable and self.broker_role is not BrokerRole.SLAVE

    @property
    def delete_hours(self) -> frozenset[int]:
        """Hours of local time at which old files are deleted."""
        return frozenset(self._hours())

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of level 1, 2, ... in milliseconds."""
        return tuple(self._delays_ms())

    @property
    def disk_expire_ratio(self) -> float:
        """Share of the disk over which expired files go at once."""
        return _clamp(self.disk_max_used_space_ratio, 10, 95)

    @property
    def disk_clean_ratio(self) -> float:
        """Share of the disk over which the oldest files go."""
        return _clamp(self.disk_space_clean_forcibly_ratio, 30, 85)

    @property
    def disk_full_ratio(self) -> float:
        """Share of the disk over which puts are refused."""
        return _clamp(self.disk_space_warning_level_ratio, 35, 90)


def _clamp(percent: int, minimum: int, maximum: int) -> float:
    return max(minimum, min(maximum, percent)) / 100
