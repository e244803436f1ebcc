"""An interrupt at the worst moment: a call has its result, and its caller does not know yet."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.client.blocking.event_loop_thread import _Call


def interrupt_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ctrl-C hit every blocking call that returns something."""
    wait = _Call.wait

    def wait_and_interrupt(call: _Call[Any]) -> None:
        wait(call)
        if call._result:
            call._latch.release()  # as if it had not been seen
            raise KeyboardInterrupt

    monkeypatch.setattr(_Call, "wait", wait_and_interrupt)
