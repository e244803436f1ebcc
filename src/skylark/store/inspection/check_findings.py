"""Findings of a check: severity, place and text, with a limit on their number.

========  =====================================================================================
ERROR     the store would answer wrongly, or not at all
WARNING   something is wrong that the next start repairs, or that costs no message
NOTE      information, nothing to do
========  =====================================================================================

In a store that was not closed in order, derived files may be behind or ahead, and the log may end
in half a record: recovery repairs that. So the same finding is less severe there, and least severe
while the store is in use and changes during the check: see :data:`SEVERITIES`.

One wrong setting can make every entry of a store wrong. Of each kind only the first few findings
are kept; the others are counted.
"""

from __future__ import annotations

import enum
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from skylark.store.inspection.store_directory import State

FINDINGS_PER_KIND_MAX: Final = 100


class Severity(enum.Enum):
    """How serious a finding is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Trouble(enum.Enum):
    """Kinds of faults that recovery would repair."""

    WRONG = "wrong"  # an entry with a wrong value
    # The newest records lack entries, or the newest entries lack records.
    AHEAD_OR_BEHIND = "ahead or behind"


SEVERITIES: Final[dict[State, dict[Trouble, Severity]]] = {
    State.CLOSED: {Trouble.WRONG: Severity.ERROR, Trouble.AHEAD_OR_BEHIND: Severity.ERROR},
    State.CRASHED: {Trouble.WRONG: Severity.WARNING, Trouble.AHEAD_OR_BEHIND: Severity.WARNING},
    State.IN_USE: {Trouble.WRONG: Severity.WARNING, Trouble.AHEAD_OR_BEHIND: Severity.NOTE},
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault; ``kind`` identifies it for programs."""

    severity: Severity
    kind: str
    file: Path
    offset: int  # in the log for files of the log, otherwise in the file or queue
    text: str


class Findings:
    """Collects findings, a limited number of each kind."""

    def __init__(self, state: State) -> None:
        self._severities = SEVERITIES[state]
        self.found: list[Finding] = []
        self.counts: Counter[tuple[Severity, str]] = Counter()

    def add(
        self, severity: Severity | Trouble, kind: str, file: Path, offset: int, text: str
    ) -> None:
        """Keep a finding, or only count it if there are many of its kind."""
        if isinstance(severity, Trouble):
            severity = self._severities[severity]
        self.counts[severity, kind] += 1
        if self.counts[severity, kind] <= FINDINGS_PER_KIND_MAX:
            self.found.append(
                Finding(severity=severity, kind=kind, file=file, offset=offset, text=text)
            )

    def count(self, severity: Severity) -> int:
        """Number of findings, kept or not."""
        return sum(count for (found, _), count in self.counts.items() if found is severity)

    @property
    def left_out(self) -> dict[str, int]:
        """Number of findings of each kind that were only counted."""
        left: Counter[str] = Counter()
        for (_, kind), count in self.counts.items():
            if count > FINDINGS_PER_KIND_MAX:
                left[kind] += count - FINDINGS_PER_KIND_MAX
        return dict(left)


def plural(count: int, noun: str) -> str:
    """``1 record``, ``2 records``, ``2 entries``."""
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun}"


def entries_text(first: int, count: int) -> str:
    """``entry 7``, ``entries 7 to 9``."""
    return f"entry {first}" if count == 1 else f"entries {first} to {first + count - 1}"


def pointing_entries(first: int, count: int) -> str:
    """Subject and verb of a sentence about where entries point."""
    return f"{entries_text(first, count)} {'points' if count == 1 else 'point'}"
