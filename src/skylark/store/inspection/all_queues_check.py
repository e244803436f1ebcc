"""All queues against the log: which records belong to which, and what each makes of them.

Records of a slice are grouped by topic and queue, and each group goes to the check of its queue. A
queue is of the kind that its directory says; one without a directory, of the kind that its records
say.

Light queues (``%LMQ%``) have entries that lead to records of other topics; they are passed over.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from skylark.store.file_system import FileSystem
from skylark.store.inspection.check_findings import Findings, runs
from skylark.store.inspection.expected_entries import RecordTexts
from skylark.store.inspection.queue_check import BatchCheck, PlainCheck, QueueCheck
from skylark.store.inspection.queue_reader import QueueReader
from skylark.store.inspection.store_directory import QueueDirectory, Survey
from skylark.store.log_replay import visible_records
from skylark.store.queue_registry import BATCH_QUEUE_DIRECTORY, QUEUE_DIRECTORY
from skylark.wire.layout import FLAG_INNER_BATCH

LMQ_PREFIX: Final = "%LMQ%"


class _Key(NamedTuple):
    """What tells queues apart."""

    is_batch: bool
    topic: str
    queue_id: int


class QueueChecks:
    """Compares all queues of a store with the records of its log."""

    def __init__(self, files: FileSystem, survey: Survey, findings: Findings, log_min: int) -> None:
        self._reader = QueueReader(files)
        self._survey = survey
        self._findings = findings
        self._log_min = log_min
        self._directories = {
            _Key(queue.is_batch, queue.topic, queue.queue_id): queue
            for queue in survey.queues
            if not queue.topic.startswith(LMQ_PREFIX)
        }
        self._checks: dict[_Key, QueueCheck] = {}

    @property
    def entry_count(self) -> int:
        """Entries that were looked at."""
        return sum(check.entry_count for check in self._checks.values())

    def add(self, texts: RecordTexts) -> None:
        """Compare the records of a slice; slices come in the order of the log."""
        import numpy as np

        columns = texts.columns
        shown = np.flatnonzero(visible_records(columns))
        queue_ids = columns.queue_id[shown].astype(np.int64) & 0xFFFF_FFFF
        keys = texts.topic_numbers[shown] << 32 | queue_ids
        order = np.argsort(keys, kind="stable")
        rows, keys = shown[order], keys[order]
        for first, last in runs(keys):
            check = self._check_of(texts, int(rows[first]))
            if check is not None:
                check.add(texts, rows[first:last])

    def _check_of(self, texts: RecordTexts, row: int) -> QueueCheck | None:
        topic = texts.names[int(texts.topic_numbers[row])]
        if topic.startswith(LMQ_PREFIX):
            return None
        queue_id = int(texts.columns.queue_id[row])
        is_batch = _Key(True, topic, queue_id) in self._directories or (
            _Key(False, topic, queue_id) not in self._directories
            and bool(texts.columns.sys_flag[row] & FLAG_INNER_BATCH)
        )
        return self._check(_Key(is_batch, topic, queue_id))

    def _check(self, key: _Key) -> QueueCheck:
        check = self._checks.get(key)
        if check is None:
            queue = self._directories.get(key)
            if queue is None:
                name = BATCH_QUEUE_DIRECTORY if key.is_batch else QUEUE_DIRECTORY
                path = self._survey.root / name / key.topic / str(key.queue_id)
                queue = QueueDirectory(key.topic, key.queue_id, path, key.is_batch, 1, [])
            kind = BatchCheck if key.is_batch else PlainCheck
            check = kind(queue, self._reader, self._findings, self._log_min)
            self._checks[key] = check
        return check

    def finish(self, log_end: int) -> None:
        """Look at what no record has asked for, now that the whole log was read."""
        for key in {**dict.fromkeys(self._directories), **dict.fromkeys(self._checks)}:
            self._check(key).finish(log_end, deleted=self._was_deleted(key))
        self._reader.close()

    def _was_deleted(self, key: _Key) -> bool:
        """Whether a queue is not there because its topic was deleted, and perhaps made again."""
        if key in self._directories:
            return False
        topics = self._survey.topics
        is_forgotten = topics is not None and key.topic not in topics
        return is_forgotten or key.topic in self._survey.emptied_topics
