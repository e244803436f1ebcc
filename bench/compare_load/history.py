"""Results that stay: a file per run in ``bench/history``, and the page that is made from them.

A file is called by date and commit, and holds the lines of the table with the figures of every
round, what the machine is, and how long was measured. Nothing in it names the machine or its user.

``docs/performance.md`` names the files that it shows, in comments around their tables; its chart is
drawn from the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from bench.compare_load.chart import draw_chart
from bench.compare_load.summary import Result, format_markdown
from bench.harness import BenchError

FOLDER = Path("bench") / "history"
PAGE = Path("docs") / "performance.md"
COMMIT_SIZE = 10
#: Pages of mapped files are page cache, and not taken from anybody.
_NO_MERIT = ("mapped files", "open files")
_SHOWN = re.compile(
    r"(<!-- result: (\S+) -->\n)(?:(?!<!-- result:).)*?(<!-- end of result -->)", re.DOTALL
)


def file_name(day: date, commit: str | None, kind: str = "") -> str:
    """``commit`` is ``None`` where files differ from it; ``kind`` if not all rows were measured."""
    parts = (day.isoformat(), commit[:COMMIT_SIZE] if commit else "changed", kind)
    return f"{'-'.join(filter(None, parts))}.json"


def save(
    folder: Path,
    day: date,
    commit: str | None,
    settings: dict[str, Any],
    facts: dict[str, Any],
    results: Sequence[Result],
    kind: str = "",
) -> Path:
    """Write the file of a run; one of the same day, commit and kind is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(day, commit, kind)
    content = {
        "date": day.isoformat(),
        "commit": commit,
        "settings": settings,
        "machine": facts,
        "results": [asdict(result) for result in results],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def load(path: Path) -> tuple[dict[str, Any], list[Result]]:
    """What a file holds, and its results."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} holds no result: {error}") from error
    results = []
    for entry in content["results"]:
        tuples: dict[str, Any] = {key: tuple(entry[key]) for key in ("apache", "skylark", "void")}
        results.append(Result(**{**entry, **tuples}))
    return content, results


def renew(text: str, folder: Path) -> str:
    """The text of a page with the tables of the files that it names."""

    def table(found: re.Match[str]) -> str:
        content, results = load(folder / found[2])
        return f"{found[1]}\n{format_markdown(results)}\n\n{_circumstances(content)}\n\n{found[3]}"

    return _SHOWN.sub(table, text)


def _circumstances(content: dict[str, Any]) -> str:
    """When, of what, where and for how long was measured, in one sentence."""
    settings, machine = content["settings"], content["machine"]
    commit = content["commit"]
    where = [machine["cpu"], f"{machine['cores']} cores"]
    if "memory_gb" in machine:
        where.append(f"{machine['memory_gb']} GB of memory")
    where += [machine["system"], machine["python"]]
    return (
        f"Measured {content['date']}, commit {commit[:COMMIT_SIZE] if commit else 'with changes'}:"
        f" {settings['rounds']} rounds, {settings['seconds']:g} s a row after"
        f" {settings['warm_up_s']:g} s of warm-up; {', '.join(where)}."
    )


def publish(page: Path, folder: Path) -> list[Path]:
    """Renew the tables and the chart of a page; the files that are written."""
    text = page.read_text()
    if (first := _SHOWN.search(text)) is None:
        raise BenchError(
            f"{page} names no result: a line <!-- result: FILE -->, and one <!-- end of result -->"
        )
    renewed = renew(text, folder)
    chart = page.with_suffix(".svg")
    draw(folder / first[2], chart)
    page.write_text(renewed)
    return [page, chart]


def advantage(result: Result) -> float | None:
    """How many times better Skylark is: the ratio, turned round where less is better."""
    if not result.ratio or result.figure in _NO_MERIT:
        return None
    return result.ratio if result.unit == "msg/s" else 1 / result.ratio


def draw(source: Path, target: Path) -> None:
    """A bar for each line of the table, Apache being 1; drawn alike each time."""
    content, results = load(source)
    machine = content["machine"]
    chart = draw_chart(
        f"{machine['cpu']}, {machine['cores']} cores; {content['date']}",
        "times better than Apache RocketMQ 5.5.0, logarithmic",
        "Skylark against Apache RocketMQ 5.5.0, row by row",
        [(it.title, better) for it in results if (better := advantage(it)) is not None],
    )
    target.write_text(chart)
