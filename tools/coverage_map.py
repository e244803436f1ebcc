"""Draws the matrix of ``make bench PART=coverage`` as a heat map, from its result file.

::

    python -m tools.coverage_map FILE...   # writes docs/coverage.svg

A line is a client, a column what it sends, where to, and who consumes. A cell shows microseconds of
processor time of the broker per message and, where Apache RocketMQ was measured beside it, the
ratio to Apache's; its colour is that ratio. Cells that were not measured are empty: the benchmark
does not run the full product. The picture has colours for light and for dark pages.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

PICTURE: Final = Path(__file__).parents[1] / "docs" / "coverage.svg"
CLIENT_WIDTH: Final = 120
CELL_WIDTH: Final = 62
CELL_HEIGHT: Final = 34
HEAD_HEIGHT: Final = 150
FOOT_HEIGHT: Final = 30
#: Upper ends of the ratios that share a colour; the last colour is for what is above all of them.
STEPS: Final = (0.5, 0.65, 0.8, 1.0)
STYLE: Final = """
text { font: 11px sans-serif; fill: #222 }
.small { font-size: 9px }
.c0 { fill: #9ad1a5 } .c1 { fill: #c4e3c0 } .c2 { fill: #e8efc4 } .c3 { fill: #f7dfa8 }
.c4 { fill: #f2b6a0 } .alone { fill: #d9dde3 }
@media (prefers-color-scheme: dark) {
  text { fill: #eee }
  .c0 { fill: #1f6b3a } .c1 { fill: #2c5c38 } .c2 { fill: #4d5726 } .c3 { fill: #6b5014 }
  .c4 { fill: #7d3524 } .alone { fill: #3d434d }
}
""".strip()


class Cell(NamedTuple):
    """One measured cell; the ratio to Apache is None where only Skylark was measured."""

    client: str
    column: str
    cpu_us: float
    ratio: float | None


def read_cells(entries: Iterable[dict[str, Any]]) -> list[Cell]:
    """The cells of the samples in a result file, in the order of the file; medians over rounds."""
    found: dict[str, dict[str, list[float]]] = {}
    for entry in entries:
        if entry.get("bench") == "coverage" and "CPU" in entry["figures"] and not entry["void"]:
            systems = found.setdefault(entry["row"], {})
            systems.setdefault(entry["system"], []).append(entry["figures"]["CPU"])
    cells = []
    for name, systems in found.items():
        if "skylark" in systems:
            client, _, column = name.partition(" / ")
            ours = statistics.median(systems["skylark"])
            apache = systems.get("apache")
            ratio = ours / statistics.median(apache) if apache else None
            cells.append(Cell(client, column.removesuffix(" / plain"), ours, ratio))
    return cells


def draw(cells: Sequence[Cell]) -> str:
    """The picture."""
    clients = list(dict.fromkeys(cell.client for cell in cells))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    width = CLIENT_WIDTH + CELL_WIDTH * len(columns)
    height = HEAD_HEIGHT + CELL_HEIGHT * len(clients) + FOOT_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Processor time of the broker per message, by client and message</title>",
        f"<style>{STYLE}</style>",
    ]
    for number, column in enumerate(columns):
        x = CLIENT_WIDTH + CELL_WIDTH * number + CELL_WIDTH // 2
        parts.append(
            f'<text transform="translate({x + 4},{HEAD_HEIGHT - 8}) rotate(-55)">'
            f"{escape(column)}</text>"
        )
    for number, client in enumerate(clients):
        y = HEAD_HEIGHT + CELL_HEIGHT * number + CELL_HEIGHT // 2 + 4
        parts.append(
            f'<text x="{CLIENT_WIDTH - 8}" y="{y}" text-anchor="end">{escape(client)}</text>'
        )
    for cell in cells:
        parts += _cell(cell, columns.index(cell.column), clients.index(cell.client))
    text = "us per message, and as a multiple of Apache RocketMQ 5.5.0's where it was measured"
    parts.append(f'<text class="small" x="8" y="{height - 10}">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _cell(cell: Cell, column: int, line: int) -> list[str]:
    x, y = CLIENT_WIDTH + CELL_WIDTH * column, HEAD_HEIGHT + CELL_HEIGHT * line
    middle = x + CELL_WIDTH // 2
    parts = [
        f'<rect class="{colour(cell.ratio)}" x="{x + 1}" y="{y + 1}" width="{CELL_WIDTH - 2}"'
        f' height="{CELL_HEIGHT - 2}" rx="3"/>',
        f'<text x="{middle}" y="{y + 15}" text-anchor="middle">{cell.cpu_us:.0f}</text>',
    ]
    if cell.ratio is not None:
        text = f"{cell.ratio:.2f}x"
        parts.append(
            f'<text class="small" x="{middle}" y="{y + 27}" text-anchor="middle">{text}</text>'
        )
    return parts


def colour(ratio: float | None) -> str:
    """The class of a cell."""
    if ratio is None:
        return "alone"
    return f"c{sum(ratio > step for step in STEPS)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tools.coverage_map")
    parser.add_argument("files", type=Path, nargs="+", help="written by --json FILE")
    parser.add_argument("--output", type=Path, default=PICTURE)
    options = parser.parse_args(arguments)
    lines = [line for path in options.files for line in path.read_text().splitlines() if line]
    cells = read_cells(map(json.loads, lines))
    if not cells:
        parser.error("the files have no samples of the coverage benchmark")
    options.output.write_text(draw(cells))


if __name__ == "__main__":
    main()
