"""Environment variables in the values of a YAML file."""

from __future__ import annotations

import pytest

from skylark.spark.pipelines.yaml_reader import expand

ENVIRON = {"HOST": "h", "EMPTY": "", "WILD": "a: {b}\n${HOST}"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain $.uid $HOST $", "plain $.uid $HOST $"),
        ("${HOST}:9876;${HOST}", "h:9876;h"),
        ("${HOST:-other}", "h"),
        ("${NONE:-other}/x", "other/x"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${NONE:-}", ""),
        ("${NONE:-local[*]}", "local[*]"),
        ("$${HOST}", "${HOST}"),
        ("${WILD}", "a: {b}\n${HOST}"),  # what is put in is not looked at again
    ],
)
def test_values_are_put_in(text: str, expected: str) -> None:
    assert expand(text, ENVIRON) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${NONE}", r"no variable NONE: set it, or write \$\{NONE:-default\}"),
        ("a ${", "there must be a name"),
        ("${A-b}", "there must be a name"),
        ("${1A}", "there must be a name"),
    ],
)
def test_wrong_references_are_errors(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        expand(text, ENVIRON)
