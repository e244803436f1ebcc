"""A job for the pools that run handlers."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any


class Work:
    """A job that calls a function and keeps what becomes of it."""

    def __init__(self, function: Any, *, wanted: bool = True) -> None:
        self._function = function
        self._wanted = wanted
        self.ends: list[tuple[Any, BaseException | None]] = []
        self.discarded = 0

    def begin(self) -> bool:
        return self._wanted

    def call(self) -> Any:
        return self._function()

    def finish(self, result: Any, error: BaseException | None) -> Coroutine[Any, Any, None] | None:
        self.ends.append((result, error))
        return None

    def discard(self) -> None:
        self.discarded += 1
