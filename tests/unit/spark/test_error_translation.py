"""Errors of Spark as errors of ours: one sentence each."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, ParseException, PySparkException

from skylark.admin.errors import NotFoundError
from skylark.core.errors import (
    ClientError,
    ConfigError,
    NoNameServerError,
    SkylarkError,
    TransportError,
)
from skylark.core.names import IllegalNameError
from skylark.spark.error_translation import (
    translate_error,
    translate_errors,
    translate_pipeline_error,
    translate_pipeline_errors,
)
from skylark.spark.errors import RefusedError
from skylark.spark.exactly_once.commit_protocol import (
    AbandonedError,
    DecisionLostError,
    OtherDataError,
    OutcomeUnknownError,
    PredecessorMissingError,
)
from skylark.spark.source.derived_columns import BadRecordError

TASK = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
Traceback (most recent call last):
  File "a.py", line 3, in outer
    inner()
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 7, in burst
    raise RuntimeError("it burst")
RuntimeError: it burst SQLSTATE: 38000
\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:1)
Caused by: java.io.IOException: gone
"""
OURS = """[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):
  File "survey.py", line 1, in survey
skylark.core.errors.NoNameServerError: no name server answers
 SQLSTATE: 38000
"""


class JavaError(Exception):
    """As py4j raises it."""

    java_exception = object()


def said(error: Exception) -> tuple[type, str]:
    found = translate_pipeline_error(error)
    assert found is not None
    return type(found), str(found)


def test_code_of_the_user() -> None:
    sentence = "Python code in a task raised RuntimeError: it burst"
    assert said(PySparkException(TASK)) == (ClientError, sentence)


def test_skylark_errors_are_not_changed() -> None:
    assert said(PySparkException(OURS)) == (NoNameServerError, "no name server answers")
    own = ConfigError("a")
    with pytest.raises(ConfigError) as caught, translate_pipeline_errors():
        raise own
    assert caught.value is own


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] No `x`. Did you mean [`y`]. SQLSTATE: 42703;"
            " line 1 pos 7;\n'Project ['x]\n+- ~Relation",
            "No `x`. Did you mean [`y`]",
        ),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found. Verify the spelling.\nMore",
            "The table `x` cannot be found: the rows of the source are the view input",
        ),
        ("\n[PARSE] Syntax error. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\n", "Syntax error"),
        ("Partition column zz not found.", "Partition column zz not found"),
    ],
)
def test_mistakes_in_a_file(text: str, expected: str) -> None:
    assert said(AnalysisException(text)) == (ConfigError, expected)


def test_plain_java_errors() -> None:
    text = (
        "An error occurred while calling o1.load.\n: org.apache.spark.SparkClassNotFoundException:"
        " [DATA_SOURCE_NOT_FOUND] Failed to find the data source: x. Make sure. SQLSTATE: 42K02\n"
        "\tat org.apache.spark.A.b(A.scala:1)\n"
    )
    kind, sentence = said(JavaError(text))
    assert kind is ConfigError
    assert sentence.startswith("Failed to find the data source: x: check the name; a format")
    assert said(JavaError("?")) == (ConfigError, "Java failed")
    assert translate_pipeline_error(ValueError("x")) is None
    with pytest.raises(ValueError, match="x"), translate_pipeline_errors():
        raise ValueError("x")


class Failed(PySparkException):
    """An error of the JVM: its causes are in the stack trace only."""

    def __init__(self, text: str, stack_trace: str) -> None:
        super().__init__(text)
        self._stackTrace = stack_trace


WRITING = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: Writing job failed. SQLSTATE: X"
)
STACK = (
    "org.apache.spark.SparkException: Writing job failed.\n\tat org.apache.spark.A.b(A.scala:1)\n"
)


@pytest.mark.parametrize(
    ("stack_trace", "sentence"),
    [
        (f"{STACK}Caused by: {OURS}", "no name server answers"),
        (f"{STACK}Caused by: {TASK}", "Python code in a task raised RuntimeError: it burst"),
        (
            f"{STACK}Caused by: java.io.IOException: No space left on device\n\tat A.b(A.java:1)",
            "Spark failed: No space left on device: --debug shows where",
        ),
        (STACK, "Spark failed: Writing job failed.: --debug shows where"),
    ],
    ids=["ours", "user code", "Java", "nothing"],
)
def test_a_death_names_its_cause(stack_trace: str, sentence: str) -> None:
    assert str(translate_error(Failed(WRITING, stack_trace))) == sentence


def test_a_worker_without_memory() -> None:
    text = (
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent"
        ' call last):\n  File "worker.py", line 1, in main\n    process()\nMemoryError\n'
        " SQLSTATE: 38000\n\tat org.apache.spark.A.b(A.scala:1)"
    )
    found = str(translate_error(PySparkException(text)))
    assert found.startswith("Python code in a task raised MemoryError: unset")
    assert "spark.executor.pyspark.memory" in found
    crashed = "Job aborted: Python worker exited unexpectedly (crashed). Consider x\n\tat a"
    found = str(translate_error(PySparkException(crashed)))
    assert found.startswith(
        "Spark failed: Job aborted: Python worker exited unexpectedly (crashed)"
    )
    assert "lack of memory" in found


# ---- jobs ----------------------------------------------------------------------------------------


class Refused(AnalysisException):
    """What Spark raises before anything runs; the condition comes from the JVM."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(f"[{condition}] {text}")
        self._given = condition

    def __str__(self) -> str:
        return str(self._message)

    def getCondition(self) -> str:
        return self._given


class Py4JError(Exception):
    """The error that py4j raises where Spark has no error class: Py4JJavaError."""

    __module__ = "py4j.protocol"

    def __str__(self) -> str:
        return (
            "An error occurred while calling o58.start.\n"
            f": org.apache.spark.SparkClassNotFoundException: {self.args[0]}\n"
            "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.x(QueryExecutionErrors.scala:1)"
        )


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (
            PySparkException("x\nskylark.admin.errors.NotFoundError: there is no topic T\nat y"),
            NotFoundError,
            "there is no topic T",
        ),
        (
            PySparkException("skylark.core.errors.NoNameServerError: no name server answers"),
            NoNameServerError,
            "no name server answers",
        ),
        (
            PySparkException("skylark.core.errors.ConnectError: nobody at h:1"),
            TransportError,
            "nobody at h:1",
        ),
        (
            PySparkException("pyspark: x\nskylark.spark.rows.BadRowError: row 3 is bad\n"),
            ClientError,
            "row 3 is bad",
        ),
        (
            Refused("PATH_NOT_FOUND", "Path does not exist: file:/x. SQLSTATE: 42K03"),
            NotFoundError,
            "Path does not exist: file:/x",
        ),
        (
            Refused(
                "DATA_SOURCE_NOT_FOUND",
                "Failed to find the data source: delta. Make sure. SQLSTATE: 42K02",
            ),
            ConfigError,
            "Failed to find the data source: delta: its jars are not part of Spark: name them,"
            " --conf spark.jars.packages=...",
        ),
        (
            Refused("UNRESOLVED_COLUMN", "No column `x`. SQLSTATE: 42703; line 1"),
            ConfigError,
            "[UNRESOLVED_COLUMN] No column `x`.",
        ),
        (
            PySparkException("skylark.core.names.IllegalNameError: the topic is too long\n"),
            IllegalNameError,
            "the topic is too long",
        ),
        (
            Py4JError(
                "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: orc2. Make sure the name"
                " is right. SQLSTATE: 42K02"
            ),
            ConfigError,
            "Failed to find the data source: orc2: its jars are not part of Spark: name them,"
            " --conf spark.jars.packages=...",
        ),
        (
            Py4JError("Invalid path"),
            ClientError,
            "Spark failed: Invalid path: --debug shows where",
        ),
        (
            Refused("PACKAGE_NOT_INSTALLED", "grpcio >= 1.67.0 must be installed."),
            ConfigError,
            "grpcio >= 1.67.0 must be installed: pip install 'skylark-mq[spark,connect]'",
        ),
        (
            PySparkException("\nJava heap space\n\tat java.base"),
            ClientError,
            "Spark failed: Java heap space: --debug shows where",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_errors_of_spark_become_ours(
    error: Exception, kind: type[SkylarkError], sentence: str
) -> None:
    assert issubclass(ParseException, AnalysisException)
    found = translate_error(error)
    assert isinstance(found, kind)
    assert str(found) == sentence
    with pytest.raises(kind) as caught, translate_errors():
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        AbandonedError("s", 3),
        BadRecordError("message id-1 cannot be decoded"),
        DecisionLostError("a manifest has expired"),
        OtherDataError("daily"),
        OutcomeUnknownError("s", 3),
        PredecessorMissingError("s", 3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_only_an_operator_can_mend_is_refused(error: SkylarkError) -> None:
    """A pipeline is not restarted after these; the text with its choices stays."""
    kind = type(error)
    found = translate_error(PySparkException(f"x\n{kind.__module__}.{kind.__name__}: {error}\n"))
    assert type(found) is RefusedError
    assert found.message == str(error)


@pytest.mark.parametrize("end", ["", " SQLSTATE: P0001", "\n\tat org.apache.spark.A.b(A.scala:1)"])
def test_a_violated_expectation_is_refused(end: str) -> None:
    text = "pipeline p expects `amount` > 0, found -1"
    raised = f"org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] {text}{end}"
    found = translate_error(Failed(WRITING, f"{STACK}Caused by: {raised}"))
    assert (type(found), getattr(found, "message", "")) == (RefusedError, text)
    other = raised.replace("pipeline p expects", "row of")  # raise_error() in the user's query
    assert type(translate_error(Failed(WRITING, f"{STACK}Caused by: {other}"))) is ClientError


@pytest.mark.parametrize(
    "text",
    [
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs"
        " detected for 12.\nPlease make sure only one streaming job runs on a specific checkpoint"
        " location at a time. SQLSTATE: 40000",
        "Multiple streaming queries are concurrently using file:/ck/offsets.",
        "[CONCURRENT_QUERY] Another instance of this query was just started by a concurrent"
        " session (existing runId: 1 new runId: 2). SQLSTATE: 0A000",
    ],
)
def test_two_drivers_on_one_checkpoint(text: str) -> None:
    """Whoever starts it again would only end the other one."""
    failed = f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {text}"
    found = translate_error(PySparkException(failed))
    assert type(found) is RefusedError
    assert found.message == "another driver runs this query on the same checkpoint"
