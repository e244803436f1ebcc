"""Spark session with settings that suit the connector.

::

    spark = make_session("local[4]")
    frame = spark.read.format("rocketmq").option("topic", "orders").load()

:func:`make_session` prepares the environment that Spark expects: a Java (:mod:`java
<skylark.spark.java>`), and the running Python for its worker processes. Spark itself would take
``python3`` from the ``PATH``, and a wrong one shows only as a crashed worker. Values that the
caller has set already, in the environment or in ``conf``, are kept.

========================================  ==========================================================
web page of Spark                         off; ``spark.ui.enabled=true`` turns it on
unix domain sockets                       on: between JVM and Python they are a third faster
time zone                                 UTC
speculation                               off: a second attempt of a task would write its rows twice
shuffle partitions                        in local mode as many as cores, instead of 200
address of the driver                     loopback in local mode
start of a Python worker                  may take 120 s instead of 15: machines may be busy
batches that Python workers get           8 MiB at most; the memory of workers is not limited, since
                                          Spark's limit ends them in the middle of a task
========================================  ==========================================================

Spark's processes print known warnings on stderr that look like failures: Java warns about a module
that Spark always requests, and about a library that is older than this Java; PySpark's daemon
prints a traceback when a session ends while a worker is still writing. No setting turns these off.
:func:`without_noise` drops them and passes on every other line.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from skylark.core.errors import ConfigError
from skylark.spark.arrow_batches import BYTES_MAX
from skylark.spark.data_source import DefaultSource
from skylark.spark.java import java_home

#: Loggers of pyspark that print every error of a statement on stderr, as JSON.
ERROR_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
#: Logs the traceback of every error of a micro-batch that Python code writes.
_CALLBACK_LOGGER: Final = "py4j.clientserver"
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,.*)?\])?")
_LOOPBACK: Final = "127.0.0.1"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2-quiet.properties")
_PROBE_TIMEOUT_S: Final = 60
_PROBE: Final = (
    "import sys, importlib.util as u;"
    "print(*sys.version_info[:2], *(n for n in ('pyspark', 'skylark') if not u.find_spec(n)))"
)


def session_settings(master: str) -> dict[str, str]:
    """The settings for a master; see the module."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.speculation": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(BYTES_MAX),
    }
    if os.name == "posix":
        settings["spark.python.unix.domain.socket.enabled"] = "true"
    local = _LOCAL.fullmatch(master)
    if local is None:
        return settings
    cores = local[1] or "1"
    settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1) if cores == "*" else cores
    settings["spark.driver.host"] = _LOOPBACK
    settings["spark.driver.bindAddress"] = _LOOPBACK
    return settings


def prepare_environment() -> None:
    """Set missing environment variables of a local Spark; raises ConfigError."""
    if find_spec("pyarrow") is None:  # without it every worker fails, with a stack trace of pages
        raise ConfigError("there is no module pyarrow", hint="pip install 'skylark-mq[spark]'")
    os.environ["JAVA_HOME"] = str(java_home(os.environ, Path(sys.prefix, "java")))
    os.environ.setdefault(
        "SPARK_LOCAL_IP", _LOOPBACK
    )  # else Spark logs a warning that it chose one
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    check_worker_python(os.environ["PYSPARK_PYTHON"])


def check_worker_python(python: str) -> None:
    """Raise ConfigError if workers cannot use this Python."""
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

    ``conf`` overrides :func:`session_settings`. With ``quiet`` a JVM that is started here does not
    log to stderr: for programs that report errors themselves.
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
        # First, so that options of the user override it.
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


@contextmanager
def command_session(make: Callable[..., SparkSession], *, quiet: bool) -> Iterator[SparkSession]:
    """The session of one command; ``make`` gets ``quiet`` and makes it.

    An active session is used and not stopped at the end. With ``quiet`` neither pyspark nor a new
    JVM logs errors: the raised error is enough. The data source is registered: Spark's own search
    starts a Python worker, and finds nothing if that is slow on a busy machine.
    """
    active = SparkSession.getActiveSession()
    if quiet:
        silence_error_loggers()
    spark = make(quiet=quiet and active is None)
    try:
        register(spark)
        yield spark
    finally:
        if active is None:
            spark.stop()


def silence_error_loggers() -> None:
    """Turn the loggers of :data:`ERROR_LOGGERS` off: the raised error is enough."""
    for name in ERROR_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger(_CALLBACK_LOGGER).setLevel(logging.CRITICAL)


def register(spark: SparkSession) -> None:
    """Register the data source with a session.

    Spark finds it by itself if it is installed, unless another package whose name begins with
    ``pyspark_`` cannot be imported; it never finds code that is shipped as a zip.

    Call it also if several queries run in one JVM at once. A source that Spark has found itself is
    one Java object for all queries, with one map of environment variables that is not thread-safe:
    starting a Python process for one query writes to it while sending tasks of another query
    serialises it. Then the tasks of the other query sometimes fail for good with
    OptionalDataException. A registered source gets a concurrent map.
    """
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect: the map is in the server
        spark.dataSource.register(DefaultSource)
        return
    context = spark.sparkContext
    jvm, environment = context._jvm, context.environment
    assert jvm is not None, "this session has one"
    guarded = jvm.java.util.concurrent.ConcurrentHashMap()
    for name, value in environment.items():
        guarded.put(name, value)
    context.environment = guarded  # Spark passes it to the functions that it wraps
    try:
        spark.dataSource.register(DefaultSource)
    finally:
        context.environment = environment


# ---- stderr --------------------------------------------------------------------------------------

_WARNINGS: Final = (
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b"Warning: Java versions > Java 11 can only operate in restricted mode",
)
_OPENINGS: Final = (
    b"PySpark daemon failed to flush the output to the worker process:",
    b"Traceback (most recent call last):",
)
_DAEMON_FRAME: Final = re.compile(rb'  File ".*[/\\]pyspark[/\\]daemon\.py", ')
#: Errors of such a worker: the JVM has closed its end of the socket.
_HANGUPS: Final = (b"BrokenPipeError: ", b"ConnectionResetError: ")


def without_daemon_tracebacks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Drop the tracebacks of PySpark's daemon that are due to a closed connection.

    A traceback is kept until one of its lines decides what it is. Several workers may write at
    once, and any may be killed while it writes: lines that are undecided at the end are dropped.
    """
    held: list[bytes] = []
    expected = 0  # last lines of tracebacks that were dropped together with another one
    for line in lines:
        undecided = bool(held) and (not line.strip() or line.startswith(b"   "))
        if undecided or line.startswith(_OPENINGS) or _DAEMON_FRAME.match(line):
            held.append(line)
        elif line.startswith(_HANGUPS) and any(map(_DAEMON_FRAME.match, held)):
            expected += held.count(_OPENINGS[-1] + b"\n") - 1
            held.clear()
        elif line.startswith(_HANGUPS) and expected > 0 and not held:
            expected -= 1
        else:
            yield from held
            held.clear()
            yield line


_CONNECT_FRAME: Final = re.compile(
    rb'  File ".*[/\\]pyspark[/\\]util\.py", line \d+, in local_connect_and_auth'
)
_LATE: Final = b"[CANNOT_OPEN_SOCKET]"
_LATE_LINES_MAX: Final = 60


def without_late_workers(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Drop the tracebacks of workers that started too late: the JVM no longer waits for them.

    Spark starts another worker, or fails with an error of its own. Such a traceback begins with the
    frame of the connection and ends with :data:`_LATE`.
    """
    opening: bytes | None = None
    left = 0  # lines that may still belong to such a traceback
    for line in lines:
        if left:
            left = 0 if _LATE in line else left - 1
        elif opening is not None and _CONNECT_FRAME.match(line):
            opening, left = None, _LATE_LINES_MAX
        else:
            if opening is not None:
                yield opening
            opening = line if line.startswith(_OPENINGS[-1]) else None
            if opening is None:
                yield line
    if opening is not None:
        yield opening


@contextmanager
def without_noise() -> Iterator[None]:
    """Give processes that are started in this context a filtered stderr.

    A thread passes the other lines on for as long as these processes, workers included, live.
    """
    reading, writing = os.pipe()
    stderr = os.dup(2)

    def pass_on() -> None:
        with os.fdopen(reading, "rb") as lines, os.fdopen(stderr, "wb", 0) as target:
            kept = (line for line in lines if not line.startswith(_WARNINGS))
            for line in without_late_workers(without_daemon_tracebacks(kept)):
                target.write(line)

    # Flush our own lines first, so that they do not pass through the filter.
    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    Thread(target=pass_on, name="stderr-of-java", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
