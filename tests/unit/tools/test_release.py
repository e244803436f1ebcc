"""tools/release and tools/metadata_hook.py: change log, published README, bill of materials."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.metadata_hook import published_readme, urls
from tools.release.artifacts import page_problems, sdist_problems, wheel_problems
from tools.release.changelog import (
    CHANGELOG,
    FOLDER,
    ReleaseError,
    read_fragments,
    section_of,
    with_fragments,
)
from tools.release.sbom import BUILD_ONLY, LOCK, VENDORED, bill, read_lock

ROOT = Path(__file__).parents[3]
HEAD = "# Changelog\n\nWords.\n\n<!-- versions, newest first -->\n"
FRAGMENTS: Mapping[Path, tuple[str, str]] = {
    Path("a"): ("feature", "One is new."),
    Path("b"): ("bugfix", "Two is right."),
    Path("c"): ("feature", "Three is new."),
}


# ---- change log ----------------------------------------------------------------------------------


def test_a_version_gets_a_section_above_the_others() -> None:
    before = f"{HEAD}\n## 0.1.0 (2026-01-01)\n\nThe first.\n"
    text = with_fragments(before, "0.2.0", "2026-02-03", FRAGMENTS)
    assert text == (
        f"{HEAD}\n## 0.2.0 (2026-02-03)\n\n### New\n\n- One is new.\n- Three is new.\n\n"
        "### Fixed\n\n- Two is right.\n\n## 0.1.0 (2026-01-01)\n\nThe first.\n"
    )


def test_what_came_since_is_added_to_an_edited_section() -> None:
    before = (
        f"{HEAD}\n## 0.2.0 (2026-02-03)\n\nEdited.\n\n### New\n\n- Old.\n\n"
        "### Other\n\n- Words.\n\n## 0.1.0 (2026-01-01)\n\nThe first.\n"
    )
    text = with_fragments(before, "0.2.0", "2026-09-09", FRAGMENTS)
    assert text == (
        f"{HEAD}\n## 0.2.0 (2026-02-03)\n\nEdited.\n\n### New\n\n- Old.\n- One is new.\n"
        "- Three is new.\n\n### Other\n\n- Words.\n\n### Fixed\n\n- Two is right.\n\n"
        "## 0.1.0 (2026-01-01)\n\nThe first.\n"
    )
    assert with_fragments(text, "0.2.0", "2026-09-09", {}) == text


def test_a_change_log_without_its_mark_is_refused() -> None:
    with pytest.raises(ReleaseError, match="has no line"):
        with_fragments("# Changelog\n", "1", "today", {})


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("12.md", "x", "must end in"),
        ("12.feat.md", "x", "must end in"),
        ("12.doc.md", " \n", "empty"),
    ],
)
def test_fragments_that_would_be_lost_are_refused(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    (tmp_path / "README.md").write_text("not a fragment")
    (tmp_path / name).write_text(text)
    with pytest.raises(ReleaseError, match=problem):
        read_fragments(tmp_path)


def test_the_fragments_and_the_change_log_of_the_project_can_be_released() -> None:
    fragments = read_fragments(FOLDER)
    text = with_fragments(CHANGELOG.read_text(), "0.1.0", "2026-11-18", fragments)
    section = section_of(text, "0.1.0")
    assert section is not None
    assert "### Servers" in section
    assert all(words[:40] in " ".join(section.split()) for _, words in fragments.values())


# ---- the page of the package index ---------------------------------------------------------------

README = """# Title

<!-- cluster: --topic x -->

![picture](docs/p.svg)

[there](docs/x.md#y) and [out](https://example.org) and [here](#title)

```text
[kept](as/it.is) <!-- too -->
```
"""


def test_links_become_text_while_there_is_no_address() -> None:
    text = published_readme(README, "")
    assert "there and [out](https://example.org) and [here](#title)" in text
    assert "[kept](as/it.is) <!-- too -->" in text
    assert "picture" not in text
    assert list(page_problems(text)) == []
    assert urls("") == {}


def test_links_become_absolute_with_an_address() -> None:
    text = published_readme(README, "https://example.org/skylark")
    assert "[there](https://example.org/skylark/blob/main/docs/x.md#y)" in text
    assert list(page_problems(text)) == []
    assert set(urls("https://example.org/skylark")) == {
        "Repository", "Documentation", "Changelog", "Issues",
    }  # fmt: skip


def test_problems_of_a_page() -> None:
    assert len(list(page_problems(README))) == 3  # two links and a remark
    assert list(page_problems("text")) == ["the README does not begin with its title"]


def test_the_readme_of_the_project_can_be_published() -> None:
    text = (ROOT / "README.md").read_text()
    for address in ("", "https://example.org/skylark"):
        assert list(page_problems(published_readme(text, address))) == []


# ---- files ---------------------------------------------------------------------------------------


def test_a_strange_file_in_a_wheel_is_reported(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("skylark/a.py", "")
        archive.writestr("skylark/static/lib.js", "")
        archive.writestr("tests/test_a.py", "")
        archive.writestr("x.dist-info/METADATA", "Name: x\n\n# x\n")
    problems = list(wheel_problems(wheel))
    assert any(problem.startswith("skylark/static/lib.js: ") for problem in problems)
    assert any(problem.startswith("tests/test_a.py: ") for problem in problems)
    assert "skylark/py.typed is missing in the wheel" in problems
    assert "the wheel has no LICENSE" in problems
    assert "the metadata have no Summary" in problems


def test_tests_in_an_sdist_are_reported(tmp_path: Path) -> None:
    sdist = tmp_path / "x.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in ("x/pyproject.toml", "x/tests/a.py"):
            archive.addfile(tarfile.TarInfo(name))
    problems = list(sdist_problems(sdist))
    assert "tests/a.py must not be in the sdist" in problems
    assert "LICENSE is missing in the sdist" in problems


def test_the_bill_lists_what_runs() -> None:
    pins = {pin.name for pin in read_lock(LOCK.read_text())}
    assert pins > BUILD_ONLY
    found = bill("skylark-mq", "1.2.3")
    assert found["metadata"]["component"]["purl"] == "pkg:pypi/skylark-mq@1.2.3"
    components = {each["name"]: each for each in found["components"]}
    assert components.keys() == (pins - BUILD_ONLY) | {each.name for each in VENDORED}
    assert all(each["properties"] for each in components.values())
    without = {name for name, each in components.items() if "licenses" not in each}
    assert without <= {"uvloop"}  # is not installed everywhere
