"""Checks a store directory: every record of the log, and every entry of the derived files.

    report = check_store(Path("store"))
    report.is_clean, report.findings

Nothing is changed or locked: directories of Apache's broker, copies without write permission and
stores in use can be checked. The log is read once from beginning to end, in slices; queues and
index are read beside it (:mod:`skylark.store.inspection` has the parts). Memory: a slice, some
numbers for each queue, and 4 bytes for each slot of an index file.

:mod:`skylark.store.inspection.check_findings` explains the findings, and why they are less severe
in a store that was not closed in order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from skylark.store.checkpoint import FILE_NAME, STORE_TIMESTAMP_MAX
from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.inspection.check_findings import Finding, Findings, Severity, Trouble, plural
from skylark.store.inspection.index_check import IndexChecks
from skylark.store.inspection.log_walk import Blank, Hole, LogEnd, walk
from skylark.store.inspection.queue_check import QueueChecks
from skylark.store.inspection.store_directory import (
    FileSizes,
    IndexShape,
    LogFile,
    State,
    Survey,
    survey,
)
from skylark.store.log_replay import RecordTexts
from skylark.store.reput import TagsCodes
from skylark.wire.layout import CHECKPOINT, CHECKPOINT_FILE_SIZE
from skylark.wire.message import RecordError, Verify, decode_record
from skylark.wire.properties import PROPERTY_CRC32
from skylark.wire.record_scan import RecordColumns

#: Called with the bytes of the log that were read, and with all there are.
Progress = Callable[[int, int], None]

OFFSET_MAX: Final = 1 << 62

_CHECKPOINT_NAMES: Final = (
    "physicMsgTimestamp",
    "logicsMsgTimestamp",
    "indexMsgTimestamp",
    "masterFlushedOffset",
    "confirmPhyOffset",
    "logicsPhysicalOffset",
)


class CheckReport(msgspec.Struct, kw_only=True):
    """What was checked, and the findings."""

    root: Path
    state: State
    log_file_size: int  #: as given or guessed
    index_shape: IndexShape | None
    log_files: int
    log_start: int
    log_end: int
    records: int
    queues: int
    queue_entries: int
    index_files: int
    index_entries: int
    findings: list[Finding]
    left_out: dict[str, int]  #: findings of a kind beyond those that are listed
    errors: int
    warnings: int
    notes: int

    @property
    def is_clean(self) -> bool:
        """Whether there are only notes."""
        return not self.errors and not self.warnings


def check_store(
    root: Path,
    sizes: FileSizes | None = None,
    *,
    log_path: Path | None = None,
    delays_ms: tuple[int, ...] = (),
    files: FileSystem | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Check a store directory; see the module docstring.

    ``sizes`` that are not given are guessed. ``log_path`` if the log is not below ``root``.
    ``delays_ms``: the delays of the levels, which determine when delayed messages are due. Raises
    StoreFileMissingError or NotAStoreError if there is nothing to check.
    """
    file_system = files or OsFileSystem()
    surveyed = survey(file_system, root, sizes or FileSizes(), log_path=log_path)
    return _Check(file_system, surveyed, TagsCodes(delays_ms), progress).run()


class _Check:
    """One run."""

    def __init__(
        self,
        files: FileSystem,
        surveyed: Survey,
        tags_codes: TagsCodes,
        progress: Progress | None,
    ) -> None:
        self._files = files
        self._survey = surveyed
        self._progress = progress
        self._findings = Findings(surveyed.state)
        self._log_min = surveyed.log_files[0].start_offset if surveyed.log_files else 0
        self._log_end: int | None = None  # once it was found
        self._log_total = sum(file.size for file in surveyed.log_files)
        self._queues = QueueChecks(files, surveyed, self._findings, self._log_min, tags_codes)
        self._index = IndexChecks(files, surveyed, self._findings, self._log_min)
        self._end = LogEnd(files, surveyed)
        self._record_count = 0
        self._last_end = self._log_min  # end of the last record or file that was read
        self._last_timestamp = 0  # store time of the last record

    def run(self) -> CheckReport:
        self._report_state()
        self._report_misfits()
        done = 0
        for number, file in enumerate(self._survey.log_files):
            self._check_file(number, file, done)
            done += file.size
            self._report_progress(done)
        log_end = self._last_end if self._log_end is None else self._log_end
        self._queues.finish(log_end)
        self._index.finish(log_end)
        self._check_checkpoint(log_end)
        found = self._findings
        return CheckReport(
            root=self._survey.root,
            state=self._survey.state,
            log_file_size=self._survey.log_size,
            index_shape=self._survey.index_shape,
            log_files=len(self._survey.log_files),
            log_start=self._log_min,
            log_end=log_end,
            records=self._record_count,
            queues=len(self._survey.queues),
            queue_entries=self._queues.entry_count,
            index_files=len(self._survey.index_files),
            index_entries=self._index.entry_count,
            findings=found.found,
            left_out=found.left_out,
            errors=found.count(Severity.ERROR),
            warnings=found.count(Severity.WARNING),
            notes=found.count(Severity.NOTE),
        )

    def _report_progress(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self._log_total)

    # ---- state and files -------------------------------------------------------------------------

    def _report_state(self) -> None:
        root, state = self._survey.root, self._survey.state
        if state is State.IN_USE:
            text = "the store is in use: what is written during the check may look unfinished"
            self._findings.add(Severity.NOTE, "store.in-use", root / "lock", 0, text)
        elif state is State.CRASHED:
            process = self._survey.abort_text
            text = f"the store was not closed in order by process {process or 'unknown'}: the "
            text += "next start recovers; check again after it"
            self._findings.add(Severity.WARNING, "store.crashed", root / "abort", 0, text)

    def _report_misfits(self) -> None:
        for path, offset, text, is_harmless in self._survey.misfits:
            severity = Severity.NOTE if is_harmless else Severity.ERROR
            self._findings.add(severity, "file.misfit", path, offset, text)

    # ---- log -------------------------------------------------------------------------------------

    def _check_file(self, number: int, file: LogFile, done: int) -> None:
        if self._log_end is not None:
            self._check_behind_end(file)
            return
        for step in walk(self._files, file, verify=Verify.BODY):
            if isinstance(step, RecordColumns):
                self._check_records(file, step)
                self._report_progress(done + self._last_end - file.start_offset)
            elif isinstance(step, Blank):
                self._check_blank(file, step)
            elif self._end.is_at(step, number):
                self._log_end = step.log_offset
                self._report_end(file, step)
                return
            else:
                self._report_hole(file, step, number)

    def _check_records(self, file: LogFile, columns: RecordColumns) -> None:
        texts = RecordTexts(columns)
        self._check_property_crc(file, texts)
        self._queues.add(texts)
        self._index.add(texts)
        self._record_count += len(columns)
        self._last_end = int(columns.log_offset[-1] + columns.total_size[-1])
        self._last_timestamp = int(columns.store_timestamp[-1])

    def _check_property_crc(self, file: LogFile, texts: RecordTexts) -> None:
        """Check records that end with a checksum over all their bytes."""
        columns = texts.columns
        for row, value in enumerate(texts.values(PROPERTY_CRC32)):
            if value is None:
                continue
            try:
                decode_record(columns.buffer, int(columns.position[row]), verify=Verify.PROPERTY)
            except RecordError as error:
                offset = int(columns.log_offset[row])
                text = f"record at {offset}: {error.fault.value}"
                self._findings.add(Severity.ERROR, "log.checksum", file.path, offset, text)

    def _check_blank(self, file: LogFile, blank: Blank) -> None:
        self._last_end = file.end_offset
        if not blank.is_whole:
            text = "the blank record does not reach to the end of the file"
            self._findings.add(Severity.ERROR, "log.blank", file.path, blank.log_offset, text)

    def _report_end(self, file: LogFile, hole: Hole) -> None:
        """Report bytes beyond the end of the log."""
        offset = hole.log_offset
        # Queues have an entry of it: it was the last record.
        is_known = offset < self._end.dispatched
        dirty_end = hole.dirty_end if hole.resume is None else file.end_offset
        if dirty_end == offset and not is_known:
            return
        reason = "" if hole.fault is None else f": {hole.fault.value}"
        if is_known:
            text = f"the log ends at {offset}, and queues have entries up to {self._end.dispatched}"
            trouble = Trouble.AHEAD_OR_BEHIND
            self._findings.add(trouble, "log.end", file.path, offset, text + reason)
        elif self._survey.state is State.CRASHED:
            text = f"the log ends at {offset}, and the next start clears what comes after it"
            self._findings.add(Severity.WARNING, "log.end", file.path, offset, text + reason)
        else:
            text = f"old bytes beyond the end of the log, up to {dirty_end}"
            self._findings.add(Severity.NOTE, "log.remnant", file.path, offset, text)

    def _report_hole(self, file: LogFile, hole: Hole, number: int) -> None:
        """Report bytes that are not a record, in the middle of the log."""
        if hole.fault is None:
            text = "the file does not end with a blank record"
            self._findings.add(Severity.WARNING, "log.blank", file.path, hole.log_offset, text)
            return
        if hole.resume is None:
            text = f"{file.end_offset - hole.log_offset} bytes to the end of the file are lost"
        else:
            text = f"{hole.resume - hole.log_offset} bytes up to the next record are lost"
        text = f"no record at {hole.log_offset}, {hole.fault.value}; {text}"
        is_last = number == len(self._survey.log_files) - 1
        severity = Trouble.WRONG if is_last else Severity.ERROR
        self._findings.add(severity, "log.hole", file.path, hole.log_offset, text)

    def _check_behind_end(self, file: LogFile) -> None:
        """Check a file beyond the end: created in advance and still empty, or left behind."""
        (step, *_) = walk(self._files, file, verify=Verify.BODY)
        if isinstance(step, Hole) and step.dirty_end == step.log_offset and step.resume is None:
            text = "the file is empty: created in advance"
            self._findings.add(Severity.NOTE, "log.spare", file.path, file.start_offset, text)
        else:
            text = f"the file lies beyond the end of the log at {self._log_end}, and is not empty"
            self._findings.add(Trouble.WRONG, "log.behind", file.path, file.start_offset, text)

    # ---- checkpoint ------------------------------------------------------------------------------

    def _check_checkpoint(self, log_end: int) -> None:
        path = self._survey.root / FILE_NAME
        try:
            content = self._files.read_file(path, size_max=CHECKPOINT_FILE_SIZE)
        except StoreFileMissingError:
            if self._record_count:
                text = "there is no checkpoint: a recovery would read the whole log"
                self._findings.add(Severity.NOTE, "checkpoint.missing", path, 0, text)
            return
        except StoreFileError as error:
            self._findings.add(Severity.WARNING, "checkpoint.bad", path, 0, str(error))
            return
        if len(content) < CHECKPOINT.size:
            text = f"{plural(len(content), 'byte')} where {CHECKPOINT_FILE_SIZE} should be"
            self._findings.add(Severity.WARNING, "checkpoint.bad", path, 0, text)
            return
        values = CHECKPOINT.unpack_from(content)
        for number, (name, value) in enumerate(zip(_CHECKPOINT_NAMES, values, strict=True)):
            ahead = None
            if not 0 <= value <= (STORE_TIMESTAMP_MAX if number < 3 else OFFSET_MAX):
                text = f"{name} is {value}"
                self._findings.add(Severity.WARNING, "checkpoint.bad", path, number * 8, text)
            elif number < 2 and value > self._last_timestamp:
                ahead = f"later than the last record at {self._last_timestamp}"
            elif number == 5 and value > log_end:
                ahead = f"beyond the end of the log at {log_end}"
            if ahead is not None:
                text = f"{name} is {value}, {ahead}"
                self._findings.add(
                    Trouble.AHEAD_OR_BEHIND, "checkpoint.ahead", path, number * 8, text
                )
