"""Recorded answers of a real broker (5.5.0), by file and request code."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from skylark.wire.command import Command
from skylark.wire.frame import decode_frame

FRAMES = Path(__file__).parents[2] / "golden" / "data" / "frames"


def exchanges(name: str, code: int) -> list[tuple[Command, Command]]:
    """The requests of this code from clients, each with its answer, in order."""
    found: list[tuple[Command, Command]] = []
    waiting: dict[tuple[int, int], Command] = {}
    for text in (FRAMES / f"{name}.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["dir"] not in ("c2s", "s2c"):
            continue
        command = decode_frame(base64.b64decode(line["raw"]))
        key = (line["conn"], command.opaque)
        if line["dir"] == "c2s" and not command.is_response and command.code == code:
            waiting[key] = command
        elif line["dir"] == "s2c" and command.is_response and key in waiting:
            found.append((waiting.pop(key), command))
    return found
