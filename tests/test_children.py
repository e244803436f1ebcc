"""What children of tests inherit."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import signal
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)
"""


def test_children_can_be_interrupted() -> None:
    """Also where this run is a background job of a shell or of nohup, which ignore signals."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "True\nTrue\n"
