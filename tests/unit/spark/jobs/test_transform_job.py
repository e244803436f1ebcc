"""Options of a transform job, and the messages for errors in its SQL."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.core.errors import SkylarkError
from skylark.spark.jobs.transform_job import TransformOptions, sql_problem

GIVEN: dict[str, Any] = {
    "topic": "S",
    "to_topic": "T",
    "sql": "SELECT body FROM input",
    "checkpoint": "/ck",
    "namesrv": "127.0.0.1:9876",
}


def test_the_clusters_and_the_size_of_batches() -> None:
    options = TransformOptions(**GIVEN)
    assert options.source["nameServer"] == options.sink["nameServer"] == "127.0.0.1:9876"
    assert options.source["maxOffsetsPerTrigger"] == "200000"
    once = TransformOptions(**GIVEN, delivery="exactly-once", to_namesrv="127.0.0.1:1")
    assert once.source["maxOffsetsPerTrigger"] == "20000"
    assert once.sink == {
        "nameServer": "127.0.0.1:1",
        "topic": "T",
        "delivery": "exactly-once",
    }
    TransformOptions(**{**GIVEN, "to_topic": "S"}, to_namesrv="127.0.0.1:1")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"sql": " "}, "no SQL is given"),
        ({"checkpoint": ""}, "needs a checkpoint"),
        ({"to_topic": "S"}, "would read its own output"),
        ({"start": "yesterday"}, "startingOffsets"),
        ({"to_topic": "a b"}, "illegal characters"),
        ({"group": "a b"}, "group"),
    ],
)
def test_wrong_options(wrong: dict[str, str], sentence: str) -> None:
    with pytest.raises(SkylarkError, match=sentence):
        TransformOptions(**{**GIVEN, **wrong})


def test_the_line_of_spark_that_matters() -> None:
    unresolved = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. Did you"
        " mean one of the following? [`id`]. SQLSTATE: 42703; line 1 pos 7;\n'Project ['x]\n+- V"
    )
    assert sql_problem(unresolved) == (
        "A column with name `x` cannot be resolved. Did you mean one of the following? [`id`]"
        " (line 1 pos 7)"
    )
    syntax = (
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)\n"
        "\n== SQL ==\nselec\n^^^\n"
    )
    assert sql_problem(syntax) == "Syntax error at or near 'selec' (line 1 pos 0)"
    assert sql_problem("something else\nand more") == "something else"
