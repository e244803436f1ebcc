"""Functions of the user: ``python: module:function``.

The folder of the pipeline file is put on the path of imports, so that ``jobs.alerts:transform`` is
the function ``transform`` in ``jobs/alerts.py`` beside the file. Functions that run on executors
(UDFs) are found there by name: a module, or the package it is in, that stands beside the file is
sent to them.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import pkgutil
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skylark.core.errors import ConfigError
from skylark.spark.pipelines.pipeline_file import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Transform = Callable[["DataFrame"], "DataFrame"]


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Modules beside the file can be imported."""
    path = str(folder)
    sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.path.remove(path)


def load_function(pipeline: Pipeline, folder: Path) -> Transform | None:
    """The function that a pipeline names, if it does; raises ConfigError."""
    if pipeline.python is None:
        return None
    module, _, name = pipeline.python.partition(":")
    where = f"pipeline {pipeline.name}: python: {pipeline.python}"
    try:
        found: Any = pkgutil.resolve_name(pipeline.python)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{where}: there is no module {error.name}",
                hint=f"put {module.replace('.', '/')}.py into {folder}, or install it",
            ) from error
        raise ConfigError(f"{where}: {module} needs the module {error.name}") from error
    except AttributeError as error:
        raise ConfigError(f"{where}: module {module} has no {name}") from error
    except Exception as error:
        raise ConfigError(
            f"{where}: the import failed: {type(error).__name__}: {error}", hint="--debug shows it"
        ) from error
    if not callable(found):
        raise ConfigError(f"{where}: {name} is no function")
    return found  # type: ignore[no-any-return]


def apply_function(pipeline: Pipeline, function: Transform, frame: DataFrame) -> DataFrame:
    """The frame that the function makes; raises ConfigError, and errors of Spark as they are."""
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    where = f"pipeline {pipeline.name}: {pipeline.python}"
    try:
        found: Any = function(frame)
    except PySparkException:
        raise
    except Exception as error:
        raise ConfigError(
            f"{where} failed: {type(error).__name__}: {error}", hint="--debug shows where"
        ) from error
    if not isinstance(found, DataFrame):
        raise ConfigError(f"{where} returned {type(found).__name__}, and a DataFrame is wanted")
    return found


def ship_code(spark: SparkSession, pipeline: Pipeline, folder: Path) -> None:
    """Send a module that stands beside the file, or its whole package, to the executors."""
    if pipeline.python is None:
        return
    top = pipeline.python.partition(":")[0].partition(".")[0]
    files = [folder / f"{top}.py", *sorted((folder / top).rglob("*.py"))]
    archive = _zipped({str(file.relative_to(folder)): file for file in files if file.is_file()})
    if archive is None:
        return
    # Spark takes a name only once: other code has another name.
    file = _shipped() / f"{top}-{hashlib.sha256(archive).hexdigest()[:16]}.zip"
    if not file.exists():
        file.write_bytes(archive)
    spark.addArtifacts(str(file), pyfile=True)


@cache
def _shipped() -> Path:
    """Where executors fetch what was sent, each when its first task begins: until we end."""
    folder = tempfile.mkdtemp(prefix="skylark-code-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _zipped(files: dict[str, Path]) -> bytes | None:
    """An archive that depends on names and contents alone."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as archive:
        for name, file in files.items():
            archive.writestr(zipfile.ZipInfo(name), file.read_bytes())
    return found.getvalue() if files else None
