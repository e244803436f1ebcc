"""Something of which each process has one, made when it is first asked for.

A forked child inherits the memory of its parent but none of its threads: what the parent made would
never answer. So the child makes its own, and keeps the parent's without touching it, lest the
garbage collector close a loop that belongs to another process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """The one of this process; make it at the top of a module."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._own: T | None = None
        self._of_parents: list[T] = []
        if hasattr(os, "register_at_fork"):  # Windows knows no fork
            os.register_at_fork(after_in_child=self._forget_parent)

    def __call__(self) -> T:
        with self._lock:
            if self._own is None:
                self._own = self._make()
            return self._own

    def _forget_parent(self) -> None:
        self._lock = threading.Lock()  # the old one may be held by a thread that is not here
        if self._own is not None:
            self._of_parents.append(self._own)
            self._own = None
