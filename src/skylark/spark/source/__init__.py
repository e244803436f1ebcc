"""Reading topics with Spark: options, offset planning, partitions and readers."""

from typing import TYPE_CHECKING

if not TYPE_CHECKING:
    from skylark.spark.moved_modules import lazy_names

    __getattr__ = lazy_names(__name__)  # this package was a module once
