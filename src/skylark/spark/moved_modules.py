"""Table of the old module paths of this package, and the import hook that resolves them.

Pickles hold module paths. Options and readers that were pickled by an earlier version (by a
scheduler, a Spark Connect client, an executor with an older install) name the paths of that
version, and so do programs that import ``LagListener`` by its first path. All of them must keep
working after a module has moved:

=================  =================================================================================
``MOVED``          old path -> new path. ``import old`` gives the new module itself, so classes are
                   the same objects under both paths
``NAMES_OF_OLD``   old path that is a package now -> (new path, names). The package looks these
                   names up there (:func:`lazy_names`); all others are its own modules
=================  =================================================================================

Entries are never removed. A class in one of these modules keeps its name, and its fields keep their
names and order, because a pickle holds these as well: ``tests/golden/spark-8b204fb`` has examples.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MOVED: Final = {
    "skylark.spark.batch_reader": "skylark.spark.source.source_readers",
    "skylark.spark.connection": "skylark.spark.option_table",
    "skylark.spark.jobs.archive": "skylark.spark.jobs.archive_job",
    "skylark.spark.jobs.compact": "skylark.spark.jobs.compact_job",
    "skylark.spark.jobs.mirror": "skylark.spark.jobs.mirror_job",
    "skylark.spark.jobs.mirror_sending": "skylark.spark.jobs.mirror_job",
    "skylark.spark.jobs.redrive": "skylark.spark.jobs.redrive_job",
    "skylark.spark.jobs.replay": "skylark.spark.jobs.replay_job",
    "skylark.spark.jobs.report": "skylark.spark.jobs.report_job",
    "skylark.spark.jobs.transform": "skylark.spark.jobs.transform_job",
    "skylark.spark.jobs.verify": "skylark.spark.jobs.verify_job",
    "skylark.spark.lag": "skylark.spark.lag_listener",
    "skylark.spark.options": "skylark.spark.source.source_options",
    "skylark.spark.partitions": "skylark.spark.source.input_partitions",
    "skylark.spark.pipelines.reach": "skylark.spark.pipelines.pipeline_plan",
    "skylark.spark.positions": "skylark.spark.source.offset_options",
    "skylark.spark.rows": "skylark.spark.sink.row_encoder",
    "skylark.spark.sending": "skylark.spark.sink.sink_sender",
    "skylark.spark.sink_options": "skylark.spark.sink.sink_options",
    "skylark.spark.stream_reader": "skylark.spark.source.source_readers",
    "skylark.spark.writing": "skylark.spark.sink.task_writer",
    "skylark.wire.bodies.common": "skylark.wire.bodies.common_body",
}
NAMES_OF_OLD: Final = {
    "skylark.spark.exactly_once": (
        "skylark.spark.exactly_once.commit_protocol",
        frozenset({"AbandonedError", "DecisionLostError", "Prepared"}),
    ),
    "skylark.spark.sink": (
        "skylark.spark.sink.sink_writer",
        frozenset({"BatchWriter", "SinkMessage", "StreamWriter"}),
    ),
    "skylark.spark.source": ("skylark.spark.data_source", frozenset({"DefaultSource"})),
}


class _MovedFinder(MetaPathFinder, Loader):
    """Finds modules by the paths in ``MOVED``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns what is in sys.modules after this call.
        sys.modules[module.__name__] = import_module(MOVED[module.__name__])


def install() -> None:
    """Make ``import`` resolve the paths in ``MOVED``; calls after the first change nothing."""
    if not any(isinstance(finder, _MovedFinder) for finder in sys.meta_path):
        sys.meta_path.append(_MovedFinder())  # last: modules that exist do not pass through it


def lazy_names(package: str) -> Callable[[str], object]:
    """A module's ``__getattr__`` for an entry of ``NAMES_OF_OLD``.

    It imports on first use: :mod:`skylark.spark.resolver` and ``skylark pipeline status`` import
    these packages and work without pyspark.
    """
    path, names = NAMES_OF_OLD[package]

    def get_name(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(path), name)

    return get_name
