"""Data pipelines on Spark: topics as data frames, read and written in batches and streams.

``spark.read.format("rocketmq")`` and its kin need nothing of this package by name: Spark finds them
through :mod:`pyspark_rocketmq`. What users import is in :mod:`skylark.spark.session` (a session
with good settings) and :mod:`skylark.spark.lag_listener` (how far behind streams are).

===============  ==================================================================================
the source       source; options, positions, schema; batch_reader, stream_reader (driver) with
                 survey, start_offsets, stream_plan, admission, partitions, offsets and
                 group_progress; reading and file_mode (tasks)
the sink         sink; sink_options, rows; writing, sending (tasks); deciding (driver)
exactly-once     exactly_once, halves, decisions, txn_log; resolver, which needs no Spark
common           connection, option_table, cluster, errors; java (finds a Java to run Spark with)
===============  ==================================================================================
"""

from skylark.spark.moved_modules import install

install()
