"""A Spark session with the settings that the connector wants.

::

    spark = make_session("local[4]")
    frame = spark.read.format("rocketmq").option("topic", "orders").load()

:func:`make_session` prepares what Spark expects of its surroundings: a Java (:mod:`java
<skylark.spark.java>`), and for its worker processes the Python that is running now. Spark itself
would take ``python3`` from the ``PATH``, and a wrong one shows only as a worker that crashed. What
the caller has set already, in the environment or in ``conf``, stays.

========================================  ==========================================================
unix domain sockets                       on: between JVM and Python they are a third faster
time zone                                 UTC
speculation                               off: a second attempt of a task would write its rows twice
shuffle partitions                        in local mode as many as cores, instead of 200
address of the driver                     loopback in local mode
memory of Python, planner and executors   512 MiB each on clusters
========================================  ==========================================================
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from skylark.core.errors import ConfigError
from skylark.spark.java import java_home
from skylark.spark.source import DefaultSource

_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,.*)?\])?")
_WORKER_MEMORY: Final = "512m"
_PROBE_TIMEOUT_S: Final = 60
_PROBE: Final = (
    "import sys, importlib.util as u;"
    "print(*sys.version_info[:2], *(n for n in ('pyspark', 'skylark') if not u.find_spec(n)))"
)


def session_settings(master: str) -> dict[str, str]:
    """The settings for this master; see the module."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.speculation": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if os.name == "posix":
        settings["spark.python.unix.domain.socket.enabled"] = "true"
    local = _LOCAL.fullmatch(master)
    if local is None:
        settings["spark.executor.pyspark.memory"] = _WORKER_MEMORY
        settings["spark.sql.planner.pythonExecution.memory"] = _WORKER_MEMORY
        return settings
    cores = local[1] or "1"
    settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1) if cores == "*" else cores
    settings["spark.driver.host"] = "127.0.0.1"
    settings["spark.driver.bindAddress"] = "127.0.0.1"
    return settings


def prepare_environment() -> None:
    """Set ``JAVA_HOME`` and the Python of the workers, where they are not; raises ConfigError."""
    os.environ["JAVA_HOME"] = str(java_home(os.environ, Path(sys.prefix, "java")))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    check_worker_python(os.environ["PYSPARK_PYTHON"])


def check_worker_python(python: str) -> None:
    """Raise ConfigError if workers cannot run with this Python."""
    if python == sys.executable:
        return
    hint = f"unset PYSPARK_PYTHON, or set it to {sys.executable}"
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own PYSPARK_PYTHON
            [python, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        raise ConfigError(f"PYSPARK_PYTHON={python} is no working Python", hint=hint) from None
    major, minor, *missing = answer.stdout.split()
    if (int(major), int(minor)) != sys.version_info[:2]:
        ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise ConfigError(
            f"PYSPARK_PYTHON={python} is Python {major}.{minor}, and this is {ours}", hint=hint
        )
    if missing:
        raise ConfigError(f"PYSPARK_PYTHON={python} has no {' and '.join(missing)}", hint=hint)


def make_session(
    master: str = "local[*]", *, app_name: str = "skylark", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session, or the one that runs already; raises ConfigError.

    ``conf`` wins over :func:`session_settings`.
    """
    if _LOCAL.fullmatch(master):
        prepare_environment()
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in {**session_settings(master), **(conf or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Tell a session of the source by hand.

    Spark finds it by itself where it is installed, unless another plug-in whose name begins with
    ``pyspark_`` is broken; code shipped as a zip is never found.
    """
    spark.dataSource.register(DefaultSource)
