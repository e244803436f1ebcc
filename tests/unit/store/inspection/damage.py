"""Stores for the checker: the Java broker's, small ones of our own, and ways to damage them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from skylark.core.clock import SystemClock
from skylark.store.config import StoreConfig
from skylark.store.files import OsFileSystem
from skylark.store.inspection.check_findings import Severity
from skylark.store.inspection.store_check import CheckReport, check_store
from skylark.wire.message import MessageRecord, iter_records
from tests.unit.store.crash_store import CrashStore

GOLDEN = Path(__file__).parents[3] / "golden" / "data"
DELAYS_MS = StoreConfig(store_path_root_dir=Path("x")).delay_levels_ms
ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

LOG_FILES = [f"commitlog/{start:020d}" for start in (0, 32768, 65536, 98304)]
LOG_END = 124586
QUEUE = "consumequeue/GoldenB/0/00000000000000000000"
SECOND_QUEUE_FILE = "consumequeue/GoldenB/0/00000000000000006000"
BATCH_QUEUE = "batchconsumequeue/GoldenBatchCq/0/00000000000000000000"
SLOTS = 100
ENTRIES_START = 40 + 4 * SLOTS


def check(root: Path, **options: Any) -> CheckReport:
    return check_store(root, delays_ms=DELAYS_MS, **options)


def found(report: CheckReport) -> list[tuple[Severity, str, str, int]]:
    """Severity, kind, file and offset of all findings."""
    return [
        (it.severity, it.kind, it.file.relative_to(report.root).as_posix(), it.offset)
        for it in report.findings
    ]


def kinds(report: CheckReport) -> set[tuple[Severity, str]]:
    return {(it.severity, it.kind) for it in report.findings}


def text_of(report: CheckReport, kind: str) -> str:
    return next(it.text for it in report.findings if it.kind == kind)


def patch(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def flip(path: Path, position: int) -> None:
    patch(path, position, bytes([path.read_bytes()[position] ^ 0xFF]))


def records(path: Path) -> list[MessageRecord]:
    """The records of a log file that ends with a blank."""
    return list(iter_records(path.read_bytes()))


def digest(root: Path) -> str:
    """All names, contents and times of change below a directory."""
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        total.update(f"{path.relative_to(root)} {path.stat().st_mtime_ns}\n".encode())
        if path.is_file():
            total.update(path.read_bytes())
    return total.hexdigest()


def own_store(tmp_path: Path, **settings: Any) -> CrashStore:
    store = CrashStore(OsFileSystem(), tmp_path / "own", time=SystemClock(), **settings)
    store.open()
    return store
