"""The names of :mod:`skylark.testing`; that package loads them from here when they are needed."""

from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.local_broker import LocalBroker, broker
from skylark.testing.request_faults import MessageFaults
from skylark.testing.thread_broker import ThreadBroker, sync_broker
from skylark.testing.virtual_clock import START_MS, NotDrainedError, VirtualClock

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
