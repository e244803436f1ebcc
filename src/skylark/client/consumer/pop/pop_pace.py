"""How many messages a push consumer in pop mode asks for: as many as its handlers begin in time.

A popped message that waits for a handler is hidden from consumers that could process it. So no more
calls of handlers may wait or run than would begin within the *patience*, half of the invisible
time, at the mean duration of the last calls::

    calls_max = concurrency * patience / mean duration, and not less than concurrency

For quick handlers that is no limit. Handlers that take longer than the patience get a message only
when one of them is free. The duration of calls that have not ended is not known; so a message that
had to be given back (:meth:`PopPace.gave_back`) counts as a call that took the patience.
"""

from __future__ import annotations

from typing import Final

from skylark.client.consumer.push.message_handlers import Binding

#: Weight of the last call in the mean.
_WEIGHT: Final = 1 / 8


class PopPace:
    """Runs on the loop that consumes."""

    def __init__(self, concurrency: int, patience_ms: int) -> None:
        self._concurrency = concurrency
        self._patience_ms = patience_ms
        self._mean_ms = 0.0
        #: Calls that wait or run; coroutines and plain functions have a pool each.
        self._calls = {True: 0, False: 0}

    def submitted(self, binding: Binding, count: int) -> None:
        """So many calls of a handler wait now."""
        self._calls[binding.is_async] += count

    def ended(self, binding: Binding, took_ms: int) -> None:
        """A handler was called, and has ended."""
        self._calls[binding.is_async] -= 1
        self._mean_ms += (took_ms - self._mean_ms) * _WEIGHT

    def discarded(self, binding: Binding) -> None:
        """A handler will not be called."""
        self._calls[binding.is_async] -= 1

    def gave_back(self) -> None:
        """Messages waited for too long."""
        self._mean_ms = max(self._mean_ms, self._patience_ms)

    def room(self, binding: Binding) -> int:
        """How many messages more may be popped for a handler; 0 or less: none."""
        in_time = self._patience_ms / max(self._mean_ms, 1.0)  # calls of one handler
        calls_max = int(self._concurrency * max(1.0, in_time))
        return (calls_max - self._calls[binding.is_async]) * binding.batch
