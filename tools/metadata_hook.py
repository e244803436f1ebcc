"""Build hook: the parts of the package metadata that depend on where the project is published.

``[tool.skylark] repository`` of ``pyproject.toml`` is the address of the repository, the only place
that has it. From it come the project URLs, and the absolute form of the README's relative links,
which would lead nowhere on a package index. While it is empty there are no URLs, and the links
become plain text.

The build runs this file alone, from a checkout or from an unpacked sdist: it imports nothing of the
project.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
#: A remark with a code block in it, which hides commands that only the tests run.
_HIDDEN_BLOCK = re.compile(r"^<!--(?:(?!-->|^```).)*^```.*?-->\n*", re.DOTALL | re.MULTILINE)
_IMAGE = re.compile(r"!\[([^\]]*)\]\((?!\w+:)[^)]+\)\n*")
_LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:)([^)]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def urls(repository: str) -> dict[str, str]:
    """The project URLs; none without an address."""
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def published_readme(text: str, repository: str) -> str:
    """The README for a package index: no relative link, no remark for the tests, no picture.

    Code blocks stay as they are.
    """

    def absolute(match: re.Match[str]) -> str:
        words, target = match.groups()
        if target.startswith("#"):
            return match.group()
        return f"[{words}]({repository}/blob/main/{target})" if repository else words

    parts = _FENCE.split(_HIDDEN_BLOCK.sub("", text))  # every second part is a code block
    for index in range(0, len(parts), 2):
        prose = _IMAGE.sub("", _COMMENT.sub("", parts[index]))
        parts[index] = _LINK.sub(absolute, prose)
    return "".join(parts)


class CustomMetadataHook(MetadataHookInterface):
    """The class that Hatchling looks for."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        project = tomllib.loads((root / "pyproject.toml").read_text())
        repository = project["tool"]["skylark"]["repository"].rstrip("/")
        text = (root / "README.md").read_text()
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": published_readme(text, repository),
        }
        if repository:
            metadata["urls"] = urls(repository)
