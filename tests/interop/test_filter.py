"""The tables of ``tests/golden/test_sql92.py`` are what Apache's own filter classes answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.interop.java import run_program

DATA = Path(__file__).parent.parent / "golden" / "data"


@pytest.mark.interop
@pytest.mark.parametrize(
    ("name", "answers"),
    [("sql92.jsonl", ["results"]), ("bloom.jsonl", ["bits", "positions"])],
)
def test_java_answers_as_recorded(name: str, answers: list[str]) -> None:
    rows = [json.loads(line) for line in (DATA / name).read_text("utf-8").split("\n") if line]
    records = run_program("FilterTable", {"cases": str(DATA / name)})
    assert records == [{answer: row[answer] for answer in answers} for row in rows]
