"""Configuration files of a store directory (topics, groups, offsets): load, save, and their text.

    config = ConfigFiles(OsFileSystem(), root / "config")
    topics = config.load(TOPICS)
    config.save(TOPICS, topics)

Every table is one file under ``config``, with its previous version beside it as ``.bak``. Saving
uses :meth:`FileSystem.write_atomic`: whenever the process or the machine stops, the file or its
backup is complete. Java moves the old file away and then writes the new one in place: a file of
Java's may be truncated or filled with zeros, and then its backup is the valid one.

Loading, by what is there:

====================================  ===========================================================
file                                  result
====================================  ===========================================================
valid                                 the file
missing or empty                      the backup; without one an empty table
invalid, and the backup is valid      the backup; the invalid file becomes ``NAME.broken-1`` (or
                                      the next free number), and a warning is logged
invalid, and no backup                :class:`BrokenConfigError`, nothing is changed
any, and the backup is invalid        :class:`BrokenConfigError`, nothing is changed
====================================  ===========================================================

Java deletes an invalid file, and starts empty if there is no backup. Skylark keeps it: a broker
that silently loses its topics or offsets does more harm than one that stops for an operator.

**Text**: fastjson2's pretty form, as RocketMQ 5.5 writes it (:func:`pretty`).

* One TAB per level, every member of an object on its own line, no blank after the colon, no line
  end after the last brace; an empty object is ``{}``.
* Members of a struct in the order of their wire names, ``None`` left out; dictionaries in their
  insertion order (Java's come in hash order, which no reader relies on).
* Integer keys are bare, so the text is not JSON. Older releases put all of them on one line.
* A list of numbers is on one line, any other has one item per line.
* Only quotes, backslashes and control characters are escaped.

:func:`skylark.wire.fastjson.decode_body` reads all of these forms, older ones and plain JSON.

Counterpart of Java's ``ConfigManager`` and ``RemotingSerializable.toJson(object, true)``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from skylark.core.errors import RemoteProtocolError
from skylark.store.config_tables import (
    ConfigTable,
    ConsumerFilterTable,
    ConsumerOffsetTable,
    ConsumerOrderInfoTable,
    DelayOffsetTable,
    MessageRequestModeTable,
    SubscriptionGroupTable,
    TimerMetricsTable,
    TopicQueueMappingTable,
    TopicTable,
    TransactionMetricsTable,
)
from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_system import READ_FILE_SIZE_MAX, FileSystem
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.fastjson_writer import write

logger = logging.getLogger(__name__)

BROKEN_FILES_MAX: Final = 100  # per name, before an operator must check them

TableT = TypeVar("TableT", bound=ConfigTable)


class BrokenConfigError(StoreFileError):
    """A configuration file holds no valid table, and there is no usable backup."""


@dataclass(frozen=True, slots=True)
class ConfigFile(Generic[TableT]):
    """One file: its name, the type of its table, and whether it is written without line breaks."""

    name: str
    table_type: type[TableT]
    compact: bool = False

    def encode(self, table: TableT) -> bytes:
        """The bytes of the file; updates the derived members of ``table``."""
        table.derive()
        if self.compact:
            return encode_body(table)
        return pretty(table).encode("utf-8", "replace")

    def decode(self, content: bytes) -> TableT:
        """The table; the only exception is :class:`RemoteProtocolError`."""
        return decode_body(self.table_type, content, size_max=READ_FILE_SIZE_MAX)


TOPICS: Final = ConfigFile("topics.json", TopicTable)
SUBSCRIPTION_GROUPS: Final = ConfigFile("subscriptionGroup.json", SubscriptionGroupTable)
CONSUMER_OFFSETS: Final = ConfigFile("consumerOffset.json", ConsumerOffsetTable)
DELAY_OFFSETS: Final = ConfigFile("delayOffset.json", DelayOffsetTable)
CONSUMER_FILTERS: Final = ConfigFile("consumerFilter.json", ConsumerFilterTable)
CONSUMER_ORDER_INFOS: Final = ConfigFile("consumerOrderInfo.json", ConsumerOrderInfoTable)
MESSAGE_REQUEST_MODES: Final = ConfigFile("messageRequestMode.json", MessageRequestModeTable)
TOPIC_QUEUE_MAPPINGS: Final = ConfigFile("topicQueueMapping.json", TopicQueueMappingTable)
TIMER_METRICS: Final = ConfigFile("timermetrics", TimerMetricsTable, compact=True)
TRANSACTION_METRICS: Final = ConfigFile("transactionMetrics", TransactionMetricsTable, compact=True)


class ConfigFiles:
    """The configuration files of one store."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._directory_is_durable = False

    def save(self, file: ConfigFile[TableT], table: TableT) -> None:
        """Replace the file durably; its previous version becomes the backup."""
        content = file.encode(table)
        if not self._directory_is_durable:
            # Also if it exists: a process that was killed before its sync may have created it.
            self._files.make_directories(self._directory, durable=True)
            self._directory_is_durable = True
        self._files.write_atomic(self._directory / file.name, content)

    def load(self, file: ConfigFile[TableT]) -> TableT:
        """The table of the file or, where that fails, of its backup: see the module docstring."""
        path = self._directory / file.name
        content = self._read(path)
        fault: RemoteProtocolError | None = None
        if content:
            try:
                return file.decode(content)
            except RemoteProtocolError as error:
                fault = error
        table = self._load_backup(file, path.with_name(file.name + ".bak"), fault)
        if table is None:
            if fault is not None:
                raise BrokenConfigError(
                    f"cannot be read ({fault}), and there is no backup",
                    path=path,
                    hint="restore it from a copy, or move it away to start without it",
                ) from fault
            return file.table_type()
        logger.warning(
            "%s is %s: loading its backup",
            path,
            fault or ("missing" if content is None else "empty"),
        )
        if content is not None:
            self._set_aside(path)
        return table

    def _load_backup(
        self, file: ConfigFile[TableT], backup: Path, fault: RemoteProtocolError | None
    ) -> TableT | None:
        """The table of the backup; ``None`` if there is no backup."""
        content = self._read(backup)
        if not content:
            return None
        try:
            return file.decode(content)
        except RemoteProtocolError as error:
            state = "missing or empty" if fault is None else f"broken ({fault})"
            raise BrokenConfigError(
                f"cannot be read ({error}), and {file.name} is {state}",
                path=backup,
                hint=f"restore {file.name} from a copy, or move both away to start without them",
            ) from error

    def _read(self, path: Path) -> bytes | None:
        """The content, or ``None`` if there is no such file."""
        try:
            return self._files.read_file(path)
        except StoreFileMissingError:
            return None

    def _set_aside(self, path: Path) -> None:
        """Rename an unusable file, because the next save would replace it."""
        for number in range(1, BROKEN_FILES_MAX + 1):
            target = path.with_name(f"{path.name}.broken-{number}")
            if not self._files.exists(target):
                self._files.rename(path, target)
                logger.warning("renamed the invalid file %s to %s", path, target.name)
                return
        raise BrokenConfigError(
            f"cannot be read, and {BROKEN_FILES_MAX} broken versions of it are kept already",
            path=path,
            hint=f"check {path.name}.broken-1 and the others, then move them away",
        )


# ---- pretty form ---------------------------------------------------------------------------------


def pretty(value: Any) -> str:
    """The text of a struct, dictionary or list."""
    out: list[str] = []
    _write(out, value, "\n")
    return "".join(out)


@cache
def _members(struct: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """(attribute, ``"wireName"``) of a struct's fields, sorted by wire name."""
    pairs = sorted((field.encode_name, field.name) for field in msgspec.structs.fields(struct))
    return tuple((name, encode_basestring(wire_name)) for wire_name, name in pairs)


def _write(out: list[str], value: Any, margin: str) -> None:
    """Append the text of ``value``; ``margin`` is the line end and indentation around it."""
    if type(value) is int:  # the most frequent type, in tables of offsets
        out.append(repr(value))
    elif isinstance(value, msgspec.Struct):
        members = ((key, getattr(value, name)) for name, key in _members(type(value)))
        _write_object(out, members, margin)
    elif isinstance(value, dict):
        _write_object(out, ((_key(key), member) for key, member in value.items()), margin)
    elif isinstance(value, list) and value and not all(type(item) is int for item in value):
        inner = margin + "\t"
        for position, item in enumerate(value):
            out.append(("," if position else "[") + inner)
            _write(out, item, inner)
        out.append(margin + "]")
    else:
        out.append(write(value))


def _write_object(out: list[str], members: Any, margin: str) -> None:
    inner = margin + "\t"
    opening = "{"
    for key, member in members:
        if member is not None:
            out.append(f"{opening}{inner}{key}:")
            _write(out, member, inner)
            opening = ","
    out.append("{}" if opening == "{" else margin + "}")


def _key(key: str | int) -> str:
    return encode_basestring(key) if isinstance(key, str) else repr(key)
