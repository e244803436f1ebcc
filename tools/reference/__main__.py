"""Writes ``docs/reference``: what exists, taken from the source that knows it.

::

    python -m tools.reference           # from the root of the repository; or: make reference
    python -m tools.reference --check   # fails if a page is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.reference import api, client_options, commands, requests, settings

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "reference"
PAGES: Final[dict[str, Callable[[], str]]] = {
    "api.md": api.page,
    "broker-config.md": settings.broker_page,
    "cli.md": commands.page,
    "client-options.md": client_options.page,
    "namesrv-config.md": settings.namesrv_page,
    "requests.md": requests.page,
}


def stale_pages() -> list[str]:
    """The pages that are not what would be written."""
    return [
        name
        for name, page in PAGES.items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text() != page()
    ]


def main() -> None:
    if "--check" in sys.argv[1:]:
        if stale := stale_pages():
            sys.exit(f"out of date: {', '.join(stale)}; run make reference")
        return
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()
