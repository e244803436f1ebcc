"""Counts what ran, for the thread that waits for the end of a run."""

from __future__ import annotations

import threading
from typing import Final

TIMEOUT_S: Final = 120


class Counter:
    """Counts from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = 0
        self._done = threading.Event()

    def expect(self, count: int) -> None:
        self._done.clear()
        self._left = count

    def count(self, _number: int) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._done.set()

    def wait(self) -> None:
        if not self._done.wait(TIMEOUT_S):
            raise TimeoutError(f"{self._left} did not run in {TIMEOUT_S} s")
