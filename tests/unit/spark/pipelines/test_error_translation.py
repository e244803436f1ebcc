"""One sentence for what Spark says on pages."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkException

from skylark.core.errors import ClientError, ConfigError, NoNameServerError
from skylark.spark.pipelines.error_translation import explained, spark_sentence

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
    found = spark_sentence(error)
    assert found is not None
    return type(found), str(found)


def test_code_of_the_user() -> None:
    sentence = "Python code in a task raised RuntimeError: it burst"
    assert said(PySparkException(TASK)) == (ClientError, sentence)


def test_errors_of_ours_stay_what_they_are() -> None:
    assert said(PySparkException(OURS)) == (NoNameServerError, "no name server answers")
    own = ConfigError("a")
    with pytest.raises(ConfigError) as caught, explained():
        raise own
    assert caught.value is own


def test_a_sentence_about_code_replaces_one_that_says_less() -> None:
    error = ClientError("Spark failed")
    error.__cause__ = PySparkException(TASK)
    with pytest.raises(ClientError, match="raised RuntimeError: it burst"), explained():
        raise error


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


def test_errors_that_come_from_java_as_they_are() -> None:
    text = (
        "An error occurred while calling o1.load.\n: org.apache.spark.SparkClassNotFoundException:"
        " [DATA_SOURCE_NOT_FOUND] Failed to find the data source: x. Make sure. SQLSTATE: 42K02\n"
        "\tat org.apache.spark.A.b(A.scala:1)\n"
    )
    kind, sentence = said(JavaError(text))
    assert kind is ConfigError
    assert sentence.startswith("Failed to find the data source: x: check the name; a format")
    assert said(JavaError("?")) == (ConfigError, "Java failed")
    assert spark_sentence(ValueError("x")) is None
    with pytest.raises(ValueError, match="x"), explained():
        raise ValueError("x")
