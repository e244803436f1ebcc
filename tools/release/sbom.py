"""The software bill of materials of a release, as CycloneDX 1.6 JSON.

It lists what the package needs at run time, in the versions of ``requirements-base.lock`` that the
tests ran with, with the hashes of their files and their licences; and the files of others that are
inside the wheel (:data:`VENDORED`; none so far). Spark and the other extras are the choice of
whoever installs them, and are not listed.
"""

from __future__ import annotations

import importlib.metadata
import re
from email.message import Message
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = ROOT / "requirements-base.lock"
#: In the lock only because the package is built with them.
BUILD_ONLY: Final = {
    "editables", "hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers",
}  # fmt: skip
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; ([^\\]+))?")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Vendored(NamedTuple):
    """Files of another project inside the wheel."""

    name: str
    version: str
    licence: str  #: SPDX expression
    licence_file: str  #: within the wheel
    prefix: str  #: of the paths of its files within the wheel


#: Every file of the wheel that is not ours; tests compare it with the wheel.
VENDORED: Final[tuple[Vendored, ...]] = ()


class Pin(NamedTuple):
    """A line of the lock."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def read_lock(text: str) -> list[Pin]:
    """All pins of a lock file."""
    pins: list[Pin] = []
    for line in text.splitlines():
        if match := _PIN.match(line):
            pins.append(Pin(match[1], match[2], (match[3] or "").strip(), ()))
        elif found := _HASH.search(line):
            pins[-1] = pins[-1]._replace(hashes=(*pins[-1].hashes, found[1]))
    return pins


def licence_of(name: str) -> str | None:
    """The licence that an installed package declares; None if it declares none."""
    try:
        metadata = cast("Message", importlib.metadata.metadata(name))
    except importlib.metadata.PackageNotFoundError:
        return None
    if expression := metadata.get("License-Expression"):
        return str(expression)
    for classifier in metadata.get_all("Classifier") or ():
        if classifier.startswith("License :: OSI Approved :: "):
            return str(classifier).rpartition(" :: ")[2]
    short = str(metadata.get("License") or "").strip()
    return short if short and "\n" not in short and len(short) < 60 else None


def bill(name: str, version: str) -> dict[str, Any]:
    """The document for a version of the project."""
    components = [
        _component(pin) for pin in read_lock(LOCK.read_text()) if pin.name not in BUILD_ONLY
    ]
    components += [
        {
            "type": "library",
            "name": each.name,
            "version": each.version,
            "licenses": [{"license": {"name": each.licence}}],
            "properties": [
                {"name": "skylark:files", "value": each.prefix},
                {"name": "skylark:licence-file", "value": each.licence_file},
            ],
        }
        for each in VENDORED
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{version}",
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{name}@{version}",
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": components,
    }


def _component(pin: Pin) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{pin.name}@{pin.version}",
        "name": pin.name,
        "version": pin.version,
        "purl": f"pkg:pypi/{pin.name}@{pin.version}",
    }
    if (licence := licence_of(pin.name)) is not None:
        component["licenses"] = [{"license": {"name": licence}}]
    properties = [{"name": "skylark:sha256", "value": each} for each in pin.hashes]
    if pin.marker:
        properties.insert(0, {"name": "skylark:marker", "value": pin.marker})
    component["properties"] = properties
    return component
