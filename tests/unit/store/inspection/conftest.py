"""Fixtures of the tests that damage stores."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.store.inspection.damage import GOLDEN


@pytest.fixture
def basic(tmp_path: Path) -> Path:
    """A copy of the store that a Java broker closed in order."""
    return Path(shutil.copytree(GOLDEN / "store-basic", tmp_path / "store"))


@pytest.fixture
def index_files(basic: Path) -> list[Path]:
    return sorted((basic / "index").iterdir())
