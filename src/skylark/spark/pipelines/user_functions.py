"""User functions of pipelines: imports ``python: module:function`` and ships its code to executors.

The folder of the pipeline file is on the import path, so that ``jobs.alerts:transform`` is the
function ``transform`` in ``jobs/alerts.py`` beside the file. Functions that run on executors (UDFs)
are imported there by name: so a module beside the file, or the package that it is in, is sent to
them.
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
    """Put the folder of the file on the import path."""
    path = str(folder)
    sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.path.remove(path)


def load_function(pipeline: Pipeline, folder: Path) -> Transform | None:
    """Import the function of a pipeline; None if it has none. Raises ConfigError."""
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
            f"{where}: the import failed: {type(error).__name__}: {error}",
            hint="--debug shows the traceback",
        ) from error
    if not callable(found):
        raise ConfigError(f"{where}: {name} is not a function")
    return found  # type: ignore[no-any-return]


def apply_function(pipeline: Pipeline, function: Transform, frame: DataFrame) -> DataFrame:
    """Call the function with the frame; raises ConfigError, and errors of Spark unchanged."""
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
        raise ConfigError(f"{where} returned {type(found).__name__}, not a DataFrame")
    return found


def ship_code(spark: SparkSession, pipeline: Pipeline, folder: Path) -> None:
    """Send the module beside the file, or its whole package, to the executors."""
    if pipeline.python is None:
        return
    top = pipeline.python.partition(":")[0].partition(".")[0]
    files = [folder / f"{top}.py", *sorted((folder / top).rglob("*.py"))]
    archive = _zipped({str(file.relative_to(folder)): file for file in files if file.is_file()})
    if archive is None:
        return
    # Spark accepts a name only once, so the name depends on the content.
    file = _shipped() / f"{top}-{hashlib.sha256(archive).hexdigest()[:16]}.zip"
    if not file.exists():
        file.write_bytes(archive)
    spark.addArtifacts(str(file), pyfile=True)


@cache
def _shipped() -> Path:
    """Folder from which executors fetch the code when their first task starts; removed at exit."""
    folder = tempfile.mkdtemp(prefix="skylark-code-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _zipped(files: dict[str, Path]) -> bytes | None:
    """A zip archive whose bytes depend on names and contents only."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as archive:
        for name, file in files.items():
            archive.writestr(zipfile.ZipInfo(name), file.read_bytes())
    return found.getvalue() if files else None
