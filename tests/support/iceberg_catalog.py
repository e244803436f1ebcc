"""An Iceberg catalog in SQLite, by the settings of pyiceberg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyiceberg.catalog
import pytest
from pyiceberg.utils.config import Config


@contextmanager
def iceberg_catalog(folder: Path) -> Iterator[None]:
    """The catalog ``tests``, with its tables below a folder."""
    with pytest.MonkeyPatch.context() as patch:
        settings = "PYICEBERG_CATALOG__TESTS__"
        patch.setenv(f"{settings}TYPE", "sql")
        patch.setenv(f"{settings}URI", f"sqlite:///{folder}/catalog.db")
        patch.setenv(f"{settings}WAREHOUSE", f"file://{folder}/warehouse")
        # The library reads them when it is imported.
        patch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
        yield
