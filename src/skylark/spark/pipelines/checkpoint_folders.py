"""Checkpoint folders of a pipeline: which one is current, what is in it, and how a new one is made.

::

    <checkpoints>/<pipeline>/0        the first; made by Spark when the pipeline first runs
    <checkpoints>/<pipeline>/1        made by `skylark pipeline reset`
    <checkpoints>/<pipeline>/2 ...    the highest number is the current one

Existing folders are never changed: a reset makes the next one, under a name that begins with a dot,
and renames it to its number when it is complete. To undo a reset before the pipeline has run again,
delete the folder.

In a folder Spark keeps, for each batch, a file with the offsets at its end (``offsets/<n>``,
written before the batch runs) and one that marks it as done (``commits/<n>``)::

    v1
    {"batchWatermarkMs": 0, "batchTimestampMs": ..., "conf": {...}}
    {"v": 1, "q": {...}}                     one line per source; see
    skylark.spark.source.stream_offset

:func:`write_checkpoint` makes a folder with a batch that was planned and read no row: it ends where
reading shall start. Batch numbers continue from the old folder, because file sinks keep a log of
them beside the data (see :mod:`skylark.spark.pipelines.pipeline_start`). Two kinds of queries
start again with batch 0: those with state, because it has batch numbers as well, and those that
write to a topic. The query gets a new id, so that exactly-once sinks do not take its batches for
those of the old query, and for a new id such a sink wants batch 0 first.

Folders on other file systems are accessible to Spark alone: there number 0 is used, and nothing is
known about its content. This module needs no Spark.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from skylark.core.errors import ConfigError
from skylark.spark.source.stream_offset import StreamOffset, decode_offset, encode_offset
from skylark.wire.bodies.common_body import MessageQueue

VERSION: Final = "v1"
FILE_SIZE_MAX: Final = 64 << 20
_NUMBER: Final = re.compile(r"\d{1,18}")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_NO_METADATA: Final = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'


def local_path(text: str, base: Path) -> Path | None:
    """The path of a path or ``file:`` URI, relative to ``base``; None for other file systems."""
    if not _SCHEME.match(text):
        return base / text
    parts = urlsplit(text)
    return Path(unquote(parts.path)) if parts.scheme.lower() == "file" else None


class PlannedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch in the offsets log: its end offsets per source, and the settings of Spark."""

    number: int
    ends: tuple[StreamOffset, ...]
    metadata: str

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The end offset of each queue; the lowest if a query reads it twice."""
        found: dict[MessageQueue, int] = {}
        for end in self.ends:
            for queue, offset in end.queues.items():
                found[queue] = min(offset, found.get(queue, offset))
        return found


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one checkpoint folder."""

    folder: Path
    number: int
    query_id: str | None
    done: PlannedBatch | None  #: the last completed batch
    unfinished: PlannedBatch | None  #: a later batch that was planned and not completed
    has_state: bool
    changed_ms: int | None  #: when a batch was last planned or completed

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The offsets at which the next run starts: the end of the last completed batch."""
        if self.done is not None:
            return self.done.positions
        if self.unfinished is None:
            return {}
        found: dict[MessageQueue, int] = {}
        for end in self.unfinished.ends:
            # A fresh end offset is that of a first batch without rows.
            found |= end.queues if end.fresh else end.first_start or {}
        return found

    @property
    def last(self) -> PlannedBatch | None:
        """The last batch that was planned."""
        return self.unfinished or self.done

    @property
    def next_number(self) -> int:
        """The number of the next batch."""
        if self.unfinished is not None:
            return self.unfinished.number
        return 0 if self.done is None else self.done.number + 1

    @property
    def topics(self) -> set[str]:
        return set() if self.last is None else {queue.topic for queue in self.last.positions}


class Checkpoints:
    """The folder with the checkpoints of all pipelines of a file."""

    def __init__(self, text: str, base: Path) -> None:
        self._text = text.rstrip("/")
        self.root = local_path(text, base)

    def location(self, pipeline: str) -> str:
        """The checkpoint location for Spark: the newest folder, or the first."""
        if self.root is None:
            return f"{self._text}/{pipeline}/0"
        newest = self.newest(pipeline)
        return (newest.folder if newest else self.folder(pipeline) / "0").absolute().as_uri()

    def folder(self, pipeline: str) -> Path:
        """The parent of the numbered folders; raises ConfigError if it is not a local path."""
        if self.root is None:
            raise ConfigError(
                f"the checkpoints are at {self._text}, which only Spark can read",
                hint="keep them in a folder that is mounted here, file:///...",
            )
        return self.root / pipeline

    def newest(self, pipeline: str) -> Checkpoint | None:
        """The current checkpoint; None if the pipeline has not run yet. Raises ConfigError."""
        numbers = _numbers(self.folder(pipeline))
        if not numbers:
            return None
        return _read(self.folder(pipeline) / str(numbers[-1]), numbers[-1])

    def check_writable(self, pipeline: str) -> None:
        """Raise ConfigError if the folder is not writable; creates nothing."""
        if self.root is None:
            return
        at = self.folder(pipeline)
        while not at.exists() and at != at.parent:
            at = at.parent
        if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
            why = "is not writable" if at.is_dir() else "is not a folder"
            raise ConfigError(
                f"pipeline {pipeline} cannot write its checkpoint to {self.folder(pipeline)}:"
                f" {at} {why}",
                hint="change its permissions, or the key checkpoints of the file",
            )


def _numbers(folder: Path) -> list[int]:
    try:
        names = [each.name for each in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(folder, error.strerror or str(error)) from None
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def _read(folder: Path, number: int) -> Checkpoint:
    planned, done = _numbers(folder / "offsets"), _numbers(folder / "commits")
    last_done = done[-1] if done else None
    unfinished = planned[-1] if planned and planned[-1] != last_done else None
    files = [folder / "offsets" / str(planned[-1])] if planned else []
    files += [folder / "commits" / str(done[-1])] if done else []
    changes_ms = [file.stat().st_mtime_ns // 1_000_000 for file in files]
    return Checkpoint(
        folder=folder,
        number=number,
        query_id=_query_id(folder / "metadata"),
        done=None if last_done is None else _planned(folder, last_done),
        unfinished=None if unfinished is None else _planned(folder, unfinished),
        has_state=(folder / "state").is_dir(),
        changed_ms=max(changes_ms, default=None),
    )


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > FILE_SIZE_MAX:
            raise _unreadable(file, f"it has more than {FILE_SIZE_MAX} bytes")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise _unreadable(file, "it is not UTF-8 text") from None


def _query_id(file: Path) -> str | None:
    if not file.exists():
        return None
    try:
        found = json.loads(_text(file))
    except ValueError:
        return None
    return str(found["id"]) if isinstance(found, Mapping) and "id" in found else None


def _planned(folder: Path, number: int) -> PlannedBatch:
    file = folder / "offsets" / str(number)
    version, metadata, *lines = (*_text(file).splitlines(), "", "")[:66]
    if version != VERSION:
        raise _unreadable(file, f"it begins with {version[:20]!r} and not with {VERSION}")
    # Spark writes a dash for a source without an offset.
    ends = [decode_offset(_json(line, file)) for line in lines if line not in ("", "-")]
    return PlannedBatch(number=number, ends=tuple(ends), metadata=metadata)


def _json(line: str, file: Path) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise _unreadable(file, "it has a line that is not JSON") from None


def _unreadable(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the checkpoint {file} cannot be read: {why}",
        hint="is it the checkpoint of a pipeline, and may this user read it?",
    )


# ---- a new folder --------------------------------------------------------------------------------


def write_checkpoint(
    parent: Path,
    old: Checkpoint | None,
    positions: Mapping[MessageQueue, int],
    next_number: int,
) -> Path:
    """Make the next folder below ``parent`` and return it; its query starts at ``positions``.

    The first batch with rows has ``next_number``, or 1 if that is 0. Raises OSError, also if
    another process makes the folder at the same time.
    """
    last = None if old is None else old.last
    # Spark runs an unfinished batch 0 whose end equals its start, "s", and reads nothing. Later
    # batches must be completed, and Spark reads the end of the one before.
    start = StreamOffset(positions, first_start=None if next_number else positions)
    line = json.dumps(encode_offset(start), separators=(",", ":"))
    metadata = last.metadata if last is not None and next_number else _NO_METADATA
    source_count = max(1, len(last.ends)) if last is not None else 1
    text = "\n".join([VERSION, metadata, *[line] * source_count])
    done = next_number - 1
    planned = [number for number in (done - 1, done) if number >= 0] or [0]
    draft = parent / f".{uuid.uuid4()}"
    (draft / "offsets").mkdir(parents=True)
    (draft / "commits").mkdir()
    try:
        (draft / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        for number in planned:
            (draft / "offsets" / str(number)).write_text(text)
        if done >= 0:
            (draft / "commits" / str(done)).write_text(f'{VERSION}\n{{"nextBatchWatermarkMs":0}}')
        target = parent / str(0 if old is None else old.number + 1)
        draft.rename(target)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return target
