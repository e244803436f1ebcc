"""Discovery shim: the package name by which Spark finds the data source ``rocketmq``.

Spark imports every installed package whose name begins with ``pyspark_`` and looks for a class
``DefaultSource``. The implementation is in :mod:`skylark.spark`.
"""

from __future__ import annotations

from skylark.spark.data_source import DefaultSource

__all__ = ["DefaultSource"]
