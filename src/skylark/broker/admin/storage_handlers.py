"""Requests about how messages are stored and read.

====================================  ============================================================
UPDATE_COLD_DATA_FLOW_CTR_CONFIG      (2001) sets thresholds of groups that read old messages
REMOVE_COLD_DATA_FLOW_CTR_CONFIG      (2002) removes one
GET_COLD_DATA_FLOW_CTR_INFO           (2003) shows them, and what was read
SET_COMMITLOG_READ_MODE               (2004) whether the system reads ahead in log files
CHECK_ROCKSDB_CQ_WRITE_PROGRESS       (354) begins to compare queues in RocksDB with those in files
EXPORT_ROCKSDB_CONFIG_TO_JSON         (355) writes tables in RocksDB as JSON files
RESET_MASTER_FLUSH_OFFSET             (908) gives a slave the flushed offset of its master
====================================  ============================================================

Nothing is kept in RocksDB: there is nothing to compare or to write, and the answers are those of a
Java broker without RocksDB. A slave learns of its master's log by replication, and ignores 908.
"""

from __future__ import annotations

import logging
from typing import Final

from skylark.broker.admin.handler_base import AdminHandlers, handles
from skylark.broker.pull.cold_reads import THRESHOLD_COUNT_MAX
from skylark.core.config import parse_properties
from skylark.core.errors import BrokerError, ConfigError, InvalidParameterError
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.wire.bodies.admin_body import CheckRocksdbCqWriteResult
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fields import decode_ext
from skylark.wire.headers.admin import (
    ExportRocksDBConfigToJsonRequestHeader,
    SetCommitLogReadModeRequestHeader,
)

logger = logging.getLogger(__name__)

READ_AHEAD: Final = "0"  # MADV_NORMAL
READ_RANDOM: Final = "1"  # MADV_RANDOM
IN_PROGRESS: Final = 2


class StorageHandlers(AdminHandlers):
    """The requests about how messages are stored and read."""

    @handles(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG)
    def set_cold_thresholds(self, connection: Connection, request: Command) -> Command:
        """UPDATE_COLD_DATA_FLOW_CTR_CONFIG (2001): lines ``group=bytes``; skips wrong ones."""
        try:
            texts = parse_properties(request.body or b"")
        except ConfigError as error:
            raise BrokerError("string2Properties error", hint=str(error)) from error
        thresholds = self._broker.cold_reads.thresholds
        for group, text in texts.items():
            try:
                threshold = int(text)
            except ValueError:
                logger.warning("%r sets no threshold of group %s: %.50r", connection, group, text)
                continue
            if group not in thresholds and len(thresholds) >= THRESHOLD_COUNT_MAX:
                raise BrokerError(f"there are {THRESHOLD_COUNT_MAX} thresholds of groups already")
            thresholds[group] = threshold
            logger.info("%r limits cold reads of group %s to %d", connection, group, threshold)
        return success(request)

    @handles(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG)
    def remove_cold_threshold(self, connection: Connection, request: Command) -> Command:
        """REMOVE_COLD_DATA_FLOW_CTR_CONFIG (2002): the body is the name of a group."""
        group = (request.body or b"").decode("utf-8", "replace")
        self._broker.cold_reads.thresholds.pop(group, None)
        logger.info("%r removed the limit of cold reads of group %s", connection, group)
        return success(request)

    @handles(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    def get_cold_reads(self, _connection: Connection, request: Command) -> Command:
        """GET_COLD_DATA_FLOW_CTR_INFO (2003)."""
        return success(request, body=self._broker.cold_reads.info())

    @handles(RequestCode.SET_COMMITLOG_READ_MODE)
    def set_read_mode(self, connection: Connection, request: Command) -> Command:
        """SET_COMMITLOG_READ_MODE (2004); holds until restart, as in Java."""
        if request.ext is None:
            raise BrokerError("set commitlog readahead mode param error")
        mode = decode_ext(SetCommitLogReadModeRequestHeader, request.ext).read_ahead_mode or ""
        if not mode.lstrip("+-").isdecimal():
            raise BrokerError("set commitlog readahead mode failed")
        if mode not in (READ_AHEAD, READ_RANDOM):
            raise InvalidParameterError("set commitlog readahead mode param value error")
        self._broker.store.log.files.set_random_access(mode == READ_RANDOM)
        logger.info("%r set the read-ahead mode of log files to %s", connection, mode)
        return success(request, remark=f"set commitlog readahead mode success, mode: {mode}")

    @handles(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS)
    def check_rocksdb(self, _connection: Connection, request: Command) -> Command:
        """CHECK_ROCKSDB_CQ_WRITE_PROGRESS (354): Java writes the result into its log."""
        return success(request, body=CheckRocksdbCqWriteResult(check_status=IN_PROGRESS))

    @handles(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON)
    def export_rocksdb(self, _connection: Connection, request: Command) -> Command:
        """EXPORT_ROCKSDB_CONFIG_TO_JSON (355)."""
        decode_ext(ExportRocksDBConfigToJsonRequestHeader, request.ext)
        return success(request, remark="export done.")

    @handles(RequestCode.RESET_MASTER_FLUSH_OFFSET)
    def reset_master_flush_offset(self, _connection: Connection, request: Command) -> Command:
        """RESET_MASTER_FLUSH_OFFSET (908)."""
        return success(request)
