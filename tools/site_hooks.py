r"""Hooks of mkdocs: pages look and lead in the site as they do in the repository.

**Links that leave** ``docs/``. Documents link to the README, to examples and to source files. In
the site the README's place is taken by the first page; other files are copied to ``files/`` and the
links changed to lead there. A link to a file that does not exist is left alone, so that the strict
build reports it.

**Links to the page itself** without an anchor fail: a reader who follows one stays where they are.

**Changelog.** ``CHANGELOG.md`` is a page of the site; its links are those of the root folder.

**Pictures** of ``docs/design/pictures``, and the chart of performance, are put into their
page as SVG elements. Images would follow the reader's system, not the switch between light and dark
of the page.

**Bars in code in tables** are written ``\|``, as code hosts want it; Python-Markdown would show the
backslash.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = "files"
#: Files outside of docs/ whose place a page has taken.
PAGES: Final = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
#: Where the images that become elements are.
PICTURES: Final = {
    "pictures": ROOT / "docs" / "design" / "pictures",
    "performance.svg": ROOT / "docs",
}
CHANGELOG: Final = "changelog.md"
_LINK: Final = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)")
_WHOLE_LINK: Final = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")
_TABLE_ROW: Final = re.compile(r"^\|.*$", re.MULTILINE)
_CODE: Final = re.compile(r"`[^`]*`")
_PICTURE: Final = re.compile(
    r'<img [^>]*\bsrc="[^"]*\b(pictures/[\w-]+\.svg|performance\.svg)"[^>]*>'
)


def outside(link: str, page: str) -> str | None:
    """Where in the repository a link of a page leads, if that is a file outside of ``docs/``."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    is_ours = not target.startswith((".", "/", "docs/")) and (ROOT / target).is_file()
    return target if is_ours else None


def site_link(link: str, page: str) -> str:
    """A link as the site has it."""
    target = outside(link, page)
    if target is None:
        return link
    place = PAGES.get(target, f"{FOLDER}/{target}")
    return posixpath.relpath(place, posixpath.dirname(page) or ".")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files that pages link to."""
    wanted = {target for page in files.documentation_pages() for target in _targets(page)}
    text = _LINK.sub(
        lambda match: match[1].removeprefix("docs/"), (ROOT / "CHANGELOG.md").read_text()
    )
    files.append(File.generated(config, CHANGELOG, content=text))
    for target in sorted(wanted - PAGES.keys()):
        place = f"{FOLDER}/{target}"
        files.append(File.generated(config, place, content=(ROOT / target).read_bytes()))
    return files


def _targets(page: File) -> Iterator[str]:
    for match in _LINK.finditer(page.content_string):
        if (target := outside(match.group(1), page.src_uri)) is not None:
            yield target


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links and the tables of a page."""
    for link in links_to_itself(markdown, page.file.src_uri):
        raise PluginError(f"{page.file.src_uri}: the link {link} leads to the page that it is on")
    markdown = _LINK.sub(lambda match: site_link(match.group(1), page.file.src_uri), markdown)
    return plain_bars(markdown)


def links_to_itself(markdown: str, page: str) -> list[str]:
    """The links of a page that lead to its own top, as the site has them."""
    links = [link for link in _WHOLE_LINK.findall(markdown) if "#" not in link]
    folder = posixpath.dirname(page)
    return [
        link
        for link in links
        if posixpath.normpath(posixpath.join(folder, site_link(link, page))) == page
    ]


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the pictures of a page into it."""
    return with_pictures(html)


def with_pictures(html: str) -> str:
    """The same with SVG elements instead of images of pictures."""

    def element(match: re.Match[str]) -> str:
        folder, _, name = match.group(1).rpartition("/")
        return (PICTURES[folder or name] / name).read_text().strip()

    return _PICTURE.sub(element, html)


def plain_bars(markdown: str) -> str:
    """The same without backslashes before bars that stand in code in tables."""

    def plain_code(match: re.Match[str]) -> str:
        return match.group().replace(r"\|", "|")

    return _TABLE_ROW.sub(lambda row: _CODE.sub(plain_code, row.group()), markdown)
