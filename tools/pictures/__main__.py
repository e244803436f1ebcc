"""Writes ``docs/design/pictures``: the parts, and the ways of messages, as SVG.

::

    python -m tools.pictures           # from the root of the repository; or: make reference
    python -m tools.pictures --check   # fails if a picture is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tools.pictures.drawing import draw
from tools.pictures.message_paths import PICTURES
from tools.pictures.overviews import OVERVIEWS

ALL: Final = (*PICTURES, *OVERVIEWS)
ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "design" / "pictures"


def stale_pictures() -> list[str]:
    """The pictures that are not what would be written."""
    paths = {picture.name: FOLDER / f"{picture.name}.svg" for picture in ALL}
    return [
        picture.name
        for picture in ALL
        if not paths[picture.name].exists() or paths[picture.name].read_text() != draw(picture)
    ]


def main() -> None:
    if "--check" in sys.argv[1:]:
        if stale := stale_pictures():
            sys.exit(f"out of date: {', '.join(stale)}; run make reference")
        return
    FOLDER.mkdir(exist_ok=True)
    for picture in ALL:
        (FOLDER / f"{picture.name}.svg").write_text(draw(picture))


if __name__ == "__main__":
    main()
