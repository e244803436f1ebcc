"""Data jobs on Spark, one module each: what ``skylark job`` runs, callable from any session.

==========  ============================================  =======================================
job         reads                                         writes
==========  ============================================  =======================================
archive     topics                                        a lake: Parquet, Delta or Iceberg
replay      a lake                                        topics, in the order of the old queues
compact     a topic                                       the latest row of each key
verify      a topic and a lake                            nothing: it compares them
transform   a topic                                       a topic, through SQL
mirror      a topic                                       a topic of another cluster
redrive     a dead-letter topic                           the retry topic, or the original one
report      a topic                                       figures, a page, pictures
==========  ============================================  =======================================

Every module has a frozen Struct of options, ``run(spark, options, report, stop=None)``, which
returns a Struct with the figures of the run, and ``plan(spark, options)`` for a dry run where it
writes. :mod:`skylark.spark.jobs.job_runner` holds what they share. Nothing here prints.
"""
