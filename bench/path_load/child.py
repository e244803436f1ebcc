"""The measured process: a name server and a broker, and nothing that sends to them.

::

    PYTHONPATH=<checkout>/src python -m bench.path_load.child

The same file runs at both commits, so it imports nothing of Skylark but ``skylark.testing``, whose
names stay. It prints one JSON line when it serves, then answers each line of standard input with a
line: ``settle`` collects garbage and turns the collector off, ``cpu`` gives the processor time of
the process in nanoseconds. It ends with its standard input.

Settings keep work of the clock out of the samples: no log is synced while the benchmark runs, files
are large enough that none is full soon, and the loop does not poll its sockets while it waits for
the next request (``busyPollMicros``): that time depends on the speed of the client alone. Requests
that had to wait, because other programs have the processor, are served all the same.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import skylark
from skylark.testing import sync_broker

SETTINGS: Final[dict[str, Any]] = {
    "brokerFastFailureEnable": False,
    "busyPollMicros": 0,
    "flushIntervalCommitLog": 600_000,
    "flushCommitLogThoroughInterval": 600_000,
    "flushIntervalConsumeQueue": 600_000,
    "mappedFileSizeCommitLog": 256 << 20,
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "maxHashSlotNum": 500_000,
    "maxIndexNum": 2_000_000,
}

# Commits from before POP refuse its settings.
if (Path(skylark.__file__).parent / "broker" / "pop").is_dir():
    SETTINGS["enablePopBufferMerge"] = True


def settle() -> int:
    """Garbage of before is not paid for by the next sample, and none is collected within it."""
    gc.collect()
    gc.freeze()
    gc.disable()
    return 0


COMMANDS: Final[dict[str, Callable[[], int]]] = {"settle": settle, "cpu": time.process_time_ns}


def main() -> None:
    with sync_broker(SETTINGS) as broker:
        source = Path(skylark.__file__).parent.parent
        print(json.dumps({"namesrv": broker.namesrv, "source": str(source)}), flush=True)
        for line in sys.stdin:
            print(COMMANDS[line.strip()](), flush=True)


if __name__ == "__main__":
    main()
