"""Translation of Spark's exceptions into errors of ours: one sentence instead of pages of Java.

An error that a task or the planner raises reaches the driver as text inside a Spark exception.
:func:`translate_error` finds our own error in that text and raises it again, with its class and
sentence; if there is none, it makes an error of the first line of Spark's text.

Pipelines need more (:func:`translate_pipeline_error`): a mistake in a pipeline file is a
ConfigError, with a hint for users of such files; code of the user that fails in a task is named;
and some errors reach Python as plain Java exceptions.

=====================================  =============================================================
``with translate_errors()``            for jobs
``with translate_pipeline_errors()``   for pipelines
=====================================  =============================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import AnalysisException, PySparkException

from skylark.admin.errors import NoBrokerError, NotFoundError
from skylark.client.decode.schema_registry import RegistryUnavailableError
from skylark.core.errors import (
    ClientError,
    ConfigError,
    ConnectError,
    ConnectionClosedError,
    NoNameServerError,
    NoRouteError,
    RequestTimeoutError,
    SkylarkError,
    TopicNotExistError,
)
from skylark.core.names import IllegalNameError
from skylark.spark.errors import (
    DataLossError,
    RefusedError,
    WorkerStartError,
    find_error,
    find_violation,
    full_text,
)
from skylark.spark.outages import OutageError

_STREAM: Final = re.compile(r"terminated with exception: (.+)")
_JAVA: Final = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z_0-9.]+)\] ")
#: Lines of Spark that say only that something failed, and the lines that say why.
_GENERAL: Final = re.compile(r"(?:Writing job (?:failed|aborted)|Job aborted)\.?")
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_TRACEBACK: Final = "Traceback (most recent call last):"
_NO_WORKER: Final = "Python worker failed to connect back"
_CRASH: Final = "Python worker exited unexpectedly"
_MEMORY_HINT: Final = (
    "unset spark.executor.pyspark.memory, which limits each worker, or raise it; fewer cores per"
    " executor leave more for each"
)
_VIOLATION_HINT: Final = "mend the row or the expectation; on_violation: drop goes on without it"
#: What Spark says if two queries write the files of one checkpoint.
_RIVAL: Final = re.compile(
    r"\[CONCURRENT_(?:STREAM_LOG_UPDATE|QUERY)\]"
    r"|Multiple streaming (?:jobs detected for|queries are concurrently using) "
)
_RIVAL_HINT: Final = "let one of them run at a time; rows of an exactly-once sink are there once"
_TAIL: Final = re.compile(r"\s*SQLSTATE: \w+.*$")
_KINDS: Final[dict[str, type[SkylarkError]]] = {
    kind.__name__: kind
    for kind in (
        ConfigError,
        ConnectError,
        ConnectionClosedError,
        DataLossError,
        IllegalNameError,
        NoBrokerError,
        NoNameServerError,
        NoRouteError,
        NotFoundError,
        OutageError,
        RegistryUnavailableError,
        RequestTimeoutError,
        TopicNotExistError,
    )
} | dict.fromkeys(
    (
        "AbandonedError",
        "BadRecordError",
        "DecisionLostError",
        "OtherDataError",
        "OutcomeUnknownError",
        "PredecessorMissingError",
    ),
    RefusedError,
)


def is_spark_error(error: BaseException) -> bool:
    """Whether Spark raised it, or py4j where Spark has no error class for it."""
    return isinstance(error, PySparkException) or type(error).__module__ == "py4j.protocol"


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise a SkylarkError in place of an error of Spark."""
    try:
        yield
    except Exception as error:
        if is_spark_error(error):
            raise translate_error(error) from error
        raise


def condition_of(error: BaseException) -> str:
    """Spark's name for the error condition, empty if it has none."""
    found = error.getCondition() if isinstance(error, PySparkException) else None
    if found is None and (named := _CONDITION.search(str(error))):
        found = named[1]
    return found or ""


def translate_error(error: BaseException) -> SkylarkError:
    """The error of ours inside a Spark exception, or a new one with Spark's first line."""
    text = full_text(error)
    if violation := find_violation(text):
        return RefusedError(violation, hint=_VIOLATION_HINT)
    if found := find_error(text):
        return _KINDS.get(found[0], ClientError)(found[1])
    if _RIVAL.search(text):
        return RefusedError(
            "another driver runs this query on the same checkpoint", hint=_RIVAL_HINT
        )
    if (raised := _raised_in_task(text)) is not None:
        return raised
    if _NO_WORKER in text:
        return WorkerStartError(
            "a Python worker of Spark did not start in time",
            hint="the machine is busy: run it again, or with fewer tasks at a time",
        )
    condition = condition_of(error)
    line = next((line.strip() for line in text.splitlines() if line.strip()), condition)
    for inner in (_STREAM.search(line), _JAVA.search(text)):
        line = inner[1] if inner else line
    line = _TAIL.sub("", line)
    if _GENERAL.fullmatch(line) and (causes := _CAUSE.findall(text)):
        line = causes[-1]
    if condition == "PATH_NOT_FOUND":
        return NotFoundError(line.removeprefix(f"[{condition}] ").rstrip("."))
    if condition.startswith("DATA_SOURCE_NOT_FOUND"):
        return ConfigError(
            line.removeprefix(f"[{condition}] ").partition(". ")[0],
            hint="its jars are not part of Spark: name them, --conf spark.jars.packages=...",
        )
    if condition == "PACKAGE_NOT_INSTALLED":  # of Spark Connect
        return ConfigError(
            line.removeprefix(f"[{condition}] ").rstrip("."),
            hint="pip install 'skylark-mq[spark,connect]'",
        )
    if isinstance(error, AnalysisException):  # of what the user has written: columns, expressions
        return ConfigError(line)
    hint = "was it killed for lack of memory? --debug shows where" if _CRASH in text else None
    return ClientError(f"Spark failed: {line}", hint=hint or "--debug shows where")


def _raised_in_task(text: str) -> ClientError | None:
    """What Python code in a task raised: the line below the last traceback."""
    _, header, below = text.rpartition(_TRACEBACK)
    lines = [line for line in below.splitlines() if line.strip() and not line[0].isspace()]
    if not header or not lines:
        return None
    raised = _TAIL.sub("", lines[0]).strip()
    return ClientError(
        f"Python code in a task raised {raised}",
        hint=_MEMORY_HINT if raised.startswith("MemoryError") else None,
    )


# ---- pipelines -----------------------------------------------------------------------------------

_FILE_CONDITION: Final = re.compile(r"^\[(\w+(?:\.\w+)*)\] ")
_JAVA_EXCEPTION: Final = re.compile(r"^: [\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_HINTS: Final = {
    "TABLE_OR_VIEW_NOT_FOUND": "the rows of the source are the view input",
    "DATA_SOURCE_NOT_FOUND": "check the name; a format that is not part of Spark needs its jars,"
    " spark.jars.packages in spark.conf",
    "KAFKA_DATA_SOURCE_NOT_ENABLED": "its jars are not part of Spark: spark.jars.packages in"
    " spark.conf",
}


@contextmanager
def translate_pipeline_errors() -> Iterator[None]:
    """Raise a SkylarkError in place of an error of Spark or Java."""
    try:
        yield
    except Exception as error:
        found = translate_pipeline_error(error)
        if found is None:
            raise
        raise found from error


def translate_pipeline_error(error: Exception) -> SkylarkError | None:
    """The error of ours for an error of Spark or Java; None if it is neither."""
    if hasattr(error, "java_exception"):
        found = _JAVA_EXCEPTION.search(str(error))
        return _file_error(found[1] if found else "Java failed")
    if not isinstance(error, PySparkException):
        return None
    text = full_text(error)
    if isinstance(error, AnalysisException) and not find_error(text) and _TRACEBACK not in text:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return _file_error(lines[0])
    return translate_error(error)


def _file_error(line: str) -> ConfigError:
    """A mistake in the pipeline file, in the words of Spark and with a hint of ours."""
    found = _FILE_CONDITION.match(line)
    text = _TAIL.sub("", line[found.end() :] if found else line).rstrip(".; ")
    hint = _HINTS.get(found[1]) if found else None
    if hint is not None:
        text = text.partition(". ")[0]
    return ConfigError(text, hint=hint)
