"""The names of :mod:`skylark.testing`; that package loads them from here when they are needed."""

from skylark.testing.clock import START_MS, NotDrainedError, VirtualClock
from skylark.testing.faults import FaultAction, FaultPlan
from skylark.testing.local_broker import LocalBroker, broker
from skylark.testing.message_faults import MessageFaults
from skylark.testing.thread_broker import ThreadBroker, sync_broker

__all__ = [
    "START_MS",
    "FaultAction",
    "FaultPlan",
    "LocalBroker",
    "MessageFaults",
    "NotDrainedError",
    "ThreadBroker",
    "VirtualClock",
    "broker",
    "sync_broker",
]
