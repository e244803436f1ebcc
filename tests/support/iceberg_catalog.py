"""An Iceberg catalog in SQLite, by the settings of pyiceberg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyiceberg.catalog
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.utils.config import Config

from skylark.spark.lake.iceberg_table import catalog_of


@contextmanager
def iceberg_catalog(folder: Path) -> Iterator[Catalog]:
    """The catalog ``tests``, with its tables below a folder."""
    with pytest.MonkeyPatch.context() as patch:
        settings = "PYICEBERG_CATALOG__TESTS__"
        patch.setenv(f"{settings}TYPE", "sql")
        patch.setenv(f"{settings}URI", f"sqlite:///{folder}/catalog.db")
        patch.setenv(f"{settings}WAREHOUSE", f"file://{folder}/warehouse")
        # The library reads them when it is imported.
        patch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
        catalog = catalog_of("tests")
        yield catalog
        catalog.close()
        catalog_of.cache_clear()
