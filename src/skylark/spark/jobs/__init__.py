"""Data jobs on Spark: what ``skylark job`` runs, callable from any session.

=================  =================================  =============================================
module             reads                              writes
=================  =================================  =============================================
``archive_job``    topics                             a lake: Parquet, Delta or Iceberg
``replay_job``     a lake                             topics, in the order of the old queues
``compact_job``    a topic                            the latest row of each key
``verify_job``     a topic and a lake                 nothing: it compares them
``transform_job``  a topic                            a topic, through SQL
``mirror_job``     a topic                            a topic of another cluster
``redrive_job``    a dead-letter topic                the retry topic, or the original one
``report_job``     a topic                            figures (``topic_report``), a page
                                                      (``report_page``), charts (``report_charts``)
=================  =================================  =============================================

Each of these modules has a frozen Struct of options and ``run(spark, options, report, stop=None)``,
which returns a Struct with the figures of the run; those that write have ``plan(spark, options)``
for a dry run. They share ``job_runner`` (follows queries and batches, reads checkpoints) and
``queue_spans`` (what a run would read). Nothing here prints.
"""
