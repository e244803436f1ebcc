"""Memory and processor time of Spark: its JVM, and the Python processes that it has started."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

INTERVAL_S = 0.25
JVM, PYTHON = "jvm", "python"
MIB = 1024  # of what /proc shows


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, below = [], [pid]
    while below:
        below = [child for parent in below for child in children.get(parent, ())]
        found += below
    return found


def own_mib(pid: int) -> float:
    """Memory that no file stands behind; 0 for a process that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) / MIB
    except (OSError, IndexError):
        return 0.0


def processor_s(pid: int) -> float:
    """Of a process and all below it, also those that have ended and were waited for."""
    total = 0
    for each in (pid, *descendants(pid)):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15] if each == pid else fields[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


class MemoryWatch:
    """Looks a few times a second, within a ``with`` block: (second, MiB) of JVM and Python."""

    def __init__(self, jvm_pid: int) -> None:
        self._jvm_pid = jvm_pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.sizes: dict[str, list[tuple[float, float]]] = {JVM: [], PYTHON: []}

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        began = time.perf_counter()
        while not self._done.wait(INTERVAL_S):
            now = time.perf_counter() - began
            workers = sum(own_mib(pid) for pid in descendants(self._jvm_pid))
            self.sizes[JVM].append((now, own_mib(self._jvm_pid)))
            self.sizes[PYTHON].append((now, workers))
