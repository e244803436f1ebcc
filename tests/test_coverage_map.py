"""The heat map of the coverage benchmark, from samples of its result file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tools.coverage_map import Cell, colour, draw, main, read_cells


def sample(row: str, system: str, cost: float, **changes: Any) -> dict[str, Any]:
    entry = {"bench": "coverage", "row": row, "system": system, "void": None}
    return {**entry, "figures": {"CPU": cost, "rate": 1.0}, **changes}


SAMPLES = [
    sample("Java 4.9.8 / half / plain", "apache", 40.0),
    sample("Java 4.9.8 / half / plain", "skylark", 20.0),
    sample("Java 4.9.8 / half / plain", "skylark", 22.0),
    sample("Java 4.9.8 / half / plain", "skylark", 99.0),
    sample("Go v2 / tag and key / FIFO", "skylark", 30.0),
    sample("Go v2 / tag and key / FIFO", "apache", 1.0, figures={}),
    sample("Java 5.5.0 / half / plain", "skylark", 1.0, void="failed"),
    sample("other", "skylark", 1.0, bench="compare"),
]


def test_cells_are_medians_beside_apache_where_it_was_measured() -> None:
    assert read_cells(SAMPLES) == [
        Cell("Java 4.9.8", "half", 22.0, 0.55),
        Cell("Go v2", "tag and key / FIFO", 30.0, None),
    ]


def test_the_picture_names_every_cell_and_has_both_colour_schemes(tmp_path: Path) -> None:
    source, picture = tmp_path / "results", tmp_path / "map.svg"
    source.write_text("".join(json.dumps(each) + "\n" for each in SAMPLES))
    main([str(source), "--output", str(picture)])
    root = ElementTree.fromstring(picture.read_text())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Java 4.9.8", "half", "22", "0.55x", "Go v2", "tag and key / FIFO", "30"} <= set(texts)
    assert "prefers-color-scheme: dark" in draw(read_cells(SAMPLES))


@pytest.mark.parametrize(
    ("ratio", "name"), [(None, "alone"), (0.5, "c0"), (0.51, "c1"), (0.8, "c2"), (1.2, "c4")]
)
def test_the_colour_is_the_ratio(ratio: float | None, name: str) -> None:
    assert colour(ratio) == name


def test_a_file_without_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "empty")])
