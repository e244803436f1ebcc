"""``make release``: build a release, check it, and write its change log. Uploads nothing.

::

    python -m tools.release [--draft]

1. moves the news fragments into ``CHANGELOG.md`` (not with ``--draft``)
2. builds sdist and wheel into ``dist/``, with the time of the last commit
3. checks their contents and metadata, ``twine check --strict``, and renders the page of the index
4. writes the bill of materials and the checksums

Exit code 1 and one sentence for each thing that is wrong.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.release import artifacts, changelog, sbom
from tools.release.changelog import ReleaseError

ROOT: Final = Path(__file__).parents[2]
DIST: Final = ROOT / "dist"
PROJECT: Final = "skylark-mq"
_VERSION: Final = re.compile(r"^__version__ = \"([^\"]+)\"$", re.MULTILINE)


def version() -> str:
    """The version in the source."""
    found = _VERSION.search((ROOT / "src/skylark/__init__.py").read_text())
    assert found is not None
    return found[1]


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def build() -> tuple[Path, Path]:
    """The wheel and the sdist, built anew."""
    DIST.mkdir(exist_ok=True)
    for old in DIST.iterdir():
        old.unlink()
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(DIST)]
    environ = {**os.environ, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"the build failed:\n{done.stdout}{done.stderr}")
    (wheel,) = DIST.glob("*.whl")
    (sdist,) = DIST.glob("*.tar.gz")
    return wheel, sdist


def check(wheel: Path, sdist: Path) -> list[str]:
    """All problems of the files."""
    problems = [*artifacts.wheel_problems(wheel), *artifacts.sdist_problems(sdist)]
    twine = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    done = subprocess.run(twine, capture_output=True, text=True, check=False)
    if done.returncode:
        problems.append(f"twine check: {(done.stdout + done.stderr).strip()}")
    page = rendered_page(wheel)
    (DIST / "page.html").write_text(page)
    if "<h1" not in page or "<table" not in page or "<pre" not in page:
        problems.append("the README is not rendered with headings, tables and code: dist/page.html")
    return problems


def rendered_page(wheel: Path) -> str:
    """The README as a package index renders it."""
    from readme_renderer import markdown

    page = markdown.render(str(artifacts.metadata_of(wheel).get_payload()))
    if page is None:
        raise ReleaseError("the README cannot be rendered")
    return str(page)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make release", description="Build and check a release.")
    parser.add_argument("--draft", action="store_true", help="leave the fragments where they are")
    draft = parser.parse_args().draft
    try:
        number = version()
        if not draft:
            today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
            count = changelog.fold(number, today)
            print(f"{count} news fragments moved to CHANGELOG.md: edit and commit it")
        wheel, sdist = build()
        problems = check(wheel, sdist)
        if not changelog.section_of(changelog.CHANGELOG.read_text(), number):
            problems.append(f"CHANGELOG.md has no section for {number}")
        bill = DIST / f"{PROJECT}-{number}.cdx.json"
        bill.write_text(json.dumps(sbom.bill(PROJECT, number), indent=1) + "\n")
        sums = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
            for path in (wheel, sdist, bill)
        ]
        (DIST / "SHA256SUMS").write_text("".join(sums))
    except ReleaseError as error:
        sys.exit(f"make release: {error}")
    for path in (wheel, sdist, bill):
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.relative_to(ROOT)}")
    if problems:
        sys.exit("\n".join(f"make release: {problem}" for problem in problems))
    print(f"{number} is ready; nothing was uploaded. The next steps are in CONTRIBUTING.md")


if __name__ == "__main__":
    main()
