"""What Spark says on pages, in one sentence about a pipeline.

:mod:`skylark.spark.jobs.job_runner` knows most of it. Here are added the mistakes that are in a
file: they are ConfigErrors, with a hint where Spark's own is not one for users of pipeline files;
and errors that Spark forgets to translate from Java.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import AnalysisException, PySparkException

from skylark.core.errors import ClientError, ConfigError, SkylarkError
from skylark.spark.errors import find_cause
from skylark.spark.jobs.job_runner import our_error
from skylark.spark.pipelines.pipeline_file import Pipeline
from skylark.spark.pipelines.pipeline_start import naming

_CONDITION: Final = re.compile(r"^\[(\w+(?:\.\w+)*)\] ")
_TAIL: Final = re.compile(r"\s*SQLSTATE: \w+.*$")
_JAVA: Final = re.compile(r"^: [\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_TRACEBACK: Final = "Traceback (most recent call last):"
_HINTS: Final = {
    "TABLE_OR_VIEW_NOT_FOUND": "the rows of the source are the view input",
    "DATA_SOURCE_NOT_FOUND": "check the name; a format that is not part of Spark needs its jars,"
    " spark.jars.packages in spark.conf",
    "KAFKA_DATA_SOURCE_NOT_ENABLED": "its jars are not part of Spark: spark.jars.packages in"
    " spark.conf",
}


@contextmanager
def in_sentences(pipeline: Pipeline) -> Iterator[None]:
    """Make errors of Spark ours, and let them say which pipeline they are about."""
    with naming(pipeline), explained():
        yield


@contextmanager
def explained() -> Iterator[None]:
    """Make errors of Spark, and of Java below it, ours."""
    try:
        yield
    except SkylarkError as error:
        raised = _raised_in_task(error.__cause__)
        if raised is None:
            raise
        raise raised from error.__cause__
    except Exception as error:
        found = spark_sentence(error)
        if found is None:
            raise
        raise found from error


def spark_sentence(error: Exception) -> SkylarkError | None:
    """One sentence of ours for an error of Spark or Java; None if it is no such error."""
    if hasattr(error, "java_exception"):
        found = _JAVA.search(str(error))
        return _said(found[1] if found else "Java failed")
    if not isinstance(error, PySparkException):
        return None
    if (raised := _raised_in_task(error)) is not None:
        return raised
    if isinstance(error, AnalysisException) and find_cause(error) is None:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return _said(lines[0])
    return our_error(error)


def _raised_in_task(error: BaseException | None) -> ClientError | None:
    """What code of the user raised: the line below the last traceback in an error of Spark."""
    if not isinstance(error, PySparkException) or find_cause(error) is not None:
        return None
    _, header, below = str(error).rpartition(_TRACEBACK)
    lines = [line for line in below.splitlines() if line.strip() and not line[0].isspace()]
    if not header or not lines:
        return None
    return ClientError(f"Python code in a task raised {_TAIL.sub('', lines[0]).strip()}")


def _said(line: str) -> ConfigError:
    found = _CONDITION.match(line)
    text = _TAIL.sub("", line[found.end() :] if found else line).rstrip(".; ")
    hint = _HINTS.get(found[1]) if found else None
    if hint is not None:
        text = text.partition(". ")[0]
    return ConfigError(text, hint=hint)
