"""A Spark session with the settings that the connector wants.

::

    spark = make_session("local[4]")
    frame = spark.read.format("rocketmq").option("topic", "orders").load()

:func:`make_session` prepares what Spark expects of its surroundings: a Java (:mod:`java
<skylark.spark.java>`), and for its worker processes the Python that is running now. Spark itself
would take ``python3`` from the ``PATH``, and a wrong one shows only as a worker that crashed. What
the caller has set already, in the environment or in ``conf``, stays.

========================================  ==========================================================
web page of Spark                         off; ``spark.ui.enabled=true`` has it
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
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from skylark.core.errors import ConfigError
from skylark.spark.data_source import DefaultSource
from skylark.spark.java import java_home
from skylark.spark.java_stderr import without_noise

_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,.*)?\])?")
_LOOPBACK: Final = "127.0.0.1"
_WORKER_MEMORY: Final = "512m"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2-quiet.properties")
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
        "spark.ui.enabled": "false",
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
    settings["spark.driver.host"] = _LOOPBACK
    settings["spark.driver.bindAddress"] = _LOOPBACK
    return settings


def prepare_environment() -> None:
    """Set what a local Spark looks for in the environment, where it is not; raises ConfigError."""
    if find_spec("pyarrow") is None:  # a worker would miss it, on a page of its own
        raise ConfigError("there is no module pyarrow", hint="pip install 'skylark-mq[spark]'")
    os.environ["JAVA_HOME"] = str(java_home(os.environ, Path(sys.prefix, "java")))
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)  # else it warns that it had to guess one
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
    master: str = "local[*]",
    *,
    app_name: str = "skylark",
    conf: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> SparkSession:
    """A session, or the one that runs already; raises ConfigError.

    ``conf`` wins over :func:`session_settings`. With ``quiet`` the JVM says nothing on stderr, if
    it is started here: for programs that tell in their own words what goes wrong.
    """
    if master.startswith("sc://"):
        raise ConfigError(
            f"{master} is a Spark Connect server, and not a master",
            hint="use SparkSession.builder.remote, or a pipeline file",
        )
    if _LOCAL.fullmatch(master):
        prepare_environment()
    settings = {**session_settings(master), **(conf or {})}
    if quiet:
        # In front: what the user says there wins.
        given = settings.get(_JAVA_OPTIONS, "")
        quietly = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
        settings[_JAVA_OPTIONS] = f"{quietly} {given}".strip()
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    if not quiet:
        return builder.getOrCreate()
    with without_noise():
        return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Tell a session of the source by hand.

    Spark finds it by itself where it is installed, unless another plug-in whose name begins with
    ``pyspark_`` is broken; code shipped as a zip is never found.

    To be called as well where queries run side by side in one JVM. Of a source that Spark has found
    itself there is one Java object for all, with one unguarded map of environment variables:
    starting a Python process for one query writes into it, and sending tasks of another serialises
    it. Once in a while the tasks of the other then fail for ever with OptionalDataException. A
    source that was told by hand gets a map that may be written and read at the same time.
    """
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect: the map is the server's business
        spark.dataSource.register(DefaultSource)
        return
    context = spark.sparkContext
    jvm, environment = context._jvm, context.environment
    assert jvm is not None, "this session has one"
    guarded = jvm.java.util.concurrent.ConcurrentHashMap()
    for name, value in environment.items():
        guarded.put(name, value)
    context.environment = guarded  # what Spark gives to functions that it wraps
    try:
        spark.dataSource.register(DefaultSource)
    finally:
        context.environment = environment
