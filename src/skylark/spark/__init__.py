"""The Spark connector: topics as data frames, read and written in batches and streams.

Spark finds ``format("rocketmq")`` through :mod:`pyspark_rocketmq`; programs import nothing for it.
Two modules are for users: :mod:`skylark.spark.session` (a session with suitable settings) and
:mod:`skylark.spark.lag_listener` (gauges of the lag of streams). :mod:`skylark.spark.errors` has
``find_cause``, which extracts our message from a Spark exception.

=======================  =========================================================================
``source``               reading: ``source_options``, ``offset_options``, ``schema``;
                         in the driver ``source_readers``, ``queue_bounds``, ``start_offsets``,
                         ``offset_planning``, ``stream_offset``, ``input_partitions``;
                         in tasks ``partition_reader``, ``store_file_reader``
``sink``                 writing: ``sink_options``; in tasks ``task_writer``, ``row_encoder``,
                         ``row_properties``, ``row_batcher``, ``sharding_rules``,
                         ``sink_sender``, ``sink_client``; called by Spark: ``sink_writer``
``exactly_once``         ``commit_protocol`` and ``commit_coordinator`` (driver),
                         ``half_message_sender`` (tasks), ``half_message_completion``,
                         ``txn_log``, ``txn_log_records``, ``txn_admin``
``resolver``             answers check-backs of brokers about half messages; needs no Spark
``jobs``                 what ``skylark job`` runs
``pipelines``            what ``skylark pipeline`` runs
``data_source``          the class that Spark finds
``option_table``         how options are read, and those that source and sink share
``cluster_client``       one admin client per process
``session``, ``java``    a session, and a Java for it
``error_translation``    Spark's exceptions as errors of ours
``moved_modules``        old import paths that still work
=======================  =========================================================================
"""

from skylark.spark.moved_modules import install

install()
