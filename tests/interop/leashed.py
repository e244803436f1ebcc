"""``skylark`` in a process that ends when its parent does, as ``java/Leashed.java`` for Java.

Run as ``python -m tests.interop.leashed ARGUMENTS``. Standard input is a pipe that the test run
holds: when it ends, so has the run, orderly or not, and nobody is left to stop this process.
"""

from __future__ import annotations

import os
import runpy
import threading


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(3)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runpy.run_module("skylark", run_name="__main__", alter_sys=True)
