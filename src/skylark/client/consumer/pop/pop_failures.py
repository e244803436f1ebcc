"""Pops that fail one after the other: how long to pause, and when to log it.

The first failure is logged, and then one in a minute or so. Used by all loops that pop for ever.
"""

from __future__ import annotations

import logging

from skylark.client.consumer.process_queue import BROKER_FLOW_CONTROL_DELAY_MS, FAILURES_PER_LOG
from skylark.core.errors import BrokerError, SkylarkError
from skylark.wire.codes import ResponseCode

logger = logging.getLogger(__name__)


class PopFailures:
    """The failures of one loop."""

    def __init__(self, what: str, pause_s: float) -> None:
        """``what`` fails, as the log line says; ``pause_s`` after a failure."""
        self._what = what
        self._pause_s = pause_s
        self._count = 0  # one after the other

    def ended(self) -> None:
        """A pop has succeeded."""
        self._count = 0

    def pause_after(self, error: SkylarkError) -> float:
        """How long to wait after a failure; logs it."""
        if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
            return BROKER_FLOW_CONTROL_DELAY_MS / 1000
        if self._count % FAILURES_PER_LOG == 0:
            logger.warning("%s failed: %s", self._what, error)
        self._count += 1
        return self._pause_s
