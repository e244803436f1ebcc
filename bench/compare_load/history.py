"""Results that stay: a file per run in ``bench/history``, and a chart made from one.

A file is called by date and commit, and holds the lines of the table with the figures of every
round, what the machine is, and how long was measured. Nothing in it names the machine or its user.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from bench.compare_load.summary import Result

FOLDER = Path("bench") / "history"
CHART = Path("docs") / "performance.svg"
COMMIT_SIZE = 10

_SKYLARK_COLOR = "#2a6f97"
_WORSE_COLOR = "#bc6c25"


def file_name(day: date, commit: str | None) -> str:
    """``commit`` is ``None`` where files differ from it."""
    return f"{day.isoformat()}-{commit[:COMMIT_SIZE] if commit else 'changed'}.json"


def save(
    folder: Path,
    day: date,
    commit: str | None,
    settings: dict[str, Any],
    facts: dict[str, Any],
    results: Sequence[Result],
) -> Path:
    """Write the file of a run; one of the same day and commit is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(day, commit)
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
    content: dict[str, Any] = json.loads(path.read_text())
    results = []
    for entry in content["results"]:
        tuples: dict[str, Any] = {key: tuple(entry[key]) for key in ("apache", "skylark", "void")}
        results.append(Result(**{**entry, **tuples}))
    return content, results


def advantage(result: Result) -> float | None:
    """How many times better Skylark is: the ratio, turned round where less is better."""
    if not result.ratio:
        return None
    return result.ratio if result.unit == "msg/s" else 1 / result.ratio


def draw(source: Path, target: Path) -> None:
    """A bar for each line of the table, Apache being 1; drawn alike each time."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    content, results = load(source)
    bars = [(r.title, better) for r in reversed(results) if (better := advantage(r)) is not None]
    machine = content["machine"]
    with plt.rc_context({"svg.hashsalt": "skylark", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(8, 1.2 + 0.26 * len(bars)), layout="constrained")
        colors = [_SKYLARK_COLOR if better >= 1 else _WORSE_COLOR for _, better in bars]
        drawn = axes.barh([title for title, _ in bars], [b for _, b in bars], color=colors)
        axes.bar_label(drawn, labels=[f"{better:.2g}" for _, better in bars], padding=3)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_xscale("log")
        axes.margins(x=0.12, y=0.01)
        axes.set_xlabel("times better than Apache RocketMQ 5.5.0, logarithmic")
        axes.set_title(f"{machine['cpu']}, {machine['cores']} cores; {content['date']}", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, format="svg", metadata={"Date": None})
        plt.close(figure)
