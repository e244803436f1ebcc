"""Moves the news fragments into the section of a version in ``CHANGELOG.md``.

A release may be prepared several times before it is published: if the version has a section
already, the fragments that came since are added to its end, and what an editor made of the section
stays. Fragments are ``<issue or +words>.<type>.md``; see ``newsfragments/README.md``.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "newsfragments"
CHANGELOG: Final = ROOT / "CHANGELOG.md"
HEADINGS: Final = {
    "feature": "New",
    "bugfix": "Fixed",
    "doc": "Documentation",
    "removal": "Removed",
}
#: Everything above this line is the introduction.
MARK: Final = "<!-- versions, newest first -->\n"
_NAME: Final = re.compile(r"[^.]+\.(\w+)\.md")
_SECTION: Final = r"^## {version} \([^)]*\)\n"


class ReleaseError(Exception):
    """Why a release cannot be made."""


def read_fragments(folder: Path = FOLDER) -> dict[Path, tuple[str, str]]:
    """Path -> (type, text) of all fragments, in the order of their names."""
    found = {}
    for path in sorted(folder.glob("*.md")):
        if path.name == "README.md":
            continue
        match = _NAME.fullmatch(path.name)
        if match is None or match[1] not in HEADINGS:
            raise ReleaseError(
                f"{path.name}: the name must end in .TYPE.md with a type of {', '.join(HEADINGS)}"
            )
        text = " ".join(path.read_text().split())
        if not text:
            raise ReleaseError(f"{path.name} is empty")
        found[path] = (match[1], text)
    return found


def with_fragments(
    changelog: str, version: str, date: str, fragments: Mapping[Path, tuple[str, str]]
) -> str:
    """The change log with the fragments in the section of ``version``, which is made if missing."""
    head, mark, sections = changelog.partition(MARK)
    if not mark:
        raise ReleaseError(f"{CHANGELOG.name} has no line {MARK.strip()}")
    title = re.compile(_SECTION.format(version=re.escape(version)), re.MULTILINE)
    if title.search(sections) is None:
        sections = f"\n## {version} ({date})\n{sections}"
    opening = title.search(sections)
    assert opening is not None
    following = re.compile(r"^## ", re.MULTILINE).search(sections, opening.end())
    end = following.start() if following else len(sections)
    section = sections[opening.end() : end].rstrip("\n")
    for kind, heading in HEADINGS.items():
        items = [text for each, text in fragments.values() if each == kind]
        if items:
            section = _with_items(section, heading, items)
    parts = [sections[: opening.end()], section.strip("\n") + "\n", sections[end:]]
    return head + mark + "\n".join(part for part in parts if part)


def _with_items(section: str, heading: str, items: list[str]) -> str:
    """A section with items at the end of one of its parts, which is made if missing."""
    lines = "\n".join(
        textwrap.fill(
            item, 100, initial_indent="- ", subsequent_indent="  ", break_long_words=False
        )
        for item in items
    )
    title = f"### {heading}\n"
    start = section.find(title)
    if start < 0:
        return f"{section}\n\n{title}\n{lines}"
    end = section.find("\n\n### ", start)
    end = len(section) if end < 0 else end
    return f"{section[:end].rstrip()}\n{lines}{section[end:]}"


def section_of(changelog: str, version: str) -> str | None:
    """The section of a version without its title; None if there is none."""
    title = re.search(_SECTION.format(version=re.escape(version)), changelog, re.MULTILINE)
    if title is None:
        return None
    return changelog[title.end() :].partition("\n## ")[0].strip()


def fold(version: str, date: str) -> int:
    """Move all fragments into the change log; the number of them."""
    fragments = read_fragments()
    CHANGELOG.write_text(with_fragments(CHANGELOG.read_text(), version, date, fragments))
    for path in fragments:
        path.unlink()
    return len(fragments)
