"""Message traces: the record format, the hooks that write records, the task that sends them.

Programs that read the trace topic need only the names below; see :mod:`~.trace_records`.
"""

from skylark.client.trace.trace_records import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TraceMessageType,
    decode_traces,
)

__all__ = [
    "EndTransactionTrace",
    "PubTrace",
    "RecallTrace",
    "SubAfterTrace",
    "SubBeforeTrace",
    "Trace",
    "TraceMessageType",
    "decode_traces",
]
