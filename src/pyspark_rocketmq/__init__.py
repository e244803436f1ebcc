"""The name by which Spark finds the data source ``rocketmq``; all of it is in :mod:`skylark.spark`.

Spark imports every installed package whose name begins with ``pyspark_`` and looks for this class.
"""

from __future__ import annotations

from skylark.spark.data_source import DefaultSource

__all__ = ["DefaultSource"]
