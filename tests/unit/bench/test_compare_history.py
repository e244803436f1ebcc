"""Results of comparisons that stay: files by date and commit, and the chart drawn from one."""

from __future__ import annotations

import io
import re
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import compare
from bench.compare_load import history
from bench.compare_load.summary import Result
from bench.harness import BenchError

DAY = date(2026, 3, 1)
COMMIT = "0123456789abcdef"
FACTS = {
    "cpu": "Some CPU",
    "cores": 2,
    "memory_gb": 25,
    "system": "Linux x86_64",
    "python": "CPython 3.11.2",
}
SETTINGS = {"rounds": 4, "seconds": 8.0, "warm_up_s": 6.0}


def result(title: str, unit: str, ratio: float | None, void: tuple[str, ...] = ()) -> Result:
    return Result(
        title=title,
        row=title,
        figure="rate",
        unit=unit,
        apache=(1.0, 2.0),
        skylark=(3.0, 4.0),
        ratio=ratio,
        goal="at least 1x",
        goal_limit=1.0,
        goal_met=True,
        void=void,
    )


RESULTS = [
    result("16 threads", "msg/s", 1.25),
    result("start-up", "s", 0.05),
    result("lost", "msg/s", None, ("skylark, round 1: gone",)),
]


def test_files_are_called_by_date_and_commit() -> None:
    assert history.file_name(DAY, COMMIT) == "2026-03-01-0123456789.json"
    assert history.file_name(DAY, None) == "2026-03-01-changed.json"
    assert history.file_name(DAY, COMMIT, "growth") == "2026-03-01-0123456789-growth.json"


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    path = history.save(tmp_path / "history", DAY, COMMIT, {"rounds": 4}, FACTS, RESULTS)
    content, results = history.load(path)
    assert results == RESULTS
    del content["results"]
    assert content == {
        "date": "2026-03-01",
        "commit": COMMIT,
        "settings": {"rounds": 4},
        "machine": FACTS,
    }


def test_where_less_is_better_the_ratio_is_turned_round() -> None:
    found = [history.advantage(each) for each in RESULTS]
    assert found == [1.25, pytest.approx(20.0), None]


PAGE = "# Page\n\n<!-- result: {} -->\n<!-- end of result -->\n\nThe end.\n"


def test_a_page_shows_the_tables_of_the_files_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = history.save(tmp_path, DAY, COMMIT, SETTINGS, FACTS, RESULTS)
    page, chart = tmp_path / "page.md", tmp_path / "page.svg"
    page.write_text(PAGE.format(source.name))
    monkeypatch.setattr(history, "PAGE", page)
    monkeypatch.setattr(history, "FOLDER", tmp_path)
    stdout = io.StringIO()
    assert compare.run(["--publish"], stdout=stdout)
    assert stdout.getvalue() == f"{page}\n{chart}\n"
    shown = page.read_text()
    assert (
        "| 16 threads | msg/s | 1.5 | 33% | 3.5 | 14% | 1.25x | 0.50 | at least 1x: met |" in shown
    )
    assert "VOID lost: skylark, round 1: gone" in shown
    assert "| lost | msg/s |  |  |  |  | VOID |" in shown
    assert (
        "Measured 2026-03-01, commit 0123456789: 4 rounds, 8 s a row after 6 s of warm-up;"
        " Some CPU, 2 cores, 25 GB of memory, Linux x86_64, CPython 3.11.2."
    ) in shown
    assert shown.endswith("<!-- end of result -->\n\nThe end.\n")
    assert history.renew(shown, tmp_path) == shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Page\n", "names no result"),
        ("<!-- result: a -->\n", "names no result"),
        ("<!-- result: a -->\n<!-- end of result -->\n", "a holds no result: .*No such file"),
        ("<!-- result: a -->\n<!-- result: b -->\n<!-- end of result -->\n", "b holds no result"),
    ],
)
def test_a_page_that_names_no_file_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(BenchError, match=message):
        history.publish(page, tmp_path)
    assert page.read_text() == text


def test_the_chart_shows_what_is_not_void_and_is_drawn_alike(tmp_path: Path) -> None:
    source = history.save(tmp_path, DAY, COMMIT, SETTINGS, FACTS, RESULTS)
    history.draw(source, tmp_path / "chart.svg")
    drawn = (tmp_path / "chart.svg").read_text()
    assert all(text in drawn for text in ("16 threads", "start-up", "Some CPU, 2 cores"))
    assert "lost" not in drawn
    history.draw(source, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == drawn
    root = ElementTree.fromstring(drawn)
    kinds = [it.get("class") for it in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert kinds == ["page", "better", "better"]
    widths = [float(it.get("width", "")) for it in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[2] > 3 * widths[1]  # 20 times, and 1.25 times, on a logarithmic scale
    assert "prefers-color-scheme:dark" in drawn
    assert "data-md-color-scheme=slate" in drawn


def test_a_row_where_apache_is_better_is_marked(tmp_path: Path) -> None:
    rows = [result("slower", "msg/s", 0.5), result("faster", "msg/s", 2.0)]
    history.draw(history.save(tmp_path, DAY, COMMIT, SETTINGS, FACTS, rows), tmp_path / "c.svg")
    root = ElementTree.fromstring((tmp_path / "c.svg").read_text())
    worse, better = list(root.iter("{http://www.w3.org/2000/svg}rect"))[1:]
    assert (worse.get("class"), better.get("class")) == ("worse", "better")
    ends = float(worse.get("x", "")) + float(worse.get("width", ""))
    assert ends == pytest.approx(float(better.get("x", "")))  # both stand on the line of 1


def test_the_chart_of_the_page_is_up_to_date(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    page = root / history.PAGE
    shown = re.search(r"<!-- result: (\S+) -->", page.read_text())
    assert shown is not None
    history.draw(root / history.FOLDER / shown[1], tmp_path / "c.svg")
    assert page.with_suffix(".svg").read_text() == (tmp_path / "c.svg").read_text()


def test_the_page_about_performance_is_up_to_date() -> None:
    root = Path(__file__).parents[3]
    text = (root / history.PAGE).read_text()
    assert history.renew(text, root / history.FOLDER) == text, "make bench ARGS=--publish"
