"""Checks of what a release consists of: the wheel, the sdist and the page of the package index."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Final

from tools.release.sbom import VENDORED

WHEEL_MB_MAX: Final = 3.0
SDIST_MB_MAX: Final = 3.0
#: Files of ours in the wheel besides Python modules.
OUR_DATA: Final = {
    "skylark/py.typed",
    "skylark/demo/pipeline.yaml",
    "skylark/spark/log4j2-quiet.properties",
}
NOT_IN_SDIST: Final = ("tests", "bench", ".venv", "site", "dist", "newsfragments")
REQUIRED: Final = (
    "Name", "Version", "Summary", "License-Expression", "License-File", "Keywords", "Author",
    "Requires-Python", "Description-Content-Type",
)  # fmt: skip
_RELATIVE: Final = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")


def metadata_of(wheel: Path) -> Message:
    """The core metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (it for it in archive.namelist() if it.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def wheel_problems(wheel: Path) -> Iterator[str]:
    """What is wrong with a wheel, in sentences."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    if wheel.stat().st_size > WHEEL_MB_MAX * 1e6:
        yield f"{wheel.name} is larger than {WHEEL_MB_MAX:g} MB"
    vendored = tuple(each.prefix for each in VENDORED)
    for name in sorted(names):
        top = PurePosixPath(name).parts[0]
        if top.endswith(".dist-info"):
            continue
        is_module = name.endswith(".py") and top in ("skylark", "pyspark_rocketmq")
        if not (is_module or name in OUR_DATA or (vendored and name.startswith(vendored))):
            yield f"{name}: a file of the wheel that neither OUR_DATA nor VENDORED names"
    for name in sorted(OUR_DATA - names):
        yield f"{name} is missing in the wheel"
    for each in VENDORED:
        if each.licence_file not in names:
            yield f"{each.licence_file}: the licence of {each.name} is missing in the wheel"
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        yield "the wheel has no LICENSE"
    metadata = metadata_of(wheel)
    for field in REQUIRED:
        if not metadata.get(field):
            yield f"the metadata have no {field}"
    yield from page_problems(str(metadata.get_payload()))


def page_problems(text: str) -> Iterator[str]:
    """What is wrong with the README as a package index shows it."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for link in _RELATIVE.findall(prose):
        yield f"the README links to {link}, which leads nowhere on a package index"
    if "<!--" in prose:
        yield "the README has a remark for the tests in its published form"
    if not text.lstrip().startswith("# "):
        yield "the README does not begin with its title"


def sdist_problems(sdist: Path) -> Iterator[str]:
    """What is wrong with a source distribution, in sentences."""
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    paths = [PurePosixPath(*PurePosixPath(name).parts[1:]) for name in names]
    if sdist.stat().st_size > SDIST_MB_MAX * 1e6:
        yield f"{sdist.name} is larger than {SDIST_MB_MAX:g} MB"
    for path in paths:
        if path.parts and path.parts[0] in NOT_IN_SDIST:
            yield f"{path} must not be in the sdist"
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "tools/metadata_hook.py",
    ):
        if PurePosixPath(name) not in paths:
            yield f"{name} is missing in the sdist"
