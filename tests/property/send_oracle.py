"""What fixed lists of requests left behind before sends went through one pipeline: an oracle.

Today every form of a send shares most of its code, so the comparison of ways
(:mod:`tests.property.test_send_pipeline`) cannot find what all of them do wrong alike. The outcomes
of :data:`CASES` were therefore recorded with the broker of commit 8b204fb, which had separate code
for a single request, and are kept in :data:`FOLDER`. Its README says how to record them again; that
is why this module uses no name that the tests of that commit do not have.

An outcome becomes lines of text, one per value: ``section/key/field: repr``. The only thing masked
is the id of the process, a part of the unique ids that a broker generates. What differs on purpose
today is in :data:`INTENDED`.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final
from unittest.mock import patch

from tests.property.send_outcomes import Case, Outcome, Way, play
from tests.property.send_requests import EVERY_KIND, EVERY_KIND_BACK, SETTINGS

FOLDER: Final = Path(__file__).parents[1] / "golden" / "data" / "send-8b204fb"
PROCESS_ID: Final = 4_321
#: What was recorded, by the name of its file.
CASES: Final[Mapping[str, Case]] = {
    "every-kind": Case(EVERY_KIND),
    "every-kind-back": Case(EVERY_KIND_BACK),
    **{
        "every-kind-" + "-".join(given): Case(EVERY_KIND, settings=given)
        for given in SETTINGS
        if given
    },
}


@dataclass(frozen=True)
class Intended:
    """A line that reads otherwise today, on purpose."""

    path: str
    was: str
    now: str
    reason: str


#: In every recorded case that has the line.
INTENDED: Final = (
    Intended(
        path="answers/48/remark",
        was="<h> is no number",
        now="<h> is not a number",
        reason="the wording of all remarks about header fields was mended",
    ),
)
#: Series that did not exist: none of these lists overflows a statistic, or pops.
ADDED: Final = re.compile(
    r"metrics/(skylark_stats_overflows_total\{.*\}|rocketmq_pop_\w+(\{.*\})?|skylark_held_pops"
    r"|skylark_pop_put_off_messages_total)"
)
#: Our own hints behind Java's remarks, in plainer words today: a pattern, and what it became.
REWORDED: Final = {
    r"which takes batches only": "which accepts batches only",
    r"takes messages for queues that exist": "accepts messages for existing queues only",
    r"what is at (\d+) is no half message": r"the record at \1 is not a half message",
    r"this broker knows delay levels only": "this broker supports delay levels only",
    r"the half message stays undecided": "the half message is still undecided",
}


def play_plain(case: Case) -> Outcome:
    """The outcome of a list of requests, handled one by one in the plain form."""
    with patch("os.getpid", return_value=PROCESS_ID):
        outcome, _ = asyncio.run(play(case, Way.PLAIN))
    return outcome


def lines_of(outcome: Outcome) -> dict[str, str]:
    """Everything in an outcome, by its path; values as text."""
    found: dict[str, str] = {}
    for section in fields(Outcome):
        for key, value in getattr(outcome, section.name).items():
            path = f"{section.name}/{key}"
            if isinstance(value, dict):
                found.update({f"{path}/{name}": repr(each) for name, each in value.items()})
            else:
                found[path] = repr(value)
    return found


def recorded(name: str) -> dict[str, str]:
    """The lines that were recorded under a name."""
    with gzip.open(FOLDER / f"{name}.txt.gz", "rt", encoding="utf-8", newline="\n") as file:
        return dict(line.rstrip("\n").split(": ", 1) for line in file)


def expected(name: str) -> dict[str, str]:
    """The lines that were recorded under a name, with the intended differences."""
    lines = recorded(name)
    for row in INTENDED:
        if row.path in lines:
            lines[row.path] = lines[row.path].replace(row.was, row.now)
    for path in [path for path in lines if path.endswith("/remark")]:
        for was, now in REWORDED.items():
            lines[path] = re.sub(was, now, lines[path])
    return lines


def unexplained(name: str) -> list[str]:
    """What differs today from what was recorded, and is not intended."""
    before, after = expected(name), lines_of(play_plain(CASES[name]))
    added = {path: "0.0" for path in after.keys() - before.keys() if ADDED.fullmatch(path)}
    return changes(before | added, after)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Where lines differ: ``path: before, after``."""
    return [
        f"{path}: {before.get(path)}, {after.get(path)}"
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    ]


def _texts(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        lines = lines_of(play_plain(CASES[name]))
        yield name, "".join(f"{path}: {value}\n" for path, value in sorted(lines.items()))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _texts(CASES):
        (folder / f"{name}.txt.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
